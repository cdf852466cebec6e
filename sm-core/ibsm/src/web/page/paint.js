// Drawing of the map. Items too small to be visible are drawn together: the hosts of a switch as a
// bar, and only a share of thousands of links.

import { colour, context } from "./dom.js";
import { HEAT } from "./heat.js";

const DEGRADED = 1,
  INACTIVE = 2,
  MISSING = 4;
/** Dashes of what is missing. */
const MISSING_DASH = [3, 4];
/** Limits of lines drawn, at rest and while moving. */
const LINES_MAX = 6000,
  LINES_MOVING = 1500;

/** Draws a map. */
export function paint(map) {
  const place = context(map.canvas);
  if (!place) return;
  const { context: c, width, height } = place;
  const f = map.frame();
  map.canvas.dataset.zoom = map.view.zoom.toFixed(2);
  map.canvas.dataset.still = String(!map.moving);
  paintLinks(map, c, f, width, height);
  const isSeen = (at) => {
    const x = f.px(map.x[at]);
    return x > -f.cell.w && x < width + f.cell.w;
  };
  const seen = [];
  for (let at = 0; at < map.places; at++) if (isSeen(at)) seen.push(at);
  paintTies(map, c, f, seen, height);
  paintHosts(map, c, f, seen, height);
  const switches = seen.filter((at) => at < map.count);
  paintSwitches(map, c, f, switches, height);
  paintMarks(map, c, f);
}

function paintLinks(map, c, f, width, height) {
  const inside = (a, b, most) => Math.max(a, b) >= 0 && Math.min(a, b) <= most;
  const visible = map.lines.filter(
    ({ a, b }) =>
      inside(f.px(map.x[a]), f.px(map.x[b]), width) &&
      inside(f.py(map.row[a]), f.py(map.row[b]), height),
  );
  const most = map.moving ? LINES_MOVING : LINES_MAX;
  const every = 2 ** Math.ceil(Math.log2(Math.max(visible.length / most, 1)));
  map.drawn = new Set();
  const trace = (line) => {
    const { a, b } = line;
    map.drawn.add(line);
    const [xa, ya] = [f.px(map.x[a]), f.py(map.row[a])];
    const [xb, yb] = [f.px(map.x[b]), f.py(map.row[b])];
    c.moveTo(xa, ya);
    // Within a row a straight line would be hidden by the switches.
    if (map.row[a] === map.row[b])
      c.quadraticCurveTo((xa + xb) / 2, ya - map.bulge(f, xa, xb), xb, yb);
    else c.lineTo(xb, yb);
  };
  c.strokeStyle = colour("--edge");
  c.globalAlpha = Math.min(Math.max(240 / Math.min(visible.length, LINES_MAX), 0.07), 0.4);
  c.lineWidth = 1;
  c.beginPath();
  // The choice of omitted lines does not depend on the view, or they would flicker.
  for (const line of visible)
    if (line.links && (every === 1 || (line.a * 31 + line.b * 17) % every === 0)) trace(line);
  c.stroke();
  map.layer?.paintLinks(c, visible, most, trace);
  for (const [flag, tint, dash] of [
    [DEGRADED, "--warn", []],
    [INACTIVE, "--bad", [6, 4]],
    [MISSING, "--bad", MISSING_DASH],
  ]) {
    c.strokeStyle = colour(tint);
    c.globalAlpha = 0.95;
    c.lineWidth = 2;
    c.setLineDash(dash);
    c.beginPath();
    for (const line of visible) if (line.flags & flag) trace(line);
    c.stroke();
  }
  c.setLineDash([]);
  const own = map.selected === undefined ? undefined : map.bySwitch.get(map.home(map.selected));
  if (own) {
    c.strokeStyle = colour("--accent");
    c.globalAlpha = 0.9;
    c.lineWidth = 1.75;
    c.beginPath();
    own.forEach(trace);
    c.stroke();
  }
  if (map.chosen.length) {
    c.strokeStyle = colour("--accent");
    c.globalAlpha = 1;
    c.lineWidth = 3.5;
    c.beginPath();
    map.chosen.forEach(trace);
    c.stroke();
  }
  c.globalAlpha = 1;
}

function paintHosts(map, c, f, seen, height) {
  const single = f.cell.h >= 3 && f.cell.w >= 4;
  const labelled = f.cell.h >= 14 && f.cell.w >= 64;
  const flagged = [[], [], [], []];
  const hot = HEAT.map(() => []);
  const gone = [];
  const texts = [];
  c.fillStyle = labelled ? colour("--card") : colour("--host");
  c.strokeStyle = colour("--host");
  c.beginPath();
  for (const place of seen) {
    const amount = map.amount[place];
    if (amount === 0) continue;
    const [x, top] = [f.px(map.x[place]) - f.cell.w / 2, map.hostsTop(f, place)];
    if (top > height || top + amount * f.cell.h < 0) continue;
    if (!single) c.fillRect(x, top, f.cell.w, Math.max(amount * f.cell.h, 1));
    const isGone = map.missing.size > 0;
    for (let at = 0; at < amount; at++) {
      const y = top + at * f.cell.h;
      if (y > height || y + f.cell.h < 0) continue;
      const host = map.first[place] + at;
      const flags = map.map.hosts.link[host] & (DEGRADED | INACTIVE);
      const [w, h] = [f.cell.w - 1, f.cell.h - (f.cell.h > 6 ? 3 : 1)];
      if (isGone && map.missing.has(map.count + host)) {
        gone.push([x, y, w, h]);
        if (labelled) texts.push([map.map.hosts.name[host], x, y]);
        continue;
      }
      if (flags) flagged[flags].push([x, y]);
      hot[map.layer?.heatOfHost(host) ?? -1]?.push([x, y, w, h]);
      if (!single) continue;
      // Single rectangles are faster than one path.
      if (!labelled) c.fillRect(x + 0.5, y + 0.5, w, h);
      else {
        c.rect(x + 0.5, y + 0.5, w, h);
        texts.push([map.map.hosts.name[host], x, y]);
      }
    }
  }
  if (!labelled) map.layer?.paintHosts(c, hot, single);
  if (labelled) {
    c.fill();
    map.layer?.paintHosts(c, hot, single);
    c.beginPath();
    for (const [, x, y] of texts) c.rect(x + 0.5, y + 0.5, f.cell.w - 1, f.cell.h - 3);
    c.globalAlpha = 0.75;
    c.lineWidth = 1;
    c.stroke();
    c.globalAlpha = 1;
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.fillStyle = colour("--text");
    for (const [text, x, y] of texts)
      c.fillText(fitted(c, text, f.cell.w - 12), x + 6, y + (f.cell.h - 2) / 2);
  }
  if (gone.length) {
    c.strokeStyle = colour("--bad");
    c.lineWidth = 1;
    // In a bar, a gap; where there is room, a dashed frame.
    if (!single) {
      c.fillStyle = colour("--ground");
      for (const [x, y, w, h] of gone) c.fillRect(x, y, w + 1, Math.max(h, 1));
    }
    c.setLineDash(MISSING_DASH);
    c.beginPath();
    for (const [x, y, w, h] of gone) {
      if (single) c.rect(x + 0.5, y + 0.5, w, Math.max(h, 1));
      else {
        c.moveTo(x, y);
        c.lineTo(x + w, y);
      }
    }
    c.stroke();
    c.setLineDash([]);
  }
  for (const [flags, places] of flagged.entries()) {
    c.fillStyle = colour(flags & INACTIVE ? "--bad" : "--warn");
    for (const [x, y] of places) {
      c.fillRect(
        x,
        y,
        labelled ? 4 : Math.max(f.cell.w, 2),
        Math.max(f.cell.h - (labelled ? 2 : 1), 2),
      );
    }
  }
}

function paintSwitches(map, c, f, seen, height) {
  const { w, h } = f.box;
  const labelled = w >= 52 && h >= 12;
  c.fillStyle = labelled ? colour("--card") : colour("--switch");
  c.strokeStyle = colour("--switch");
  c.lineWidth = 1.5;
  c.beginPath();
  const inside = seen.filter((at) => f.py(map.row[at]) > -h && f.py(map.row[at]) < height + h);
  const gone = map.missing.size ? inside.filter((at) => map.missing.has(at)) : [];
  for (const at of inside) {
    if (gone.length && map.missing.has(at)) continue;
    const [x, y] = [f.px(map.x[at]) - w / 2, f.py(map.row[at]) - h / 2];
    if (labelled) c.roundRect(x, y, w, h, 3);
    else c.fillRect(x, y, w, h);
  }
  if (labelled) {
    c.fill();
    c.stroke();
  }
  if (gone.length) {
    c.strokeStyle = colour("--bad");
    c.setLineDash(MISSING_DASH);
    c.beginPath();
    for (const at of gone)
      c.roundRect(f.px(map.x[at]) - w / 2, f.py(map.row[at]) - h / 2, w, h, labelled ? 3 : 0);
    c.stroke();
    c.setLineDash([]);
  }
  if (!labelled) return;
  c.font = "600 11.5px system-ui, sans-serif";
  c.textBaseline = "middle";
  c.textAlign = "center";
  c.fillStyle = colour("--text");
  for (const at of inside)
    c.fillText(
      fitted(c, map.map.switches.name[at], w - 10),
      f.px(map.x[at]),
      f.py(map.row[at]) + 0.5,
    );
}

/** Draws the links of hosts, from the side of their switch down to each. */
function paintTies(map, c, f, seen, height) {
  const away = map.tie(f);
  if (away === undefined) return;
  const styles = [
    { tint: "--edge", alpha: 0.4, line: 1, dash: [], hosts: [] },
    { tint: "--warn", alpha: 0.95, line: 2, dash: [], hosts: [] },
    { tint: "--bad", alpha: 0.95, line: 2, dash: [6, 4], hosts: [] },
    { tint: "--bad", alpha: 0.95, line: 2, dash: MISSING_DASH, hosts: [] },
    { tint: "--accent", alpha: 1, line: 3.5, dash: [], hosts: [] },
  ];
  const hot = HEAT.map((tint, step) => {
    return { tint, alpha: 0.9, line: 1 + step * 0.35, dash: [], hosts: [] };
  });
  const [usual, slow, inactive, gone, chosen] = styles;
  c.beginPath();
  for (const place of seen) {
    const amount = map.amount[place];
    if (place >= map.count || amount === 0) continue;
    const [x, top] = [f.px(map.x[place]) - f.cell.w / 2, map.hostsTop(f, place)];
    if (top > height || top + amount * f.cell.h < 0) continue;
    traceTrunk(map, c, f, place, top + (amount - 0.5) * f.cell.h);
    for (let at = 0; at < amount; at++) {
      const y = top + (at + 0.5) * f.cell.h;
      if (y < 0 || y > height) continue;
      const host = map.first[place] + at;
      const flags = map.map.hosts.link[host];
      const style =
        map.missing.has(map.count + host) || flags & MISSING
          ? gone
          : flags & INACTIVE
            ? inactive
            : flags & DEGRADED
              ? slow
              : (hot[map.layer?.heatOfHost(host) ?? -1] ?? usual);
      style.hosts.push([x, y]);
    }
  }
  c.strokeStyle = colour(usual.tint);
  c.globalAlpha = usual.alpha;
  c.lineWidth = 1;
  c.stroke();
  for (const { tint, alpha, line, dash, hosts } of [...styles, ...hot]) {
    if (!hosts.length) continue;
    [c.strokeStyle, c.globalAlpha, c.lineWidth] = [colour(tint), alpha, line];
    c.setLineDash(dash);
    c.beginPath();
    for (const [x, y] of hosts) {
      c.moveTo(x - away, y);
      c.lineTo(x, y);
    }
    c.stroke();
  }
  [c.strokeStyle, c.globalAlpha, c.lineWidth] = [colour(chosen.tint), chosen.alpha, chosen.line];
  c.setLineDash([]);
  c.beginPath();
  for (const number of map.chosenHosts) {
    const { x, y, h } = map.boxOf(f, number);
    traceTrunk(map, c, f, map.home(number), y + h / 2);
    c.lineTo(x, y + h / 2);
  }
  c.stroke();
  c.globalAlpha = 1;
}

/** Traces the line from a switch down to the height of one of its hosts. */
function traceTrunk(map, c, f, place, bottom) {
  const [x, y] = [f.px(map.x[place]), f.py(map.row[place])];
  const beside = x - f.cell.w / 2 - map.tie(f);
  c.moveTo(x - f.box.w / 2, y);
  c.lineTo(beside, y);
  c.lineTo(beside, bottom);
}

/** Draws rings around nodes with faults, the subnet manager and the selected node. */
function paintMarks(map, c, f) {
  const ring = (number, tint, grow, line) => {
    const { x, y, w, h } = map.boxOf(f, number);
    c.strokeStyle = colour(tint);
    c.lineWidth = line;
    c.beginPath();
    c.roundRect(x - grow, y - grow, w + 2 * grow, h + 2 * grow, 4);
    c.stroke();
  };
  for (const number of map.faulty) ring(number, "--bad", 2, 2);
  if (map.map.sm != null) ring(map.map.sm, "--good", 2, 2);
  const chosen = map.selected === undefined ? map.ends : [map.selected];
  for (const number of chosen) ring(number, "--accent", 4, 3);
}

/** Text, truncated to the available width. */
function fitted(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let length = Math.max(1, Math.floor((text.length * room) / c.measureText(text).width) - 1);
  while (length > 1 && c.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}
