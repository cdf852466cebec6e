// Data from the subnet manager: moments as they arrive, and the history before.

const FINE_MAX = 15 * 60;
/** Time without a moment after which the shown data is stale, in milliseconds. */
const STALE_MS = 3500;

/**
 * Follows `/api/v1/stream`. `state` is "connecting", "live", "stale" (connected, but silent) or
 * "lost". Listeners are called with (live) after each change.
 */
export class Live {
  constructor() {
    this.state = "connecting";
    this.moment = undefined;
    this.history = undefined;
    this.heard = 0;
    this.listeners = new Set();
    this.timer = undefined;
    this.loading = false;
  }

  start() {
    this.connect();
    setInterval(() => this.checkAge(), 500);
    // A page in the background may have missed moments.
    document.addEventListener("visibilitychange", () => this.checkAge());
  }

  /** Time since the last moment, in milliseconds. */
  age() {
    return this.heard ? Date.now() - this.heard : undefined;
  }

  connect() {
    clearTimeout(this.timer);
    const source = new EventSource("/api/v1/stream");
    source.addEventListener("moment", (event) => this.take(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      this.turn("lost");
      // The browser reconnects automatically unless the request was refused.
      if (source.readyState === EventSource.CLOSED) {
        this.timer = setTimeout(() => this.connect(), 3000);
      }
    });
  }

  take(moment) {
    const before = this.moment;
    this.moment = moment;
    this.heard = Date.now();
    const restarted = before && moment.sm.uptime_s < before.sm.uptime_s;
    if (!this.history || restarted || moment.tick !== this.history.tick + 1) {
      if (!this.history || restarted || moment.tick > this.history.tick) this.load();
    } else {
      this.append(moment);
    }
    this.turn("live", true);
  }

  checkAge() {
    if (this.state === "live" && this.age() > STALE_MS) this.turn("stale");
    else if (this.state !== "live") this.notify();
  }

  turn(state, always = false) {
    if (this.state === state && !always) return;
    this.state = state;
    this.notify();
  }

  notify() {
    for (const listener of this.listeners) listener(this);
  }

  /** Fetches the history up to now. */
  async load() {
    if (this.loading) return;
    this.loading = true;
    try {
      const answer = await fetch("/api/v1/series");
      if (!answer.ok) return;
      this.history = await answer.json();
      this.notify();
    } catch {
      // The stream reports the lost connection.
    } finally {
      this.loading = false;
    }
  }

  /** Appends a moment to the history. */
  append(moment) {
    const history = this.history;
    const length = history.total.answers_per_s.length;
    history.tick = moment.tick;
    history.time_ms = moment.time_ms;
    const push = (list, value) => {
      list.push(value ?? null);
      if (list.length > FINE_MAX) list.shift();
    };
    const known = moment.total.answers_per_s != null;
    for (const [name, list] of Object.entries(history.total)) push(list, moment.total[name]);
    const follow = (list, now, same, enter, value) => {
      for (const one of now)
        if (!list.some((other) => same(other, one))) list.push(enter(one, length));
      for (const one of list)
        value(
          one,
          now.find((other) => same(one, other)),
        );
    };
    const empty = (length) => new Array(length).fill(null);
    const named = history.types.some((type) => type.attribute === "other");
    follow(
      history.types,
      named ? [] : moment.types,
      (a, b) => a.attribute === b.attribute && a.method === b.method,
      (type, length) => ({ attribute: type.attribute, method: type.method, per_s: empty(length) }),
      () => {},
    );
    let others = moment.types.reduce((sum, type) => sum + type.per_s, 0);
    for (const type of history.types) {
      if (type.attribute === "other") continue;
      const now = moment.types.find(
        (one) => one.attribute === type.attribute && one.method === type.method,
      );
      others -= now?.per_s ?? 0;
      push(type.per_s, known ? (now?.per_s ?? 0) : null);
    }
    const other = history.types.find((type) => type.attribute === "other");
    if (other) push(other.per_s, known ? Math.max(0, others) : null);
    follow(
      history.drops,
      moment.drops,
      (a, b) => a.reason === b.reason,
      (drop, length) => ({ reason: drop.reason, per_s: empty(length) }),
      (drop, now) => push(drop.per_s, known ? (now?.per_s ?? 0) : null),
    );
    follow(
      history.responders,
      moment.responders,
      (a, b) => a.id === b.id,
      (responder, length) => ({
        id: responder.id,
        name: responder.name,
        load: Object.fromEntries(Object.keys(history.total).map((name) => [name, empty(length)])),
      }),
      (responder, now) => {
        for (const [name, list] of Object.entries(responder.load)) push(list, now?.load[name]);
      },
    );
  }
}
