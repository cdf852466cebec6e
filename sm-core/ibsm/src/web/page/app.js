// The page: selects the view, and shows the state of the connection; theme and keys.

import { byId, make, setAttribute, setText, themeChanged } from "./dom.js";
import { duration } from "./format.js";
import { Live } from "./live.js";
import { Overview } from "./overview.js";
import { EventsView } from "./events.js";
import { FabricView } from "./fabric.js";
import { ProblemsView } from "./problems.js";
import { SweepsView } from "./sweeps.js";

const live = new Live();
const views = {
  overview: new Overview(live, (guid) => openNode(guid)),
  fabric: new FabricView(live),
  sweeps: new SweepsView(live),
  problems: new ProblemsView(live),
  events: new EventsView(),
};
/** Critical problems shown above every view. */
const SHOWN_MAX = 5;
let shown;

/**
 * Shows the view in the address: #/overview, #/fabric, #/fabric/0x0002c90300000001, #/sweeps,
 * #/problems, #/events.
 */
function route() {
  const [, name = "overview", part] = location.hash.split("/");
  const view = name in views ? name : "overview";
  if (view !== shown) {
    shown = view;
    document.body.dataset.view = view;
    for (const other of Object.keys(views)) byId(other).hidden = other !== view;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  views[view].open?.(part);
  showState();
}

function openNode(guid) {
  location.hash = `#/fabric/${guid}`;
}

function showState() {
  const { moment, state } = live;
  document.body.dataset.connection = state;
  const age = live.age();
  const connection = {
    connecting: ["none", "Connecting"],
    live: ["good", "Live"],
    stale: ["warn", `Silent for ${duration(age / 1000)}`],
    lost: ["bad", age === undefined ? "No connection" : `Lost ${duration(age / 1000)} ago`],
  }[state];
  pill(byId("connection"), ...connection);
  if (!moment) return;
  const { sm, problems } = moment;
  const broken = problems.critical + problems.warning;
  const subnet = sm.subnet_up
    ? broken
      ? [problems.critical ? "bad" : "warn", `Subnet up, ${broken} problem${broken > 1 ? "s" : ""}`]
      : ["good", "Subnet up"]
    : sm.state === "master"
      ? ["bad", "Subnet not up"]
      : sm.state
        ? ["warn", `SM ${sm.state}`]
        : ["none", "SM starting"];
  pill(byId("subnet"), ...(state === "lost" ? ["none", "Subnet unknown"] : subnet));
  const title = `${state === "live" ? subnet[1] : connection[1]} · ibsm`;
  if (document.title !== title) document.title = title;
  views.problems.follow(moment);
  showCritical();
  setText(byId("software"), sm.software);
  views[shown]?.update?.(live);
}

/** Shows the worst problems above every view. */
function showCritical() {
  const critical = views.problems.list.filter(({ severity }) => severity === "critical");
  const lines = critical.slice(0, SHOWN_MAX).map(({ text, remedy }) => `${text}; ${remedy}`);
  if (critical.length > SHOWN_MAX) lines.push(`${critical.length - SHOWN_MAX} more, see Problems`);
  const warnings = byId("warnings");
  warnings.hidden = lines.length === 0;
  if (warnings.dataset.shown !== lines.join("\n")) {
    warnings.dataset.shown = lines.join("\n");
    warnings.replaceChildren(...lines.map((line) => make("li", {}, line)));
  }
}

function pill(element, tone, text) {
  setAttribute(element, "data-tone", tone);
  setText(element, text);
}

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const button = byId("theme");
  setText(button, { auto: "Auto", light: "Light", dark: "Dark" }[name]);
  button.setAttribute("aria-label", `Theme: ${name === "auto" ? "system" : name}`);
  themeChanged();
}

function nextTheme() {
  const now = THEMES.indexOf(document.documentElement.dataset.theme ?? "auto");
  const next = THEMES[(now + 1) % THEMES.length];
  try {
    localStorage.setItem("theme", next);
  } catch {
    // Not stored: the theme applies to this page only.
  }
  theme(next);
}

function storedTheme() {
  try {
    const stored = localStorage.getItem("theme");
    return THEMES.includes(stored) ? stored : "auto";
  } catch {
    return "auto";
  }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  const at = ["1", "2", "3", "4", "5"].indexOf(event.key);
  if (at >= 0) location.hash = `#/${Object.keys(views)[at]}`;
  else if (event.key === "t") nextTheme();
  else if (event.key === "l" && shown === "fabric") views.fabric.toggleColours();
  else if (event.key === "/") {
    event.preventDefault();
    if (shown !== "fabric") location.hash = "#/fabric";
    // The view is shown after the address has changed.
    setTimeout(() => byId("search").focus());
  }
});
byId("theme").addEventListener("click", nextTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
window.addEventListener("hashchange", route);

theme(storedTheme());
views.problems.changed = () => {
  views.fabric.mark(views.problems.list);
  showCritical();
};
live.listeners.add(showState);
route();
live.start();
