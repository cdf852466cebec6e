// The busiest links: a table of the overview.

import { byId, choice, fill, make, setText } from "./dom.js";
import { clock, gbps, NONE, percent, rate } from "./format.js";

const ROWS = 12;

export class BusyLinks {
  constructor() {
    this.order = "rate";
    choice(byId("busy-order"), "by", (order) => {
      this.order = order;
      this.sweep = undefined;
      this.update(this.moment);
    });
  }

  /** Fetches the table when another sweep of the performance manager has ended. */
  update(moment) {
    this.moment = moment;
    const sweep = moment?.counter_sweeps;
    byId("busy").classList.toggle("off", sweep == null);
    if (sweep == null) {
      this.show([], "Counters of ports are not read: set perfmgr TRUE and restart ibsm.");
      return setText(byId("busy-time"), "");
    }
    if (sweep === this.sweep) return undefined;
    this.sweep = sweep;
    return this.load();
  }

  async load() {
    const order = this.order;
    try {
      const answer = await fetch(`/api/v1/links?by=${order}&count=${ROWS}`);
      const top = answer.ok ? await answer.json() : undefined;
      if (!top || order !== this.order) return;
      const none = top.sweep
        ? order === "errors"
          ? "No link has new errors."
          : "No link has traffic."
        : "The first sweep of the performance manager has not ended yet.";
      this.show(top.links, none);
      setText(byId("busy-time"), top.sweep ? `read at ${clock(top.time_ms)}` : "");
    } catch {
      this.sweep = undefined;
    }
  }

  show(links, none) {
    fill(byId("busy-table").tBodies[0], links, COLUMNS, { none });
  }
}

/** A link to the page of a node. */
function port(cell, { name, guid, port: number }) {
  const link = cell.firstElementChild ?? make("a");
  if (!cell.firstElementChild) cell.replaceChildren(link);
  link.href = `#/fabric/${guid}`;
  setText(link, `${name} /${number}`);
}

const errors = (value) => (value > 0 ? rate(value) : "0");

const COLUMNS = [
  { text: ({ from }, cell) => port(cell, from) },
  { text: ({ to }, cell) => port(cell, to) },
  { class: "n", text: (link) => gbps(link.gbps) },
  { class: "n", text: (link) => (link.percent == null ? NONE : percent(link.percent / 100)) },
  {
    class: "n",
    text: (link) => errors(link.from_errors_per_s),
    soft: (link) => link.from_errors_per_s === 0,
  },
  {
    class: "n",
    text: (link) => errors(link.to_errors_per_s),
    soft: (link) => link.to_errors_per_s === 0,
  },
];
