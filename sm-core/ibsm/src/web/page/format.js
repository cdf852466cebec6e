// Formats numbers, times and names for people. An unknown value is a dash, never 0.

export const NONE = "–";

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A count: 12,345. */
export const count = (value) => (value == null ? NONE : grouped.format(value));

/** A rate: 0.4, 12,345, 1.23 M. */
export function rate(value) {
  if (value == null) return NONE;
  if (value >= 999_950) return `${(value / 1e6).toPrecision(3)} M`;
  if (value > 0 && value < 9.95) return value.toFixed(1);
  return grouped.format(value);
}

/** Gb/s: 0, 0.004, 12.3, 184. */
export function gbps(value) {
  if (value == null) return NONE;
  if (value === 0) return "0";
  if (value < 0.0005) return "< 0.001";
  return value < 1 ? value.toFixed(3) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

/** A rate for an axis: 800, 12k, 1.5M. */
export function short(value) {
  if (value >= 1e9) return `${trim(value / 1e9)}G`;
  if (value >= 1e6) return `${trim(value / 1e6)}M`;
  if (value >= 1e3) return `${trim(value / 1e3)}k`;
  return trim(value);
}

const trim = (value) => String(Number(value.toPrecision(3)));

/** Microseconds: 850 ns, 12.3 µs, 1.20 ms, 3.1 s. */
export function micros(value) {
  if (value == null) return NONE;
  if (value < 1) return `${Math.round(value * 1e3)} ns`;
  if (value < 999.5) return `${digits(value)} µs`;
  return millis(value / 1e3);
}

/** Milliseconds: 0.42 ms, 12.3 ms, 3.1 s, 4 min. */
export function millis(value) {
  if (value == null) return NONE;
  if (value < 999.5) return `${digits(value)} ms`;
  if (value < 99_950) return `${digits(value / 1e3)} s`;
  return duration(value / 1e3);
}

const digits = (value) =>
  value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);

/** A duration in seconds: 42 s, 3 min 7 s, 5 h 12 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds == null) return NONE;
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export const percent = (share) =>
  share > 0 && share < 0.0005 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`;

/** An instant, in milliseconds since 1970, in local time. */
export function clock(ms, withSeconds = true) {
  const two = (n) => String(n).padStart(2, "0");
  const date = new Date(ms);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${time}:${two(date.getSeconds())}` : time;
}

/** Date and time; only the time if it is today. */
export function when(ms) {
  const date = new Date(ms);
  const today = new Date().toDateString() === date.toDateString();
  return today ? clock(ms) : `${date.getMonth() + 1}/${date.getDate()} ${clock(ms)}`;
}

/** The name of a method in the specification. */
export function method(name) {
  const names = {
    get: "Get",
    get_table: "GetTable",
    get_multi: "GetMulti",
    set: "Set",
    delete: "Delete",
  };
  return names[name] ?? name;
}

/** A label as words: too_many_transfers. */
export const words = (label) => label.replaceAll("_", " ");
