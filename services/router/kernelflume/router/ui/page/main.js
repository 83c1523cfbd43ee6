// Wires the parts of the page to the stream of the cluster's state.

import { Chat } from "./chat.js";
import { showFaults, showFigures, showLink } from "./cluster.js";
import { byId, setText } from "./dom.js";
import { showLatency } from "./latency.js";
import { showAttentionNodes, showWeightNodes } from "./nodes.js";
import { showRanges, showTable } from "./ranges.js";
import { follow } from "./stream.js";
import { eventWords, showEvents, showTimeline } from "./timeline.js";

const SECTIONS = ["cluster", "attention", "weight", "sequences", "latency", "events"];
const state = {};
const changed = new Set();
let clock = { server: 0, page: 0 };
let drawing = false;
let announced = Infinity;

const now = () => clock.server + (performance.now() - clock.page) / 1000;
const complete = () => SECTIONS.every((name) => name in state);

function render() {
  drawing = false;
  if (!complete()) return;
  const is = (...names) => names.some((name) => changed.has(name));
  if (is("cluster", "attention", "weight", "latency")) showFigures(state);
  if (is("cluster")) {
    showFaults(state.cluster);
    chat.model = state.cluster.model;
  }
  if (is("attention", "sequences")) showAttentionNodes(state.attention, state.sequences);
  if (is("weight", "cluster")) showWeightNodes(state.weight, state.cluster.epoch);
  if (is("sequences", "attention")) showRanges(state.sequences, state.attention);
  if (is("latency")) showLatency(state.latency);
  if (is("events")) showEvents(state.events);
  showTimeline(state.events, now());
  announce();
  changed.clear();
}

function renderSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(render);
}

/** Tell people who do not see the page what changed since the last look, but not the past. */
function announce() {
  const events = state.events.events;
  const news = events.filter((event) => event.kind !== "epoch" && event.at > announced).map(eventWords);
  if (news.length) setText(byId("announcer"), `${news.filter(Boolean).join("; ")}; epoch ${state.cluster.epoch}`);
  announced = events.at(-1)?.at ?? 0;
}

function receive(name, value) {
  if (name === "clock") {
    clock = { server: value, page: performance.now() };
    if (complete()) {
      showLink("live", "");
      if (!state.cluster.store_fault) byId("banner").hidden = true;
    }
    renderSoon();
  } else if (SECTIONS.includes(name)) {
    state[name] = value;
    changed.add(name);
  }
}

const reconnect = follow("api/events", { onEvent: receive, onLink: showLink });
const chat = new Chat(reconnect);

function redraw() {
  for (const name of SECTIONS) changed.add(name);
  renderSoon();
}

new ResizeObserver(redraw).observe(byId("cluster"));
byId("ranges-details").addEventListener("toggle", () => complete() && showTable(state.sequences.sequences));
byId("latency-details").addEventListener("toggle", redraw);
