// The fabric view: the map, search, and details of the selected node.

import { byId, choice, make, setText } from "./dom.js";
import { clock, count, NONE, when } from "./format.js";
import { endsOf, linkPanel, showLinkRates, showPanel } from "./links.js";
import { FabricMap } from "./map.js";
import { askPath, passes, pathEnds, pathPanel } from "./path.js";
import { showRates } from "./rates.js";
import { Timeline } from "./timeline.js";

const FOUND_MAX = 50;

export class FabricView {
  constructor(live) {
    this.live = live;
    this.etag = undefined;
    this.numbers = new Map();
    this.guid = undefined;
    /** GUIDs of nodes with problems. */
    this.broken = [];
    /** All problems. */
    this.problems = [];
    this.map = new FabricMap(byId("map").querySelector("canvas"), (number, line) => {
      const picked = line ? [line.a, line.b] : number === undefined ? [] : [number];
      const guids = picked.map((one) => this.map.node(one).guid);
      location.hash = ["#/fabric", ...(guids.length ? [guids.join("-")] : [])].join("/");
    });
    const zoom = {
      in: () => this.map.zoom(1.8, undefined, undefined, true),
      out: () => this.map.zoom(1 / 1.8, undefined, undefined, true),
      all: () => this.map.map && this.map.fit(true),
    };
    byId("map")
      .querySelector(".zoom")
      .addEventListener("click", (event) => zoom[event.target.dataset.zoom]?.());
    this.search = new Search(
      (number) => {
        location.hash = `#/fabric/${this.map.node(number).guid}`;
        // If it is selected already, bring it back into view.
        if (this.map.node(number).guid === this.guid) this.map.centre(number);
      },
      () => this.map,
    );
    /** The time shown, milliseconds since 1970; nothing for now. */
    this.at = undefined;
    this.timeline = new Timeline((at) => this.showTime(at));
    /** By what links are coloured: "state" or "load". */
    this.colours = "state";
    choice(byId("map-colours"), "colours", (colours) => this.colourBy(colours));
    byId("detail").addEventListener("keydown", (event) => event.key === "Escape" && this.close());
  }

  /** Shows the map, and the node with `guid`, or links or a path between two nodes, if given. */
  async open(guid) {
    const from = this.pathFrom;
    if (from !== undefined && guid !== from) {
      this.pathFrom = undefined;
      if (guid && !endsOf(guid) && !pathEnds(guid)) {
        location.replace(`#/fabric/${from}..${guid}`);
        return;
      }
    }
    if (!this.isOpen) this.timeline.open();
    this.isOpen = true;
    const news = guid !== this.guid;
    this.guid = guid;
    await this.load();
    if (this.guid !== guid || !news) return;
    const number = this.select();
    byId("detail").hidden = guid === undefined;
    if (guid === undefined) return;
    if (number !== undefined) this.map.centre(number);
    await this.showDetail(guid);
  }

  /** Selects on the map what the address names; returns the number of a node. */
  select() {
    const ends = endsOf(this.guid) ?? pathEnds(this.guid);
    if (ends) {
      this.map.selectPath(ends.map((end) => this.numbers.get(end)));
      return undefined;
    }
    const number = this.numbers.get(this.guid);
    this.map.select(number);
    return number;
  }

  /** Marks the nodes with these problems. */
  mark(problems) {
    this.problems = problems;
    this.broken = problems.map(({ guid }) => guid).filter(Boolean);
    this.markFaults();
  }

  /** Colours links by "state" or "load". */
  colourBy(colours) {
    this.colours = colours;
    const isLoad = colours === "load";
    byId("heat-legend").hidden = !isLoad;
    byId("state-legend").hidden = isLoad;
    this.loadShown = undefined;
    if (!isLoad) this.map.showLoad(undefined);
    this.followLoad(this.live.moment);
  }

  /** Another key press colours by the other. */
  toggleColours() {
    const other = this.colours === "load" ? "state" : "load";
    byId("map-colours").querySelector(`[data-colours="${other}"]`).click();
  }

  /**
   * Shows loads and rates of the last sweep of the performance manager; of an earlier time, the
   * loads that the history has.
   */
  followLoad(moment) {
    const isThen = this.at !== undefined;
    const sweep = isThen ? this.at : moment?.counter_sweeps;
    const button = byId("map-colours").querySelector('[data-colours="load"]');
    button.disabled = sweep == null;
    button.title =
      sweep == null
        ? "Counters of ports are not read: set perfmgr TRUE and restart ibsm"
        : "Colour links by load (l)";
    const hasNode = this.guid !== undefined && !byId("detail").hidden;
    if (!isThen && hasNode && sweep != null && sweep !== this.ratesShown) {
      this.ratesShown = sweep;
      this.addRates(this.guid);
    }
    const shown = `${this.etag} ${sweep}`;
    if (this.colours !== "load" || sweep == null || shown === this.loadShown) return;
    this.loadShown = shown;
    this.fetchLoad();
  }

  async fetchLoad() {
    const { at } = this;
    try {
      const answer = await fetch(`/api/v1/load${at === undefined ? "" : `?at_ms=${at}`}`);
      const load = answer.ok ? await answer.json() : undefined;
      if (this.at !== at || this.colours !== "load") return;
      const isKept = at === undefined || answer.status !== 404;
      if (!isKept) setText(byId("heat-time"), "The history has no loads of this time");
      // Of another map, the numbers would be wrong: it is fetched again with that.
      if (!load || load.etag !== this.etag) return;
      this.map.showLoad(load);
      const time = at === undefined ? clock(load.time_ms) : when(load.time_ms);
      setText(byId("heat-time"), load.sweep ? `Load, read at ${time}` : "no reading yet");
    } catch {
      this.loadShown = undefined;
    }
  }

  /** Shows the fabric of a time, or without one of now. */
  async showTime(at) {
    this.at = at;
    this.etag = undefined;
    // One that is under way is of another time.
    await this.loading;
    if (this.at === at) await this.load();
  }

  update({ moment }) {
    if (this.at !== undefined) return;
    if (this.awaitsResponder && this.hasResponder() && pathEnds(this.guid))
      this.showPath(this.guid);
    this.followLoad(moment);
    if (moment && moment.fabric.etag !== this.etag && this.etag !== undefined) this.load();
    if (moment && moment.sweeps.last !== this.sweep) {
      this.sweep = moment.sweeps.last;
      this.markFaults();
    }
  }

  async load() {
    if (this.loading) return this.loading;
    const etag = this.live.moment?.fabric.etag;
    if (this.etag !== undefined && (etag === undefined || etag === this.etag)) return undefined;
    this.loading = this.fetchMap().finally(() => {
      this.loading = undefined;
    });
    return this.loading;
  }

  async fetchMap() {
    const empty = byId("map-empty");
    try {
      const { at } = this;
      const answer = await fetch(`/api/v1/fabric${at === undefined ? "" : `?at_ms=${at}`}`);
      if (answer.status === 404 && at !== undefined) return this.showNothing();
      if (!answer.ok) throw new Error(String(answer.status));
      const map = await answer.json();
      if (this.at !== at) return;
      this.etag = map.etag;
      byId("map").querySelector("canvas").dataset.time = String(at ?? "now");
      this.map.load(map);
      this.loadShown = undefined;
      this.followLoad(this.live.moment);
      this.timeline.refresh();
      this.numbers = new Map();
      const { switches, hosts } = map;
      for (const [at, guid] of [...switches.guid, ...hosts.guid].entries())
        this.numbers.set(guid, at);
      this.select();
      empty.hidden = this.numbers.size > 0;
      setText(
        empty,
        "No fabric is published yet: the first sweep has not ended, or this manager is not master",
      );
      this.search.fabricChanged();
      if (this.guid !== undefined && !byId("detail").hidden) this.showDetail(this.guid);
      this.markFaults();
    } catch {
      empty.hidden = this.etag !== undefined;
      setText(empty, "Cannot load the map; it is loaded again after the next change");
    }
  }

  /** Says that nothing is known of the chosen time. */
  showNothing() {
    this.map.clear();
    byId("map-empty").hidden = false;
    setText(byId("map-empty"), "The history has no fabric of this time");
  }

  /** Marks nodes for which the last sweep had errors. */
  async markFaults() {
    if (this.at !== undefined) {
      this.map.faulty = new Set();
      return this.map.draw();
    }
    try {
      const answer = await fetch("/api/v1/sweeps");
      const last = answer.ok ? (await answer.json()).at(-1) : undefined;
      const faulty = (last?.fault_ports ?? []).map(({ guid }) => guid);
      const numbers = [...faulty, ...this.broken].map((guid) => this.numbers.get(guid));
      this.map.faulty = new Set(numbers.filter((number) => number !== undefined));
      this.map.draw();
    } catch {
      // Retried after the next sweep.
    }
  }

  close() {
    location.hash = "#/fabric";
    byId("map").querySelector("canvas").focus();
  }

  async showDetail(guid) {
    const ends = endsOf(guid);
    if (ends) return this.showLinks(guid, ends);
    if (pathEnds(guid)) return this.showPath(guid);
    let node;
    const { at } = this;
    const time = at === undefined ? "" : `?at_ms=${at}`;
    try {
      const answer = await fetch(`/api/v1/nodes/${guid}${time}`);
      node = answer.ok ? await answer.json() : undefined;
    } catch {
      return;
    }
    if (this.guid !== guid || this.at !== at) return;
    if (!node) return this.showNotFound(guid);
    const linked = node.ports.filter((port) => port.peer);
    const slow = linked.filter((port) => port.shortfall);
    const terms = [
      ["Kind", node.missing ? `${node.kind}, missing` : node.kind],
      ["LID", node.lid ? String(node.lid) : NONE],
      ["Node GUID", node.guid, true],
      [
        "Ports with a link",
        `${linked.length} of ${node.ports.filter((port) => port.number > 0).length}`,
      ],
      ["Degraded links", count(slow.length)],
    ];
    const list = make(
      "dl",
      {},
      ...terms.flatMap(([term, text, mono]) => [
        make("dt", {}, term),
        make("dd", { class: mono ? "mono" : "" }, text),
      ]),
    );
    const faults = node.faults.length
      ? make(
          "ul",
          { class: "faults", "aria-label": "Errors of the last sweep" },
          ...node.faults.map((fault) => make("li", {}, fault)),
        )
      : null;
    showPanel(
      make("header", {}, make("h2", {}, node.name || node.guid), this.closeButton()),
      list,
      ...(faults ? [faults] : []),
      this.at === undefined && !node.missing ? this.pathButton(node) : "",
      this.portTable(node),
    );
    this.ratesShown = at === undefined ? this.live.moment?.counter_sweeps : undefined;
    if (this.ratesShown != null) this.addRates(guid);
  }

  /** Adds rates to the panel. */
  addRates(address) {
    if (pathEnds(address)) return undefined;
    const ends = endsOf(address);
    return ends ? showLinkRates(ends) : showRates(address);
  }

  /** Shows the links between two nodes. */
  async showLinks(address, ends) {
    const { at } = this;
    const time = at === undefined ? "" : `?at_ms=${at}`;
    let nodes;
    try {
      const answers = await Promise.all(ends.map((guid) => fetch(`/api/v1/nodes/${guid}${time}`)));
      nodes = await Promise.all(answers.map((one) => (one.ok ? one.json() : undefined)));
    } catch {
      return;
    }
    if (this.guid !== address || this.at !== at) return;
    const lost = nodes.findIndex((node) => !node);
    if (lost >= 0) return this.showNotFound(ends[lost]);
    showPanel(...linkPanel(nodes, at === undefined ? this.problems : [], this.closeButton()));
    this.ratesShown = at === undefined ? this.live.moment?.counter_sweeps : undefined;
    if (this.ratesShown != null) this.addRates(address);
  }

  /** Shows the path between two nodes. */
  async showPath(address) {
    const ends = pathEnds(address);
    const name = (guid) => {
      const number = this.numbers.get(guid);
      return number === undefined ? guid : this.map.node(number).name || guid;
    };
    const names = ends.map(name);
    this.awaitsResponder = this.at === undefined && !this.hasResponder();
    const answer =
      this.at !== undefined
        ? { reason: "the history has no forwarding tables; choose now" }
        : this.awaitsResponder
          ? { reason: "no responder is connected, and only responders explain paths; start ibsa" }
          : await askPath(ends);
    if (this.guid !== address || (answer.path && this.at !== undefined)) return;
    if (answer.path) {
      const numbers = passes(answer.path).map((guid) => this.numbers.get(guid));
      this.map.selectPath(numbers);
    }
    showPanel(...pathPanel(answer, names, this.closeButton()));
  }

  hasResponder() {
    return this.live.moment?.responders.some(({ state }) => state !== "down");
  }

  /** A button after which the next node that is chosen is the other end of a path. */
  pathButton(node) {
    const onclick = ({ target }) => {
      this.pathFrom = node.guid;
      setText(target, "Choose the other end on the map, or by search");
    };
    return make("button", { type: "button", class: "quiet path", onclick }, "Path from here");
  }

  closeButton() {
    const onclick = () => this.close();
    return make("button", { type: "button", class: "quiet", "aria-label": "Close", onclick }, "✕");
  }

  showNotFound(guid) {
    showPanel(
      make("header", {}, make("h2", {}, "Not found"), this.closeButton()),
      make("p", {}, `No node in the fabric has GUID ${guid}.`),
    );
  }

  portTable(node) {
    const row = (port) =>
      make(
        "tr",
        { "data-port": String(port.number) },
        make("td", { class: "n" }, String(port.number)),
        make(
          "td",
          {},
          make(
            "span",
            { class: "dot", "data-tone": tone(port) },
            port.missing
              ? "Link missing"
              : port.fault
                ? `${port.state}, error`
                : port.state,
          ),
        ),
        make(
          "td",
          {},
          port.link ?? (port.physical_state === "LinkUp" ? "" : port.physical_state),
          port.shortfall ? make("small", {}, `both ends support ${port.shortfall}`) : null,
        ),
        make(
          "td",
          { class: "wide" },
          neighbour(port),
        ),
      );
    const head = ["Port", "State", "Link", "Neighbour"].map((title, at) =>
      make("th", { scope: "col", class: at === 0 ? "n" : "" }, title),
    );
    const rows = node.ports.filter((port) => port.number > 0 || node.ports.length === 1).map(row);
    return make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows),
    );
  }
}

/** A button that selects the node at the other end of a link, or of a link that is missing. */
function neighbour(port) {
  const peer = port.peer ?? port.missing;
  if (!peer) return NONE;
  return make(
    "button",
    {
      type: "button",
      class: "link",
      title: `${peer.name} · ${peer.guid}`,
      onclick: () => {
        location.hash = `#/fabric/${peer.guid}`;
      },
    },
    `${peer.name} /${peer.port}`,
  );
}

const tone = (port) =>
  port.fault || port.missing
    ? "bad"
    : !port.peer
      ? "none"
      : !["Active", "linked"].includes(port.state)
        ? "bad"
        : port.shortfall
          ? "warn"
          : "good";

/** The search box, which finds nodes by name, GUID or LID. */
class Search {
  constructor(chosen, map) {
    Object.assign(this, {
      chosen,
      map,
      input: byId("search"),
      list: byId("found"),
      found: [],
      at: 0,
    });
    this.input.addEventListener("input", () => this.lookUp());
    this.input.addEventListener("focus", () => this.lookUp());
    this.input.addEventListener("blur", () => setTimeout(() => this.show(false), 120));
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.choose(this.found[this.at]);
    });
    this.list.addEventListener("pointerdown", (event) => {
      const item = event.target.closest("li[data-number]");
      if (!item) return;
      event.preventDefault();
      this.choose(Number(item.dataset.number));
    });
  }

  fabricChanged() {
    this.names = undefined;
    if (document.activeElement === this.input) this.lookUp();
  }

  /** Lists matches: exact LID, GUID or name first, then names that start with or contain the text. */
  lookUp() {
    const text = this.input.value.trim().toLowerCase();
    const { map } = this.map();
    if (!text || !map) return this.show(false);
    this.names ??= [...map.switches.name, ...map.hosts.name].map((name) => name.toLowerCase());
    const guids = [map.switches.guid, map.hosts.guid].flat();
    const lids = [map.switches.lid, map.hosts.lid].flat();
    const ranks = [[], [], [], []];
    const hex = text.replace(/^0x/, "").padStart(16, "0");
    for (const [at, name] of this.names.entries()) {
      if (String(lids[at]) === text || guids[at] === `0x${hex}`) ranks[0].push(at);
      else if (name === text) ranks[0].push(at);
      else if (name.startsWith(text)) ranks[1].push(at);
      else if (name.includes(text)) ranks[2].push(at);
      else if (text.startsWith("0x") && text.length > 3 && guids[at].includes(text.slice(2)))
        ranks[3].push(at);
    }
    const all = ranks.flat();
    this.found = all.slice(0, FOUND_MAX);
    this.at = 0;
    const item = (number, at) => {
      const node = this.map().node(number);
      return make(
        "li",
        { id: `found-${at}`, role: "option", "data-number": String(number) },
        make("span", {}, node.name || node.guid),
        make(
          "small",
          {},
          node.missing ? `${node.kind} · missing` : `${node.kind} · LID ${node.lid || NONE}`,
        ),
        make("small", { class: "mono" }, node.guid),
      );
    };
    const said = (text) => make("li", { class: "said" }, text);
    const more =
      all.length > FOUND_MAX
        ? [said(`and ${count(all.length - FOUND_MAX)} more: enter more of the name`)]
        : [];
    this.list.replaceChildren(
      ...(all.length ? this.found.map(item) : [said("No node has this name, GUID or LID")]),
      ...more,
    );
    this.show(true);
  }

  show(is) {
    this.list.hidden = !is;
    this.input.setAttribute("aria-expanded", String(is));
    for (const [at, item] of [...this.list.querySelectorAll("li[data-number]")].entries())
      item.setAttribute("aria-selected", String(at === this.at));
    if (is && this.found.length)
      this.input.setAttribute("aria-activedescendant", `found-${this.at}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && this.found.length) {
      event.preventDefault();
      this.at = (this.at + by + this.found.length) % this.found.length;
      this.show(true);
      byId(`found-${this.at}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Escape") {
      this.show(false);
      this.input.blur();
    }
  }

  choose(number) {
    if (number === undefined) return;
    this.show(false);
    this.input.blur();
    this.chosen(number);
  }
}
