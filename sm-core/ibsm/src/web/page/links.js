// The links between two switches: where they are on the map, and the panel that shows them.

import { byId, make } from "./dom.js";
import { count, NONE } from "./format.js";
import { showRates } from "./rates.js";

/** How near to a line a point is on it, in pixels. */
const NEAR = 5;
/** Points of a curve between two switches of a row that the distance is measured to. */
const CURVE_STEPS = 12;

/** The line of a map nearest to a point, if one is there. */
export function lineAt(map, px, py) {
  const f = map.frame();
  let best,
    least = NEAR;
  for (const line of map.lines) {
    const [xa, ya] = [f.px(map.x[line.a]), f.py(map.row[line.a])];
    const [xb, yb] = [f.px(map.x[line.b]), f.py(map.row[line.b])];
    if (px < Math.min(xa, xb) - NEAR || px > Math.max(xa, xb) + NEAR) continue;
    const away =
      ya === yb
        ? fromCurve(px, py, xa, xb, ya, map.bulge(f, xa, xb))
        : fromSegment(px, py, xa, ya, xb, yb);
    if (away < least) [best, least] = [line, away];
  }
  return best;
}

function fromSegment(px, py, xa, ya, xb, yb) {
  const [dx, dy] = [xb - xa, yb - ya];
  const length = dx * dx + dy * dy;
  const part = length ? ((px - xa) * dx + (py - ya) * dy) / length : 0;
  const at = Math.min(Math.max(part, 0), 1);
  return Math.hypot(px - xa - at * dx, py - ya - at * dy);
}

/** Distance from a quadratic curve above a row. */
function fromCurve(px, py, xa, xb, y, bulge) {
  let least = Infinity;
  let [x0, y0] = [xa, y];
  for (let step = 1; step <= CURVE_STEPS; step++) {
    const t = step / CURVE_STEPS;
    const [x1, y1] = [xa + (xb - xa) * t, y - 2 * t * (1 - t) * bulge];
    least = Math.min(least, fromSegment(px, py, x0, y0, x1, y1));
    [x0, y0] = [x1, y1];
  }
  return least;
}

/** The two GUIDs in the address of a link, such as `0x…1-0x…2`; nothing if it is that of a node. */
export const endsOf = (address) => address?.match(/^(0x[0-9a-f]+)-(0x[0-9a-f]+)$/)?.slice(1);

/** What the panel shows of the links between two nodes, each given by its document. */
export function linkPanel([a, b], problems, shut) {
  const ends = a.ports.filter((port) => (port.peer ?? port.missing)?.guid === b.guid);
  const far = new Map(b.ports.map((port) => [port.number, port]));
  const links = ends.map((near) => ({
    near,
    far: far.get((near.peer ?? near.missing).port) ?? {},
  }));
  const slow = links.filter(({ near }) => near.shortfall);
  const gone = links.filter(({ near }) => near.missing);
  const terms = [
    ["Links", count(links.length)],
    ["Missing", count(gone.length)],
    ["Degraded", count(slow.length)],
    ["Node GUIDs", `${a.guid} – ${b.guid}`, true],
  ];
  const of = new Set(links.flatMap(({ near, far }) => [key(a, near), key(b, far)]));
  const found = problems.filter(({ guid, port }) => of.has(`${guid}/${port}`));
  return [
    make("header", {}, make("h2", {}, goTo(a), " – ", goTo(b)), shut),
    make(
      "dl",
      {},
      ...terms.flatMap(([term, text, mono]) => [
        make("dt", {}, term),
        make("dd", { class: mono ? "mono" : "" }, text),
      ]),
    ),
    found.length
      ? make(
          "ul",
          { class: "faults", "aria-label": "Problems of these links" },
          ...found.map(({ detail }) => make("li", {}, detail)),
        )
      : null,
    table(a, b, links),
  ].filter(Boolean);
}

const key = (node, port) => `${node.guid}/${port.number}`;

/** A button that selects a node. */
function goTo(node) {
  const onclick = () => {
    location.hash = `#/fabric/${node.guid}`;
  };
  return make("button", { type: "button", class: "link", onclick }, node.name || node.guid);
}

function table(a, b, links) {
  const heads = [`Port of ${a.name}`, "State", "Link", `Port of ${b.name}`];
  const rows = links.map(({ near, far }) => {
    const states = near.missing
      ? ["Link missing"]
      : [...new Set([near.state, far.state ?? NONE])].filter(Boolean);
    const tone =
      near.missing || near.fault || far.fault || states.some((state) => !GOOD.includes(state))
        ? "bad"
        : near.shortfall
          ? "warn"
          : "good";
    return make(
      "tr",
      { "data-port": String(near.number) },
      make("td", { class: "n" }, String(near.number)),
      make("td", {}, make("span", { class: "dot", "data-tone": tone }, states.join(" – "))),
      make(
        "td",
        {},
        near.link ?? NONE,
        near.shortfall ? make("small", {}, `both ends support ${near.shortfall}`) : null,
      ),
      make("td", { class: "n" }, String((near.peer ?? near.missing).port)),
    );
  });
  const head = heads.map((title) => make("th", { scope: "col" }, title));
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows),
  );
}

/** States of ports whose link carries data; of an earlier time no more may be known. */
const GOOD = ["Active", "linked"];

/** Adds the rates of the links to the panel, as the first of the two switches counts them. */
export const showLinkRates = ([a, b]) => showRates(a, `${a}-${b}`);

/** Shows a panel that replaces what is there. */
export function showPanel(...content) {
  const panel = byId("detail");
  panel.hidden = false;
  panel.replaceChildren(...content);
}
