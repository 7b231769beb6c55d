// What every screen shares: the status of the gateway, its recent rates, its events, and what needs attention.

import { computed, signal } from "./vendor/preact.js";
import { follow, get, post, session } from "./api.js";

/** The object of `/api/v1/status`; null until it was read. */
export const status = signal(null);
/** The reason why the status could not be read, or null. */
export const problem = signal(null);
/** Calls that wait for approval. */
export const approvals = signal([]);
/** Recent events, newest first. */
export const events = signal([]);
/** False if the gateway has no event stream. */
export const hasEvents = signal(true);
/** A message about the last action: {text, bad}. */
export const notice = signal(null);

/** Samples per server: {calls, errors} per second, oldest first. */
const samples = new Map();
/** Samples that are kept, and the events. */
const MAX_SAMPLES = 60;
const MAX_EVENTS = 500;
/** The status is read every second, or less often if it takes long, so that the page costs the gateway little. */
const INTERVAL = 1000;
const MAX_INTERVAL = 10_000;
/** Events cause a reading of the status after this part of the interval. */
const EVENT_SHARE = 0.1;
/** Members of a server that the gateway leaves out if they have these values. */
const NO_VALUES = {
  calls: 0,
  errors: 0,
  in_flight: 0,
  restarts: 0,
  restarts_left: 0,
  instances: 0,
  cache_hits: 0,
  cache_misses: 0,
  ejected: false,
  login: "none",
  unapproved: [],
  problems: [],
  listing_errors: [],
};

let previous = null;
let requested = null;
/** How long the status should not be read again after the last time. */
let interval = INTERVAL;
let finished = 0;

/** Returns the time until a request that took `time` may be repeated: the gateway works for it for less than 1 % of the time. */
export const pauseAfter = (time, least, most) => Math.min(Math.max(time * 150, least), most);

/** Returns the samples of a server, or of all servers without a name. */
export const samplesOf = (server = "") => samples.get(server) ?? [];

function addSample(name, sample) {
  const kept = samples.get(name) ?? [];
  kept.push(sample);
  if (kept.length > MAX_SAMPLES) kept.shift();
  samples.set(name, kept);
}

/** Computes rates from the difference to the previous status. */
function record(next) {
  const at = performance.now();
  const now = { at, servers: new Map(next.servers.map(({ name, calls, errors }) => [name, { calls, errors }])) };
  if (previous) {
    const seconds = Math.max((at - previous.at) / 1000, 0.001);
    const total = { calls: 0, errors: 0 };
    for (const [name, { calls, errors }] of now.servers) {
      const before = previous.servers.get(name) ?? { calls, errors };
      const sample = {
        calls: Math.max(0, calls - before.calls) / seconds,
        errors: Math.max(0, errors - before.errors) / seconds,
      };
      total.calls += sample.calls;
      total.errors += sample.errors;
      // Servers without a call have no history, so that many idle ones cost nothing.
      if (sample.calls || samples.has(name)) addSample(name, sample);
    }
    addSample("", total);
    for (const name of samples.keys()) if (name && !now.servers.has(name)) samples.delete(name);
  }
  previous = now;
}

/** Reads the status once; requests at the same time share one. */
export function refresh() {
  requested ??= (async () => {
    try {
      const started = performance.now();
      const next = await get("/api/v1/status?short=1");
      finished = performance.now();
      interval = pauseAfter(finished - started, INTERVAL, MAX_INTERVAL);
      next.servers = next.servers.map((server) => ({ ...NO_VALUES, ...server }));
      record(next);
      status.value = next;
      problem.value = null;
      await refreshApprovals();
    } catch (error) {
      problem.value = error;
    } finally {
      requested = null;
    }
  })();
  return requested;
}

async function refreshApprovals() {
  const { calls: next } = await get("/api/v1/approvals");
  const ids = (calls) => calls.map((call) => call.id).join();
  if (ids(next) !== ids(approvals.value)) approvals.value = next;
}

/** Resolves when the page is visible. */
export function whenVisible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

/** Keeps the status and the events up to date until `abort`. Nothing is read while the page is hidden. */
export async function watch(abort) {
  const sleep = (time) => new Promise((resolve) => setTimeout(resolve, time));
  followEvents(abort);
  if (!session.value.admin) return;
  document.addEventListener("visibilitychange", () => document.hidden || refresh(), { signal: abort });
  while (!abort.aborted) {
    if (!document.hidden) await refresh();
    await sleep(interval);
  }
}

async function followEvents(abort) {
  let waiting = [];
  let timer = null;
  let refreshing = null;
  const refreshSoon = () => {
    const wait = finished + interval * EVENT_SHARE - performance.now();
    refreshing ??= setTimeout(() => {
      refreshing = null;
      refresh();
    }, Math.max(wait, 0));
  };
  const flush = () => {
    timer = null;
    events.value = [...waiting.reverse(), ...events.value].slice(0, MAX_EVENTS);
    const changes = waiting.some((event) => event.kind !== "call");
    waiting = [];
    if (changes && !document.hidden && session.value.admin) refreshSoon();
  };
  const onEvent = (event) => {
    waiting.push(event);
    if (waiting.length > MAX_EVENTS) waiting.shift();
    timer ??= setTimeout(flush, 100);
  };
  // A hidden page has no stream: browsers open only six connections to a host, and each stream holds one.
  const position = { last: null };
  while (!abort.aborted) {
    await whenVisible();
    const pause = new AbortController();
    const onChange = () => document.hidden && pause.abort();
    document.addEventListener("visibilitychange", onChange, { signal: pause.signal });
    hasEvents.value = await follow("/api/v1/events?since=1h", position, onEvent, AbortSignal.any([abort, pause.signal]));
    pause.abort();
    if (!hasEvents.value) return;
  }
}

/** Runs an action, reads the status again, and says how it ended. Returns its result, or undefined if it failed. */
export async function act(path, done) {
  try {
    const reply = await post(path);
    notice.value = { text: done, bad: false };
    return reply;
  } catch (error) {
    notice.value = { text: error.hint ? `${error.message} (${error.hint})` : error.message, bad: true };
    return undefined;
  } finally {
    await refresh();
  }
}

/** What needs a person: [{level, text, link}]. */
export const attention = computed(() => {
  const items = approvals.value.map((call) => ({
    level: "warn",
    text: `${call.caller} asks to call ${call.server}.${call.name}`,
    link: "#/calls",
  }));
  for (const server of status.value?.servers ?? []) {
    const link = `#/servers/${encodeURIComponent(server.name)}`;
    if (server.ejected || server.state === "ejected") {
      items.push({ level: "bad", text: `${server.name} is ejected: ${server.last_error?.message ?? "it failed too often"}`, link });
    } else if (server.login === "needed" || server.login === "expired") {
      items.push({ level: "warn", text: `${server.name} needs a login: toolcrib login ${server.name}`, link });
    } else if (server.breaker !== "closed") {
      items.push({ level: "warn", text: `${server.name}: its circuit breaker is ${server.breaker.replace("_", " ")}`, link });
    } else if (server.state === "backing_off" && server.last_error) {
      items.push({ level: "warn", text: `${server.name}: ${server.last_error.message}`, link });
    }
    if (server.unapproved.length) {
      const what = server.unapproved.length === 1 ? "1 definition differs" : `${server.unapproved.length} definitions differ`;
      items.push({ level: "warn", text: `${server.name}: ${what} from what was approved`, link: `${link}/changes` });
    }
  }
  for (const found of status.value?.config.problems ?? []) {
    items.push({ level: "bad", text: found.message, link: "#/config" });
  }
  return items;
});

/** Whether this page may approve calls and definitions. */
export const canApprove = computed(() => Boolean(session.value?.can_approve));
