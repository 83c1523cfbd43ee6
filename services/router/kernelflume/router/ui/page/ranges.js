// Token ranges of running sequences: a row a sequence, a piece a range, in the colour of its attention node.

import { colourOf } from "./colours.js";
import { byId, draw, element, keepChildren, setText, svg } from "./dom.js";
import { count, niceStep, plural, short } from "./words.js";

const ROW = 24;
const TOP = 22;
const LEFT = 76;
const RIGHT = 56;
const LEAST_TOKENS = 64;
const LETTER = 7;

export function showRanges({ sequences, num_sequences: total }, attention) {
  setText(byId("ranges-more"), total > sequences.length ? `the ${sequences.length} longest of ${plural(total, "sequence")}` : plural(total, "running sequence"));
  showLegend(attention.nodes, sequences);
  const holder = byId("ranges");
  draw(holder, drawing(sequences, holder.clientWidth, holder.clientHeight));
  if (byId("ranges-details").open) showTable(sequences);
}

function showLegend(nodes, sequences) {
  const ids = new Set(nodes.map((node) => node.id));
  for (const sequence of sequences) for (const [node] of sequence.ranges) ids.add(node);
  keepChildren(byId("ranges-legend"), [...ids], {
    key: (id) => id,
    make: (id) =>
      element("li", {}, svg("svg", { class: "swatch", "aria-hidden": "true" }, svg("rect", { width: "100%", height: "100%", class: colourOf(id) })), id || "earlier ranges"),
    update: () => {},
  });
}

function drawing(sequences, width, height) {
  const rows = Math.max(sequences.length, 1);
  const image = svg("svg", { width, height: Math.max(height - 1, TOP + rows * ROW + 4), role: "img", "aria-label": summary(sequences) });
  const bottom = Number(image.getAttribute("height"));
  if (!sequences.length) {
    image.append(svg("text", { x: width / 2, y: bottom / 2, "text-anchor": "middle" }, "No sequence is running."));
    return image;
  }
  const most = Math.max(LEAST_TOKENS, ...sequences.map((sequence) => sequence.num_tokens));
  const room = Math.max(width - LEFT - RIGHT, 60);
  const scale = room / most;
  const step = niceStep(most, Math.max(2, Math.floor(room / 90)));
  for (let tokens = 0; tokens <= most; tokens += step) {
    const x = LEFT + tokens * scale;
    image.append(svg("line", { class: "grid", x1: x, x2: x, y1: TOP - 4, y2: bottom }), svg("text", { x, y: 12, "text-anchor": tokens ? "middle" : "start" }, short(tokens)));
  }
  sequences.forEach((sequence, index) => image.append(row(sequence, TOP + index * ROW, scale, width)));
  return image;
}

function row(sequence, y, scale, width) {
  const group = svg("g", {}, svg("text", { class: "label", x: 0, y: y + 15 }, fit(sequence.id, LEFT - 8)));
  for (const [node, start, end] of sequence.ranges) {
    const x = LEFT + start * scale;
    const wide = Math.max((end - start) * scale, 1.5);
    group.append(
      svg(
        "rect",
        { class: colourOf(node), x, y: y + 3, width: Math.max(wide - 1, 1), height: ROW - 8, rx: Math.min(3, wide / 3) },
        svg("title", {}, `${node || "earlier ranges"} [${count(start)}, ${count(end)}), ${plural(end - start, "token")}`),
      ),
    );
    if (node.length * LETTER + 8 < wide) group.append(svg("text", { class: "on", x: x + 5, y: y + 15, "pointer-events": "none" }, node));
  }
  const end = LEFT + sequence.num_tokens * scale;
  // The open range: new tokens go there.
  group.append(svg("path", { class: "tail", d: `M${end + 1} ${y + 5}l5 6l-5 6z` }));
  group.append(svg("text", { x: Math.min(end + 9, width - 2), y: y + 15, "text-anchor": end + 50 > width ? "end" : "start" }, short(sequence.num_tokens)));
  return group;
}

const fit = (text, room) => (text.length * LETTER <= room ? text : `…${text.slice(-Math.floor(room / LETTER) + 1)}`);

function summary(sequences) {
  if (!sequences.length) return "No sequence is running.";
  const spread = sequences.filter((sequence) => new Set(sequence.ranges.map(([node]) => node)).size > 1).length;
  return `${plural(sequences.length, "sequence")}, ${spread} of them on more than one attention node; the table below says where each range is.`;
}

export function showTable(sequences) {
  const words = ([node, start, end]) => `${node || "earlier"}[${start},${end})`;
  keepChildren(byId("ranges-rows"), sequences, {
    key: (sequence) => sequence.id,
    make: () => element("tr", {}, element("th", { scope: "row" }), element("td"), element("td")),
    update: (line, sequence) => {
      setText(line.children[0], sequence.id);
      setText(line.children[1], count(sequence.num_tokens));
      const cell = line.children[2];
      const pieces = sequence.ranges.map(words);
      // Broken between ranges, never within one.
      if (cell.textContent !== pieces.join(" ")) cell.replaceChildren(...pieces.flatMap((piece, index) => [index ? " " : "", element("span", { class: "whole" }, piece)]));
    },
  });
}
