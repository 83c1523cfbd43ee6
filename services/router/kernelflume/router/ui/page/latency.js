// TTFT, TPOT and tokens a second as charts, with the same in words and as a table.

import { lineChart } from "./chart.js";
import { byId, draw, element, keepChildren, setText } from "./dom.js";
import { NONE, milliseconds, short } from "./words.js";

export function showLatency({ slot_s: slot, ttft, tpot }) {
  const seconds = slot * ttft.counts.length;
  // The last slot is not over: its rate would begin at zero each time.
  const rates = tpot.counts.map((number, index) => (number + ttft.counts[index]) / slot).slice(0, -1);
  latencyChart("ttft", ttft, seconds, "request");
  latencyChart("tpot", tpot, seconds, "token");
  const now = rates.at(-1) ?? 0;
  const peak = Math.max(0, ...rates);
  setText(byId("rate-caption"), peak ? `now ${short(now)}, peak ${short(peak)}` : "no token yet");
  const words = peak ? `Tokens a second over five minutes: ${short(now)} now, at most ${short(peak)}.` : "Tokens a second: none in five minutes.";
  plot("rate", { series: [{ name: "p50", values: rates.map((rate) => (peak ? rate : null)) }], seconds, format: short, label: words, area: true });
  if (byId("latency-details").open) showTable({ slot, ttft, tpot, rates });
}

function latencyChart(name, { p50_ms: p50, p99_ms: p99, minute }, seconds, noun) {
  const title = name.toUpperCase();
  const words = minute ? `p50 ${milliseconds(minute.p50_ms)}, p99 ${milliseconds(minute.p99_ms)}` : "none in the last minute";
  setText(byId(`${name}-caption`), minute ? `${words} (dashed)` : words);
  const label = `${title} over five minutes; last minute: ${minute ? `${words}, of ${minute.count} ${noun}s` : "none"}.`;
  plot(name, { series: [{ name: "p99", values: p99 }, { name: "p50", values: p50 }], seconds, format: axis, label });
}

const axis = (value) => (value === 0 ? "0" : value >= 1000 ? `${value / 1000} s` : `${value} ms`);

function plot(name, options) {
  const holder = byId(`${name}-chart`);
  draw(holder, lineChart({ width: holder.clientWidth, height: holder.clientHeight, ...options }));
}

function showTable({ slot, ttft, tpot, rates }) {
  const last = ttft.counts.length - 1;
  const lines = ttft.counts.map((_, index) => last - index).filter((index) => ttft.counts[index] || tpot.counts[index]);
  keepChildren(byId("latency-rows"), lines, {
    key: (index) => index,
    make: () => element("tr", {}, ...Array.from({ length: 6 }, () => element("td"))),
    update: (line, index) => {
      const values = [ttft.p50_ms[index], ttft.p99_ms[index], tpot.p50_ms[index], tpot.p99_ms[index]].map(milliseconds);
      const rate = index < rates.length ? short(rates[index]) : NONE;
      [`${(last - index) * slot}`, ...values, rate].forEach((text, column) => setText(line.children[column], text));
    },
  });
}
