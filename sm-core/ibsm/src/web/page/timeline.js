// The slider of time below the map: which time is shown, and what happened around it.

import { byId, choice, fill, make, setText } from "./dom.js";
import { clock, count, when, words } from "./format.js";

const RANGES = { "1h": 3600e3, "24h": 86_400e3, "7d": 7 * 86_400e3 };
/** Steps of the slider. */
const STEPS = 1000;
/** Events of so long before and after the chosen time are listed, and at most so many. */
const AROUND_MS = 300e3,
  EVENTS_MAX = 200;
/** Kinds of events that are marks on the slider. */
const CHANGES = "node_came,node_went,link_came,link_went,link_changed,mastership";
/** How long after a change the map that shows it is published, at most. */
const PUBLISHED_MS = 1000;
/** A pause after which a moved slider is followed. */
const SETTLE_MS = 200;

export class Timeline {
  /** `chosen` is called with a time in milliseconds since 1970, or nothing for now. */
  constructor(chosen) {
    this.chosen = chosen;
    this.range = "1h";
    this.at = undefined;
    this.mark = undefined;
    this.marks = [];
    this.slider = byId("time");
    this.slider.max = String(STEPS);
    this.slider.addEventListener("input", () => this.moved());
    this.slider.addEventListener("keydown", (event) => event.stopPropagation());
    choice(byId("time-range"), "range", (range) => {
      this.range = range;
      this.load();
    });
    byId("time-now").addEventListener("click", () => this.choose(undefined));
    byId("time-back").addEventListener("click", () => this.jump(-1));
    byId("time-on").addEventListener("click", () => this.jump(1));
  }

  /** Shows the slider if a history is kept. */
  async open() {
    try {
      const answer = await fetch("/api/v1/history");
      this.extent = answer.ok ? await answer.json() : undefined;
    } catch {
      return;
    }
    byId("timeline").hidden = !this.extent?.kept;
    if (this.extent?.kept) await this.load();
  }

  /** The span of time that the slider covers. */
  span() {
    const until = this.until ?? Date.now();
    const from = Math.min(this.extent?.from_ms ?? until, until - 1000);
    return [this.range === "all" ? from : Math.max(until - RANGES[this.range], from), until];
  }

  /** Fetches the changes of the span. */
  async load() {
    this.until = Date.now();
    const [from, until] = this.span();
    try {
      const query = `since_ms=${Math.floor(from)}&until_ms=${until}&kind=${CHANGES}`;
      const answer = await fetch(`/api/v1/history/events?${query}`);
      this.marks = answer.ok ? [...new Set((await answer.json()).map((one) => one.time_ms))] : [];
    } catch {
      this.marks = [];
    }
    const place = (time) => `${(((time - from) / (until - from)) * 100).toFixed(2)}%`;
    byId("time-marks").replaceChildren(
      ...this.marks.map((time) => {
        const mark = make("i");
        mark.style.left = place(time);
        return mark;
      }),
    );
    this.show();
  }

  /** The fabric changed: shows the marks up to now, unless an earlier time is shown. */
  refresh() {
    if (this.at === undefined && this.extent?.kept) this.load();
  }

  moved() {
    const [from, until] = this.span();
    const value = Number(this.slider.value);
    clearTimeout(this.settling);
    const at = value >= STEPS ? undefined : from + ((until - from) * value) / STEPS;
    this.showTime(at);
    this.settling = setTimeout(() => this.choose(at), SETTLE_MS);
  }

  /** Goes to the change before or after the shown time: to when the map shows it. */
  jump(way) {
    const now = this.mark ?? this.at ?? Infinity;
    const after = (time) => this.marks.find((other) => other > time);
    const mark = way < 0 ? this.marks.findLast((time) => time < now) : after(now);
    if (mark === undefined) {
      if (way > 0) this.choose(undefined);
      return;
    }
    const next = after(mark) ?? Date.now();
    this.choose(Math.max(mark + 1, Math.min(mark + PUBLISHED_MS, (mark + next) / 2)), mark);
  }

  /** Shows a time; `mark` is the change that it was chosen for. */
  choose(at, mark) {
    clearTimeout(this.settling);
    this.mark = mark;
    this.at = at === undefined ? undefined : Math.round(at);
    this.show();
    this.chosen(this.at);
    this.list();
  }

  show() {
    const [from, until] = this.span();
    const part = this.at === undefined ? 1 : (this.at - from) / (until - from);
    this.slider.value = String(Math.round(Math.min(Math.max(part, 0), 1) * STEPS));
    this.showTime(this.at);
    const now = this.mark ?? this.at ?? Infinity;
    byId("time-back").disabled = !this.marks.some((time) => time < now);
    byId("time-on").disabled = this.at === undefined;
  }

  showTime(at) {
    const text = at === undefined ? "now" : when(at);
    setText(byId("time-shown"), text);
    this.slider.setAttribute("aria-valuetext", text);
    byId("timeline").classList.toggle("past", at !== undefined);
    byId("time-now").disabled = at === undefined;
  }

  /** Lists the events around the chosen time. */
  async list() {
    const panel = byId("around");
    const at = this.at;
    panel.hidden = at === undefined;
    if (at === undefined) return;
    const [since, until] = [at - AROUND_MS, at + AROUND_MS];
    let events = [];
    try {
      const query = `since_ms=${since}&until_ms=${until}`;
      const answer = await fetch(`/api/v1/history/events?${query}`);
      if (answer.ok) events = await answer.json();
    } catch {
      return;
    }
    if (this.at !== at) return;
    setText(byId("around-span"), `${clock(since)} to ${clock(until)}`);
    // Those nearest to the time.
    const near = [...events].sort((a, b) => Math.abs(a.time_ms - at) - Math.abs(b.time_ms - at));
    const kept = new Set(near.slice(0, EVENTS_MAX));
    const shown = events.filter((event) => kept.has(event));
    const none = "Nothing happened in these ten minutes.";
    const row = (row, event) => row.classList.toggle("after", event?.time_ms > at);
    fill(byId("around-table").tBodies[0], shown, this.columns(), { none, row });
    panel.querySelector("tr.after")?.scrollIntoView({ block: "center" });
    const more = byId("around-more");
    more.hidden = events.length <= EVENTS_MAX;
    setText(more, `${count(events.length - EVENTS_MAX)} more, see ibsmctl events.`);
  }

  columns() {
    return [
      {
        class: "n",
        text: (event, cell) => {
          const properties = { type: "button", class: "link" };
          const button = cell.firstElementChild ?? make("button", properties);
          if (!cell.firstElementChild) cell.replaceChildren(button);
          setText(button, clock(event.time_ms));
          button.title = "Show the fabric after this event";
          button.onclick = () => this.choose(event.time_ms + 1);
          return undefined;
        },
      },
      {
        class: "text",
        text: (event, cell) => {
          const kind = make("small", {}, words(event.kind));
          cell.replaceChildren(kind, event.text);
          return undefined;
        },
      },
    ];
  }
}
