// Helpers to create and change elements. Text is always set as text, never as HTML.

export const byId = (id) => document.getElementById(id);

/** Creates an element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Sets the text if it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute if it differs. */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * Fills a table's body. The `text` of a column is a function of the row that returns text, or
 * changes the given cell and returns nothing. Rows and cells are reused, and only differences are
 * written, so that focus, selection and scroll position are kept, and the page does not jump.
 */
export function fill(body, rows, columns, { least = 0, none = "None", row: dress } = {}) {
  const wanted = Math.max(rows.length, least, 1);
  while (body.rows.length > wanted) body.deleteRow(-1);
  while (body.rows.length < wanted) {
    const row = body.insertRow();
    for (const column of columns) row.insertCell().className = column.class ?? "";
  }
  for (const [at, row] of [...body.rows].entries()) {
    const value = rows[at];
    dress?.(row, value);
    row.classList.toggle("void", value === undefined && at > 0);
    for (const [c, column] of columns.entries()) {
      const cell = row.cells[c];
      if (value === undefined) {
        const empty = at === 0 && c === 0;
        if (cell.firstElementChild) cell.replaceChildren();
        setText(cell, empty ? none : "\u00a0");
        cell.className = empty ? "none" : (column.class ?? "");
        continue;
      }
      const name = column.class ?? "";
      const content = column.text(value, cell);
      if (content === undefined) {
        if (cell.className === "none") cell.className = name;
        continue;
      }
      if (cell.firstElementChild) cell.replaceChildren();
      setText(cell, content);
      const className = column.soft?.(value) ? `${name} zero` : name;
      if (cell.className !== className) cell.className = className;
    }
  }
}

/** Fills a list of terms and their values. */
export function facts(list, pairs) {
  while (list.children.length > pairs.length) list.lastChild.remove();
  while (list.children.length < pairs.length) list.append(make("div", {}, make("dt"), make("dd")));
  for (const [at, [term, text, isMono]] of pairs.entries()) {
    const [dt, dd] = list.children[at].children;
    setText(dt, term);
    setText(dd, text);
    dd.className = isMono ? "mono" : "";
  }
}

/** Makes a group of buttons of which one is pressed. */
export function choice(group, key, chosen) {
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button || button.disabled) return;
    for (const other of group.querySelectorAll("button")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    chosen(button.dataset[key]);
  });
}

// Colours of the style sheet, resolved for canvases.
let probe;
let resolved = new Map();

/** The colour of a style sheet variable in the current theme. */
export function colour(name) {
  if (!resolved.has(name)) {
    probe ??= document.body.appendChild(make("i", { hidden: true }));
    probe.style.color = `var(${name})`;
    resolved.set(name, getComputedStyle(probe).color);
  }
  return resolved.get(name);
}

const listeners = new Set();

/** Calls `redraw` when the theme has changed. */
export const onTheme = (redraw) => listeners.add(redraw);

export function themeChanged() {
  resolved = new Map();
  for (const redraw of listeners) redraw();
}

/** Sizes a canvas to its element; returns its context in CSS pixels, or nothing if it is hidden. */
export function context(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return undefined;
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
