// Access: callers and rules as they are written, limits with their use, and a simulator of decisions.

import { html, useState } from "./vendor/preact.js";
import { get, query } from "./api.js";
import { count, duration, visible } from "./format.js";
import { Facts, Failure, Field, Heading, Message, Missing, Origin, Table, Value, useLoaded } from "./parts.js";
import { status } from "./store.js";

/** Keys of the config that decide about access. */
const ACCESS = /^(policy|profiles|callers|groups|issuers|limits\.(quota|rate)|servers\.[^.]+\.tools)(\.|$)/;

const FROM = { title: "From", cell: (row) => html`<${Origin} ...${row} />` };

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
              { title: "Key", cell: (row) => html`<code class="key">${visible(row.key)}</code>` },
              { title: "Value", cell: (row) => html`<${Value} value=${row.value} />` },
              FROM,
            ]} />`
        : html`<${Missing} error=${config.error} />`}
    </section>`;
}

function Limits() {
  const rows = status.value?.quota ?? [];
  return html`<${Table} caption="Limits" rows=${rows} rowKey=${(row) => `${row.caller} ${row.limit}`} empty="No limit was used yet."
    columns=${[
      { title: "Caller", cell: (row) => visible(row.caller) },
      { title: "Limit", cell: (row) => html`<code class="key">${visible(row.limit)}</code>` },
      { title: "Allowed", cell: (row) => `${count(row.calls)} per ${duration(row.per)}`, number: true },
      { title: "Used", cell: (row) => html`<span class="use"><meter min="0" max=${row.calls} low=${row.calls * 0.6} high=${row.calls * 0.9} optimum="0" value=${row.calls - row.left} aria-label="calls used" /> ${count(row.calls - row.left)}</span>`, number: true },
      { title: "Next call in", cell: (row) => (row.room_in ? duration(row.room_in) : "now"), number: true },
    ]} />`;
}

/** Returns the names below a table of the config, such as the callers. */
function names(values, table) {
  const found = values.filter((value) => value.key.startsWith(`${table}.`)).map((value) => value.key.split(".")[1]);
  return [...new Set(found)];
}

function Simulator({ values }) {
  const [question, setQuestion] = useState({ caller: "local", profile: "", groups: "", tool: "" });
  const [answer, setAnswer] = useState({});
  const set = (key) => (event) => setQuestion({ ...question, [key]: event.target.value });
  const ask = async (event) => {
    event.preventDefault();
    await get(`/api/v1/policy${query(question)}`).then(
      (value) => setAnswer({ value }),
      (error) => setAnswer({ error }),
    );
  };
  const callers = ["local", ...names(values, "callers")];
  const groups = names(values, "groups");
  return html`<section class="panel" aria-labelledby="simulator"><h2 id="simulator">Who may call what?</h2>
    <form class="filters" onSubmit=${ask}>
      <${Field} label="Caller"><input required list="callers" value=${question.caller} onInput=${set("caller")} /><//>
      <datalist id="callers">${callers.map((name) => html`<option value=${visible(name)} />`)}</datalist>
      <${Field} label="Profile">
        <select value=${question.profile} onInput=${set("profile")}><option value="">none</option>${names(values, "profiles").map((name) => html`<option>${visible(name)}</option>`)}</select>
      <//>
      ${groups.length ? html`<${Field} label="Groups, with commas"><input list="groups" value=${question.groups} onInput=${set("groups")} /><//><datalist id="groups">${groups.map((name) => html`<option value=${visible(name)} />`)}</datalist>` : null}
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
    <p class="verdict"><span class="state ${level}">${word}</span> ${visible(answer.caller)} → ${visible(`${answer.server}.${answer.tool}`)}</p>
    <${Facts} facts=${[
      answer.rule ? ["Rule", html`<${Message} text=${answer.rule} /> <${Origin} ...${answer} />`] : null,
      ["Server", answer.server_visible ? "visible to this caller" : "hidden from this caller"],
      answer.tool_exists === false ? ["Tool", "the server has no such tool"] : null,
    ]} />
    <${Table} caption="Rules that apply" rows=${answer.rules} rowKey=${(row) => row.rule} empty="No rule applies."
      columns=${[
        { title: "Rule", cell: (row) => html`<${Message} text=${row.rule} />` },
        { title: "Effect", cell: (row) => html`<span class="state ${row.denies ? "bad" : ""}">${row.denies ? "denies" : "applies"}</span>` },
        FROM,
      ]} />
    ${answer.limits.length
      ? html`<${Table} caption="Limits that apply" rows=${answer.limits} rowKey=${(row) => row.limit} empty=""
          columns=${[
            { title: "Limit", cell: (row) => html`<code class="key">${visible(row.limit)}</code>` },
            { title: "Calls", cell: (row) => `${count(row.calls)} per ${duration(row.per)}` },
            FROM,
          ]} />`
      : null}
  </div>`;
}
