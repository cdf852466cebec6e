// The view of the map: its middle and zoom factor, how it moves, and where things are on screen.
//
// Maps are wider than high, so the width is magnified by the zoom factor and the height by its
// square root: other rows stay visible while one zooms in on a switch.

const MARGIN = { x: 30, top: 76, bottom: 64 };
const SLOT_MAX = 260;
/** Height of a host with a readable name, in pixels. */
const CELL_MAX = 24;
const GLIDE_MS = 320;

/**
 * What is shown of a map whose extent is `width`, in switch widths, and `height`, in rows; `depth`
 * is the height of the hosts below a switch, of which there are `most`. `draw` is called when the
 * view has changed.
 */
export class View {
  constructor(canvas) {
    this.canvas = canvas;
    this.view = undefined;
  }

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
    if (!this.view) return;
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

  shift(px, py, glide = false) {
    if (!this.view) return;
    const { sx, sy } = this.scales();
    const from = this.goal ?? this.view;
    this.glideTo({ zoom: from.zoom, x: from.x + px / sx, y: from.y + py / sy }, glide);
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
}
