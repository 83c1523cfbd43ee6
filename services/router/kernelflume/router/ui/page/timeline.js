// Epochs and the states of attention nodes over the last minutes, as lanes and as a list.

import { byId, draw, element, keepChildren, setText, svg } from "./dom.js";
import { clockTime, duration } from "./words.js";

const SECONDS = 300;
const LANE = 22;
const TOP = 36;
const LEFT = 76;
const LETTER = 7;
const NARROW = 480;
const CLOSE = 44; // epochs nearer than this share a label
const MAX_LISTED = 60;
const LEAST_GAP_S = 2;

export function showTimeline({ events, decisions }, now) {
  const holder = byId("timeline");
  const marks = decisions.map((decision) => ({ ...decision, at: Date.parse(decision.at) / 1000 }));
  draw(holder, drawing(events, marks, now, holder.clientWidth, holder.clientHeight));
}

/** Return the spans of each node's states: what it was, from when to when. */
export function spansOf(events, now) {
  const lanes = new Map();
  for (const event of events) {
    if (event.kind !== "attention") continue;
    const spans = lanes.get(event.node) ?? [];
    if (spans.length && spans.at(-1).end === null) spans.at(-1).end = event.at;
    if (event.after !== "gone") spans.push({ state: event.after, start: event.at, end: null });
    lanes.set(event.node, spans);
  }
  for (const [node, spans] of lanes) {
    const seen = spans.filter((span) => (span.end ?? now) > now - SECONDS);
    if (seen.length) lanes.set(node, seen);
    else lanes.delete(node);
  }
  return lanes;
}

function drawing(events, decisions, now, width, height) {
  const lanes = [...spansOf(events, now)].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  const tall = Math.max(height - 1, TOP + lanes.length * LANE + 6);
  const image = svg("svg", { width, height: tall, role: "img", "aria-label": "Time line of epochs and scale events; the list below says the same." });
  const right = width - 6;
  const x = (at) => LEFT + ((right - LEFT) * (Math.min(Math.max(at, now - SECONDS), now) - now + SECONDS)) / SECONDS;
  for (const event of events) {
    if (event.kind !== "gap" || event.at < now - SECONDS || event.at - event.since < LEAST_GAP_S) continue;
    image.append(svg("rect", { class: "gap", x: x(event.since), y: TOP - 4, width: x(event.at) - x(event.since), height: tall - TOP }, svg("title", {}, "nobody looked: what happened here is dated later")));
  }
  for (let minutes = 5; minutes >= 0; minutes -= 1) {
    if (width < NARROW && ![5, 2, 0].includes(minutes)) continue;
    const at = x(now - 60 * minutes);
    image.append(svg("line", { class: "grid", x1: at, x2: at, y1: 16, y2: tall }), svg("text", { x: at, y: 11, "text-anchor": minutes ? (minutes === 5 ? "start" : "middle") : "end" }, minutes ? `−${minutes} min` : "now"));
  }
  image.append(svg("text", { class: "label", x: 0, y: 30 }, "epoch"));
  epochs(image, events, x, now, tall);
  for (const decision of decisions) {
    if (decision.at < now - SECONDS) continue;
    const at = x(decision.at);
    image.append(svg("path", { class: "decision", d: `M${at} ${TOP - 2}l-4 -7h8z` }, svg("title", {}, decisionWords(decision))));
  }
  lanes.forEach(([node, spans], index) => image.append(lane(node, spans, TOP + index * LANE, x, now)));
  return image;
}

function epochs(image, events, x, now, tall) {
  const shown = events.filter((event) => event.kind === "epoch" && event.at >= now - SECONDS);
  const groups = [];
  for (const event of shown) {
    const at = x(event.at);
    image.append(svg("line", { class: "epoch", x1: at, x2: at, y1: 20, y2: tall }, svg("title", {}, `epoch ${event.epoch} at ${clockTime(event.at)}`)));
    if (groups.length && at - groups.at(-1).at < CLOSE) groups.at(-1).last = event.epoch;
    else groups.push({ at, first: event.epoch, last: event.epoch });
  }
  for (const { at, first, last } of groups) {
    const text = first === last ? `${first}` : `${first}–${last}`;
    const flips = at + text.length * LETTER + 6 > x(now);
    image.append(svg("text", { class: "label halo", x: flips ? at - 3 : at + 3, y: 30, "text-anchor": flips ? "end" : "start" }, text));
  }
}

function lane(node, spans, y, x, now) {
  const group = svg("g", {}, svg("text", { class: "label", x: 0, y: y + 15 }, node));
  for (const span of spans) {
    const start = x(span.start);
    const wide = Math.max(x(span.end ?? now) - start, 2);
    group.append(svg("rect", { class: `span-${span.state}`, x: start, y: y + 4, width: Math.max(wide - 1, 1), height: LANE - 8, rx: 3 }, svg("title", {}, `${node} ${span.state} for ${duration((span.end ?? now) - span.start)}`)));
    const solid = span.state === "active" || span.state === "ready";
    if (span.state.length * LETTER + 10 < wide) group.append(svg("text", { class: solid ? "on-span" : "on-open", x: start + 6, y: y + 15, "pointer-events": "none" }, span.state));
  }
  return group;
}

export function showEvents({ events, decisions }) {
  const items = [
    ...events.map((event) => ({ at: event.at, words: eventWords(event) })),
    ...decisions.map((decision) => ({ at: Date.parse(decision.at) / 1000, words: decisionWords(decision) })),
  ].filter((item) => item.words);
  items.sort((a, b) => b.at - a.at);
  const listed = items.length ? items.slice(0, MAX_LISTED) : [{ at: null, words: "Nothing has happened since this page was first looked at." }];
  keepChildren(byId("events"), listed, {
    key: (item) => `${item.at} ${item.words}`,
    make: (item) => element("li", {}, element("time", {}, item.at === null ? "" : clockTime(item.at)), element("span", {}, item.words)),
    update: () => {},
  });
}

const decisionWords = (decision) =>
  `decision: ${decision.action}${decision.num_active === decision.num_target ? "" : ` ${decision.num_active} → ${decision.num_target}`} (${decision.reason})`;

/** Return an event as a person would say it; '' for one that says nothing by itself. */
export function eventWords(event) {
  if (event.kind === "epoch") return `epoch ${event.epoch}`;
  if (event.kind === "gap") return event.at - event.since < LEAST_GAP_S ? "" : `nobody looked for ${duration(event.at - event.since)}`;
  const node = `${event.kind} node ${event.node}`;
  if (event.after === "gone") return `${node} left (${event.before})`;
  return event.before ? `${node}: ${event.before} → ${event.after}` : `${node}: ${event.after}`;
}
