// The overview: rates, latency and drops, responders, and top requesters.

import { byId, choice, facts, fill, make, onTheme, setAttribute, setText } from "./dom.js";
import { BusyLinks } from "./busy.js";
import { Chart, spark } from "./chart.js";
import {
  count,
  duration,
  method,
  micros,
  millis,
  NONE,
  percent,
  rate,
  short,
  words,
} from "./format.js";

const COLOURS = ["--s0", "--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7"];
const SPARK_LEN = 60;
const DAY_REFRESH_MS = 30_000;

const TONES = {
  current: "good", behind: "warn", elsewhere: "bad", waiting: "warn", silent: "bad", down: "bad",
};

export class Overview {
  constructor(live, openNode) {
    this.live = live;
    this.range = "5m";
    this.split = "types";
    this.day = undefined;
    this.tiles = tiles(byId("tiles"));
    this.charts = {
      rate: new Chart(byId("chart-rate"), {
        stacked: true,
        axis: short,
        value: rate,
        floor: 10,
        label: "Answers per second",
      }),
      latency: new Chart(byId("chart-latency"), {
        log: true,
        axis: micros1,
        value: micros,
        floor: 10,
        label: "Latency in the responder",
      }),
      drops: new Chart(byId("chart-drops"), {
        stacked: true,
        axis: short,
        value: rate,
        floor: 4,
        label: "Requests dropped per second",
      }),
      lag: new Chart(byId("chart-lag"), {
        axis: (ms) => (ms === 0 ? "0" : millis(ms)),
        value: millis,
        floor: 20,
        label: "Snapshot lag",
      }),
    };
    choice(byId("range"), "range", (range) => {
      this.range = range;
      if (range === "24h") this.loadDay();
      this.showCharts();
    });
    choice(byId("split"), "split", (split) => {
      this.split = split;
      this.showCharts();
    });
    this.talkers = talkerColumns(openNode);
    this.busy = new BusyLinks();
    onTheme(() => live.history && this.showTiles());
  }

  update({ moment }) {
    if (!moment) return;
    this.showFacts(moment);
    this.showTiles();
    fill(byId("responders").tBodies[0], moment.responders, RESPONDERS, {
      none: "No responder has connected. Start one: ibsa --sm http://…",
      row: (row, responder) => row.classList.toggle("gone", responder?.state === "down"),
    });
    fill(byId("types").tBodies[0], moment.types.slice(0, 12), TYPES, {
      least: 5,
      none: "No answers yet.",
    });
    fill(byId("talkers").tBodies[0], moment.talkers.slice(0, 15), this.talkers, {
      least: 15,
      none: "No requests.",
    });
    this.busy.update(moment);
    if (this.range === "24h") this.loadDay();
    this.showCharts();
  }

  showFacts({ sm, fabric, sweeps }) {
    const ended = sweeps.last_ended_s;
    facts(byId("facts"), [
      ["Subnet manager", sm.state || "starting"],
      ["Port", sm.epoch ? sm.guid : NONE, true],
      ["Running for", duration(sm.uptime_s)],
      ["Epoch", sm.epoch ? String(sm.epoch) : NONE],
      ["Fabric generation", count(sm.fabric_generation)],
      ["Registry sequence", count(sm.registry_sequence)],
      [
        "Fabric",
        `${count(fabric.hosts)} hosts · ${count(fabric.switches)} switches · ` +
          `${count(fabric.links)} links`,
      ],
      [
        "Last sweep",
        sm.phase && sm.phase !== "idle"
          ? `running: ${words(sm.phase)}`
          : ended == null
            ? NONE
            : `${duration(ended)} ago`,
      ],
    ]);
  }

  showTiles() {
    const { moment, history } = this.live;
    const { total, responders } = moment;
    const there = responders.filter((responder) => responder.state !== "down");
    const current = responders.filter((responder) => responder.state === "current").length;
    const share = total.requests_per_s > 0 ? total.dropped_per_s / total.requests_per_s : 0;
    const set = (name, value, more, tone) => {
      const tile = this.tiles[name];
      const [number, unit] = value.split(" ");
      setText(tile.number, number);
      setText(tile.unit, unit ?? "");
      setText(tile.more, more);
      setAttribute(tile.value, "data-tone", tone ?? "");
    };
    const errors = total.errors_per_s;
    set(
      "rate",
      rate(total.answers_per_s),
      errors == null
        ? "no data"
        : `${rate(errors)} errors/s · ${rate(total.no_records_per_s)} no records/s`,
    );
    set(
      "latency",
      micros(total.p99_us),
      `p50 ${micros(total.p50_us)} · p99.9 ${micros(total.p999_us)}`,
    );
    set(
      "drops",
      rate(total.dropped_per_s),
      total.dropped_per_s == null ? "no data" : `${percent(share)} of requests`,
      total.dropped_per_s > 0 ? "warn" : undefined,
    );
    set("flight", count(total.in_flight), "requests being answered");
    const all = responders.length;
    set(
      "responders",
      all ? `${current} of ${all}`.replace(" ", "\u00a0").replace(" ", "\u00a0") : "0",
      all && there.length === current && current === all
        ? "all current"
        : there.length ? `${there.length} connected` : "none connected",
      all === 0 || current === 0 ? "bad" : current < all ? "warn" : undefined,
    );
    const last = Math.max(...there.map((responder) => responder.last_update_ms ?? 0), 0);
    set(
      "lag",
      total.lag_ms === 0 ? "0 ms" : millis(total.lag_ms),
      there.length ? `last update took ${millis(last)}` : "no responder",
    );
    const { critical, warning, notice } = moment.problems;
    set(
      "problems",
      count(critical + warning),
      `${count(critical)} critical · ${count(notice)} notices`,
      critical ? "bad" : warning ? "warn" : undefined,
    );
    if (!history) return;
    const lately = (list) => {
      const last = list.slice(-SPARK_LEN);
      return new Array(Math.max(0, SPARK_LEN - last.length)).fill(null).concat(last);
    };
    spark(this.tiles.rate.canvas, lately(history.total.answers_per_s), "--s0");
    spark(this.tiles.latency.canvas, lately(history.total.p99_us), "--s3");
    spark(this.tiles.drops.canvas, lately(history.total.dropped_per_s), "--s1");
    spark(this.tiles.flight.canvas, lately(history.total.in_flight), "--s2");
    spark(this.tiles.lag.canvas, lately(history.total.lag_ms), "--s4");
  }

  /** Fetches the day by minutes, at most every 30 seconds. */
  async loadDay() {
    if (this.day && Date.now() - this.day.fetched < DAY_REFRESH_MS) return;
    this.day = { ...this.day, fetched: Date.now() };
    try {
      const answer = await fetch("/api/v1/series?range=24h");
      if (answer.ok) this.day = { history: await answer.json(), fetched: Date.now() };
      this.showCharts();
    } catch {
      // Fetched again at the next update.
    }
  }

  showCharts() {
    const isDay = this.range === "24h";
    const history = isDay ? this.day?.history : this.live.history;
    if (!history) return;
    const length = { "5m": 300, "15m": 900, "24h": 1440 }[this.range];
    const time = { end: history.time_ms, step: history.step_s * 1000, length };
    const { total } = history;
    const none =
      isDay && total.answers_per_s.length === 0
        ? "Available after ibsm has run for a minute"
        : undefined;
    const named =
      this.split === "types"
        ? history.types.map((type) => [
            type.attribute === "other" ? "other" : `${type.attribute} ${method(type.method)}`,
            type.per_s,
          ])
        : history.responders.map((responder) => [responder.name, responder.load.answers_per_s]);
    const parts = gathered(named, length);
    const empty = (series, text) =>
      none ??
      (series.some(({ values }) => values.slice(-length).some((value) => value != null))
        ? ""
        : text);
    this.charts.rate.show({
      ...time,
      series: parts,
      empty: empty(parts, "No responder has reported"),
    });
    const quantiles = [
      ["p50", total.p50_us, "--s0"],
      ["p99", total.p99_us, "--s3"],
      ["p99.9", total.p999_us, "--s5"],
    ];
    const latency = quantiles.map(([name, values, colour]) => ({ name, values, colour }));
    this.charts.latency.show({ ...time, series: latency, empty: empty(latency, "No answers") });
    const dropping = history.drops.filter((drop) =>
      drop.per_s.slice(-length).some((value) => value > 0),
    );
    const drops = gathered(
      dropping.map((drop) => [words(drop.reason), drop.per_s]),
      length,
    );
    this.charts.drops.show({
      ...time,
      series: drops,
      empty: none ?? (drops.length ? "" : "No requests dropped"),
    });
    const lag = gathered(
      history.responders.map((responder) => [responder.name, responder.load.lag_ms]),
      length,
      Math.max,
    );
    this.charts.lag.show({ ...time, series: lag, empty: empty(lag, "No responder is connected") });
  }
}

/**
 * Colours of names: that of a name does not depend on when it appeared. Of names for which the same
 * is meant, the first in the order of names has it, and the others the next that is free.
 */
function colours(names) {
  const own = new Map();
  for (const name of [...names].sort()) {
    let at = [...name].reduce((sum, one) => (sum * 31 + one.codePointAt(0)) % 65_521, 7);
    while (own.size < COLOURS.length && [...own.values()].includes(COLOURS[at % COLOURS.length]))
      at += 1;
    own.set(name, COLOURS[at % COLOURS.length]);
  }
  return own;
}

/** Series with colours, in the order of first appearance; those beyond the colours are joined. */
function gathered(named, length, join = (a, b) => a + b) {
  const isMore = named.length > COLOURS.length;
  const shown = isMore ? named.slice(0, COLOURS.length - 1) : named;
  const own = colours(shown.map(([name]) => name));
  const kept = shown.map(([name, values]) => ({ name, values, colour: own.get(name) }));
  if (!isMore) return kept;
  const rest = named.slice(COLOURS.length - 1).map(([, values]) => ({ values }));
  const values = new Array(length).fill(null);
  for (const one of rest) {
    const last = one.values.slice(-length);
    for (const [at, value] of last.entries()) {
      const place = length - last.length + at;
      if (value != null) values[place] = values[place] == null ? value : join(values[place], value);
    }
  }
  const free = COLOURS.find((colour) => kept.every((one) => one.colour !== colour));
  return [...kept, { name: `${rest.length} others`, values, colour: free }];
}

const micros1 = (us) =>
  us < 1
    ? `${Math.round(us * 1e3)} ns`
    : us < 1e3
      ? `${us} µs`
      : us < 1e6
        ? `${us / 1e3} ms`
        : `${us / 1e6} s`;

function tiles(place) {
  const names = {
    rate: ["Answers", "/s"],
    latency: ["Latency p99"],
    drops: ["Dropped", "/s"],
    flight: ["In flight"],
    responders: ["Responders current"],
    lag: ["Snapshot lag"],
    problems: ["Problems"],
  };
  const made = {};
  for (const [name, [title, after]] of Object.entries(names)) {
    const number = make("span", {}, NONE);
    const unit = make("small");
    const value = make(
      "div",
      { class: "value" },
      number,
      unit,
      after ? make("small", {}, after) : null,
    );
    const more = make("div", { class: "more" }, "\u00a0");
    const canvas = make("canvas", { ariaHidden: "true" });
    place.append(
      make(
        "div",
        { class: "card tile", id: `tile-${name}` },
        make("h3", {}, title),
        value,
        more,
        canvas,
      ),
    );
    made[name] = { number, unit, value, more, canvas };
  }
  return made;
}

/** The only element of a cell, which is reused. */
function one(cell, tag, properties) {
  if (cell.firstElementChild?.localName !== tag) cell.replaceChildren(make(tag, properties));
  return cell.firstElementChild;
}

const number = (text, soft) => ({ class: "n", text, soft });

const RESPONDERS = [
  {
    text: (responder, cell) => {
      const name = one(cell, "span", {});
      setText(name, responder.name);
      setAttribute(
        name,
        "title",
        `${responder.id} · ${responder.software} · ${responder.front_door.join(", ")}`,
      );
    },
  },
  {
    text: (responder, cell) => {
      const state = one(cell, "span", { class: "dot" });
      setAttribute(state, "data-tone", TONES[responder.state] ?? "none");
      setText(state, responder.state);
    },
  },
  number(
    (responder) => rate(responder.load.answers_per_s),
    (responder) => !responder.load.answers_per_s,
  ),
  number((responder) => micros(responder.load.p50_us)),
  number((responder) => micros(responder.load.p99_us)),
  number(
    (responder) => rate(responder.load.dropped_per_s),
    (responder) => !responder.load.dropped_per_s,
  ),
  number(
    (responder) => count(responder.load.in_flight),
    (responder) => !responder.load.in_flight,
  ),
  number(
    (responder) => (responder.load.lag_ms === 0 ? "0 ms" : millis(responder.load.lag_ms)),
    (responder) => !responder.load.lag_ms,
  ),
  number((responder) => millis(responder.last_update_ms)),
  number((responder) => (responder.fabric_generation ? count(responder.fabric_generation) : NONE)),
  number((responder) => millis(responder.apply_ms)),
  number((responder) => duration(responder.for_s)),
];

const TYPES = [
  { text: (type) => type.attribute },
  { text: (type) => method(type.method) },
  number(
    (type) => rate(type.per_s),
    (type) => !type.per_s,
  ),
  number(
    (type) => rate(type.errors_per_s),
    (type) => !type.errors_per_s,
  ),
  number(
    (type) => rate(type.no_records_per_s),
    (type) => !type.no_records_per_s,
  ),
  number((type) => count(type.total)),
];

const talkerColumns = (openNode) => [
  number((talker) => String(talker.lid)),
  {
    class: "wide",
    text: (talker, cell) => {
      const button = one(cell, "button", {
        type: "button",
        class: "link",
        onclick: () => button.dataset.guid && openNode(button.dataset.guid),
      });
      const has = talker.left ? `${talker.node} (left)` : talker.node;
      setText(button, has || "unknown LID");
      button.dataset.guid = talker.guid;
      setAttribute(
        button,
        "title",
        talker.guid
          ? `${has} · ${talker.guid}: show on the map`
          : "no port in the fabric has this LID",
      );
      if (cell.className !== "wide") cell.className = "wide";
    },
  },
  number((talker) => rate(talker.per_s)),
  {
    class: "n share",
    text: (talker, cell) => {
      if (!cell.querySelector("i")) cell.replaceChildren(make("i"), make("b"));
      const [bar, text] = cell.children;
      bar.style.width = `${(talker.share * 100).toFixed(1)}%`;
      setText(text, percent(talker.share));
      if (cell.className !== "n share") cell.className = "n share";
    },
  },
];
