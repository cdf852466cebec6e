// The panel of a node: what it is, its problems, and a table of its ports.

import { make } from "./dom.js";
import { count, NONE, when } from "./format.js";
import { goTo, made, Panel } from "./panel.js";
import { errorCell, errorText, rateCell, rateText, readPorts } from "./rates.js";

/** A node with at most so many ports has all of them open from the beginning. */
const OPEN_MAX = 2;

export class NodePanel extends Panel {
  /** `buttons`: what is below the facts. */
  constructor(node, shut, buttons) {
    super([node.name || node.guid], shut);
    this.guid = node.guid;
    this.buttons.replaceChildren(...buttons);
    const ports = listed(node);
    if (ports.length <= OPEN_MAX) this.opened = new Set(ports.map((port) => String(port.number)));
  }

  /** Shows the node. `problems`: those of all nodes; `counted`: whether counters are read. */
  update(node, problems, counted) {
    [this.node, this.counted] = [node, counted];
    const real = node.ports.filter((port) => port.number > 0);
    const linked = node.ports.filter((port) => port.peer);
    this.facts([
      ["Kind", node.missing ? `${node.kind}, missing` : node.kind],
      ["LID", node.lid ? lids(node.ports.find((port) => port.lid === node.lid) ?? node) : NONE],
      ["Node GUID", node.guid, true],
      ["Ports with a link", `${linked.length} of ${real.length}`],
      ["Degraded links", count(linked.filter((port) => port.shortfall).length)],
    ]);
    const own = problems.filter(({ guid }) => guid === node.guid);
    const text = ({ port, detail }) => (port == null ? detail : `port ${port}: ${detail}`);
    this.say([...own.map((one) => `${text(one)} (since ${when(one.since_ms)})`), ...node.faults]);
    this.draw();
  }

  /** Reads counters and rates. */
  async count() {
    const read = await readPorts(this.guid);
    if (!read || !this.body.isConnected) return;
    this.read = read;
    this.draw();
  }

  draw() {
    const counters = [
      { title: "Errors", class: "n errors", hint: "Sum of the counters of errors; and per second" },
      { title: "Gb/s", class: "curves", hint: "Sent and received, the last readings" },
    ];
    const columns = [
      { title: "Port", class: "n" },
      { title: "State", class: "state" },
      { title: "Link", class: "rate" },
      { title: "Neighbour", class: "wide" },
      ...(this.counted ? counters : []),
    ];
    this.show(
      columns,
      listed(this.node).map((port) => this.portRow(port)),
    );
  }

  portRow(port) {
    const [rates, counts] = [this.read?.rates, this.read?.counts].map((of) => of?.get(port.number));
    const cells = [stateCell(tone(port), stateText(port)), linkText(port), neighbour(port)];
    if (this.counted) cells.push(errorCell(counts), rateCell(rates));
    const details = [
      ["Port GUID", made(port.guid, () => make("span", { class: "mono" }, port.guid || NONE))],
      ["LID", port.lid ? lids(port) : NONE],
      ["So since", since([port])],
      ["Can do", abilities(port)],
    ];
    if (port.peer) {
      const address = `${this.guid}-${port.peer.guid}`;
      details.push(
        ["Neighbour can", abilities(port.peer)],
        ["MTU", port.mtu ? `${port.mtu} bytes` : NONE],
        ["Link", made(address, () => goTo(address, "show on the map"))],
      );
    }
    // External ports of a switch join and offer nothing.
    const isExternal = this.node.kind === "switch" && port.number > 0;
    if (port.pkeys) details.push(...memberships(port).slice(0, isExternal ? 1 : undefined));
    if (this.counted) details.push(["Counters", errorText(counts)], ["Rates", rateText(rates)]);
    return { key: String(port.number), cells, details };
  }
}

/** The ports that are shown: of a switch also port 0, which has its LID. */
const listed = (node) =>
  node.ports.filter((port) => port.number > 0 || port.lid || node.ports.length === 1);

/** `7`, or `8 to 11` with an LMC of 2. */
const lids = ({ lid, lmc }) => (lmc ? `${lid} to ${lid + 2 ** lmc - 1}` : String(lid));

const stateText = (port) =>
  port.missing ? "Link missing" : port.fault ? `${port.state}, error` : port.state;

/** A state with its colour. */
export const stateCell = (tone, text) =>
  made(`${tone} ${text}`, () => make("span", { class: "dot", "data-tone": tone }, text));

/** Width and speed, and those that the link could have. */
export function linkText(port) {
  if (!port.link) return port.physical_state === "LinkUp" ? "" : (port.physical_state ?? "");
  if (!port.shortfall) return port.link;
  const text = `${port.link} of ${port.shortfall}`;
  const title = `both ends support ${port.shortfall}`;
  return made(text, () => make("span", { "data-tone": "warn", title }, text));
}

/** A button that shows the node at the other end of a link, or of a link that is missing. */
function neighbour(port) {
  const peer = port.peer ?? port.missing;
  if (!peer) return NONE;
  const text = `${peer.name} /${peer.port}`;
  return made(`${text} ${peer.guid}`, () => goTo(peer.guid, text, `${peer.name} · ${peer.guid}`));
}

/** Widest width and fastest speed of a port, and what is enabled of it. */
export function abilities({ supported, enabled }) {
  if (!supported) return NONE;
  return enabled === supported ? supported : `${supported}; enabled: ${enabled ?? "nothing"}`;
}

/** Since when ports are as they are: since the last of them changed. */
export function since(ports) {
  const known = ports.filter((port) => port.since_ms);
  if (!known.length) return NONE;
  const last = known.reduce((one, other) => (other.since_ms > one.since_ms ? other : one));
  return last.since_is_exact ? when(last.since_ms) : `${when(last.since_ms)} or before`;
}

function memberships({ pkeys, groups, services, unlisted }) {
  const partition = ({ pkey, name }) => (name ? `${pkey} ${name}` : pkey);
  const lines = (list, text) =>
    list.length
      ? made(list.map(text).join("\n"), () => list.map((one) => make("div", {}, text(one))))
      : "none";
  const pairs = [
    ["P_Keys", lines(pkeys, (one) => `${partition(one)}, ${one.is_full ? "full" : "limited"}`)],
    [
      "Groups",
      lines(groups, (group) =>
        [group.ip, group.mgid, partition(group.partition), group.join_states.join(", ")]
          .filter(Boolean)
          .join(" · "),
      ),
    ],
    [
      "Services",
      lines(services, ({ service_id: id, name, partition: of }) =>
        [name, id, partition(of)].filter(Boolean).join(" · "),
      ),
    ],
  ];
  if (unlisted) pairs.push(["Not listed", `${count(unlisted)} groups and services`]);
  return pairs;
}

/** States of ports that carry data; of an earlier time no more may be known. */
const GOOD = ["Active", "linked"];

/** How good the state of a port is. */
export function tone(port) {
  if (port.fault || port.missing) return "bad";
  const isGood = GOOD.includes(port.state);
  if (!port.peer) return isGood && port.number === 0 ? "good" : "none";
  return !isGood ? "bad" : port.shortfall ? "warn" : "good";
}
