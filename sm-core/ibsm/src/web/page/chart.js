// Charts over time on a canvas. All charts of a page share one cursor; the legend below each chart
// shows the values at the cursor, or the latest ones.

import { colour, context, make, onTheme, setText } from "./dom.js";
import { clock, NONE } from "./format.js";

const LEFT = 52,
  RIGHT = 8,
  TOP = 8,
  BOTTOM = 20;
const charts = new Set();
/** Time at the cursor, in milliseconds since 1970. */
let cursor;

export class Chart {
  /**
   * `stacked`: values are parts of a whole. `log`: the axis is logarithmic. `axis` and `value`
   * format a number; `floor` is the minimum of the axis's upper end.
   */
  constructor(figure, { stacked = false, log = false, axis, value, floor = 1, label }) {
    Object.assign(this, { stacked, log, axis, value, floor, top: floor });
    this.canvas = make("canvas", {
      tabIndex: 0,
      role: "img",
      "aria-label": `${label}. Left and right arrow keys move through time.`,
    });
    this.none = make("p", { class: "none", hidden: true });
    this.keys = make("ul", { class: "keys" });
    figure.append(make("div", { class: "plot" }, this.canvas, this.none), this.keys);
    this.data = { end: 0, step: 1000, length: 0, series: [] };
    charts.add(this);
    onTheme(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.canvas.addEventListener("pointermove", (event) => point(this.timeAt(event.offsetX)));
    this.canvas.addEventListener("pointerleave", () => point(undefined));
    this.canvas.addEventListener("blur", () => point(undefined));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /**
   * Shows `series`: `{ name, colour, values }`, oldest value first; the last one is at `end`, with
   * a value every `step` milliseconds. The width shows `length` values.
   */
  show({ end, step, length, series, empty = "" }) {
    this.data = { end, step, length, series };
    this.none.hidden = !empty;
    setText(this.none, empty);
    this.scale();
    this.draw();
  }

  /**
   * Sets the upper end of the axis. It is lowered only for a large drop: a steady axis is easier to
   * read.
   */
  scale() {
    let most = 0;
    const { series, length } = this.data;
    for (let back = 1; back <= length; back++) {
      let sum = 0;
      for (const { values } of series) {
        const value = values[values.length - back] ?? 0;
        sum = this.stacked ? sum + value : Math.max(sum, value);
      }
      most = Math.max(most, sum);
    }
    const wanted = Math.max(
      this.log ? 10 ** Math.ceil(Math.log10(Math.max(most, 1e-9))) : nice(most * 1.05),
      this.floor,
    );
    if (wanted > this.top || most < this.top * 0.4) this.top = wanted;
    if (!this.log) return;
    let least = this.top;
    for (const { values } of series) {
      for (const value of values.slice(-length)) if (value > 0) least = Math.min(least, value);
    }
    this.bottom = Math.min(10 ** Math.floor(Math.log10(least)), this.top / 100);
  }

  timeAt(x) {
    const { end, step, length } = this.data;
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    const back = Math.round((1 - (x - LEFT) / width) * (length - 1));
    return end - Math.min(Math.max(back, 0), length - 1) * step;
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    const { end, step, length } = this.data;
    const to = (cursor ?? end) + (Number.isFinite(by) ? by * step : 0);
    point(
      by === -Infinity
        ? end - (length - 1) * step
        : by === Infinity
          ? end
          : Math.min(Math.max(to, end - (length - 1) * step), end),
    );
    event.preventDefault();
  }

  draw() {
    const place = context(this.canvas);
    if (!place) return;
    const { context: c, width, height } = place;
    const { end, step, length, series } = this.data;
    const plot = { x: LEFT, y: TOP, w: width - LEFT - RIGHT, h: height - TOP - BOTTOM };
    const low = this.log ? Math.log10(this.bottom ?? 0.1) : 0;
    const high = this.log ? Math.log10(this.top) : this.top;
    const y = (value) => {
      const at = this.log ? Math.log10(Math.max(value, this.bottom)) : value;
      return plot.y + plot.h * (1 - (at - low) / (high - low || 1));
    };
    const x = (back) => plot.x + plot.w * (1 - back / Math.max(length - 1, 1));

    c.font = "11px system-ui, sans-serif";
    c.lineWidth = 1;
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (const tick of this.ticks()) {
      const at = Math.round(y(tick)) + 0.5;
      c.strokeStyle = colour("--grid");
      c.beginPath();
      c.moveTo(plot.x, at);
      c.lineTo(plot.x + plot.w, at);
      c.stroke();
      c.fillStyle = colour("--soft");
      c.fillText(this.axis(tick), plot.x - 8, at);
    }
    if (end && length) this.times(c, plot, x);

    c.save();
    c.beginPath();
    c.rect(plot.x, plot.y - 2, plot.w, plot.h + 3);
    c.clip();
    if (this.stacked) this.areas(c, series, length, x, y);
    else this.lines(c, series, length, x, y);
    c.restore();

    const back = cursor === undefined ? undefined : Math.round((end - cursor) / step);
    if (back >= 0 && back < length) {
      c.strokeStyle = colour("--soft");
      c.beginPath();
      c.moveTo(Math.round(x(back)) + 0.5, plot.y);
      c.lineTo(Math.round(x(back)) + 0.5, plot.y + plot.h);
      c.stroke();
    }
    this.tellKeys(back >= 0 && back < length ? back : 0);
  }

  ticks() {
    if (!this.log) return [0, 0.25, 0.5, 0.75, 1].map((part) => part * this.top);
    const ticks = [];
    for (let tick = this.bottom; tick <= this.top * 1.001; tick *= 10) ticks.push(tick);
    return ticks;
  }

  times(c, plot, x) {
    const { end, step, length } = this.data;
    const span = (length - 1) * step;
    const every =
      [15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 3600e3, 7200e3, 14400e3, 21600e3].find(
        (one) => span / one <= plot.w / 80,
      ) ?? 43200e3;
    const shift = new Date(end).getTimezoneOffset() * 60e3;
    c.textBaseline = "alphabetic";
    c.fillStyle = colour("--soft");
    for (let at = Math.floor((end - shift) / every) * every + shift; at > end - span; at -= every) {
      const px = x((end - at) / step);
      c.textAlign = px > plot.x + plot.w - 24 ? "right" : "center";
      if (px - plot.x < 20) continue;
      c.fillText(clock(at, every < 60e3), Math.min(px, plot.x + plot.w), plot.y + plot.h + 15);
    }
  }

  areas(c, series, length, x, y) {
    const base = new Float64Array(length);
    for (const [place, { values, colour: name }] of series.entries()) {
      const upper = Float64Array.from(base);
      const known = new Uint8Array(length);
      const at = (back) => values[values.length - 1 - back];
      for (let back = 0; back < length; back++) {
        const value = at(back);
        if (value == null) continue;
        // The edge of a part that is 0 would cover that of the part below.
        known[back] = place === 0 || value > 0 || at(back - 1) > 0 || at(back + 1) > 0 ? 1 : 0;
        upper[back] += value;
      }
      for (const [from, to] of runs(known)) {
        c.beginPath();
        for (let back = from; back <= to; back++) c.lineTo(x(back), y(upper[back]));
        c.strokeStyle = colour(name);
        c.lineWidth = 1.5;
        const edge = new Path2D();
        for (let back = from; back <= to; back++) edge.lineTo(x(back), y(upper[back]));
        for (let back = to; back >= from; back--) c.lineTo(x(back), y(base[back]));
        c.closePath();
        c.globalAlpha = 0.32;
        c.fillStyle = colour(name);
        c.fill();
        c.globalAlpha = 1;
        c.stroke(edge);
      }
      base.set(upper);
    }
  }

  lines(c, series, length, x, y) {
    c.lineJoin = "round";
    for (const { values, colour: name } of series) {
      c.strokeStyle = c.fillStyle = colour(name);
      c.lineWidth = 1.75;
      const known = new Uint8Array(length);
      for (let back = 0; back < length; back++)
        known[back] = values[values.length - 1 - back] == null ? 0 : 1;
      for (const [from, to] of runs(known)) {
        c.beginPath();
        for (let back = from; back <= to; back++)
          c.lineTo(x(back), y(values[values.length - 1 - back]));
        if (from === to) {
          c.arc(x(from), y(values[values.length - 1 - from]), 1.5, 0, 7);
          c.fill();
        } else {
          c.stroke();
        }
      }
    }
  }

  /** Updates the legend: names, and values at the cursor or the latest ones. */
  tellKeys(back) {
    const { series } = this.data;
    while (this.keys.children.length > series.length) this.keys.lastChild.remove();
    while (this.keys.children.length < series.length) {
      this.keys.append(make("li", {}, make("i"), make("span"), make("b")));
    }
    for (const [at, { name, colour: tint, values }] of series.entries()) {
      const [mark, label, value] = this.keys.children[at].children;
      mark.style.background = `var(${tint})`;
      setText(label, name);
      const known = values[values.length - 1 - back];
      setText(value, known == null ? NONE : this.value(known));
    }
  }
}

/** Ranges of known values, first and last index. */
function* runs(known) {
  let from = -1;
  for (let at = 0; at <= known.length; at++) {
    if (at < known.length && known[at]) {
      if (from < 0) from = at;
    } else if (from >= 0) {
      yield [from, at - 1];
      from = -1;
    }
  }
}

function point(time) {
  if (cursor === time) return;
  cursor = time;
  for (const chart of charts) chart.draw();
}

/** The next higher number that divides into readable quarters. */
export function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}

/** Draws a sparkline: recent values, without axes. */
export function spark(canvas, values, tint, least = 1e-9) {
  const place = context(canvas);
  if (!place) return;
  const { context: c, width, height } = place;
  const most = Math.max(...values.map((value) => value ?? 0), least);
  const x = (at) => (at / Math.max(values.length - 1, 1)) * width;
  const y = (value) => height - 1.5 - (value / most) * (height - 4);
  const known = Uint8Array.from(values, (value) => (value == null ? 0 : 1));
  for (const [from, to] of runs(known)) {
    c.beginPath();
    for (let at = from; at <= to; at++) c.lineTo(x(at), y(values[at]));
    c.strokeStyle = colour(tint);
    c.lineWidth = 1.5;
    c.stroke();
    c.lineTo(x(to), height);
    c.lineTo(x(from), height);
    c.globalAlpha = 0.12;
    c.fillStyle = colour(tint);
    c.fill();
    c.globalAlpha = 1;
  }
}
