// One streamed chat completion.

import { Failure, ask } from "./access.js";
import { readEvents } from "./sse.js";

const PATH = "../v1/chat/completions";

/**
 * Ask for an answer and yield its text as it comes.
 *
 * Returns {reason, tokens} at the end. Throws a Failure in words, or an AbortError when `signal` stopped it.
 */
export async function* streamAnswer(messages, { model, maxTokens, temperature, signal }) {
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  if (maxTokens) body.max_tokens = maxTokens;
  if (temperature !== null) body.temperature = temperature;
  const response = await ask(PATH, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });
  const end = { reason: null, tokens: null };
  let done = false;
  try {
    for await (const { data } of readEvents(response)) {
      if (data === "[DONE]") {
        done = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(`The answer broke off: ${chunk.error.message}`);
      end.tokens = chunk.usage?.completion_tokens ?? end.tokens;
      const choice = chunk.choices?.[0];
      end.reason = choice?.finish_reason ?? end.reason;
      const text = choice?.delta?.content;
      if (text) yield text;
    }
  } catch (error) {
    if (error instanceof Failure || error.name === "AbortError") throw error;
    throw new Failure("The answer broke off: the connection to the router was lost.");
  }
  if (!done) throw new Failure("The answer broke off: the router ended the stream.");
  return end;
}
