// The fabric view: the map, search, and details of the selected node.

import { byId, choice, make, setText } from "./dom.js";
import { clock, when } from "./format.js";
import { endsOf, LinkPanel } from "./links.js";
import { FabricMap } from "./map.js";
import { NodePanel } from "./node.js";
import { showPanel } from "./panel.js";
import { askPath, passes, pathEnds, pathPanel } from "./path.js";
import { Search } from "./search.js";
import { Timeline } from "./timeline.js";

/** Ticks after which a panel is read again because of what is not on the map. */
const REFRESH_TICKS = 3;

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
    if (this.hasPanel() && this.at === undefined) this.showPanelAgain();
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
   * Shows loads of the last sweep of the performance manager; of an earlier time, those that the
   * history has.
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
    if (!moment) return;
    if (moment.fabric.etag !== this.etag && this.etag !== undefined) this.load();
    if (this.hasPanel()) this.followPanel(moment);
    if (moment.sweeps.last !== this.sweep) {
      this.sweep = moment.sweeps.last;
      this.markFaults();
    }
  }

  /** Shows in the panel of a node or of links what the map does not have. */
  followPanel(moment) {
    if (moment.counter_sweeps != null && moment.counter_sweeps !== this.panel.sweep)
      this.showPanelAgain();
    // What ports joined and offer, and errors of the last sweep.
    const news = `${moment.sm.registry_sequence} ${moment.sweeps.last}`;
    const isRecent = moment.tick - this.refreshed < REFRESH_TICKS;
    if (news === this.news || isRecent) return;
    this.news = news;
    this.showDetail(this.guid);
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
    const buttons = at === undefined && !node.missing ? [this.pathButton(node)] : [];
    const makePanel = () => new NodePanel(node, this.closeButton(), buttons);
    this.showDocuments(node, `${guid} ${node.name} ${node.missing}`, makePanel);
  }

  /** Shows documents in a panel, which is made unless that with this key is there. */
  showDocuments(documents, key, makePanel) {
    const { at } = this;
    const shown = `${key} ${at}`;
    if (this.panel?.key !== shown || !this.panel.body.isConnected)
      this.panel = Object.assign(makePanel(), { key: shown, sweep: undefined });
    this.documents = documents;
    this.refreshed = this.live.moment?.tick;
    this.showPanelAgain();
  }

  /** Shows the documents with the problems of now, and reads counters if there are new ones. */
  showPanelAgain() {
    const isNow = this.at === undefined;
    const sweep = isNow ? this.live.moment?.counter_sweeps : undefined;
    const { panel } = this;
    panel.update(this.documents, isNow ? this.problems : [], sweep != null);
    if (sweep == null || panel.sweep === sweep) return;
    panel.sweep = sweep;
    panel.count();
  }

  /** Whether the panel of a node or of links is shown. */
  hasPanel() {
    return this.panel?.body.isConnected && !byId("detail").hidden;
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
    const names = nodes.map(({ name }) => name).join(" ");
    const makePanel = () => new LinkPanel(...nodes, this.closeButton());
    this.showDocuments(nodes, `${address} ${names}`, makePanel);
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
}
