// The recent sweeps of the subnet manager.

import { byId, colour, context, facts, fill, make, onTheme, setText } from "./dom.js";
import { nice } from "./chart.js";
import { count, duration, millis, NONE, when, words } from "./format.js";

const PHASES = [
  "light",
  "files",
  "discover",
  "elect",
  "addresses",
  "inherit",
  "route",
  "tables",
  "arm",
  "port_tables",
  "activate",
];
const TINTS = [
  "--s7",
  "--s4",
  "--s0",
  "--s6",
  "--s2",
  "--s9",
  "--s3",
  "--s1",
  "--s8",
  "--s10",
  "--s5",
];
/** Explanations of the phases, for tooltips. */
const MEANINGS = {
  light: "reading PortStateChange of each switch",
  files: "reading configuration files",
  discover: "discovering nodes, ports and links",
  elect: "electing the master subnet manager",
  addresses: "assigning LIDs and P_Keys",
  inherit: "reading the tables that switches hold, after a takeover",
  route: "computing and verifying routes",
  tables: "writing forwarding tables",
  arm: "configuring links and setting ports to Armed",
  port_tables: "writing SL-to-VL and VL arbitration tables of ports",
  activate: "setting ports to Active",
};
const tint = (phase) => TINTS[PHASES.indexOf(phase)] ?? "--s7";

export class SweepsView {
  constructor(live) {
    this.live = live;
    this.list = undefined;
    this.opened = new Set();
    const figure = byId("chart-sweeps");
    this.canvas = make("canvas", {
      role: "img",
      "aria-label": "Duration of the last sweeps; the table below has the numbers",
    });
    this.none = make("p", { class: "none" }, "Loading…");
    figure.append(
      make("div", { class: "plot" }, this.canvas, this.none),
      make(
        "ul",
        { class: "keys" },
        ...PHASES.map((phase) => {
          const mark = make("i");
          mark.style.background = `var(${tint(phase)})`;
          return make("li", { title: MEANINGS[phase] }, mark, make("span", {}, words(phase)));
        }),
      ),
    );
    onTheme(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  open() {
    this.load();
  }

  update({ moment }) {
    if (!moment) return;
    const { sweeps, sm } = moment;
    facts(byId("sweep-facts"), [
      ["Now", sm.phase === "idle" || !sm.phase ? "idle" : words(sm.phase)],
      [
        "Last sweep ended",
        sweeps.last_ended_s == null ? NONE : `${duration(sweeps.last_ended_s)} ago`,
      ],
      ["Sweeps with reads or writes", count(sweeps.last)],
      ["Light sweeps without changes", count(sweeps.quiet)],
    ]);
    if (this.list && this.list.at(-1)?.number !== (sweeps.last || undefined)) this.load();
  }

  async load() {
    if (this.loading) return;
    this.loading = true;
    try {
      const answer = await fetch("/api/v1/sweeps");
      if (answer.ok) this.list = await answer.json();
      this.show();
    } catch {
      // The state of the connection is shown already.
    } finally {
      this.loading = false;
    }
  }

  show() {
    const list = this.list ?? [];
    this.none.hidden = list.length > 0;
    setText(this.none, "No sweep has ended yet");
    this.draw();
    const newest = [...list].reverse();
    const longest = Math.max(...list.map((sweep) => sweep.duration_ms), 1);
    fill(
      byId("sweep-table").tBodies[0],
      newest.flatMap((sweep) => {
        const rows = [{ sweep }];
        if (this.opened.has(sweep.number))
          rows.push({ faults: details(sweep), errors: sweep.errors, more: unlisted(sweep) });
        return rows;
      }),
      columns(longest, (number) => this.toggle(number), this.opened),
      {
        none: "No sweep has ended yet",
        row: (row, value) => {
          row.classList.toggle("faults", Boolean(value?.faults));
          for (const [at, cell] of [...row.cells].entries()) {
            cell.hidden = Boolean(value?.faults) && at > 0;
            cell.colSpan = at === 0 && value?.faults ? 12 : 1;
          }
        },
      },
    );
  }

  toggle(number) {
    if (!this.opened.delete(number)) this.opened.add(number);
    this.show();
  }

  draw() {
    const place = context(this.canvas);
    if (!place || !this.list?.length) return;
    const { context: c, width, height } = place;
    const [left, bottom, top] = [52, 20, 8];
    const most = nice(Math.max(...this.list.map((sweep) => sweep.duration_ms)) * 1.02);
    const y = (ms) => height - bottom - (ms / most) * (height - bottom - top);
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (let part = 0; part <= 4; part++) {
      const ms = (most * part) / 4;
      const at = Math.round(y(ms)) + 0.5;
      c.strokeStyle = colour("--grid");
      c.beginPath();
      c.moveTo(left, at);
      c.lineTo(width, at);
      c.stroke();
      c.fillStyle = colour("--soft");
      c.fillText(ms === 0 ? "0" : millis(ms), left - 8, at);
    }
    const step = Math.min((width - left) / this.list.length, 36);
    const bar = Math.max(2, step * 0.72);
    c.textAlign = "center";
    c.textBaseline = "alphabetic";
    const every = Math.ceil(44 / step);
    for (const [at, sweep] of this.list.entries()) {
      const x = left + at * step + (step - bar) / 2;
      let sum = 0;
      for (const { phase, ms } of sweep.phases) {
        c.fillStyle = colour(tint(phase));
        c.fillRect(x, y(sum + ms), bar, y(sum) - y(sum + ms));
        sum += ms;
      }
      if (sweep.errors) {
        c.fillStyle = colour("--bad");
        c.fillRect(x, y(sum) - 5, bar, 3);
      }
      if ((this.list.length - 1 - at) % every === 0) {
        c.fillStyle = colour("--soft");
        c.fillText(`#${sweep.number}`, x + bar / 2, height - 5);
      }
    }
  }
}

const soft = (get) => (row) => !row.sweep || !get(row.sweep);
const number = (get, text = count) => ({
  class: "n",
  text: (row) => (row.sweep ? text(get(row.sweep)) : ""),
  soft: soft(get),
});

const columns = (longest, toggle, opened) => [
  {
    class: "n",
    text: (row, cell) => {
      if (row.sweep) return String(row.sweep.number);
      const more = row.more
        ? [make("li", {}, `and ${count(row.more)} more, see the log and the events`)]
        : [];
      cell.replaceChildren(
        make("ul", {}, ...row.faults.map((fault) => make("li", {}, fault)), ...more),
      );
      cell.className = "";
      return undefined;
    },
  },
  { text: (row) => (row.sweep ? when(row.sweep.ended_ms) : "") },
  { text: (row) => row.sweep?.kind ?? "" },
  { text: (row) => row.sweep?.reason ?? "" },
  number((sweep) => sweep.duration_ms, millis),
  {
    text: (row, cell) => {
      if (!row.sweep) return "";
      const bar = make("div", {
        class: "phases",
        title: row.sweep.phases.map(({ phase, ms }) => `${words(phase)} ${millis(ms)}`).join(" · "),
      });
      for (const { phase, ms } of row.sweep.phases) {
        const part = make("i");
        part.style.width = `${(ms / longest) * 100}%`;
        part.style.background = `var(${tint(phase)})`;
        bar.append(part);
      }
      cell.replaceChildren(bar);
      return undefined;
    },
  },
  number((sweep) => sweep.smps),
  number((sweep) => sweep.lft_blocks_set),
  number((sweep) => sweep.appeared),
  number((sweep) => sweep.vanished),
  opening(changes, toggle, opened),
  opening((sweep) => sweep.errors, toggle, opened, "bad"),
];

/** Number of nodes and links that came, went or changed. */
const changes = (sweep) => (sweep.changes?.length ?? 0) + (sweep.changes_unlisted ?? 0);

/** What came and went by name, and the first errors. */
const details = (sweep) => [...(sweep.changes ?? []), ...sweep.faults];

const unlisted = (sweep) => (sweep.changes_unlisted ?? 0) + sweep.errors - sweep.faults.length;

/** A column with a number that opens the details. */
function opening(get, toggle, opened, tone) {
  return {
    class: "n",
    text: (row, cell) => {
      const value = row.sweep && get(row.sweep);
      if (!value) return row.sweep ? "0" : "";
      const is = opened.has(row.sweep.number);
      const button = make(
        "button",
        {
          type: "button",
          class: "link",
          ariaExpanded: String(is),
          onclick: () => toggle(row.sweep.number),
        },
        `${count(value)} ${is ? "▴" : "▾"}`,
      );
      cell.replaceChildren(button);
      if (tone) cell.dataset.tone = tone;
      return undefined;
    },
    soft: soft(get),
  };
}
