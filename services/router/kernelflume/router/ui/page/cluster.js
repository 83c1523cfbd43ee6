// Figures of the cluster as a whole, who chooses the number of nodes, and what is away.

import { byId, setText, show } from "./dom.js";
import { NONE, count, duration, milliseconds, percent, plural } from "./words.js";

export function showFigures({ cluster, attention, weight, latency }) {
  const nodes = attention.nodes;
  const total = (field) => nodes.reduce((sum, node) => sum + node[field], 0);
  const active = nodes.filter((node) => node.state === "active").length;
  const target = cluster.scaling?.num_target;
  const running = weight.nodes.reduce((sum, node) => sum + (node.num_running ?? node.num_requests), 0);
  const waiting = weight.nodes.reduce((sum, node) => sum + (node.num_waiting ?? 0), 0);
  setText(byId("model"), cluster.model);
  setText(byId("version"), `KernelFlume ${cluster.version}`);
  setText(byId("figure-epoch"), count(cluster.epoch));
  setText(byId("figure-active"), target === undefined || target === active ? count(active) : `${active} → ${target}`);
  setText(byId("figure-kv"), percent(total("used_tokens"), total("capacity_tokens")));
  setText(byId("figure-requests"), `${count(running)}, ${count(waiting)}`);
  setText(byId("figure-ttft"), milliseconds(latency.ttft.minute?.p50_ms));
  setText(byId("figure-tpot"), milliseconds(latency.tpot.minute?.p50_ms));
  setText(byId("scaling"), scalingWords(cluster));
}

export function scalingWords({ scaling, scaler_fault: fault }) {
  if (!scaling) return fault ? `Scaling: not known, ${fault}` : "\u00a0";
  const operation = scaling.operation;
  const mode = scaling.mode === "automatic" ? "automatic" : "manual";
  const full = scaling.fill_s ? `; at this growth the pool is full in ${duration(scaling.fill_s)}` : "";
  return `Scaling: ${mode}${full}. ${operation ? operationWords(operation) : ""}`.trim();
}

export function operationWords(operation) {
  const change = `${operation.num_before} → ${operation.num_target} attention nodes`;
  const cause = operation.cause ? ` (${operation.cause})` : "";
  const nodes = operation.nodes.length ? `, ${operation.nodes.join(" ")}` : "";
  if (operation.result) {
    return `Last operation${cause}: ${change}${nodes}, ${operation.result}${operation.reason ? ` (${operation.reason})` : ""}.`;
  }
  const spent = operation.phases.length ? ` for ${duration(operation.phases.at(-1)[1])}` : "";
  return `Operation${cause}: ${change}${nodes}, ${operation.phase}${spent}.`;
}

export function showFaults({ store_fault: fault, epoch }) {
  const banner = byId("banner");
  show(banner, Boolean(fault));
  const known = epoch === null ? "nothing is known of the attention nodes yet" : "what was known last is below";
  setText(banner, fault ? `The routing table cannot be read: ${known}. ${fault}` : "");
}

export function showLink(state, words) {
  const link = byId("link");
  link.className = `badge is-${state}`;
  setText(byId("link-text"), state === "away" ? "not connected" : state);
  const banner = byId("banner");
  if (state === "away") {
    show(banner, true);
    setText(banner, `${words} Trying again.`);
  }
}

export const moreWords = (shown, all, noun) => (all > shown ? `${shown} of ${plural(all, noun)} shown` : all ? plural(all, noun) : NONE);
