// Calls: those that wait for approval, the live list, the history with filters, and one call as a waterfall.

import { html, useState } from "./vendor/preact.js";
import { get, query } from "./api.js";
import { bytes, clock, count, json, millis, visible } from "./format.js";
import { Code, Facts, Field, Heading, Message, Missing, Panel, Table, useLoaded, useRepeated } from "./parts.js";
import { act, approvals, canApprove } from "./store.js";

/** Calls that the live list and the history show. */
const MAX_CALLS = 100;
const FILTERS = ["server", "tool", "caller"];
/** Time between two readings of the live list. */
const LIVE_INTERVAL = 1000;
/** Periods that the history can be limited to. */
const PERIODS = ["15m", "1h", "1d", "7d"];

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
    { title: "Time", cell: (call) => html`<a class="nowrap" href="#/calls/${encodeURIComponent(call.id)}">${clock(call.time)}</a>` },
    { title: "Call", cell: name },
    { title: "Outcome", cell: (call) => html`<${Outcome} call=${call} />` },
    { title: "Duration", cell: (call) => millis(call.duration_ms), number: true },
    { title: "Tokens", cell: (call) => count(call.result_tokens), number: true, wide: true },
    { title: "Caller", cell: (call) => visible(call.caller), wide: true },
    { title: "Client", cell: (call) => visible(call.client ?? "–"), wide: true },
  ];
}

function CallList() {
  const [isLive, setLive] = useState(true);
  const openCall = (event) => {
    event.preventDefault();
    const id = new FormData(event.target).get("id").trim();
    if (id) location.hash = `#/calls/${encodeURIComponent(id)}`;
  };
  return html`<${Heading} title="Calls" />
    <${Approvals} />
    <div class="bar">
      <div class="switch" role="group" aria-label="Which calls">
        <button aria-pressed=${isLive ? "true" : "false"} onClick=${() => setLive(true)}>Live</button>
        <button aria-pressed=${isLive ? "false" : "true"} onClick=${() => setLive(false)}>History</button>
      </div>
      <form role="search" onSubmit=${openCall}>
        <input type="search" name="id" aria-label="Id of a call" placeholder="Id of a call, as in its error" maxlength="40" spellcheck=${false} />
        <button>Open</button>
      </form>
    </div>
    ${isLive ? html`<${Live} />` : html`<${History} />`}`;
}

/** The newest calls. Nothing is read while the list is paused. */
function Live() {
  const [isPaused, setPaused] = useState(false);
  const { value, error } = useRepeated(`/api/v1/calls${query({ limit: MAX_CALLS })}`, LIVE_INTERVAL, isPaused);
  if (!value) return html`<${Missing} error=${error} />`;
  return html`<p><button aria-pressed=${isPaused ? "true" : "false"} onClick=${() => setPaused(!isPaused)}>Pause</button></p>
    <${Table} caption="Live calls" columns=${columns()} rows=${value.calls} rowKey=${(call) => call.id} empty="No call was made yet." />`;
}

function History() {
  const [filters, setFilters] = useState({});
  const { value, error, reload } = useLoaded(JSON.stringify(filters), (abort) => get(`/api/v1/calls${query({ ...filters, limit: MAX_CALLS })}`, abort));
  const set = (key) => (event) => setFilters({ ...filters, [key]: event.target.value.trim() });
  const choice = (key, words) => html`<select value=${filters[key] ?? ""} onInput=${set(key)}><option value="">any</option>${words.map((word) => html`<option>${word}</option>`)}</select>`;
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
      ${FILTERS.map((key) => html`<${Field} label=${key}><input value=${filters[key] ?? ""} onChange=${set(key)} /><//>`)}
      <${Field} label="outcome">${choice("outcome", ["ok", "error", "denied"])}<//>
      <${Field} label="period">${choice("since", PERIODS)}<//>
      <button onClick=${reload}>Read again</button>
    </form>
    ${value ? html`<${Table} caption="History of calls" columns=${columns()} rows=${value.calls} rowKey=${(call) => call.id} empty="No call matches." />` : html`<${Missing} error=${error} />`}`;
}

const CACHE_WORDS = { hit: "answered from the cache", miss: "not in the cache", joined: "shared the answer of an equal call" };

/** The steps of a call in the order in which they pass: {label, time, note}. A step without a time is instantaneous. */
function steps(call) {
  const wasSent = call.attempts > 0;
  const allowed = call.rule ? html`denied: <${Message} text=${call.rule} />` : call.outcome === "denied" ? visible(call.error ?? "denied") : "allowed";
  const known = [
    { label: "Access rules", time: call.policy_ms, note: allowed },
    { label: "Cache", time: 0, note: CACHE_WORDS[call.cache] ?? "not used" },
    { label: "Start of the server", time: call.start_ms, note: call.start_ms ? "" : "not needed" },
    { label: "Queue", time: call.queue_ms, note: call.queue_ms ? "" : "no wait" },
    { label: "Server", time: call.server_ms, note: wasSent ? (call.attempts > 1 ? `sent ${call.attempts} times` : "") : "not sent" },
  ];
  const rest = (call.duration_ms ?? 0) - known.reduce((total, step) => total + (step.time ?? 0), 0);
  return [...known, { label: "Gateway", time: Math.max(rest, 0), note: "everything else" }];
}

/** One call as bars on a common time line. */
function Waterfall({ call }) {
  const total = Math.max(call.duration_ms ?? 0, 0.001);
  let offset = 0;
  const bars = steps(call).map((step) => {
    const start = offset;
    offset += step.time ?? 0;
    return { ...step, start };
  });
  return html`<table class="bars waterfall">
    <caption>Where the time went: ${millis(call.duration_ms)}</caption>
    <tbody>
      ${bars.map(({ label, start, time, note }) => html`<tr class=${time ? "" : "none"}>
        <th scope="row">${label}</th>
        <td><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${time ? html`<rect x=${Math.min((start / total) * 100, 99.5)} width=${Math.max((time / total) * 100, 0.5)} height="10" />` : null}</svg></td>
        <td class="number">${time ? millis(time) : ""}</td>
        <td class="note-cell">${note}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

/** How the same call is found elsewhere. */
function Elsewhere({ id }) {
  return html`<${Panel} title="The same call elsewhere">
    <${Code} text=${`toolcrib events --call ${id}`} label="Copy the command" />
    <p class="minor">Its id is <code>id</code> in the audit file, <code>data.call</code> in its error, <code>toolcrib.call.id</code> in its trace, and <code>call_id</code> of the exemplar in the metrics.</p>
  <//>`;
}

function Call({ id }) {
  const { value: call, error } = useLoaded(id, (abort) => get(`/api/v1/calls/${encodeURIComponent(id)}`, abort));
  if (!call) return html`<${Heading} title="Call ${id}" /><${Missing} error=${error} /><p><a href="#/calls">All calls</a></p>`;
  const server = call.server ? html`<a href="#/servers/${encodeURIComponent(call.server)}">${visible(call.server)}</a>` : "–";
  return html`<${Heading} title=${name(call)}><${Outcome} call=${call} /><//>
    <${Waterfall} call=${call} />
    <div class="panels">
      <${Panel} title="Who and what"><${Facts} facts=${[
        ["Caller", visible(call.caller)],
        ["Client", visible(call.client ?? "–")],
        ["Server", server],
        ["Method", visible(call.method)],
        ["Time", clock(call.time)],
        ["Id", html`<code>${visible(call.id)}</code>`],
      ]} /><//>
      <${Panel} title="Result"><${Facts} facts=${[
        ["Outcome", visible(call.outcome)],
        ["Error", visible(call.error ?? "none")],
        ["Attempts", count(call.attempts)],
        ["Request", bytes(call.request_bytes)],
        ["Response", bytes(call.response_bytes)],
        ["Tokens of the result", count(call.result_tokens)],
      ]} /><//>
      <${Elsewhere} id=${call.id} />
    </div>
    ${call.arguments ? html`<h2>Arguments</h2><pre tabindex="0">${json(call.arguments)}</pre>` : null}
    <p><a href="#/calls">All calls</a></p>`;
}
