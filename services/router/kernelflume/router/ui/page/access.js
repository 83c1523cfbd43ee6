// The API key that a person gives, and what failures mean in words.

const STORED_AS = "kernelflume-api-key";

export function apiKey() {
  return sessionStorage.getItem(STORED_AS) ?? "";
}

export function keepApiKey(key) {
  if (key) sessionStorage.setItem(STORED_AS, key);
  else sessionStorage.removeItem(STORED_AS);
}

export function headers(more = {}) {
  const key = apiKey();
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** A failure that a person can read. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const MEANINGS = {
  401: "The API key was not accepted",
  403: "The API key may not do this",
  404: "Not found",
  408: "The request took too long to arrive",
  413: "The message is too large",
  429: "Too much at once",
  500: "The router failed",
  502: "Something between this page and the router failed",
  503: "It cannot be served now",
  504: "It took too long",
};

/** Return why a response is no good: the router's own words, and what they mean. */
export async function failureOf(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    said = response.statusText;
  }
  const meaning = MEANINGS[response.status] ?? `The router refused (HTTP ${response.status})`;
  const wait = response.headers.get("retry-after");
  const hint = response.status === 401 ? " Give a key under Options and API key." : wait && response.status === 429 ? ` Try again in ${wait} s.` : "";
  return new Failure(`${meaning}${said ? `: ${said.replace(/[.\s]+$/, "")}` : ""}.${hint}`, response.status);
}

/** Fetch, and fail in words where the answer is not a good one. */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The router cannot be reached.");
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}
