// A small line chart as SVG: slots of time to the right, a value up, gaps where nothing was measured.

import { svg } from "./dom.js";
import { niceStep } from "./words.js";

const LEFT = 46;
const BOTTOM = 18;
const TOP = 8;
const LINES = 3;

/**
 * Return the drawing.
 *
 * series: [{name, values}], values with null for none; seconds: time that all slots span; format: words of a value.
 */
export function lineChart({ width, height, series, seconds, format, label, area = false }) {
  const image = svg("svg", { width, height, role: "img", "aria-label": label });
  const most = Math.max(0, ...series.flatMap(({ values }) => values.filter((value) => value !== null)));
  const step = niceStep(most || 1, LINES);
  const top = Math.max(step, Math.ceil((most || 1) / step) * step);
  const right = width - 6;
  const floor = height - BOTTOM;
  const y = (value) => floor - ((floor - TOP) * value) / top;
  for (let value = 0; value <= top + step / 2; value += step) {
    const line = Math.round(y(value)) + 0.5;
    image.append(svg("line", { class: value ? "grid" : "axis", x1: LEFT, x2: right, y1: line, y2: line }), svg("text", { x: LEFT - 6, y: line + 3.5, "text-anchor": "end" }, format(value)));
  }
  for (let minutes = Math.floor(seconds / 60); minutes >= 0; minutes -= 1) {
    const x = right - ((right - LEFT) * minutes * 60) / seconds;
    image.append(svg("text", { x, y: height - 3, "text-anchor": minutes ? "middle" : "end" }, minutes ? `−${minutes} min` : "now"));
  }
  if (!most) {
    image.append(svg("text", { x: (LEFT + right) / 2, y: (TOP + floor) / 2, "text-anchor": "middle" }, "nothing measured"));
    return image;
  }
  for (const { name, values } of series) {
    const x = (index) => LEFT + ((right - LEFT) * (index + 1)) / values.length;
    for (const run of runs(values)) {
      const points = run.map((index) => `${x(index).toFixed(1)},${y(values[index]).toFixed(1)}`);
      if (area) image.append(svg("polygon", { class: "area", points: [`${x(run[0])},${floor}`, ...points, `${x(run.at(-1))},${floor}`].join(" ") }));
      if (run.length === 1) image.append(svg("circle", { class: `point${name.slice(1)}`, cx: x(run[0]), cy: y(values[run[0]]), r: 2.2 }));
      else image.append(svg("polyline", { class: name, points: points.join(" ") }));
    }
  }
  return image;
}

/** Return the indexes of neighbouring values that are there. */
function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index && values[index - 1] !== null) found.at(-1).push(index);
    else found.push([index]);
  });
  return found;
}
