// The load of links as colours of the map: thousandths of what a link can carry, in six steps.

import { colour } from "./dom.js";

/** Colours of the style sheet, from the coolest, and the thousandths from which each is used. */
export const HEAT = ["--h0", "--h1", "--h2", "--h3", "--h4", "--h5"];
const FROM = [1, 100, 300, 500, 700, 900];
/** Steps of which every line is drawn, however many there are. */
const ALWAYS = 3;

/** The step of a load; -1 if it is too low for a colour. */
export function heat(load) {
  let step = -1;
  while (step + 1 < FROM.length && load >= FROM[step + 1]) step += 1;
  return step;
}

/** What a document of `/api/v1/load` adds to a map with the same numbers. */
export class LoadLayer {
  constructor(map, { links, hosts }) {
    this.hosts = new Uint16Array(map.map.hosts.name.length);
    this.hottest = 0;
    // A line shows the busiest direction of its links.
    this.lines = new Map();
    for (let at = 0; at < links.length; at += 3) {
      const line = map.lineOf[links[at]];
      const load = Math.max(links[at + 1], links[at + 2]);
      if (!line) continue;
      this.lines.set(line, Math.max(load, this.lines.get(line) ?? 0));
      this.hottest = Math.max(this.hottest, load);
    }
    for (let at = 0; at < hosts.length; at += 3) {
      const load = Math.max(hosts[at + 1], hosts[at + 2]);
      this.hosts[hosts[at]] = load;
      this.hottest = Math.max(this.hottest, load);
    }
  }

  heatOfHost(host) {
    return heat(this.hosts[host]);
  }

  /** Draws visible lines that carry something, the busiest last; of cool ones, at most `most`. */
  paintLinks(c, visible, most, trace) {
    const steps = HEAT.map(() => []);
    for (const line of visible) steps[heat(this.lines.get(line) ?? 0)]?.push(line);
    for (const [step, lines] of steps.entries()) {
      if (!lines.length) continue;
      const every = step >= ALWAYS ? 1 : Math.max(Math.ceil(lines.length / most), 1);
      c.strokeStyle = colour(HEAT[step]);
      c.globalAlpha = 0.9;
      c.lineWidth = 1 + step * 0.35;
      c.beginPath();
      // The choice of omitted lines does not depend on the view, or they would flicker.
      for (const line of lines)
        if (every === 1 || (line.a * 31 + line.b * 17) % every === 0) trace(line);
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  /** Fills the places of hosts, by step. */
  paintHosts(c, steps, single) {
    for (const [step, places] of steps.entries()) {
      c.fillStyle = colour(HEAT[step]);
      for (const [x, y, w, h] of places)
        c.fillRect(x + (single ? 0.5 : 0), y + (single ? 0.5 : 0), w, single ? h : Math.max(h, 1));
    }
  }
}
