// Server-sent events out of a fetched response: EventSource sends no Authorization header, fetch does.

/** Yield `{name, data}` for each event of a response's body. */
export async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
        const lines = rest.slice(0, end).split("\n");
        rest = rest.slice(end + 2);
        const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
        yield { name: field("event")[0] ?? "message", data: field("data").join("\n") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
