// Rates and errors of the ports of nodes, as the performance manager read them.

import { spark } from "./chart.js";
import { make, setText } from "./dom.js";
import { count, gbps, NONE, rate, when } from "./format.js";
import { made } from "./panel.js";

/** Reads the counters and rates of a node: `{ rates, counts }`, by port; nothing if it fails. */
export async function readPorts(guid) {
  try {
    const read = async (what) => {
      const answer = await fetch(`/api/v1/nodes/${guid}/${what}`);
      const ports = answer.ok ? (await answer.json()).ports : [];
      return new Map(ports.map((port) => [port.port, port]));
    };
    const [rates, counts] = await Promise.all([read("rates"), read("counters")]);
    return { rates, counts };
  } catch {
    return undefined;
  }
}

/** Both curves of a port on one scale, and what it sent and received last. */
export function rateCell(port) {
  const canvas = (what) =>
    make("canvas", { role: "img", "aria-label": `Gb/s ${what}, the last readings` });
  const create = () => make("div", {}, canvas("sent"), canvas("received"), make("span"));
  return made("rates", create, (cell) => {
    const [sent, received] = [port?.sent_gbps ?? [], port?.received_gbps ?? []];
    const most = Math.max(1e-9, ...sent, ...received);
    const [one, other, text] = cell.firstElementChild.children;
    spark(one, sent, "--s0", most);
    spark(other, received, "--s1", most);
    setText(text, port ? `${gbps(sent.at(-1))} / ${gbps(received.at(-1))}` : NONE);
    cell.title = port ? rateText(port) : "";
  });
}

/** What a port sent and received, with the part of the capacity. */
export function rateText(port) {
  if (!port) return NONE;
  const direction = (what, values) => {
    const now = values.at(-1);
    const capacity = port.capacity_gbps;
    const share = capacity && now != null ? `, ${((now / capacity) * 100).toFixed(0)} %` : "";
    return `${what} ${gbps(now)} Gb/s${share}`;
  };
  return [direction("sent", port.sent_gbps), direction("received", port.received_gbps)].join("; ");
}

/** The number of errors of a port; marked while they grow. */
export function errorCell(port) {
  if (!port) return NONE;
  const now = port.errors_per_s > 0 ? `+${rate(port.errors_per_s)}/s` : "";
  const text = `${count(port.error_count)} ${now}`.trim();
  if (!now) return text;
  return made(text, () => make("span", { "data-tone": "bad", title: errorText(port) }, text));
}

/** The counters of errors that are not 0, and others that are neither data nor packets. */
export function errorText(port) {
  if (!port) return NONE;
  const text = ([name, total]) => `${name} ${count(total)}`;
  const of = (counters) => Object.entries(counters).map(text);
  const totals = [...of(port.errors), ...of(port.others)].join(", ") || "none";
  return port.errors_read_s ? `${totals}; read ${when(port.errors_read_s * 1000)}` : totals;
}
