// Attention nodes and weight nodes as cards.

import { colourOf } from "./colours.js";
import { moreWords } from "./cluster.js";
import { byId, element, keepChildren, setAttribute, setText, show, svg } from "./dom.js";
import { NONE, bytes, count, duration, milliseconds, percent, plural } from "./words.js";

const LEAST_PIECE = 0.4; // percent of a bar: little is not nothing

export function showAttentionNodes(attention, sequences) {
  const pieces = piecesByNode(sequences.sequences);
  for (const node of attention.nodes) colourOf(node.id);
  const items = attention.nodes.length ? attention.nodes : [{ none: "No attention node is in the routing table." }];
  keepChildren(byId("attention"), items, {
    key: (node) => node.none ?? `${node.id}#${node.incarnation || "new"}`,
    make: (node) => (node.none ? element("li", { class: "none" }, node.none) : makeAttention(node)),
    update: (card, node) => node.none || updateAttention(card, node, pieces.get(node.id) ?? []),
  });
  setText(byId("attention-more"), moreWords(attention.nodes.length, attention.num_nodes, "node"));
}

function piecesByNode(sequences) {
  const pieces = new Map();
  for (const sequence of sequences) {
    const held = new Map();
    for (const [node, start, end] of sequence.ranges) held.set(node, (held.get(node) ?? 0) + end - start);
    for (const [node, tokens] of held) {
      if (tokens) pieces.set(node, [...(pieces.get(node) ?? []), { id: sequence.id, tokens }]);
    }
  }
  return pieces;
}

function facts(...names) {
  const values = names.map(() => element("dd"));
  const list = element("dl", { class: "facts" }, ...names.map((name, index) => element("div", {}, element("dt", {}, name), values[index])));
  return { list, values };
}

function badge() {
  const text = element("span");
  return { node: element("span", { class: "badge" }, element("span", { class: "dot" }), text), text };
}

function makeAttention(node) {
  const state = badge();
  const bar = svg("svg", { class: "bar", role: "meter", "aria-valuemin": 0, "aria-label": `KV of ${node.id}` });
  const share = element("strong");
  const tokens = element("span", { class: "muted" });
  const { list, values } = facts("Sequences", "Tails", "Full in");
  const swatch = svg("svg", { class: "swatch", "aria-hidden": "true" }, svg("rect", { width: "100%", height: "100%", class: colourOf(node.id) }));
  const card = element(
    "li",
    {},
    element("div", { class: "top" }, element("h3", {}, swatch, element("span", {}, node.id)), state.node),
    bar,
    element("div", { class: "pair" }, share, tokens),
    list,
  );
  card.parts = { state, bar, share, tokens, values };
  return card;
}

function updateAttention(card, node, pieces) {
  const { state, bar, share, tokens, values } = card.parts;
  const shown = node.alive ? node.state : "lost";
  setAttribute(state.node, "class", `badge is-${shown}`);
  setText(state.text, node.alive ? node.state : `${node.state}, lease lost`);
  const used = percent(node.used_tokens, node.capacity_tokens);
  setText(share, node.capacity_tokens ? used : "starting");
  const size = node.token_bytes ? `${bytes(node.used_tokens * node.token_bytes)} of ${bytes(node.capacity_tokens * node.token_bytes)}` : null;
  setText(tokens, node.capacity_tokens ? `${count(node.used_tokens)} of ${count(node.capacity_tokens)} tokens` : NONE);
  setAttribute(tokens, "title", size);
  setText(values[0], count(node.num_sequences));
  setText(values[1], count(node.num_tails));
  setText(values[2], duration(node.fill_s));
  const words = `${used} of KV used, ${count(node.used_tokens)} of ${count(node.capacity_tokens)} tokens${size ? `, ${size}` : ""}`;
  setAttribute(card, "aria-label", `Attention node ${node.id}, ${state.text.textContent}, ${words}`);
  setAttribute(bar, "aria-valuemax", node.capacity_tokens || 1);
  setAttribute(bar, "aria-valuenow", Math.min(node.used_tokens, node.capacity_tokens || 1));
  setAttribute(bar, "aria-valuetext", words);
  drawBar(bar, node, pieces);
}

function drawBar(bar, node, pieces) {
  const all = Math.max(node.capacity_tokens, 1);
  const width = (tokens) => (tokens ? Math.max((100 * tokens) / all, LEAST_PIECE) : 0);
  const colour = colourOf(node.id);
  const known = pieces.reduce((sum, piece) => sum + piece.tokens, 0);
  const rest = Math.max(0, node.used_tokens - known);
  // The lease with the sum is older or newer than the routes: what is held is at least what the routes say.
  const shown = [...pieces, ...(rest > all / 500 ? [{ id: "others", tokens: rest }] : [])];
  const held = Math.max(node.used_tokens, known);
  const items = [
    { key: "free", class: "free", x: 0, width: 100 },
    { key: "reserved", class: `reserved ${colour}`, x: 0, width: Math.min(100, width(Math.max(node.reserved_tokens, held))) },
  ];
  let x = 0;
  for (const piece of shown) {
    const wide = Math.min(width(piece.tokens), 100 - x);
    items.push({ key: piece.id, class: `piece ${colour}`, x, width: wide, title: `${piece.id}: ${plural(piece.tokens, "token")}` });
    x += wide;
  }
  if (node.threshold_tokens && node.threshold_tokens < node.capacity_tokens) {
    items.push({ key: "mark", class: "mark", x: (100 * node.threshold_tokens) / all, width: 0, title: `threshold: ${plural(node.threshold_tokens, "token")}` });
  }
  keepChildren(bar, items, {
    key: (item) => item.key,
    make: () => svg("rect", { height: "100%" }, svg("title")),
    update: (rect, item) => {
      setAttribute(rect, "class", item.class);
      setAttribute(rect, "x", `${item.x.toFixed(2)}%`);
      setAttribute(rect, "width", item.key === "mark" ? "2" : `${item.width.toFixed(2)}%`);
      setText(rect.firstChild, item.title ?? "");
    },
  });
}

export function showWeightNodes(weight, epoch) {
  const items = weight.nodes.length ? weight.nodes : [{ none: "No weight node holds a lease: nothing can be served." }];
  keepChildren(byId("weight"), items, {
    key: (node) => node.none ?? node.address,
    make: (node) => (node.none ? element("li", { class: "none" }, node.none) : makeWeight()),
    update: (card, node) => node.none || updateWeight(card, node, epoch),
  });
  setText(byId("weight-more"), moreWords(weight.nodes.length, weight.num_nodes, "node"));
}

function makeWeight() {
  const state = badge();
  const name = element("span");
  const left = element("span", { title: "in the contexts of running sequences" });
  const right = element("span", { class: "muted", title: "of the table that its steps use" });
  const trouble = element("p", { class: "trouble" });
  const { list, values } = facts("Running", "Waiting", "Step");
  const card = element(
    "li",
    {},
    element("div", { class: "top" }, element("h3", {}, name), state.node),
    element("div", { class: "pair" }, left, right),
    trouble,
    list,
  );
  card.parts = { state, name, left, right, trouble, values };
  return card;
}

function updateWeight(card, node, epoch) {
  const { state, name, left, right, trouble, values } = card.parts;
  const serving = node.trouble === null;
  setAttribute(state.node, "class", `badge is-${serving ? "serving" : "not-serving"}`);
  setText(state.text, serving ? "serving" : "not serving");
  const label = node.role === "both" ? node.id : `${node.id} (${node.role})`;
  setText(name, label);
  setText(left, plural(node.num_tokens, "token"));
  const behind = node.adopted_epoch !== null && epoch !== null && node.adopted_epoch < epoch;
  setText(right, node.adopted_epoch === null ? "" : `${behind ? "adopting, " : ""}epoch ${count(node.adopted_epoch)}`);
  show(trouble, !serving);
  setText(trouble, node.trouble ?? "");
  setAttribute(values[1], "title", node.waiting_tokens ? `${plural(node.waiting_tokens, "token")} to compute` : null);
  setText(values[0], count(node.num_running ?? node.num_requests));
  setText(values[1], count(node.num_waiting));
  setText(values[2], milliseconds(node.step_ms));
  setAttribute(card, "aria-label", `Weight node ${label}, ${state.text.textContent}${node.trouble ? `: ${node.trouble}` : ""}, ${plural(node.num_requests, "request")}`);
}
