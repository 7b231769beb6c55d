// Calls: those that wait for approval, the live list, the history with filters, and one call as a waterfall.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get, query } from "./api.js";
import { bytes, clock, count, json, millis, visible } from "./format.js";
import { Facts, Field, Heading, Missing, Table, useLatest, useLoaded } from "./parts.js";
import { act, approvals, canApprove, events, hasEvents } from "./store.js";

/** Calls that the live list and the history show. */
const MAX_CALLS = 200;
const FILTERS = ["server", "tool", "caller"];
/** Time between two readings of the live list. */
const LIVE_INTERVAL = 1000;

export function Calls({ path }) {
  const [id] = path;
  return id ? html`<${Call} id=${id} key=${id} />` : html`<${CallList} />`;
}

/** The calls that wait for a decision. */
function Approvals() {
  if (!approvals.value.length) return null;
  const decide = (call, decision) =>
    act(`/api/v1/calls/${encodeURIComponent(call.id)}/${decision}`, `${call.server}.${call.name}: ${decision === "deny" ? "denied" : "approved"}`);
  return html`<section aria-labelledby="approvals"><h2 id="approvals">Calls that wait for approval</h2>
    <ul class="approvals">
      ${approvals.value.map((call) => html`<li key=${call.id}>
        <p><strong>${visible(call.caller)}</strong> asks to call <strong>${visible(`${call.server}.${call.name}`)}</strong> with</p>
        <pre tabindex="0">${visible(call.arguments)}</pre>
        ${canApprove.value
          ? html`<button class="primary" onClick=${() => decide(call, "approve")}>Approve this call</button>
              <button onClick=${() => decide(call, "deny")}>Deny</button>`
          : html`<p class="note">Log in to approve: <code>toolcrib ui</code>, or run <code>toolcrib approve --call ${call.id}</code>.</p>`}
      </li>`)}
    </ul>
  </section>`;
}

const name = (call) => visible(call.tool ? `${call.server ?? ""}.${call.tool}` : [call.server, call.method].filter(Boolean).join(" "));

/** The outcome of a call, as a word and a mark. */
function Outcome({ call }) {
  const level = { ok: "good", denied: "warn" }[call.outcome] ?? "bad";
  return html`<span class="state ${level}">${visible(call.error ?? call.outcome)}</span>`;
}

function columns() {
  return [
    { title: "Time", cell: (call) => html`<a href="#/calls/${encodeURIComponent(call.id)}">${clock(call.time)}</a>` },
    { title: "Call", cell: name },
    { title: "Caller", cell: (call) => visible(call.caller) },
    { title: "Client", cell: (call) => visible(call.client) },
    { title: "Outcome", cell: (call) => html`<${Outcome} call=${call} />` },
    { title: "Duration", cell: (call) => millis(call.duration_ms), number: true },
    { title: "Tokens", cell: (call) => count(call.result_tokens), number: true },
  ];
}

function CallList() {
  const [isLive, setLive] = useState(true);
  return html`<${Heading} title="Calls" />
    <${Approvals} />
    <div role="group" aria-label="Which calls">
      <button aria-pressed=${isLive ? "true" : "false"} onClick=${() => setLive(true)}>Live</button>
      <button aria-pressed=${isLive ? "false" : "true"} onClick=${() => setLive(false)}>History</button>
    </div>
    ${isLive ? html`<${Live} />` : html`<${History} />`}`;
}

/** The newest calls. They are read again when an event reports a call, at most once per interval. */
function Live() {
  const [isPaused, setPaused] = useState(false);
  const newest = events.value.find((event) => event.kind === "call")?.id;
  const { value, error, reload } = useLatest("live", (abort) => get(`/api/v1/calls${query({ limit: MAX_CALLS })}`, abort));
  const timer = useRef(null);
  useEffect(() => {
    if (isPaused || !newest) return;
    timer.current ??= setTimeout(() => {
      timer.current = null;
      reload();
    }, LIVE_INTERVAL);
  }, [newest, isPaused]);
  useEffect(() => () => clearTimeout(timer.current), []);
  if (!value) return html`<${Missing} error=${error} what="calls" />`;
  return html`<p><button aria-pressed=${isPaused ? "true" : "false"} onClick=${() => setPaused(!isPaused)}>Pause</button>
      ${hasEvents.value ? null : " This gateway does not announce calls: open the page again for newer ones."}</p>
    <${Table} caption="Live calls" columns=${columns()} rows=${value.calls} rowKey=${(call) => call.id} empty="No call was made yet." />`;
}

function History() {
  const [filters, setFilters] = useState({});
  const { value, error, reload } = useLoaded(JSON.stringify(filters), (abort) => get(`/api/v1/calls${query({ ...filters, limit: MAX_CALLS })}`, abort));
  const set = (key) => (event) => setFilters({ ...filters, [key]: event.target.value.trim() });
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
      ${FILTERS.map((key) => html`<${Field} label=${key}><input value=${filters[key] ?? ""} onChange=${set(key)} /><//>`)}
      <${Field} label="outcome">
        <select value=${filters.outcome ?? ""} onInput=${set("outcome")}><option value="">any</option>${["ok", "error", "denied"].map((word) => html`<option>${word}</option>`)}</select>
      <//>
      <button onClick=${reload}>Read again</button>
    </form>
    ${value ? html`<${Table} caption="History of calls" columns=${columns()} rows=${value.calls} rowKey=${(call) => call.id} empty="No call matches." />` : html`<${Missing} error=${error} what="the history of calls" />`}`;
}

/** The parts of a call in the order in which they pass. */
const STEPS = [
  ["policy_ms", "Rules and limits"],
  ["queue_ms", "Queue"],
  ["start_ms", "Start of the server"],
  ["server_ms", "Server"],
];

/** One call as bars on a common time line. */
function Waterfall({ call }) {
  const total = Math.max(call.duration_ms ?? 0, 0.001);
  let offset = 0;
  const bars = STEPS.filter(([key]) => typeof call[key] === "number" && call[key] > 0).map(([key, label]) => {
    const bar = { label, start: offset, width: call[key] };
    offset += call[key];
    return bar;
  });
  if (total - offset > total * 0.01) bars.push({ label: "Gateway", start: offset, width: total - offset });
  return html`<table class="bars waterfall">
    <caption>Where the time went: ${millis(call.duration_ms)}</caption>
    <tbody>
      ${bars.map((bar) => html`<tr>
        <th scope="row">${bar.label}</th>
        <td><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect x=${(bar.start / total) * 100} width=${Math.max((bar.width / total) * 100, 0.5)} height="10" /></svg></td>
        <td class="number">${millis(bar.width)}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

function Call({ id }) {
  const { value: call, error } = useLoaded(id, (abort) => get(`/api/v1/calls/${encodeURIComponent(id)}`, abort));
  if (!call) return html`<${Heading} title="Call ${id}" /><${Missing} error=${error} what="single calls" />`;
  return html`<${Heading} title=${name(call)}><${Outcome} call=${call} /><//>
    <${Waterfall} call=${call} />
    <${Facts} facts=${[
      ["Id", html`<code>${visible(call.id)}</code>`],
      ["Time", clock(call.time)],
      ["Method", visible(call.method)],
      ["Caller", visible(call.caller)],
      ["Client", visible(call.client)],
      call.rule ? ["Rule", visible(call.rule)] : null,
      call.error ? ["Error", visible(call.error)] : null,
      ["Attempts", count(call.attempts)],
      call.cache ? ["Cache", visible(call.cache)] : null,
      ["Request", bytes(call.request_bytes)],
      ["Response", bytes(call.response_bytes)],
      ["Tokens of the result", count(call.result_tokens)],
    ]} />
    ${call.arguments ? html`<h2>Arguments</h2><pre tabindex="0">${json(call.arguments)}</pre>` : null}
    <p><a href="#/calls">All calls</a></p>`;
}
