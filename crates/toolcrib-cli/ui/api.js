// Requests to the gateway: the admin API, the event stream and MCP.

import { signal } from "./vendor/preact.js";

/** Who this page acts for: {caller, admin, can_approve, logged_in}; null until it is known. */
export const session = signal(null);

/** The newest revision of MCP without sessions, which the page speaks for calls. */
export const REVISION = "2026-07-28";
const KEY = "toolcrib-session";
const NO_SESSION = { caller: null, admin: false, can_approve: false, logged_in: false };
const CODE = /^#code=([0-9a-f]+)$/;

/** A response that is not a success. */
export class ApiError extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

function headers(more) {
  const key = localStorage.getItem(KEY);
  return key ? { "Toolcrib-Session": key, ...more } : more;
}

/** Sends a request to the admin API and returns its JSON. */
async function send(method, path, more = {}, abort) {
  let response;
  try {
    response = await fetch(path, { method, headers: headers(more), signal: abort, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the gateway does not answer", "toolcrib status");
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  // The session has ended: the page shows the login again instead of sending more requests.
  if (response.status === 401) session.value = NO_SESSION;
  const error = body?.error ?? {};
  throw new ApiError(response.status, error.message ?? `status ${response.status}`, error.hint);
}

export const get = (path, abort) => send("GET", path, {}, abort);
export const post = (path) => send("POST", path);

/** Encodes parameters as a query string, without those that are empty. */
export function query(parameters) {
  const used = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(used).toString();
  return text ? `?${text}` : "";
}

/** Finds out who the page acts for. A login code in the address is used first, and removed from it. */
export async function openSession() {
  const code = location.hash.match(CODE)?.[1];
  let problem = null;
  if (code) {
    history.replaceState(null, "", "#/");
    problem = await logIn(`Code ${code}`).then(
      () => null,
      () => "This link was used before or has expired. Run `toolcrib ui` for a new one.",
    );
  }
  session.value = await get("/api/v1/session");
  return problem;
}

async function logIn(authorization) {
  const reply = await send("POST", "/api/v1/login", { Authorization: authorization });
  localStorage.setItem(KEY, reply.key);
}

/** Logs in with the token of a caller. */
export async function logInWithToken(token) {
  await logIn(`Bearer ${token}`);
  session.value = await get("/api/v1/session");
}

export async function logOut() {
  await post("/api/v1/logout");
  localStorage.removeItem(KEY);
  session.value = await get("/api/v1/session");
}

/** Yields the events of a response body as {id, data}. */
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { id: null, data: "" };
      for (const line of block.split("\n")) {
        if (line.startsWith("id:")) event.id = line.slice(3).trim();
        if (line.startsWith("data:")) event.data += line.slice(5).trim();
      }
      if (event.data) yield event;
    }
  }
}

/**
 * Follows an event stream until `abort`, and connects again after a failure. `position.last` is the id of the last event. Returns
 * false if there is no such stream. The browser's own EventSource cannot send the header of the session.
 */
export async function follow(path, position, onEvent, abort) {
  let delay = 250;
  while (!abort.aborted) {
    try {
      const more = { Accept: "text/event-stream", ...(position.last ? { "Last-Event-ID": position.last } : {}) };
      const response = await fetch(path, { headers: headers(more), signal: abort, cache: "no-store" });
      if ([401, 403, 404, 405].includes(response.status)) return false;
      for await (const event of readEvents(response.body)) {
        position.last = event.id ?? position.last;
        delay = 250;
        onEvent(JSON.parse(event.data));
      }
    } catch (error) {
      if (abort.aborted) break;
      if (error instanceof SyntaxError) console.warn("an event is not JSON", error);
    }
    await new Promise((resolve) => setTimeout(resolve, delay));
    delay = Math.min(delay * 2, 5000);
  }
  return true;
}

/** The headers and the body of an MCP request, as the page sends it and as it is shown for curl. */
export function mcpRequest(method, params) {
  const meta = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": { name: "toolcrib-dashboard", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": {},
  };
  const named = params.name ? { "Mcp-Name": params.name } : {};
  return {
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "Mcp-Protocol-Version": REVISION,
      "Mcp-Method": method,
      ...named,
    },
    body: { jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: meta } },
  };
}

/** Sends a request to the MCP endpoint and returns its result. */
export async function mcp(method, params, abort) {
  const request = mcpRequest(method, params);
  const response = await fetch("/mcp", {
    method: "POST",
    headers: headers(request.headers),
    body: JSON.stringify(request.body),
    signal: abort,
  });
  let message = null;
  if (response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    for await (const event of readEvents(response.body)) {
      const data = JSON.parse(event.data);
      if ("result" in data || "error" in data) message = data;
    }
  } else {
    message = await response.json().catch(() => null);
  }
  if (message?.result) return message.result;
  const error = message?.error ?? {};
  throw new ApiError(response.status, error.message ?? `status ${response.status}`, error.data?.hint ?? error.hint);
}
