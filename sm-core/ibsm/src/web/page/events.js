// The list of events: what happened, the newest first.

import { byId, fill, make, setAttribute, setText } from "./dom.js";
import { count, when, words } from "./format.js";

/** Events kept; older ones are in `ibsmctl events`. */
const EVENTS_MAX = 1000;
/** Rows shown. */
const ROWS_MAX = 300;
const TONES = { critical: "bad", warning: "warn", notice: "none" };

export class EventsView {
  constructor() {
    this.list = [];
    this.filter = "";
    this.timer = undefined;
    const field = byId("event-filter");
    field.addEventListener("input", () => {
      this.filter = field.value.trim().toLowerCase();
      this.show();
    });
  }

  /** Follows the events from the first time that the view is shown. */
  open() {
    if (!this.source) this.connect();
    this.show();
  }

  connect() {
    clearTimeout(this.timer);
    const last = this.list[0]?.number;
    const from = last === undefined ? "last=500" : `from=${last + 1}`;
    this.source = new EventSource(`/api/v1/events?${from}`);
    this.source.addEventListener("event", ({ data }) => this.take(JSON.parse(data)));
    this.source.addEventListener("error", () => {
      // The browser reconnects automatically unless the request was refused.
      if (this.source.readyState === EventSource.CLOSED) {
        this.timer = setTimeout(() => this.connect(), 5000);
      }
    });
  }

  take(event) {
    // Another history began.
    if (event.number <= (this.list[0]?.number ?? 0)) this.list = [];
    this.list.unshift(event);
    if (this.list.length > EVENTS_MAX) this.list.length = EVENTS_MAX;
    // Many may arrive at once.
    this.due ??= requestAnimationFrame(() => {
      this.due = undefined;
      this.show();
    });
  }

  show() {
    if (byId("events").hidden) return;
    const has = (text) => text?.toLowerCase().includes(this.filter);
    const found = this.filter
      ? this.list.filter(({ kind, text, name, guid }) => [kind, text, name, guid].some(has))
      : this.list;
    const none = this.filter ? "No event matches." : "No events.";
    fill(byId("event-table").tBodies[0], found.slice(0, ROWS_MAX), COLUMNS, { none });
    const more = byId("events-more");
    more.hidden = found.length <= ROWS_MAX;
    setText(more, `${count(found.length - ROWS_MAX)} earlier events are not shown.`);
  }
}

const COLUMNS = [
  { class: "n", text: (event) => when(event.time_ms) },
  {
    text: (event, cell) => {
      const mark = cell.firstElementChild ?? make("span", { class: "pill" });
      if (!cell.firstElementChild) cell.replaceChildren(mark);
      setAttribute(mark, "data-tone", TONES[event.severity] ?? "none");
      setText(mark, words(event.kind));
      return undefined;
    },
  },
  {
    text: (event, cell) => {
      const where = event.port == null ? event.name : `${event.name} port ${event.port}`;
      // Nodes that are gone have no page of their own.
      if (!event.guid || event.kind === "node_went") return where || "subnet";
      const link = cell.firstElementChild ?? make("a");
      if (!cell.firstElementChild) cell.replaceChildren(link);
      setAttribute(link, "href", `#/fabric/${event.guid}`);
      setText(link, where || event.guid);
      return undefined;
    },
  },
  { text: (event) => event.text },
  { class: "n", text: (event) => count(event.number) },
];
