// Follows the state of the cluster: one stream, opened again when it breaks, closed while the page is hidden.

import { ask } from "./access.js";
import { readEvents } from "./sse.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10000;
const SILENCE_MS = 8000;
const HIDDEN_MS = 20000;

/**
 * Follow `path` for ever. `onEvent(name, value)` gets each section; `onLink(state, words)` is told of the
 * connection: connecting, live or away. Returns a function that opens the stream anew at once.
 */
export function follow(path, { onEvent, onLink }) {
  let stop = new AbortController();
  let wake = () => {};
  let again = false;
  let hiding = 0;

  async function once() {
    const ending = stop;
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => ending.abort(), SILENCE_MS);
    };
    heard();
    try {
      const response = await ask(path, { signal: ending.signal });
      for await (const { name, data } of readEvents(response)) {
        heard();
        onEvent(name, JSON.parse(data));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  async function run() {
    let wait = FIRST_WAIT_MS;
    for (;;) {
      if (document.hidden) await new Promise((resolve) => (wake = resolve));
      stop = new AbortController();
      const began = performance.now();
      let words = "The stream ended.";
      try {
        await once();
      } catch (error) {
        words = error.name === "AbortError" ? "The stream was silent." : error.message;
      }
      if (document.hidden) continue;
      if (again) {
        again = false;
        onLink("connecting", "");
        continue;
      }
      onLink("away", words);
      wait = performance.now() - began > 2 * LONGEST_WAIT_MS ? FIRST_WAIT_MS : Math.min(2 * wait, LONGEST_WAIT_MS);
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, wait);
      });
      again = false;
    }
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => stop.abort(), HIDDEN_MS);
    else wake();
  });
  onLink("connecting", "");
  run();
  return () => {
    again = true;
    stop.abort();
    wake();
  };
}
