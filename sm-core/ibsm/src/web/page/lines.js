// Where the lines of links are on the map.

/** How near to a line a point is on it, in pixels. */
const NEAR = 5;
/** Points of a curve between two switches of a row that the distance is measured to. */
const CURVE_STEPS = 12;

/**
 * The line of a map at a point, as the numbers of the two nodes, `{ a, b }`, if one is there: of
 * those that are drawn, the nearest.
 */
export function lineAt(map, px, py) {
  const f = map.frame();
  return tieAt(map, f, px, py) ?? lineOfSwitchesAt(map, f, px, py);
}

/** The line to a host. */
function tieAt(map, f, px, py) {
  const away = map.tie(f);
  if (away === undefined) return undefined;
  for (let place = 0; place < map.count; place++) {
    const left = f.px(map.x[place]) - f.cell.w / 2;
    if (px < left - away - 2 || px > left) continue;
    const at = Math.floor((py - map.hostsTop(f, place)) / f.cell.h);
    if (at >= 0 && at < map.amount[place])
      return { a: place, b: map.count + map.first[place] + at };
  }
  return undefined;
}

function lineOfSwitchesAt(map, f, px, py) {
  let best,
    least = NEAR;
  for (const line of map.drawn) {
    const [xa, ya] = [f.px(map.x[line.a]), f.py(map.row[line.a])];
    const [xb, yb] = [f.px(map.x[line.b]), f.py(map.row[line.b])];
    if (px < Math.min(xa, xb) - NEAR || px > Math.max(xa, xb) + NEAR) continue;
    const away =
      ya === yb
        ? fromCurve(px, py, xa, xb, ya, map.bulge(f, xa, xb))
        : fromSegment(px, py, xa, ya, xb, yb);
    if (away < least) [best, least] = [line, away];
  }
  return best;
}

function fromSegment(px, py, xa, ya, xb, yb) {
  const [dx, dy] = [xb - xa, yb - ya];
  const length = dx * dx + dy * dy;
  const part = length ? ((px - xa) * dx + (py - ya) * dy) / length : 0;
  const at = Math.min(Math.max(part, 0), 1);
  return Math.hypot(px - xa - at * dx, py - ya - at * dy);
}

/** Distance from a quadratic curve above a row. */
function fromCurve(px, py, xa, xb, y, bulge) {
  let least = Infinity;
  let [x0, y0] = [xa, y];
  for (let step = 1; step <= CURVE_STEPS; step++) {
    const t = step / CURVE_STEPS;
    const [x1, y1] = [xa + (xb - xa) * t, y - 2 * t * (1 - t) * bulge];
    least = Math.min(least, fromSegment(px, py, x0, y0, x1, y1));
    [x0, y0] = [x1, y1];
  }
  return least;
}
