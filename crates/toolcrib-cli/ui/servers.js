// Servers: the list, and one server with its process, its stderr and its config.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get, query } from "./api.js";
import { bytes, clock, count, duration, millis, percent, rate, visible } from "./format.js";
import { Bars, Chart, Code, Diff, Facts, Failure, Field, Heading, Message, Missing, Origin, Panel, Sparkline, State, Table, Text, TimeLine, Value, useLimit, useLoaded, useRepeated } from "./parts.js";
import { act, canApprove, events, hasEvents, refresh, samplesOf, status } from "./store.js";

/** Lines of stderr that the page keeps. */
const MAX_LINES = 500;
/** Time between two readings of statistics. */
const STATS_INTERVAL = 5000;

const seconds = (value) => (value === null || value === undefined ? "–" : millis(value * 1000));
const apiPath = (name, more = "") => `/api/v1/servers/${encodeURIComponent(name)}${more}`;

const isStopped = (server) => ["asleep", "ejected", "backing_off"].includes(server.state);

/** What can be done with a server. */
const ACTIONS = [
  { action: "start", title: "Start", done: "was started", isUseful: isStopped },
  { action: "restart", title: "Restart", done: "was restarted", isUseful: (server) => server.state !== "disabled" },
  { action: "stop", title: "Stop", done: "was stopped", isUseful: (server) => !isStopped(server) && server.state !== "disabled" },
];

export function Servers({ path }) {
  const [name, part] = path;
  return name ? html`<${Server} name=${name} part=${part} key=${name} />` : html`<${ServerList} />`;
}

function ServerList() {
  const [filter, setFilter] = useState("");
  const servers = (status.value?.servers ?? []).filter((server) => `${server.name} ${server.state}`.includes(filter.toLowerCase()));
  const [limit, more] = useLimit(servers.length);
  const columns = [
    { title: "Name", cell: (server) => html`<a href="#/servers/${encodeURIComponent(server.name)}">${server.name}</a>` },
    { title: "State", cell: (server) => html`<${State} state=${server.state} />` },
    { title: "Calls per second", cell: (server) => html`<${Sparkline} values=${samplesOf(server.name).map((sample) => sample.calls)} label="calls of ${server.name}" />`, wide: true },
    { title: "Calls", cell: (server) => count(server.calls), number: true },
    { title: "Errors", cell: (server) => html`<span class=${server.errors ? "bad" : ""}>${count(server.errors)}</span>`, number: true },
    { title: "p50", cell: (server) => seconds(server.p50), number: true, wide: true },
    { title: "p99", cell: (server) => seconds(server.p99), number: true, wide: true },
    { title: "Memory", cell: (server) => bytes(server.memory), number: true, wide: true },
    { title: "CPU", cell: (server) => percent(server.cpu_share), number: true, wide: true },
    { title: "Up", cell: (server) => duration(server.uptime), number: true, wide: true },
    { title: "Restarts", cell: (server) => count(server.restarts), number: true, wide: true },
    { title: "Tools", cell: (server) => count(server.tools), number: true, wide: true },
  ];
  return html`<${Heading} title="Servers" />
    <${Field} label="Filter by name or state"><input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} /><//>
    <${Table} caption="Servers" columns=${columns} rows=${servers.slice(0, limit)} rowKey=${(server) => server.name} empty="No server matches." />
    ${more}`;
}

function Server({ name, part }) {
  const server = status.value?.servers.find((found) => found.name === name);
  if (!server) {
    return html`<${Heading} title=${name} /><p class="empty">No server is called <code>${visible(name)}</code>. <a href="#/servers">All servers</a></p>`;
  }
  const parts = [["", "State"], ["stderr", "Stderr"], ["changes", "Definitions"], ["config", "Config"]];
  const Part = { stderr: Stderr, changes: Changes, config: Why }[part] ?? Details;
  return html`<${Heading} title=${name}>
      <${State} state=${server.state} />
      <span class="actions">
        ${ACTIONS.map(({ action, title, done, isUseful }) => html`<button disabled=${!isUseful(server)} onClick=${() => act(apiPath(name, `/${action}`), `${name} ${done}`)}>${title}</button>`)}
      </span>
    <//>
    ${server.title || server.description ? html`<p><${Text}>${server.title ?? ""} ${server.description ?? ""}<//></p>` : null}
    <nav class="tabs" aria-label="Parts of ${name}">
      ${parts.map(([key, title]) => html`<a href="#/servers/${encodeURIComponent(name)}${key ? `/${key}` : ""}" aria-current=${(part ?? "") === key ? "page" : undefined}>
        ${title}${key === "changes" && server.unapproved.length ? html` <span class="badge">${server.unapproved.length}</span>` : null}
      </a>`)}
    </nav>
    <${Part} server=${server} />`;
}

function LastError({ server }) {
  const error = server.last_error;
  if (!error) return null;
  return html`<p class=${server.state === "ready" ? "note" : "failure"}>
    <${Message} text=${error.message} /> <small>${clock(error.at)}${error.hint ? html` · <${Message} text=${error.hint} />` : null}</small>
  </p>`;
}

function Details({ server }) {
  return html`<${LastError} server=${server} />
    <div class="panels">
      <${Panel} title="Process"><${Facts} facts=${[
        ["Up", duration(server.uptime)],
        ["PID", server.pid ?? "–"],
        ["Memory", bytes(server.memory)],
        ["CPU", server.cpu_seconds ? `${percent(server.cpu_share)}, ${duration(server.cpu_seconds)} in all` : "–"],
        ["Restarts", `${server.restarts}, ${server.restarts_left} left`],
        ["Circuit breaker", server.breaker.replace("_", " ")],
        server.next_attempt_in ? ["Next attempt in", duration(server.next_attempt_in)] : null,
      ]} /><//>
      <${Panel} title="Calls"><${Facts} facts=${[
        ["Calls", count(server.calls)],
        ["Errors", html`<span class=${server.errors ? "bad" : ""}>${count(server.errors)}</span>`],
        ["In flight", count(server.in_flight)],
        ["p50", seconds(server.p50)],
        ["p99", seconds(server.p99)],
        ["Cache", `${count(server.cache_hits)} hits, ${count(server.cache_misses)} misses`],
      ]} /><//>
      <${Panel} title="Connection"><${Facts} facts=${[
        ["Transport", server.transport],
        ["Protocol", [server.era, server.protocol_version].flat().filter(Boolean).join(", ") || "–"],
        ["Sharing", `${server.sharing}, ${count(server.instances)} running${server.asks ? `, one per new client, because it sends ${server.asks}` : ""}`],
        ["Login", server.login],
        ["Tools", html`<a href="#/tools/?server=${encodeURIComponent(server.name)}">${count(server.tools)}</a>`],
        ["Pinning", server.pin],
      ]} /><//>
    </div>
    <${Latency} server=${server.name} />
    <${Timeline} server=${server.name} />
    ${server.problems.length ? html`<h2>Problems of its definitions</h2><ul>${server.problems.map((text) => html`<li><${Message} text=${text} /></li>`)}</ul>` : null}
    ${server.listing_errors.map((error) => html`<p class="failure"><${Text}>${error.list}: ${error.message}<//></p>`)}`;
}

/** Calls per second now, and durations in the last hour: over time, and as a histogram. */
function Latency({ server }) {
  const { value: stats } = useRepeated("/api/v1/stats?since=1h&step=1m", STATS_INTERVAL);
  const found = stats?.servers.find((row) => row.name === server);
  const charts = html`<div class="panels charts">
    <div class="panel"><${Chart} label="Calls per second" values=${samplesOf(server).map((sample) => sample.calls)} format=${rate} from="a minute ago" /></div>
    ${found ? html`<div class="panel"><${Chart} label="p95 per minute" values=${found.series?.p95_ms ?? []} format=${millis} from="an hour ago" /></div>` : null}
  </div>`;
  if (!found?.calls) return charts;
  const bounds = stats.histogram_bounds_ms;
  const bars = found.histogram.map((value, index) => ({
    label: index < bounds.length ? `to ${millis(bounds[index])}` : `over ${millis(bounds.at(-1))}`,
    value,
    text: count(value),
  }));
  // Buckets in between stay, so that the shape is right.
  const used = bars.map((bar, index) => (bar.value ? index : -1)).filter((index) => index >= 0);
  return html`${charts}<${Bars} bars=${bars.slice(used[0], used.at(-1) + 1)} caption="Durations of the ${count(found.calls)} calls in the last hour" />`;
}

/** How bad an event of a server is. */
const EVENT_LEVELS = {
  started: "good",
  recovered: "good",
  approval_given: "good",
  restarted: "warn",
  paused: "warn",
  unapproved: "warn",
  approval_asked: "warn",
  login_needed: "warn",
  exited: "bad",
  ejected: "bad",
  tripped: "bad",
};

/** Starts, exits and restarts of a server. */
function Timeline({ server }) {
  const found = events.value.filter((event) => event.server === server).slice(0, 50);
  if (!hasEvents.value) return null;
  const level = (kind) => EVENT_LEVELS[kind] ?? "idle";
  const points = found.map((event) => ({ time: event.time, level: level(event.kind), text: `${clock(event.time)} ${visible(event.message)}` }));
  return html`<h2>Starts, exits and other events</h2>
    ${found.length ? html`<${TimeLine} points=${points} label="Events of ${server}" />` : null}
    <${Table} caption="Events of ${server}" rowKey=${(event) => event.id} rows=${found} empty="No event in the last hour."
      columns=${[
        { title: "Time", cell: (event) => html`<span class="nowrap">${clock(event.time)}</span>` },
        { title: "Event", cell: (event) => html`<span class="state ${level(event.kind)}">${event.kind.replace("_", " ")}</span>` },
        { title: "Details", cell: (event) => html`<${Message} text=${event.message} />` },
      ]} />`;
}

/** The end of stderr, which grows while the page is open. */
function Stderr({ server }) {
  const [lines, setLines] = useState([]);
  const [error, setError] = useState(null);
  const [isFollowing, setFollowing] = useState(true);
  const box = useRef();
  useEffect(() => {
    const abort = new AbortController();
    (async () => {
      let after = 0;
      // The first request returns what there is; later ones wait for more.
      for (let wait = ""; !abort.signal.aborted; wait = 1) {
        const next = await get(apiPath(server.name, `/logs${query({ after, wait })}`), abort.signal);
        if (next.length) {
          after = next.at(-1).seq;
          setLines((kept) => [...kept, ...next].slice(-MAX_LINES));
        }
      }
    })().catch((failure) => abort.signal.aborted || setError(failure));
    return () => abort.abort();
  }, [server.name]);
  useEffect(() => {
    if (isFollowing) box.current?.scrollTo(0, box.current.scrollHeight);
  }, [lines, isFollowing]);
  return html`<h2>Stderr</h2>
    <label><input type="checkbox" checked=${isFollowing} onChange=${(event) => setFollowing(event.target.checked)} /> Scroll to new lines</label>
    <${Failure} error=${error} />
    <pre class="log" ref=${box} tabindex="0" role="log" aria-label="stderr of ${server.name}">${lines.map((line) => html`<span class="line" key=${line.seq}><time>${clock(line.at)}</time> ${visible(line.line)}</span>`)}</pre>
    ${lines.length ? null : html`<p class="empty">It has written nothing to stderr.</p>`}`;
}

/** Definitions that differ from what was approved, with the differences. */
export function Changes({ server }) {
  const key = `${server.name} ${JSON.stringify(server.unapproved)}`;
  const { value, error, reload } = useLoaded(key, (abort) => get(apiPath(server.name, "/unapproved"), abort));
  const approve = async () => {
    await act(apiPath(server.name, `/approve${query({ seal: value.seal })}`), `definitions of ${server.name} are approved`);
    await refresh();
    reload();
  };
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<p class="empty">Reading …</p>`;
  if (!value.tools.length) return html`<p class="empty">All definitions are as they were approved. Pinning: ${server.pin}.</p>`;
  return html`<h2>Definitions that differ from what was approved</h2>
    ${value.tools.map((tool) => html`<article class="change" key=${tool.tool}>
      <h3><${Text}>${tool.kind ? `${tool.kind} ${tool.tool}` : tool.tool}<//> <span class="state warn">${tool.change}</span></h3>
      <${Diff} before=${tool.before} now=${tool.now} />
    </article>`)}
    ${canApprove.value
      ? html`<button class="primary" onClick=${approve}>Approve these definitions</button>`
      : html`<p class="note">Log in to approve: <code>toolcrib ui</code>, or run <code>toolcrib approve ${server.name}</code>.</p>`}`;
}

/** Why the server is on, and where its values come from. */
function Why({ server }) {
  const { value, error } = useLoaded(server.name, (abort) => get(apiPath(server.name, "/why"), abort));
  if (!value) return html`<${Missing} error=${error} />`;
  const columns = [
    { title: "Key", cell: (row) => html`<code class="key">${visible(row.key)}</code>` },
    { title: "Value", cell: (row) => html`<${Value} value=${row.value} />` },
    { title: "From", cell: (row) => html`<${Origin} ...${row} />` },
    { title: "Overrides", cell: (row) => row.overrides.map((other) => html`<div><${Value} value=${other.value} /> <${Origin} ...${other} /></div>`), wide: true },
  ];
  return html`<p><span class="state ${value.active ? "good" : "idle"}">${value.active ? "on" : "off"}</span> <${Message} text=${value.reason} /></p>
    ${value.scopes.map((scope) => html`<p>Scope <code>${visible(scope.name)}</code> ${scope.matched ? "matches" : "does not match"}: <${Text}>${scope.fact}<//></p>`)}
    <${Table} caption="Values of ${server.name}" columns=${columns} rows=${value.values} rowKey=${(row) => row.key} empty="It has no values." />
    <${Code} text=${`toolcrib why ${server.name}`} />`;
}
