// The search box of the fabric view.

import { byId, make } from "./dom.js";
import { count, NONE } from "./format.js";

const FOUND_MAX = 50;

/** The search box, which finds nodes by name, GUID or LID. */
export class Search {
  constructor(chosen, map) {
    Object.assign(this, {
      chosen,
      map,
      input: byId("search"),
      list: byId("found"),
      found: [],
      at: 0,
    });
    this.input.addEventListener("input", () => this.lookUp());
    this.input.addEventListener("focus", () => this.lookUp());
    this.input.addEventListener("blur", () => setTimeout(() => this.show(false), 120));
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.choose(this.found[this.at]);
    });
    this.list.addEventListener("pointerdown", (event) => {
      const item = event.target.closest("li[data-number]");
      if (!item) return;
      event.preventDefault();
      this.choose(Number(item.dataset.number));
    });
  }

  fabricChanged() {
    this.names = undefined;
    if (document.activeElement === this.input) this.lookUp();
  }

  /** Lists matches: exact LID, GUID or name first, then names that start with or have the text. */
  lookUp() {
    const text = this.input.value.trim().toLowerCase();
    const { map } = this.map();
    if (!text || !map) return this.show(false);
    this.names ??= [...map.switches.name, ...map.hosts.name].map((name) => name.toLowerCase());
    const guids = [map.switches.guid, map.hosts.guid].flat();
    const lids = [map.switches.lid, map.hosts.lid].flat();
    const ranks = [[], [], [], []];
    const hex = text.replace(/^0x/, "").padStart(16, "0");
    for (const [at, name] of this.names.entries()) {
      if (String(lids[at]) === text || guids[at] === `0x${hex}`) ranks[0].push(at);
      else if (name === text) ranks[0].push(at);
      else if (name.startsWith(text)) ranks[1].push(at);
      else if (name.includes(text)) ranks[2].push(at);
      else if (text.startsWith("0x") && text.length > 3 && guids[at].includes(text.slice(2)))
        ranks[3].push(at);
    }
    const all = ranks.flat();
    this.found = all.slice(0, FOUND_MAX);
    this.at = 0;
    const item = (number, at) => {
      const node = this.map().node(number);
      return make(
        "li",
        { id: `found-${at}`, role: "option", "data-number": String(number) },
        make("span", {}, node.name || node.guid),
        make(
          "small",
          {},
          node.missing ? `${node.kind} · missing` : `${node.kind} · LID ${node.lid || NONE}`,
        ),
        make("small", { class: "mono" }, node.guid),
      );
    };
    const said = (text) => make("li", { class: "said" }, text);
    const more =
      all.length > FOUND_MAX
        ? [said(`and ${count(all.length - FOUND_MAX)} more: enter more of the name`)]
        : [];
    this.list.replaceChildren(
      ...(all.length ? this.found.map(item) : [said("No node has this name, GUID or LID")]),
      ...more,
    );
    this.show(true);
  }

  show(is) {
    this.list.hidden = !is;
    this.input.setAttribute("aria-expanded", String(is));
    for (const [at, item] of [...this.list.querySelectorAll("li[data-number]")].entries())
      item.setAttribute("aria-selected", String(at === this.at));
    if (is && this.found.length)
      this.input.setAttribute("aria-activedescendant", `found-${this.at}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && this.found.length) {
      event.preventDefault();
      this.at = (this.at + by + this.found.length) % this.found.length;
      this.show(true);
      byId(`found-${this.at}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Escape") {
      this.show(false);
      this.input.blur();
    }
  }

  choose(number) {
    if (number === undefined) return;
    this.show(false);
    this.input.blur();
    this.chosen(number);
  }
}
