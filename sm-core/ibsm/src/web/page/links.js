// The panel of the links between two nodes.

import { count, NONE, when } from "./format.js";
import { abilities, linkText, since, stateCell, tone } from "./node.js";
import { goTo, made, Panel } from "./panel.js";
import { errorCell, errorText, rateCell, rateText, readPorts } from "./rates.js";

/** Up to so many links are open from the beginning. */
const OPEN_MAX = 2;

/** The two GUIDs in the address of links, such as `0x…1-0x…2`; nothing if it is another one. */
export const endsOf = (address) => address?.match(/^(0x[0-9a-f]+)-(0x[0-9a-f]+)$/)?.slice(1);

export class LinkPanel extends Panel {
  /** `a`, `b`: the nodes. */
  constructor(a, b, shut) {
    super([goTo(a.guid, a.name || a.guid), " – ", goTo(b.guid, b.name || b.guid)], shut);
    this.guids = [a.guid, b.guid];
    const links = linksOf(a, b);
    if (links.length <= OPEN_MAX) this.opened = new Set(links.map((link) => link.key));
  }

  /** Shows the links. `problems`: of all nodes; `counted`: whether counters are read. */
  update([a, b], problems, counted) {
    [this.nodes, this.counted, this.links] = [[a, b], counted, linksOf(a, b)];
    this.facts([
      ["Links", count(this.links.length)],
      ["Missing", count(this.links.filter(({ near }) => near.missing).length)],
      ["Degraded", count(this.links.filter(({ near }) => near.shortfall).length)],
      ["Node GUIDs", `${a.guid} – ${b.guid}`, true],
    ]);
    const key = (node, port) => `${node.guid}/${port.number}`;
    const of = new Set(this.links.flatMap(({ near, far }) => [key(a, near), key(b, far)]));
    const found = problems.filter(({ guid, port }) => of.has(`${guid}/${port}`));
    this.say(found.map((one) => `${one.detail} (since ${when(one.since_ms)})`));
    this.draw();
  }

  /** Reads counters and rates of both ends. */
  async count() {
    const read = await Promise.all(this.guids.map(readPorts));
    if (!this.body.isConnected) return;
    this.read = read;
    this.draw();
  }

  draw() {
    const [a, b] = this.nodes.map((node) => node.name || node.guid);
    const counters = [
      { title: "Errors", class: "n errors", hint: `Counted at the port of ${a}` },
      { title: "there", class: "n errors", hint: `Counted at the port of ${b}` },
      { title: "Gb/s", class: "curves", hint: `Sent and received by the port of ${a}` },
    ];
    const columns = [
      { title: "Port", class: "n", hint: `Port of ${a}` },
      { title: "State", class: "state" },
      { title: "Link", class: "wide" },
      { title: "To", class: "n to", hint: `Port of ${b}` },
      ...(this.counted ? counters : []),
    ];
    this.show(
      columns,
      this.links.map((link) => this.linkRow(link, a, b)),
    );
  }

  linkRow({ key, near, far }, a, b) {
    const states = near.missing
      ? ["Link missing"]
      : [...new Set([near.state, far.state ?? NONE])].filter(Boolean);
    const tones = [tone(near), far.number == null || near.missing ? tone(near) : tone(far)];
    const worst = ["bad", "none", "warn", "good"].find((one) => tones.includes(one));
    const cells = [
      stateCell(worst, states.join(" – ")),
      near.link ? linkText(near) : NONE,
      String((near.peer ?? near.missing).port),
    ];
    const details = [
      ["So since", since([near, far])],
      [`${a} can`, abilities(near)],
      [`${b} can`, abilities(far)],
      ["MTU", near.mtu ? `${near.mtu} bytes` : NONE],
    ];
    if (this.counted) {
      const [here, there] = [near, far].map((port, at) => this.read?.[at]?.counts.get(port.number));
      const rates = this.read?.[0]?.rates.get(near.number) ?? seenFrom(this.read?.[1], far);
      cells.push(errorCell(here), errorCell(there), rateCell(rates));
      details.push(
        [`${a} counts`, errorText(here)],
        [`${b} counts`, errorText(there)],
        ["Load", rates ? `${rateText(rates)}, as seen from ${a}` : NONE],
      );
    }
    return { key, cells, details };
  }
}

/** The rates of a link by its far end, if the near one is not read. */
function seenFrom(read, far) {
  const port = read?.rates.get(far.number);
  return port && { ...port, sent_gbps: port.received_gbps, received_gbps: port.sent_gbps };
}

/** The links between two nodes, also those that are missing. */
function linksOf(a, b) {
  const far = new Map(b.ports.map((port) => [port.number, port]));
  const ends = a.ports.filter((port) => (port.peer ?? port.missing)?.guid === b.guid);
  return ends.map((near) => ({
    key: String(near.number),
    near,
    far: far.get((near.peer ?? near.missing).port) ?? {},
  }));
}
