// Servers: the list, and one server with its process, its stderr and its config.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get, query } from "./api.js";
import { bytes, clock, count, duration, millis, rate, visible } from "./format.js";
import { Bars, Code, Diff, Facts, Failure, Field, Heading, Missing, Sparkline, State, Table, Text, TimeLine, useLatest, useLimit, useLoaded } from "./parts.js";
import { act, canApprove, events, hasEvents, refresh, samplesOf, status } from "./store.js";

/** Lines of stderr that the page keeps. */
const MAX_LINES = 500;

const seconds = (value) => (value === null || value === undefined ? "–" : millis(value * 1000));
const apiPath = (name, more = "") => `/api/v1/servers/${encodeURIComponent(name)}${more}`;

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
    { title: "Up", cell: (server) => duration(server.uptime), number: true },
    { title: "Restarts", cell: (server) => count(server.restarts), number: true },
    { title: "Tools", cell: (server) => count(server.tools), number: true },
    { title: "Calls", cell: (server) => count(server.calls), number: true },
    { title: "Errors", cell: (server) => count(server.errors), number: true },
    { title: "p50", cell: (server) => seconds(server.p50), number: true },
    { title: "p99", cell: (server) => seconds(server.p99), number: true },
    { title: "Memory", cell: (server) => bytes(server.memory_bytes ?? server.memory), number: true },
    { title: "Rate", cell: (server) => html`<${Sparkline} values=${samplesOf(server.name).map((sample) => sample.calls)} label="calls of ${server.name}" />` },
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
        ${["start", "restart", "stop"].map((action) => html`<button onClick=${() => act(apiPath(name, `/${action}`), `${action} of ${name}: done`)}>${action}</button>`)}
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

function Details({ server }) {
  const samples = samplesOf(server.name);
  const cpu = server.cpu_seconds === undefined || server.cpu_seconds === null ? null : ["CPU time", duration(server.cpu_seconds)];
  return html`
    ${server.last_error ? html`<p class=${server.state === "ready" ? "note" : "failure"}>Last error at ${clock(server.last_error.at)}: <${Text}>${server.last_error.message}<//> <small><${Text}>${server.last_error.hint}<//></small></p>` : null}
    <${Facts} facts=${[
      ["Process", server.pid ?? "–"],
      ["Up", duration(server.uptime)],
      ["Restarts", `${server.restarts}, ${server.restarts_left} left`],
      ["Circuit breaker", server.breaker.replace("_", " ")],
      server.next_attempt_in ? ["Next attempt in", duration(server.next_attempt_in)] : null,
      ["Memory", bytes(server.memory_bytes ?? server.memory)],
      cpu,
      ["Calls", `${count(server.calls)}, ${count(server.errors)} failed`],
      ["In flight", count(server.in_flight)],
      ["p50, p99", `${seconds(server.p50)}, ${seconds(server.p99)}`],
      ["Cache", `${count(server.cache_hits)} hits, ${count(server.cache_misses)} misses`],
      ["Transport", server.transport],
      ["Protocol", [server.era, server.protocol_version].flat().filter(Boolean).join(", ") || "–"],
      ["Tools", html`<a href="#/tools/?server=${encodeURIComponent(server.name)}">${count(server.tools)}</a>`],
      ["Sharing", `${server.sharing}, ${count(server.instances)} running`],
      ["Login", server.login],
    ]} />
    <h2>Calls per second</h2>
    <${Sparkline} values=${samples.map((sample) => sample.calls)} label="calls per second, ${rate(samples.at(-1)?.calls)}" />
    <${Latency} server=${server.name} calls=${server.calls} />
    <${Timeline} server=${server.name} />
    ${server.problems.length ? html`<h2>Problems of its definitions</h2><ul>${server.problems.map((text) => html`<li><${Text}>${text}<//></li>`)}</ul>` : null}
    ${server.listing_errors.map((error) => html`<p class="failure"><${Text}>${error.list}: ${error.message}<//></p>`)}`;
}

/** A histogram of the durations of calls in the last hour. */
function Latency({ server, calls }) {
  const { value: stats } = useLatest(`${server} ${calls}`, (abort) => get("/api/v1/stats?since=1h", abort));
  const found = stats?.servers.find((row) => row.name === server);
  if (!found?.calls) return null;
  const bounds = stats.histogram_bounds_ms;
  const bars = found.histogram.map((value, index) => ({
    label: index < bounds.length ? `to ${millis(bounds[index])}` : `over ${millis(bounds.at(-1))}`,
    value,
    text: count(value),
  }));
  return html`<${Bars} bars=${bars.filter((bar) => bar.value)} caption="Durations of the ${count(found.calls)} calls in the last hour; p95 ${millis(found.p95_ms)}" />`;
}

/** Starts, exits and restarts of a server. */
function Timeline({ server }) {
  const found = events.value.filter((event) => event.server === server && event.kind !== "call").slice(0, 50);
  if (!hasEvents.value) return null;
  const level = (kind) => ({ started: "good", recovered: "good", restarted: "warn", list_changed: "idle" })[kind] ?? "bad";
  const points = found.map((event) => ({ time: event.time, level: level(event.kind), text: `${clock(event.time)} ${visible(event.message)}` }));
  return html`<h2>Starts, exits and other events</h2>
    ${found.length ? html`<${TimeLine} points=${points} label="Events of ${server}" />` : null}
    <${Table} caption="Events of ${server}" rowKey=${(event) => event.id} rows=${found} empty="No event in the last hour."
      columns=${[
        { title: "Time", cell: (event) => clock(event.time) },
        { title: "Event", cell: (event) => event.kind.replace("_", " ") },
        { title: "Details", cell: (event) => visible(event.message) },
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
  if (!value) return html`<${Missing} error=${error} what="where values come from" />`;
  const columns = [
    { title: "Key", cell: (row) => html`<code>${visible(row.key)}</code>` },
    { title: "Value", cell: (row) => html`<code>${visible(JSON.stringify(row.value))}</code>` },
    { title: "From", cell: (row) => visible(`${row.file}:${row.line}`) },
    { title: "Overrides", cell: (row) => row.overrides.map((other) => html`<div><code>${visible(JSON.stringify(other.value))}</code> ${visible(`${other.file}:${other.line}`)}</div>`) },
  ];
  return html`<p>It is ${value.active ? "on" : "off"}: <${Text}>${value.reason}<//></p>
    ${value.scopes.map((scope) => html`<p>Scope <code>${visible(scope.name)}</code> ${scope.matched ? "matches" : "does not match"}: <${Text}>${scope.fact}<//></p>`)}
    <${Table} caption="Values of ${server.name}" columns=${columns} rows=${value.values} rowKey=${(row) => row.key} empty="It has no values." />
    <${Code} text=${`toolcrib why ${server.name}`} />`;
}
