// The chat box: a conversation that streams, can be stopped, and says in words what went wrong.

import { apiKey, keepApiKey } from "./access.js";
import { streamAnswer } from "./completion.js";
import { byId, element, setText, show } from "./dom.js";
import { milliseconds, plural } from "./words.js";

const AT_END_PX = 40;
const STOPPED = "stopped";
const LEAST_RATED = 8; // tokens: fewer have no rate worth a word

export class Chat {
  #messages = [];
  #stop = null;
  #model = undefined;

  /** `onKey` is called when the API key was changed. */
  constructor(onKey) {
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("chat-text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    byId("chat-stop").addEventListener("click", () => this.#stop?.abort());
    byId("chat-clear").addEventListener("click", () => this.#clear());
    const key = byId("api-key");
    key.value = apiKey();
    key.addEventListener("change", () => {
      keepApiKey(key.value.trim());
      onKey();
    });
  }

  set model(name) {
    this.#model = name;
  }

  #clear() {
    this.#stop?.abort();
    this.#messages = [];
    byId("chat-log").replaceChildren(byId("chat-empty") ?? element("p", { class: "muted" }, "The conversation is empty."));
    this.#fail("");
    setText(byId("chat-status"), "");
    byId("chat-text").focus();
  }

  async #send() {
    const input = byId("chat-text");
    const text = input.value.trim();
    if (!text || this.#stop) return;
    // A key that was typed and sent by Enter has had no change event yet.
    keepApiKey(byId("api-key").value.trim());
    this.#fail("");
    byId("chat-empty")?.remove();
    this.#messages.push({ role: "user", content: text });
    const asked = this.#turn("user", text);
    input.value = "";
    this.#stop = new AbortController();
    this.#busy(true);
    const answer = this.#turn("assistant", "");
    const said = document.createTextNode("");
    answer.append(said);
    const conversation = this.#messages;
    const began = performance.now();
    let first = null;
    let note = "";
    try {
      const stream = streamAnswer(conversation, { ...this.#options(), signal: this.#stop.signal });
      let next = await stream.next();
      for (; !next.done; next = await stream.next()) {
        first ??= performance.now();
        const atEnd = this.#atEnd();
        said.appendData(next.value);
        if (atEnd) this.#toEnd();
      }
      note = speed(next.value, { began, first });
    } catch (error) {
      if (error.name === "AbortError") note = STOPPED;
      else this.#fail(error.message);
    }
    if (said.data) conversation.push({ role: "assistant", content: said.data });
    else if (!note || note === STOPPED) {
      // Nothing came: the question goes back to where it can be sent again.
      conversation.pop();
      asked.remove();
      answer.remove();
      input.value ||= text;
    }
    if (note) answer.append(element("small", {}, note));
    setText(byId("chat-status"), note);
    this.#toEnd();
    this.#stop = null;
    this.#busy(false);
  }

  #options() {
    const temperature = byId("chat-temperature").value;
    return { model: this.#model, maxTokens: Number(byId("chat-max-tokens").value), temperature: temperature === "" ? null : Number(temperature) };
  }

  #turn(role, text) {
    const turn = element("div", { class: `turn ${role}` }, element("span", { class: "visually-hidden" }, role === "user" ? "You: " : "Answer: "), text);
    byId("chat-log").append(turn);
    this.#toEnd();
    return turn;
  }

  #busy(busy) {
    // Not while it grows: a screen reader would begin anew with each token.
    byId("chat-log").setAttribute("aria-busy", String(busy));
    byId("chat-send").disabled = busy;
    byId("chat-stop").disabled = !busy;
    if (busy) setText(byId("chat-status"), "answering …");
  }

  #fail(words) {
    const error = byId("chat-error");
    show(error, Boolean(words));
    setText(error, words);
    if (words) setText(byId("chat-status"), "");
  }

  #atEnd() {
    const log = byId("chat-log");
    return log.scrollHeight - log.scrollTop - log.clientHeight < AT_END_PX;
  }

  #toEnd() {
    const log = byId("chat-log");
    log.scrollTop = log.scrollHeight;
  }
}

function speed({ reason, tokens }, { began, first }) {
  const parts = [];
  if (tokens !== null) parts.push(plural(tokens, "token"));
  if (first !== null) {
    parts.push(`first after ${milliseconds(first - began)}`);
    const seconds = (performance.now() - first) / 1000;
    if (tokens >= LEAST_RATED) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  }
  if (reason === "length") parts.push("as long as was allowed");
  return parts.join(", ") || "an empty answer";
}
