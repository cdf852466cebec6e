// The map of the fabric on a canvas: switches where the server placed them, hosts in a column below
// their switch. Items too small to be visible are drawn together: the hosts of a switch as a bar,
// and only a share of thousands of links.
//
// Maps are wider than high, so the width is magnified by the zoom factor and the height by its
// square root: other rows stay visible while one zooms in on a switch.

import { colour, context, onTheme } from "./dom.js";
import { HEAT, LoadLayer } from "./heat.js";
import { lineAt } from "./links.js";

const DEGRADED = 1,
  INACTIVE = 2,
  MISSING = 4;
/** Dashes of what is missing. */
const MISSING_DASH = [3, 4];
/** Limits of lines drawn, at rest and while moving; time after which the map is at rest. */
const LINES_MAX = 6000,
  LINES_MOVING = 1500,
  REST_MS = 140;
/** Height of the hosts below a switch, and of the gap above them, in rows. */
const HOSTS = { tree: 0.8, distance: 0.5 },
  GAP = 0.14;
const MARGIN = { x: 30, top: 76, bottom: 64 };
const SLOT_MAX = 260;
/** Height of a host with a readable name, in pixels. */
const CELL_MAX = 24;
const GLIDE_MS = 320;

export class FabricMap {
  /**
   * `picked` is called with the number of a clicked node, or with nothing and the clicked line of
   * links, if there is one.
   */
  constructor(canvas, picked) {
    this.canvas = canvas;
    this.picked = picked;
    this.nodes = 0;
    this.view = undefined;
    this.selected = undefined;
    /** Selected lines, and nodes at the ends of a path. */
    [this.chosen, this.ends] = [[], []];
    this.faulty = new Set();
    this.pointers = new Map();
    onTheme(() => this.draw());
    new ResizeObserver(() => this.resized()).observe(canvas);
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener("dblclick", (event) =>
      this.zoom(2.5, event.offsetX, event.offsetY, true),
    );
    canvas.addEventListener("keydown", (event) => this.key(event));
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
    [this.chosen, this.ends] = [[], []];
    this.draw();
  }

  /** The line of links between two switches, if there is one. */
  lineOfSwitches(a, b) {
    return this.bySwitch.get(a)?.find((line) => line.a === b || line.b === b);
  }

  /** Selects the links between each node and the next, and marks the ends. */
  selectPath(numbers) {
    this.selected = undefined;
    const pairs = numbers.slice(1).map((to, at) => this.lineOfSwitches(numbers[at], to));
    this.chosen = pairs.filter((line) => line !== undefined);
    this.ends = [numbers[0], numbers.at(-1)].filter((number) => number !== undefined);
    this.canvas.dataset.chosen = String(this.chosen.length);
    this.draw();
  }

  // The view: its middle, in switch widths and rows, and the zoom factor.

  fit(glide = false) {
    this.glideTo({ x: this.width / 2, y: this.height / 2, zoom: 1 }, glide);
  }

  scales(view = this.view) {
    const w = Math.max(this.canvas.clientWidth - 2 * MARGIN.x, 50);
    const h = Math.max(this.canvas.clientHeight - MARGIN.top - MARGIN.bottom, 50);
    const slot = Math.min(w / this.width, SLOT_MAX);
    const row = h / Math.max(this.height, 0.6);
    // Rows move apart only until the names of hosts are readable.
    const most = Math.max(row, (CELL_MAX * this.most) / this.depth);
    return { sx: slot * view.zoom, sy: Math.min(row * Math.sqrt(view.zoom), most) };
  }

  zoomMax() {
    const { sx } = this.scales({ zoom: 1 });
    return Math.max(SLOT_MAX / sx, 4);
  }

  middle() {
    const { clientWidth, clientHeight } = this.canvas;
    return { x: clientWidth / 2, y: MARGIN.top + (clientHeight - MARGIN.top - MARGIN.bottom) / 2 };
  }

  /** Zooms by `factor` around a point. */
  zoom(factor, px, py, glide = false) {
    if (!this.map) return;
    const middle = this.middle();
    const [x, y] = [px ?? middle.x, py ?? middle.y];
    const from = this.goal ?? this.view;
    const zoom = Math.min(Math.max(from.zoom * factor, 0.7), this.zoomMax());
    const before = this.scales(from);
    const after = this.scales({ zoom });
    this.glideTo(
      {
        zoom,
        x: from.x + (x - middle.x) * (1 / before.sx - 1 / after.sx),
        y: from.y + (y - middle.y) * (1 / before.sy - 1 / after.sy),
      },
      glide,
    );
  }

  /** Centres the view on a node, large enough to be readable. */
  centre(number) {
    const zoom = Math.max(this.view.zoom, this.zoomMax() * 0.55);
    // Its future position on the screen, converted to widths and rows.
    const f = this.frame({ ...this.view, zoom });
    const box = this.boxOf(f, number);
    this.glideTo({ zoom, x: f.x(box.x + box.w / 2), y: f.y(box.y + box.h / 2) }, true);
  }

  /** Moves the view, at once or with a short animation. */
  glideTo(view, glide) {
    const from = this.view;
    this.moving = from !== undefined;
    const within = (value, most) => Math.min(Math.max(value, 0), most);
    this.goal = { zoom: view.zoom, x: within(view.x, this.width), y: within(view.y, this.height) };
    if (!glide || !from || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.view = this.goal;
      this.goal = undefined;
      this.began = undefined;
    } else {
      [this.from, this.began] = [from, performance.now()];
    }
    this.draw();
  }

  step(now) {
    if (this.began === undefined) return;
    const part = Math.min((now - this.began) / GLIDE_MS, 1);
    const eased = 1 - (1 - part) ** 3;
    const mix = (a, b) => a + (b - a) * eased;
    const { from, goal } = this;
    this.view = {
      x: mix(from.x, goal.x),
      y: mix(from.y, goal.y),
      zoom: from.zoom * (goal.zoom / from.zoom) ** eased,
    };
    if (part < 1) return this.draw();
    [this.view, this.goal, this.began] = [goal, undefined, undefined];
  }

  resized() {
    if (this.map && !this.view) this.fit();
    this.draw();
  }

  // Input.

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? event.deltaY * 18 : event.deltaY;
    this.zoom(Math.exp(-Math.min(Math.max(lines, -240), 240) / 320), event.offsetX, event.offsetY);
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.moved = this.pointers.size > 1;
  }

  move(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) {
      this.canvas.classList.toggle(
        "pointing",
        this.map !== undefined && this.hit(event).some((found) => found !== undefined),
      );
      return;
    }
    const now = { x: event.offsetX, y: event.offsetY };
    if (Math.hypot(now.x - last.x, now.y - last.y) < 4 && !this.moved) return;
    this.moved = true;
    this.canvas.classList.add("moving");
    this.pointers.set(event.pointerId, now);
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const spread = (point) => Math.max(Math.hypot(point.x - other.x, point.y - other.y), 10);
      this.zoom(spread(now) / spread(last), (now.x + other.x) / 2, (now.y + other.y) / 2);
    } else {
      this.shift(last.x - now.x, last.y - now.y);
    }
  }

  up(event) {
    const was = this.pointers.delete(event.pointerId);
    this.canvas.classList.remove("moving");
    if (was && !this.moved && event.type === "pointerup" && this.map)
      this.picked(...this.hit(event));
  }

  /** The node, or else the line of links, at the place of an event. */
  hit({ offsetX: x, offsetY: y }) {
    const node = this.at(x, y);
    return [node, node === undefined ? lineAt(this, x, y) : undefined];
  }

  shift(px, py, glide = false) {
    if (!this.map) return;
    const { sx, sy } = this.scales();
    const from = this.goal ?? this.view;
    this.glideTo({ zoom: from.zoom, x: from.x + px / sx, y: from.y + py / sy }, glide);
  }

  key(event) {
    const steps = {
      ArrowLeft: [-90, 0],
      ArrowRight: [90, 0],
      ArrowUp: [0, -70],
      ArrowDown: [0, 70],
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.map) return;
    if (steps[event.key]) this.shift(...steps[event.key], true);
    else if (event.key === "+" || event.key === "=") this.zoom(1.6, undefined, undefined, true);
    else if (event.key === "-") this.zoom(1 / 1.6, undefined, undefined, true);
    else if (event.key === "0") this.fit(true);
    else if (event.key === "Enter") this.picked(this.nearest());
    else if (event.key === "Escape") this.picked(undefined);
    else return;
    event.preventDefault();
  }

  /** The switch nearest to the middle. */
  nearest() {
    const { sx, sy } = this.scales();
    const away = (at) =>
      Math.hypot((this.x[at] - this.view.x) * sx, (this.row[at] - this.view.y) * sy);
    let best;
    for (let at = 0; at < this.count; at++)
      if (best === undefined || away(at) < away(best)) best = at;
    return best;
  }

  // Geometry on the screen.

  frame(view = this.view) {
    const { sx, sy } = this.scales(view);
    const middle = this.middle();
    const box = {
      w: Math.max(Math.min(sx * 0.8, 150), 1),
      h: Math.min(Math.max(sx * 0.22, 5), 26),
    };
    const cell = {
      w: Math.max(Math.min(sx * 0.8, 180), 1),
      h: Math.min((this.depth * sy) / this.most, CELL_MAX + 2),
    };
    return {
      sx,
      sy,
      box,
      cell,
      px: (x) => middle.x + (x - view.x) * sx,
      py: (y) => middle.y + (y - view.y) * sy,
      x: (px) => view.x + (px - middle.x) / sx,
      y: (py) => view.y + (py - middle.y) / sy,
    };
  }

  /** How far above a row the curve between two switches of it is steered, in pixels. */
  bulge(f, xa, xb) {
    return Math.min(Math.abs(xa - xb) / 2, f.sy * 0.4);
  }

  /** Top of the hosts of a switch. */
  hostsTop(f, place) {
    return f.py(this.row[place]) + Math.max(GAP * f.sy, f.box.h / 2 + 4);
  }

  /** The node drawn at a point. */
  at(px, py) {
    const f = this.frame();
    const slack = Math.max(0, (10 - f.box.w) / 2);
    let best,
      least = Infinity;
    for (let place = 0; place < this.places; place++) {
      const dx = Math.abs(f.px(this.x[place]) - px);
      if (dx > f.box.w / 2 + slack && dx > f.cell.w / 2 + slack) continue;
      if (
        place < this.count &&
        Math.abs(f.py(this.row[place]) - py) <= f.box.h / 2 + 3 &&
        dx < least
      ) {
        [best, least] = [place, dx];
      }
      const under = Math.floor((py - this.hostsTop(f, place)) / f.cell.h);
      if (under >= 0 && under < this.amount[place] && dx < least) {
        // A bar represents all hosts of a switch: select the switch.
        const single = f.cell.h >= 3 && f.cell.w >= 4;
        if (single || place < this.count) {
          [best, least] = [single ? this.count + this.first[place] + under : place, dx];
        }
      }
    }
    return best;
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame((now) => {
      this.drawing = undefined;
      this.step(now);
      this.paint();
      if (!this.moving) return;
      // At rest, draw all details.
      clearTimeout(this.resting);
      this.resting = setTimeout(() => {
        this.moving = false;
        this.draw();
      }, REST_MS);
    });
  }

  paint() {
    if (!this.map) return;
    const place = context(this.canvas);
    if (!place) return;
    const { context: c, width, height } = place;
    const f = this.frame();
    this.canvas.dataset.zoom = this.view.zoom.toFixed(2);
    this.paintLinks(c, f, width, height);
    const isSeen = (at) => {
      const x = f.px(this.x[at]);
      return x > -f.cell.w && x < width + f.cell.w;
    };
    const seen = [];
    for (let at = 0; at < this.places; at++) if (isSeen(at)) seen.push(at);
    this.paintHosts(c, f, seen, height);
    this.paintSwitches(
      c,
      f,
      seen.filter((at) => at < this.count),
      height,
    );
    this.paintMarks(c, f);
  }

  paintLinks(c, f, width, height) {
    const inside = (a, b, most) => Math.max(a, b) >= 0 && Math.min(a, b) <= most;
    const visible = this.lines.filter(
      ({ a, b }) =>
        inside(f.px(this.x[a]), f.px(this.x[b]), width) &&
        inside(f.py(this.row[a]), f.py(this.row[b]), height),
    );
    const most = this.moving ? LINES_MOVING : LINES_MAX;
    const every = 2 ** Math.ceil(Math.log2(Math.max(visible.length / most, 1)));
    const trace = ({ a, b }) => {
      const [xa, ya, xb, yb] = [
        f.px(this.x[a]),
        f.py(this.row[a]),
        f.px(this.x[b]),
        f.py(this.row[b]),
      ];
      c.moveTo(xa, ya);
      // Within a row a straight line would be hidden by the switches.
      if (this.row[a] === this.row[b])
        c.quadraticCurveTo((xa + xb) / 2, ya - this.bulge(f, xa, xb), xb, yb);
      else c.lineTo(xb, yb);
    };
    c.strokeStyle = colour("--edge");
    c.globalAlpha = Math.min(Math.max(240 / Math.min(visible.length, LINES_MAX), 0.07), 0.4);
    c.lineWidth = 1;
    c.beginPath();
    // The choice of omitted lines does not depend on the view, or they would flicker.
    for (const line of visible)
      if (line.links && (every === 1 || (line.a * 31 + line.b * 17) % every === 0)) trace(line);
    c.stroke();
    this.layer?.paintLinks(c, visible, most, trace);
    for (const [flag, tint, dash] of [
      [DEGRADED, "--warn", []],
      [INACTIVE, "--bad", [6, 4]],
      [MISSING, "--bad", MISSING_DASH],
    ]) {
      c.strokeStyle = colour(tint);
      c.globalAlpha = 0.95;
      c.lineWidth = 2;
      c.setLineDash(dash);
      c.beginPath();
      for (const line of visible) if (line.flags & flag) trace(line);
      c.stroke();
    }
    c.setLineDash([]);
    const own =
      this.selected === undefined ? undefined : this.bySwitch.get(this.home(this.selected));
    if (own) {
      c.strokeStyle = colour("--accent");
      c.globalAlpha = 0.9;
      c.lineWidth = 1.75;
      c.beginPath();
      own.forEach(trace);
      c.stroke();
    }
    if (this.chosen.length) {
      c.strokeStyle = colour("--accent");
      c.globalAlpha = 1;
      c.lineWidth = 3.5;
      c.beginPath();
      this.chosen.forEach(trace);
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  /** The node itself if it is a switch, else the switch of the host. */
  home(number) {
    return number < this.count ? number : this.map.hosts.leaf[number - this.count];
  }

  paintHosts(c, f, seen, height) {
    const single = f.cell.h >= 3 && f.cell.w >= 4;
    const labelled = f.cell.h >= 14 && f.cell.w >= 64;
    const flagged = [[], [], [], []];
    const hot = HEAT.map(() => []);
    const gone = [];
    const texts = [];
    c.fillStyle = labelled ? colour("--card") : colour("--host");
    c.strokeStyle = colour("--host");
    c.beginPath();
    for (const place of seen) {
      const amount = this.amount[place];
      if (amount === 0) continue;
      const [x, top] = [f.px(this.x[place]) - f.cell.w / 2, this.hostsTop(f, place)];
      if (top > height || top + amount * f.cell.h < 0) continue;
      if (!single) c.fillRect(x, top, f.cell.w, Math.max(amount * f.cell.h, 1));
      const isGone = this.missing.size > 0;
      for (let at = 0; at < amount; at++) {
        const y = top + at * f.cell.h;
        if (y > height || y + f.cell.h < 0) continue;
        const host = this.first[place] + at;
        const flags = this.map.hosts.link[host] & (DEGRADED | INACTIVE);
        const [w, h] = [f.cell.w - 1, f.cell.h - (f.cell.h > 6 ? 3 : 1)];
        if (isGone && this.missing.has(this.count + host)) {
          gone.push([x, y, w, h]);
          if (labelled) texts.push([this.map.hosts.name[host], x, y]);
          continue;
        }
        if (flags) flagged[flags].push([x, y]);
        hot[this.layer?.heatOfHost(host) ?? -1]?.push([x, y, w, h]);
        if (!single) continue;
        // Single rectangles are faster than one path.
        if (!labelled) c.fillRect(x + 0.5, y + 0.5, w, h);
        else {
          c.rect(x + 0.5, y + 0.5, w, h);
          texts.push([this.map.hosts.name[host], x, y]);
        }
      }
    }
    if (!labelled) this.layer?.paintHosts(c, hot, single);
    if (labelled) {
      c.fill();
      this.layer?.paintHosts(c, hot, single);
      c.beginPath();
      for (const [, x, y] of texts) c.rect(x + 0.5, y + 0.5, f.cell.w - 1, f.cell.h - 3);
      c.globalAlpha = 0.75;
      c.lineWidth = 1;
      c.stroke();
      c.globalAlpha = 1;
      c.font = "11px system-ui, sans-serif";
      c.textBaseline = "middle";
      c.textAlign = "left";
      c.fillStyle = colour("--text");
      for (const [text, x, y] of texts)
        c.fillText(fitted(c, text, f.cell.w - 12), x + 6, y + (f.cell.h - 2) / 2);
    }
    if (gone.length) {
      c.strokeStyle = colour("--bad");
      c.lineWidth = 1;
      // In a bar, a gap; where there is room, a dashed frame.
      if (!single) {
        c.fillStyle = colour("--ground");
        for (const [x, y, w, h] of gone) c.fillRect(x, y, w + 1, Math.max(h, 1));
      }
      c.setLineDash(MISSING_DASH);
      c.beginPath();
      for (const [x, y, w, h] of gone) {
        if (single) c.rect(x + 0.5, y + 0.5, w, Math.max(h, 1));
        else {
          c.moveTo(x, y);
          c.lineTo(x + w, y);
        }
      }
      c.stroke();
      c.setLineDash([]);
    }
    for (const [flags, places] of flagged.entries()) {
      c.fillStyle = colour(flags & INACTIVE ? "--bad" : "--warn");
      for (const [x, y] of places) {
        c.fillRect(
          x,
          y,
          labelled ? 4 : Math.max(f.cell.w, 2),
          Math.max(f.cell.h - (labelled ? 2 : 1), 2),
        );
      }
    }
  }

  paintSwitches(c, f, seen, height) {
    const { w, h } = f.box;
    const labelled = w >= 52 && h >= 12;
    c.fillStyle = labelled ? colour("--card") : colour("--switch");
    c.strokeStyle = colour("--switch");
    c.lineWidth = 1.5;
    c.beginPath();
    const inside = seen.filter((at) => f.py(this.row[at]) > -h && f.py(this.row[at]) < height + h);
    const gone = this.missing.size ? inside.filter((at) => this.missing.has(at)) : [];
    for (const at of inside) {
      if (gone.length && this.missing.has(at)) continue;
      const [x, y] = [f.px(this.x[at]) - w / 2, f.py(this.row[at]) - h / 2];
      if (labelled) c.roundRect(x, y, w, h, 3);
      else c.fillRect(x, y, w, h);
    }
    if (labelled) {
      c.fill();
      c.stroke();
    }
    if (gone.length) {
      c.strokeStyle = colour("--bad");
      c.setLineDash(MISSING_DASH);
      c.beginPath();
      for (const at of gone)
        c.roundRect(f.px(this.x[at]) - w / 2, f.py(this.row[at]) - h / 2, w, h, labelled ? 3 : 0);
      c.stroke();
      c.setLineDash([]);
    }
    if (!labelled) return;
    c.font = "600 11.5px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "center";
    c.fillStyle = colour("--text");
    for (const at of inside)
      c.fillText(
        fitted(c, this.map.switches.name[at], w - 10),
        f.px(this.x[at]),
        f.py(this.row[at]) + 0.5,
      );
  }

  /** Draws rings around nodes with faults, the subnet manager and the selected node. */
  paintMarks(c, f) {
    const ring = (number, tint, grow, line) => {
      const { x, y, w, h } = this.boxOf(f, number);
      c.strokeStyle = colour(tint);
      c.lineWidth = line;
      c.beginPath();
      c.roundRect(x - grow, y - grow, w + 2 * grow, h + 2 * grow, 4);
      c.stroke();
    };
    for (const number of this.faulty) ring(number, "--bad", 2, 2);
    if (this.map.sm != null) ring(this.map.sm, "--good", 2, 2);
    const chosen = this.selected === undefined ? this.ends : [this.selected];
    for (const number of chosen) ring(number, "--accent", 4, 3);
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

/** Text, truncated to the available width. */
function fitted(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let length = Math.max(1, Math.floor((text.length * room) / c.measureText(text).width) - 1);
  while (length > 1 && c.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}
