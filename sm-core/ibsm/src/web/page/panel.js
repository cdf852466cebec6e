// What the panels of the map have in common: facts, problems, and a table of ports or links whose
// rows can be opened. Elements are reused when data arrive, and only differences are written, so
// that focus, selection and scroll position are kept, and nothing jumps.

import { byId, facts, make, setAttribute, setText } from "./dom.js";

/** Shows a panel that replaces what is there. */
export function showPanel(...content) {
  const panel = byId("detail");
  panel.hidden = false;
  panel.scrollTop = 0;
  panel.replaceChildren(...content);
}

/** A button that shows what has this address on the map. */
export function goTo(address, text, title = "") {
  const onclick = () => {
    location.hash = `#/fabric/${address}`;
  };
  return make("button", { type: "button", class: "link", title, onclick }, text);
}

/** Content that is made again only if the key differs. `draw` is called at each update. */
export const made = (key, create, draw) => ({ key, create, draw });

/** A panel that is updated as long as it shows the same. */
export class Panel {
  /** `title`: its parts; `shut`: the button that closes the panel. */
  constructor(title, shut) {
    this.list = make("dl");
    this.problems = make("ul", { class: "faults", "aria-label": "Problems", hidden: true });
    this.buttons = make("div", { class: "buttons" });
    this.head = make("tr");
    this.body = make("tbody");
    /** Rows by key. */
    this.lines = new Map();
    /** Keys of rows that are open. */
    this.opened = new Set();
    const header = make("header", {}, make("h2", {}, ...title), shut);
    const table = make("table", { class: "ports" }, make("thead", {}, this.head), this.body);
    showPanel(header, this.list, this.problems, this.buttons, table);
  }

  facts(pairs) {
    facts(this.list, pairs);
  }

  /** Lists what is wrong. */
  say(lines) {
    this.problems.hidden = lines.length === 0;
    put(this.problems, made(lines.join("\n"), () => lines.map((line) => make("li", {}, line))));
  }

  /**
   * Shows a table. `columns`: `{ title, class, hint }`. `rows`: `{ key, cells, details }` with the
   * content of the columns after the first, which has the key, and pairs of a term and content that
   * are shown below the row if it is open. Content is text, or is `made`.
   */
  show(columns, rows) {
    this.shown = [columns, rows];
    const titles = columns.map(({ title }) => title).join("\n");
    if (this.head.dataset.titles !== titles) {
      this.head.dataset.titles = titles;
      this.head.replaceChildren(
        ...columns.map(({ title, class: name = "", hint = "" }) =>
          make("th", { scope: "col", class: name, title: hint }, title),
        ),
      );
      this.lines.clear();
    }
    const wanted = [];
    for (const { key, cells, details } of rows) {
      const line = this.lines.get(key) ?? this.line(key, columns);
      const isOpen = this.opened.has(key);
      setAttribute(line.button, "aria-expanded", String(isOpen));
      line.row.classList.toggle("opened", isOpen);
      wanted.push(line.row);
      for (const [at, content] of cells.entries()) put(line.row.cells[at + 1], content);
      if (!isOpen) continue;
      wanted.push(line.more);
      define(line.details, details);
    }
    const now = [...this.body.rows];
    const isSame = wanted.length === now.length && wanted.every((row, at) => row === now[at]);
    if (!isSame) this.body.replaceChildren(...wanted);
    // A canvas has a size once it is shown.
    for (const { key, cells, details } of rows) {
      const line = this.lines.get(key);
      for (const [at, content] of cells.entries()) content.draw?.(line.row.cells[at + 1]);
      if (!this.opened.has(key)) continue;
      for (const [at, [, content]] of details.entries())
        content.draw?.(line.details.children[2 * at + 1]);
    }
  }

  /** Makes a row, with a second one for its details. */
  line(key, columns) {
    const onclick = () => {
      if (!this.opened.delete(key)) this.opened.add(key);
      this.show(...this.shown);
    };
    const properties = { type: "button", class: "open", title: "Details", onclick };
    const button = make("button", properties, key);
    const details = make("dl");
    const line = {
      button,
      details,
      row: make(
        "tr",
        { "data-port": key },
        make("td", { class: columns[0].class ?? "" }, button),
        ...columns.slice(1).map(({ class: name = "" }) => make("td", { class: name })),
      ),
      more: make(
        "tr",
        { class: "more", "data-of": key },
        make("td", { colSpan: columns.length }, details),
      ),
    };
    this.lines.set(key, line);
    return line;
  }
}

/** Writes terms and their content. */
function define(list, pairs) {
  const terms = pairs.map(([term]) => term).join("\n");
  if (list.dataset.terms !== terms) {
    list.dataset.terms = terms;
    list.replaceChildren(...pairs.flatMap(([term]) => [make("dt", {}, term), make("dd")]));
  }
  for (const [at, [, content]] of pairs.entries()) put(list.children[2 * at + 1], content);
}

/** Writes content if it differs. */
function put(element, content) {
  if (typeof content === "string") {
    if (element.firstElementChild) element.replaceChildren();
    delete element.dataset.key;
    return setText(element, content);
  }
  if (element.dataset.key === content.key) return undefined;
  element.dataset.key = content.key;
  return element.replaceChildren(...[content.create()].flat());
}
