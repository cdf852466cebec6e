// The path between two nodes: as a responder answers for it, hop by hop.

import { make } from "./dom.js";
import { NONE, words } from "./format.js";
import { goTo } from "./panel.js";

/** Why there is no path, and where a packet got to, as `ibsmctl explain` has it. */
const REASONS = {
  unreachable: "no route leads to the destination",
  no_sl_passes: "every SL is dropped along the path",
  level_sl_dropped: "the level's SL is dropped along the path",
  mtu: "the path does not have the requested MTU",
  rate: "the path does not have the requested rate",
  lifetime: "the path does not have the requested packet lifetime",
  p_key_not_shared: "the ends do not share the requested P_Key",
  p_key_not_of_level: "the level does not allow the requested P_Key",
  no_level_p_key_shared: "the ends share no P_Key that the level allows",
  no_p_key_shared: "the ends share no P_Key",
  sl_not_of_level: "the requested SL is not the level's",
  sl_not_of_route: "the requested SL is not the one that the route requires",
  sl_dropped: "the SL is dropped along the path",
  no_route: "the last switch has no route to it",
  no_link: "the last port has no link",
  misdelivered: "the packet arrives at another node",
  loop: "the route is a loop",
};

/** The two GUIDs in the address of a path, such as `0x…1..0x…2`; nothing if it is none. */
export const pathEnds = (address) =>
  address?.match(/^(0x[0-9a-f]+)\.\.(0x[0-9a-f]+)$/)?.slice(1);

/** Asks for the path; returns `{ path }`, or `{ reason }` if there is no answer. */
export async function askPath([from, to]) {
  try {
    const answer = await fetch(`/api/v1/explain?from=${from}&to=${to}`);
    return answer.ok ? { path: await answer.json() } : { reason: await answer.text() };
  } catch {
    return { reason: "ibsm cannot be reached" };
  }
}

/** GUIDs of the nodes that a path passes, in order. */
export const passes = ({ hops, destination, arrival }) => [
  ...(hops ?? []).map((hop) => hop.node_guid),
  ...(arrival === "delivered" ? [destination.node_guid] : []),
];

/** What the panel shows. `names`: of the two ends. */
export function pathPanel({ path, reason }, names, shut) {
  const header = make("header", {}, make("h2", {}, names.join(" → ")), shut);
  if (!path) return [header, make("p", {}, `The path is not known: ${reason}`)];
  const { record, no_path: none, no_way_back: oneWay, arrival } = path;
  const terms = record
    ? [
        ["Path", arrival === "delivered" ? "yes" : `the SA answers, but ${reasonText(arrival)}`],
        ["P_Key, SL", `${record.pkey}, ${record.sl}`],
        ["MTU", bound(`${record.mtu} bytes`, path.mtu_bound_by)],
        ["Rate", bound(record.rate, path.rate_bound_by)],
        ["LIDs", `${record.slid} → ${record.dlid}`],
      ]
    : [["Path", `none: ${reasonText(none) || "the SA has no record"}`]];
  if (oneWay) terms.push(["Way back", `none: ${reasonText(oneWay)}`]);
  const list = terms.flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)]);
  return [header, make("dl", {}, ...list), hopTable(path)];
}

const bound = (value, by) => (by ? `${value}, bound by ${by.from} – ${by.to}` : value);

/** A reason in words. A later release may have labels that are not known here, or documents. */
export function reasonText(reason) {
  if (reason == null) return "";
  if (Array.isArray(reason)) return reason.map(reasonText).join(", ");
  if (typeof reason !== "object") return REASONS[reason] ?? words(String(reason));
  const parts = Object.entries(reason).filter(([, value]) => value != null);
  return parts.map(([label, value]) => `${reasonText(label)}: ${reasonText(value)}`).join(", ");
}

function hopTable({ hops, destination }) {
  const row = (at, guid, name, entry, exit, rate) =>
    make(
      "tr",
      { "data-hop": String(at) },
      make("td", { class: "n" }, String(at)),
      make("td", {}, goTo(guid, name)),
      make("td", { class: "n" }, entry || NONE),
      make("td", { class: "n" }, exit || NONE),
      make("td", {}, rate),
    );
  const rows = (hops ?? []).map((hop, at) =>
    row(at + 1, hop.node_guid, hop.node, number(hop.entry), number(hop.exit), hop.rate ?? NONE),
  );
  const { node_guid: guid, node, port } = destination;
  rows.push(row(rows.length + 1, guid, node, number(port), "", ""));
  const head = ["Hop", "Node", "In", "Out", "Link"].map((title) =>
    make("th", { scope: "col" }, title),
  );
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows),
  );
}

const number = (port) => (port ? String(port) : "");
