// Access: callers and rules as they are written, limits with their use, and a simulator of decisions.

import { html, useState } from "./vendor/preact.js";
import { get, query } from "./api.js";
import { count, duration, visible } from "./format.js";
import { Facts, Failure, Field, Heading, Missing, Table, useLoaded } from "./parts.js";
import { status } from "./store.js";

/** Keys of the config that decide about access. */
const ACCESS = /^(policy|profiles|callers|groups|issuers|limits\.(quota|rate)|servers\.[^.]+\.tools)(\.|$)/;

const origin = (row) => visible(row.file ? `${row.file}:${row.line}` : "");

export function Access() {
  const config = useLoaded("config", (abort) => get("/api/v1/config", abort));
  const rules = (config.value?.values ?? []).filter((value) => ACCESS.test(value.key));
  return html`<${Heading} title="Access" />
    <${Simulator} values=${config.value?.values ?? []} />
    <section aria-labelledby="limits"><h2 id="limits">Limits</h2><${Limits} /></section>
    <section aria-labelledby="rules"><h2 id="rules">Callers and rules</h2>
      ${config.value
        ? html`<${Table} caption="Callers and rules" rows=${rules} rowKey=${(row) => row.key}
            empty="No rule is declared: every local client may use every tool."
            columns=${[
              { title: "Key", cell: (row) => html`<code>${visible(row.key)}</code>` },
              { title: "Value", cell: (row) => html`<code>${visible(JSON.stringify(row.value))}</code>` },
              { title: "From", cell: origin },
            ]} />`
        : html`<${Missing} error=${config.error} what="its config" />`}
    </section>`;
}

function Limits() {
  const rows = status.value?.quota ?? [];
  return html`<${Table} caption="Limits" rows=${rows} rowKey=${(row) => `${row.caller} ${row.limit}`} empty="No limit is in use."
    columns=${[
      { title: "Caller", cell: (row) => visible(row.caller) },
      { title: "Limit", cell: (row) => html`<code>${visible(row.limit)}</code>` },
      { title: "Calls", cell: (row) => `${count(row.calls)} per ${duration(row.per)}`, number: true },
      { title: "Left", cell: (row) => html`<meter min="0" max=${row.calls} value=${row.left} aria-label="calls left" /> ${count(row.left)}`, number: true },
      { title: "Next call in", cell: (row) => (row.room_in ? duration(row.room_in) : "now"), number: true },
    ]} />`;
}

/** Returns the names below a table of the config, such as the callers. */
function names(values, table) {
  const found = values.filter((value) => value.key.startsWith(`${table}.`)).map((value) => value.key.split(".")[1]);
  return [...new Set(found)];
}

function Simulator({ values }) {
  const [question, setQuestion] = useState({ caller: "local", profile: "", tool: "" });
  const [answer, setAnswer] = useState({});
  const set = (key) => (event) => setQuestion({ ...question, [key]: event.target.value });
  const ask = async (event) => {
    event.preventDefault();
    await get(`/api/v1/policy${query(question)}`).then(
      (value) => setAnswer({ value }),
      (error) => setAnswer({ error }),
    );
  };
  return html`<section aria-labelledby="simulator"><h2 id="simulator">Who may call what?</h2>
    <form class="filters" onSubmit=${ask}>
      <${Field} label="Caller">
        <select value=${question.caller} onInput=${set("caller")}>${["local", ...names(values, "callers")].map((name) => html`<option>${visible(name)}</option>`)}</select>
      <//>
      <${Field} label="Profile">
        <select value=${question.profile} onInput=${set("profile")}><option value="">none</option>${names(values, "profiles").map((name) => html`<option>${visible(name)}</option>`)}</select>
      <//>
      <${Field} label="Tool, as SERVER.TOOL"><input required value=${question.tool} onInput=${set("tool")} /><//>
      <button class="primary">Decide</button>
    </form>
    <div aria-live="polite"><${Failure} error=${answer.error} />${answer.value ? html`<${Decision} answer=${answer.value} />` : null}</div>
  </section>`;
}

function Decision({ answer }) {
  const word = answer.allowed ? (answer.asks ? "would ask" : "allowed") : "denied";
  const level = answer.allowed ? (answer.asks ? "warn" : "good") : "bad";
  return html`<div class="decision">
    <p><span class="state ${level}">${word}</span> ${visible(answer.caller)} → ${visible(`${answer.server}.${answer.tool}`)}</p>
    <${Facts} facts=${[
      answer.rule ? ["Rule", html`${visible(answer.rule)} <small>${origin(answer)}</small>`] : null,
      ["Server", answer.server_visible ? "visible to this caller" : "hidden from this caller"],
      answer.tool_exists === false ? ["Tool", "the server has no such tool"] : null,
    ]} />
    <${Table} caption="Rules that apply" rows=${answer.rules} rowKey=${(row) => row.rule} empty="No rule applies."
      columns=${[
        { title: "Rule", cell: (row) => visible(row.rule) },
        { title: "Effect", cell: (row) => html`<span class="state ${row.denies ? "bad" : ""}">${row.denies ? "denies" : "applies"}</span>` },
        { title: "From", cell: origin },
      ]} />
    ${answer.limits.length
      ? html`<${Table} caption="Limits that apply" rows=${answer.limits} rowKey=${(row) => row.limit} empty=""
          columns=${[
            { title: "Limit", cell: (row) => html`<code>${visible(row.limit)}</code>` },
            { title: "Calls", cell: (row) => `${count(row.calls)} per ${duration(row.per)}` },
            { title: "From", cell: origin },
          ]} />`
      : null}
  </div>`;
}
