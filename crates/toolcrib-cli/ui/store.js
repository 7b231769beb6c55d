// What every screen shares: the status of the gateway, its recent rates, its events, and what needs attention.

import { computed, signal } from "./vendor/preact.js";
import { follow, get, post, query, session } from "./api.js";
import { pauseAfter, whenVisible } from "./schedule.js";

/** The object of `/api/v1/status`; null until it was read. */
export const status = signal(null);
/** The reason why the status could not be read, or null. */
export const problem = signal(null);
/** Calls that wait for approval. */
export const approvals = signal([]);
/** Secrets that the config uses: [{name, set, used_by}]. */
const secrets = signal([]);
/** Recent events other than calls, newest first. */
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
/** All kinds but calls, which would crowd out the others. Calls are read where they are shown. */
const EVENT_KINDS = [
  "started,exited,restarted,ejected,paused,tripped,recovered,reloaded,list_changed,unapproved",
  "approval_asked,approval_given,login_needed,store_down,store_up",
].join();
/** The status is read every second, or less often if it takes long, so that the page costs the gateway little. */
const INTERVAL = 1000;
const MAX_INTERVAL = 10_000;
/** Secrets are looked for when the config changes, and this often. */
const SECRETS_INTERVAL = 60_000;
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
/** The config whose secrets were read last, and when. */
let secretsOf = { generation: null, at: 0 };

/** Returns the samples of a server, or of all servers without a name. */
export const samplesOf = (server = "") => samples.get(server) ?? [];

function addSample(name, sample) {
  const kept = samples.get(name) ?? [];
  kept.push(sample);
  if (kept.length > MAX_SAMPLES) kept.shift();
  samples.set(name, kept);
}

/** Computes rates from the difference to the previous status, and the share of a core that each server uses. */
function record(next) {
  const at = performance.now();
  const now = { at, servers: new Map(next.servers.map(({ name, calls, errors, cpu_seconds }) => [name, { calls, errors, cpu: cpu_seconds }])) };
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
    for (const server of next.servers) {
      const used = server.cpu_seconds - previous.servers.get(server.name)?.cpu;
      // A process that was started again counts from zero.
      if (used >= 0) server.cpu_share = used / seconds;
    }
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
      await Promise.all([refreshApprovals(), refreshSecrets(next.config.generation)]);
    } catch (error) {
      problem.value = error;
    } finally {
      requested = null;
    }
  })();
  return requested;
}

/** Reads which secrets are missing. A gateway of an earlier version does not tell, and a locked keyring is not a problem of the page. */
async function refreshSecrets(generation) {
  if (generation === secretsOf.generation && performance.now() < secretsOf.at + SECRETS_INTERVAL) return;
  secretsOf = { generation, at: performance.now() };
  const reply = await get("/api/v1/secrets").catch(() => null);
  secrets.value = reply?.secrets ?? [];
}

async function refreshApprovals() {
  const { calls: next } = await get("/api/v1/approvals");
  const ids = (calls) => calls.map((call) => call.id).join();
  if (ids(next) !== ids(approvals.value)) approvals.value = next;
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
    waiting = [];
    if (!document.hidden && session.value.admin) refreshSoon();
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
    hasEvents.value = await follow(`/api/v1/events${query({ since: "1h", kind: EVENT_KINDS })}`, position, onEvent, AbortSignal.any([abort, pause.signal]));
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

/** Returns what a person should do about one server: {level, about, text, link}, or null. */
function serverProblem(server) {
  const link = `#/servers/${encodeURIComponent(server.name)}`;
  const item = (level, text) => ({ level, about: server.name, text, link });
  if (server.login === "needed" || server.login === "expired") return item("warn", `needs a login: \`toolcrib login ${server.name}\``);
  if (server.ejected || server.state === "ejected") return item("bad", `ejected: ${server.last_error?.message ?? "it failed too often"}`);
  if (server.breaker !== "closed") return item("warn", `its circuit breaker is ${server.breaker.replace("_", " ")}`);
  if (server.state === "backing_off" && server.last_error) return item("warn", server.last_error.message);
  return null;
}

/** Returns items about the secrets that are not set and that something uses which is not disabled, with their `users`. */
function missingSecrets(servers) {
  const disabled = new Set(servers.filter((server) => server.state === "disabled").map((server) => server.name));
  const isUsed = (secret) => secret.used_by.some((user) => !disabled.has(user));
  return secrets.value
    .filter((secret) => !secret.set && isUsed(secret))
    .map(({ name, used_by }) => ({
      level: "bad",
      about: used_by.join(", "),
      users: used_by,
      text: `secret \`${name}\` is not set: \`toolcrib secret set ${name}\``,
      link: used_by[0].startsWith("callers.") ? "#/access" : `#/servers/${encodeURIComponent(used_by[0])}`,
    }));
}

/** What needs a person: [{level, about, text, link}], the most urgent first. */
export const attention = computed(() => {
  const servers = status.value?.servers ?? [];
  const items = approvals.value.map((call) => ({
    level: "ask",
    about: call.caller,
    text: `asks to call ${call.server}.${call.name}`,
    link: "#/calls",
  }));
  const store = status.value?.store;
  if (store?.state === "down") {
    items.push({ level: "bad", about: "store", text: `${store.url} does not answer: ${store.error ?? "no reason is known"}`, link: "#/config" });
  }
  const missing = missingSecrets(servers);
  items.push(...missing.map(({ users, ...item }) => item));
  const withoutSecret = new Set(missing.flatMap((item) => item.users));
  for (const server of servers) {
    // Without its secret, a server fails to start for that reason.
    const found = withoutSecret.has(server.name) ? null : serverProblem(server);
    if (found) items.push(found);
    if (server.unapproved.length) {
      const what = server.unapproved.length === 1 ? "1 definition differs" : `${server.unapproved.length} definitions differ`;
      items.push({ level: "ask", about: server.name, text: `${what} from what was approved`, link: `#/servers/${encodeURIComponent(server.name)}/changes` });
    }
  }
  for (const found of status.value?.config.problems ?? []) {
    items.push({ level: "bad", about: "config", text: found.message, link: "#/config" });
  }
  return items;
});

/** Whether this page may approve calls and definitions. */
export const canApprove = computed(() => Boolean(session.value?.can_approve));
