// Requests to the HTTP API with the user's token. The token is stored for this tab only, and never put into a URL.

const KEY = "sandq.token";

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

export class Problem extends Error {
  constructor(status, details) {
    super(details.detail || `the response had status ${status}`);
    this.status = status;
    this.code = details.code || "UNKNOWN";
    this.details = details;
  }
}

// Browsers remove . and .. from paths, even if percent-encoded: the request would be for a different resource.
export const path = (...segments) => {
  const lost = segments.find((one) => ["", ".", ".."].includes(String(one)));
  if (lost !== undefined) throw new Problem(0, { code: "INVALID", detail: `a browser cannot send the name "${lost}" in a URL: use sandctl` });
  return `/${segments.map((one) => encodeURIComponent(one)).join("/")}`;
};

function url(at, query) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {}))
    if (value !== null && value !== undefined && value !== "" && value !== false) found.set(name, value);
  const text = found.toString();
  return text ? `${at}?${text}` : at;
}

export async function send(method, at, { query, body, headers, signal } = {}) {
  const shown = token.get();
  let answer;
  try {
    answer = await fetch(url(at, query), {
      method,
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
      headers: {
        accept: "application/json",
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(shown ? { authorization: `Bearer ${shown}` } : {}),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { code: "UNREACHABLE", detail: "this node does not answer" });
  }
  if (answer.ok || answer.status === 304) return answer;
  let details = {};
  try {
    details = await answer.json();
  } catch {
    // the body is not a problem document of sandq
  }
  if (answer.status === 401) window.dispatchEvent(new CustomEvent("unauthenticated", { detail: details.detail }));
  throw new Problem(answer.status, details);
}

async function json(method, at, options) {
  const answer = await send(method, at, options);
  return answer.status === 204 ? null : answer.json();
}

export const get = (at, query, options = {}) => json("GET", at, { query, ...options });
export const post = (at, body, options = {}) => json("POST", at, { body: body ?? {}, ...options });
export const put = (at, body, options = {}) => json("PUT", at, { body, ...options });
export const patch = (at, body, options = {}) => json("PATCH", at, { body, ...options });
export const remove = (at, query, options = {}) => json("DELETE", at, { query, ...options });

// Server-sent events. They are read here, because EventSource cannot send a token.
export async function events(at, { signal, onOpen, onEvent }) {
  const answer = await send("GET", at, { signal, headers: { accept: "text/event-stream" } });
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "message";
      let data = "";
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) onEvent(name, JSON.parse(data));
    }
  }
}
