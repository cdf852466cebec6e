// Pointing at the map: with the mouse, fingers or keys; what is drawn at a point.

import { lineAt } from "./lines.js";

/** Moves the view of a map and calls its `picked`, as the operator points. */
export class Pointing {
  constructor(map) {
    this.map = map;
    this.pointers = new Map();
    const { canvas } = map;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener("dblclick", (event) =>
      map.zoom(2.5, event.offsetX, event.offsetY, true),
    );
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? event.deltaY * 18 : event.deltaY;
    const factor = Math.exp(-Math.min(Math.max(lines, -240), 240) / 320);
    this.map.zoom(factor, event.offsetX, event.offsetY);
  }

  down(event) {
    this.map.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.moved = this.pointers.size > 1;
  }

  move(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) {
      this.map.canvas.classList.toggle(
        "pointing",
        this.map.map !== undefined && this.hit(event).some((found) => found !== undefined),
      );
      return;
    }
    const now = { x: event.offsetX, y: event.offsetY };
    if (Math.hypot(now.x - last.x, now.y - last.y) < 4 && !this.moved) return;
    this.moved = true;
    this.map.canvas.classList.add("moving");
    this.pointers.set(event.pointerId, now);
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const spread = (point) => Math.max(Math.hypot(point.x - other.x, point.y - other.y), 10);
      this.map.zoom(spread(now) / spread(last), (now.x + other.x) / 2, (now.y + other.y) / 2);
    } else {
      this.map.shift(last.x - now.x, last.y - now.y);
    }
  }

  up(event) {
    const was = this.pointers.delete(event.pointerId);
    this.map.canvas.classList.remove("moving");
    if (was && !this.moved && event.type === "pointerup" && this.map.map)
      this.map.picked(...this.hit(event));
  }

  /** The node, or else the line of links, at the place of an event. */
  hit({ offsetX: x, offsetY: y }) {
    const node = this.at(x, y);
    return [node, node === undefined ? lineAt(this.map, x, y) : undefined];
  }

  key(event) {
    const { map } = this;
    const steps = {
      ArrowLeft: [-90, 0],
      ArrowRight: [90, 0],
      ArrowUp: [0, -70],
      ArrowDown: [0, 70],
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !map.map) return;
    if (steps[event.key]) map.shift(...steps[event.key], true);
    else if (event.key === "+" || event.key === "=") map.zoom(1.6, undefined, undefined, true);
    else if (event.key === "-") map.zoom(1 / 1.6, undefined, undefined, true);
    else if (event.key === "0") map.fit(true);
    else if (event.key === "Enter") map.picked(this.nearest());
    else if (event.key === "Escape") map.picked(undefined);
    else return;
    event.preventDefault();
  }

  /** The switch nearest to the middle. */
  nearest() {
    const { x, row, count, view } = this.map;
    const { sx, sy } = this.map.scales();
    const away = (at) => Math.hypot((x[at] - view.x) * sx, (row[at] - view.y) * sy);
    let best;
    for (let at = 0; at < count; at++)
      if (best === undefined || away(at) < away(best)) best = at;
    return best;
  }

  /** The node drawn at a point. */
  at(px, py) {
    const { map } = this;
    const f = map.frame();
    const slack = Math.max(0, (10 - f.box.w) / 2);
    let best,
      least = Infinity;
    for (let place = 0; place < map.places; place++) {
      const dx = Math.abs(f.px(map.x[place]) - px);
      if (dx > f.box.w / 2 + slack && dx > f.cell.w / 2 + slack) continue;
      if (
        place < map.count &&
        Math.abs(f.py(map.row[place]) - py) <= f.box.h / 2 + 3 &&
        dx < least
      ) {
        [best, least] = [place, dx];
      }
      const under = Math.floor((py - map.hostsTop(f, place)) / f.cell.h);
      if (under >= 0 && under < map.amount[place] && dx < least) {
        // A bar represents all hosts of a switch: select the switch.
        const single = f.cell.h >= 3 && f.cell.w >= 4;
        if (single || place < map.count) {
          [best, least] = [single ? map.count + map.first[place] + under : place, dx];
        }
      }
    }
    return best;
  }
}
