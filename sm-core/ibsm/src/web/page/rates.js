// The rates of a node's ports in its panel: a curve for each direction.

import { spark } from "./chart.js";
import { byId, make } from "./dom.js";
import { gbps } from "./format.js";

/** Adds the rates of a node's ports to the panel, if that shows `address`. */
export async function showRates(guid, address = guid) {
  let rates;
  try {
    const answer = await fetch(`/api/v1/nodes/${guid}/rates`);
    rates = answer.ok ? await answer.json() : undefined;
  } catch {
    return;
  }
  const panel = byId("detail");
  if (!rates || panel.hidden || location.hash.split("/")[2] !== address) return;
  for (const row of panel.querySelectorAll("tr.rates")) row.remove();
  for (const port of rates.ports) {
    const row = panel.querySelector(`tr[data-port="${port.port}"]`);
    if (!row) continue;
    const curves = [
      curve("sent", port.sent_gbps, port),
      curve("received", port.received_gbps, port),
    ];
    const cell = make("td", { colSpan: 4 }, make("div", {}, ...curves.flatMap((one) => one.parts)));
    row.classList.add("rated");
    row.after(make("tr", { class: "rates" }, cell));
    // Both have the same scale.
    const most = Math.max(1e-9, ...port.sent_gbps, ...port.received_gbps);
    for (const { draw } of curves) draw(most);
  }
}

function curve(what, values, { capacity_gbps: capacity }) {
  const now = values.at(-1);
  const share = capacity && now != null ? `, ${((now / capacity) * 100).toFixed(0)} %` : "";
  const label = `${what === "sent" ? "→" : "←"} ${gbps(now)} Gb/s${share}`;
  const canvas = make("canvas", { role: "img", "aria-label": `Gb/s ${what}, the last readings` });
  return {
    parts: [canvas, make("span", { title: `Gb/s ${what}, and part of the capacity` }, label)],
    draw: (most) => spark(canvas, values, what === "sent" ? "--s0" : "--s1", most),
  };
}
