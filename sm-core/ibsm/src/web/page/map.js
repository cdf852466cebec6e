// The map of the fabric on a canvas: switches where the server placed them, hosts in a column below
// their switch. Here: what is on it and what is selected. `view`: the part of it that is shown;
// `paint`: how it is drawn; `pointing`: mouse and keys.

import { context, onTheme } from "./dom.js";
import { LoadLayer } from "./heat.js";
import { paint } from "./paint.js";
import { Pointing } from "./pointing.js";
import { View } from "./view.js";

/** Flag of a link that is missing. */
const MISSING = 4;
/** Time after which the map is at rest. */
const REST_MS = 140;
/** Height of the hosts below a switch, and of the gap above them, in rows. */
const HOSTS = { tree: 0.8, distance: 0.5 },
  GAP = 0.14;

/** Height of a host, and width of the gap beside it, from which on links of hosts are lines. */
const TIE_CELL = 8,
  TIE_GAP = 10;

export class FabricMap extends View {
  /**
   * `picked` is called with the number of a clicked node, or with nothing and the numbers of two
   * nodes whose line of links was clicked, `{ a, b }`, if there is one.
   */
  constructor(canvas, picked) {
    super(canvas);
    this.picked = picked;
    this.nodes = 0;
    this.selected = undefined;
    /** Selected lines, hosts whose links are selected, and nodes at the ends of a path. */
    [this.chosen, this.chosenHosts, this.ends] = [[], [], []];
    /** The lines that are drawn. */
    this.drawn = new Set();
    this.faulty = new Set();
    onTheme(() => this.draw());
    new ResizeObserver(() => this.resized()).observe(canvas);
    this.pointing = new Pointing(this);
  }

  /** Shows a map from the server. The view is kept. */
  load(map) {
    const { switches, hosts } = map;
    const count = switches.name.length;
    this.map = map;
    this.count = count;
    this.depth = HOSTS[map.layout] ?? HOSTS.distance;
    // Hosts by switch; those without a switch are in a column of their own, at the right.
    this.first = new Int32Array(count + 1).fill(-1);
    this.amount = new Int32Array(count + 1);
    for (const [at, leaf] of hosts.leaf.entries()) {
      const place = leaf < 0 ? count : leaf;
      if (this.first[place] < 0) this.first[place] = at;
      this.amount[place] += 1;
    }
    this.most = Math.max(1, ...this.amount);
    const loose = this.amount[count] > 0;
    this.x = Float32Array.from([...switches.x, map.width + 1.5]);
    this.row = Uint16Array.from([...switches.row, Math.max(map.rows - 1, 0)]);
    this.places = loose ? count + 1 : count;
    this.width = Math.max(map.width + (loose ? 2 : 0), 1);
    this.height = Math.max(map.rows - 1, 0) + GAP + this.depth;
    // Links between the same two switches are one line.
    const lines = new Map();
    /** The line of each link. */
    this.lineOf = [];
    this.layer = undefined;
    this.canvas.dataset.hottest = "";
    for (let at = 0; at < map.links.length; at += 6) {
      const [a, , b, , , flags] = map.links.slice(at, at + 6);
      const key = a * count + b;
      const line = lines.get(key) ?? { a, b, links: 0, flags: 0 };
      if (!(flags & MISSING)) line.links += 1;
      line.flags |= flags;
      lines.set(key, line);
      this.lineOf.push(line);
    }
    this.lines = [...lines.values()];
    this.bySwitch = new Map();
    for (const line of this.lines) {
      for (const end of [line.a, line.b]) {
        if (!this.bySwitch.has(end)) this.bySwitch.set(end, []);
        this.bySwitch.get(end).push(line);
      }
    }
    /** Numbers of nodes that are missing: they keep their places. */
    this.missing = new Set(map.missing);
    this.canvas.dataset.missing = String(this.missing.size);
    if (!this.view) this.fit();
    this.draw();
  }

  /** Shows nothing. */
  clear() {
    this.map = undefined;
    this.layer = undefined;
    this.drawn = new Set();
    context(this.canvas);
  }

  /** Colours links by a document of their load; without one, by their state. */
  showLoad(load) {
    this.layer = load && this.map ? new LoadLayer(this, load) : undefined;
    this.canvas.dataset.hottest = String(this.layer?.hottest ?? "");
    this.draw();
  }

  /** Name, GUID, LID and kind of a node. */
  node(number) {
    const { switches, hosts } = this.map;
    const isSwitch = number < this.count;
    const [list, at] = isSwitch ? [switches, number] : [hosts, number - this.count];
    return {
      number,
      name: list.name[at],
      guid: list.guid[at],
      lid: list.lid[at],
      kind: isSwitch ? "switch" : "host",
      missing: this.missing.has(number),
    };
  }

  select(number) {
    this.selected = number;
    [this.chosen, this.chosenHosts, this.ends] = [[], [], []];
    this.draw();
  }

  /** The line of links between two switches, if there is one. */
  lineOfSwitches(a, b) {
    return this.bySwitch.get(a)?.find((line) => line.a === b || line.b === b);
  }

  /** Selects the links between each node and the next, and marks the ends. */
  selectPath(numbers) {
    this.selected = undefined;
    const pairs = numbers.slice(1).map((to, at) => [numbers[at], to]);
    const lines = pairs.map(([from, to]) => this.lineOfSwitches(from, to));
    this.chosen = lines.filter((line) => line !== undefined);
    const isHost = (number, other) => number >= this.count && this.home(number) === other;
    this.chosenHosts = pairs.flatMap(([from, to]) =>
      isHost(from, to) ? [from] : isHost(to, from) ? [to] : [],
    );
    this.ends = [numbers[0], numbers.at(-1)].filter((number) => number !== undefined);
    this.canvas.dataset.chosen = String(this.chosen.length);
    this.draw();
  }

  /** Centres the view on a node, large enough to be readable. */
  centre(number) {
    const zoom = Math.max(this.view.zoom, this.zoomMax() * 0.55);
    // Its future position on the screen, converted to widths and rows.
    const f = this.frame({ ...this.view, zoom });
    const box = this.boxOf(f, number);
    this.glideTo({ zoom, x: f.x(box.x + box.w / 2), y: f.y(box.y + box.h / 2) }, true);
  }

  resized() {
    if (this.map && !this.view) this.fit();
    this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame((now) => {
      this.drawing = undefined;
      this.step(now);
      if (this.map) paint(this);
      if (!this.moving) return;
      // At rest, draw all details.
      clearTimeout(this.resting);
      this.resting = setTimeout(() => {
        this.moving = false;
        this.draw();
      }, REST_MS);
    });
  }

  // Geometry on the screen.

  /** How far above a row the curve between two switches of it is steered, in pixels. */
  bulge(f, xa, xb) {
    return Math.min(Math.abs(xa - xb) / 2, f.sy * 0.4);
  }

  /** Top of the hosts of a switch. */
  hostsTop(f, place) {
    return f.py(this.row[place]) + Math.max(GAP * f.sy, f.box.h / 2 + 4);
  }

  /**
   * How far to the left of hosts the lines to them begin, in pixels; nothing if the hosts are too
   * small for lines.
   */
  tie(f) {
    const gap = f.sx - f.cell.w;
    return f.cell.h >= TIE_CELL && gap >= TIE_GAP ? Math.min(gap / 2, TIE_GAP) : undefined;
  }

  /** The node itself if it is a switch, else the switch of the host. */
  home(number) {
    return number < this.count ? number : this.map.hosts.leaf[number - this.count];
  }

  boxOf(f, number) {
    if (number < this.count) {
      const { w, h } = f.box;
      return { x: f.px(this.x[number]) - w / 2, y: f.py(this.row[number]) - h / 2, w, h };
    }
    const host = number - this.count;
    const place = this.home(number) < 0 ? this.count : this.home(number);
    const { w, h } = f.cell;
    return {
      x: f.px(this.x[place]) - w / 2,
      y: this.hostsTop(f, place) + (host - this.first[place]) * h,
      w,
      h: Math.max(h - 2, 1),
    };
  }
}
