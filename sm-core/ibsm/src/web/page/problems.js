// The list of problems: what is broken, since when, how often, and what to do.

import { byId, fill, make, setAttribute, setText } from "./dom.js";
import { count, when } from "./format.js";

const TONES = { critical: "bad", warning: "warn", notice: "none" };

export class ProblemsView {
  constructor(live) {
    this.live = live;
    this.version = undefined;
    this.list = [];
    this.unlisted = 0;
    /** Called when the list has changed. */
    this.changed = () => {};
  }

  update() {
    this.show();
  }

  /** Fetches the list if a moment states that it changed. */
  async follow(moment) {
    const { version } = moment.problems;
    if (version === this.version || this.loading) return;
    this.loading = true;
    try {
      const answer = await fetch("/api/v1/problems");
      if (!answer.ok) return;
      const { problems, unlisted, version: listed } = await answer.json();
      [this.list, this.unlisted, this.version] = [problems, unlisted, listed];
      this.show();
      this.changed();
    } catch {
      // Fetched again with the next moment.
    } finally {
      this.loading = false;
    }
  }

  show() {
    const none = this.version === undefined ? "Loading…" : "No problems.";
    fill(byId("problem-table").tBodies[0], this.list, COLUMNS, { none });
    const more = byId("problems-more");
    more.hidden = this.unlisted === 0;
    setText(more, `${count(this.unlisted)} more problems are not listed.`);
  }
}

const COLUMNS = [
  {
    text: (problem, cell) => {
      const mark = cell.firstElementChild ?? make("span", { class: "pill" });
      if (!cell.firstElementChild) cell.replaceChildren(mark);
      setAttribute(mark, "data-tone", TONES[problem.severity] ?? "none");
      setText(mark, problem.severity);
      return undefined;
    },
  },
  {
    text: (problem, cell) => {
      const where = problem.port == null ? problem.name : `${problem.name} port ${problem.port}`;
      if (!problem.guid) return where || "subnet";
      const link = cell.firstElementChild ?? make("a");
      if (!cell.firstElementChild) cell.replaceChildren(link);
      setAttribute(link, "href", `#/fabric/${problem.guid}`);
      setText(link, where);
      return undefined;
    },
  },
  { text: (problem) => problem.detail },
  { text: (problem) => problem.remedy },
  { text: (problem) => when(problem.since_ms) },
  { class: "n", text: (problem) => count(problem.count) },
];
