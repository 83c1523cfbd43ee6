// Figures as people read them.

export const NONE = "–";

const whole = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

export function short(value) {
  if (value < 10) return String(Number(value.toFixed(1)));
  if (value < 10000) return whole.format(Math.round(value));
  return value < 1e6 ? `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k` : `${(value / 1e6).toFixed(1)}M`;
}

export function percent(part, all) {
  if (!all) return NONE;
  const share = (100 * part) / all;
  return `${share > 0 && share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 3600 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit ? value.toFixed(1) : value} ${UNITS[unit]}`;
}

export const clockTime = (unixSeconds) => new Date(1000 * unixSeconds).toLocaleTimeString("en-GB");

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Return the step of about `wanted` lines up to `most` that people like to read: 1, 2 or 5 times a power of ten. */
export function niceStep(most, wanted) {
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}
