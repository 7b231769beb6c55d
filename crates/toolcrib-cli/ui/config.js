// Config: its files and values with their origins, problems and reload; recent events; and the audit file.

import { html, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { clock, count, visible } from "./format.js";
import { Facts, Failure, Field, Heading, Missing, Table, Text, useLimit, useLoaded } from "./parts.js";
import { act, events, hasEvents, status } from "./store.js";

export function Config() {
  const generation = status.value?.config.generation;
  const { value, error, reload } = useLoaded(String(generation), (abort) => get("/api/v1/config", abort));
  const problems = status.value?.config.problems ?? [];
  const reloadConfig = async () => {
    const report = await act("/api/v1/reload", "the config was read again");
    if (report) reload();
  };
  return html`<${Heading} title="Config"><button onClick=${reloadConfig}>Reload</button><//>
    <${Facts} facts=${[
      ["Version", status.value?.version],
      ["Generation", count(generation)],
      ["Files", (value?.files ?? [status.value?.config.file]).map((file) => html`<div><code>${visible(file)}</code></div>`)],
    ]} />
    <section aria-labelledby="problems"><h2 id="problems">Problems</h2>
      ${problems.length
        ? html`<ul class="attention">${problems.map((found) => html`<li class="bad"><${Text}>${[found.file, found.line, found.column].filter(Boolean).join(":")} ${found.message}<//> <small><${Text}>${found.hint ?? ""}<//></small></li>`)}</ul>`
        : html`<p class="empty">The config has no problem.</p>`}
    </section>
    <section aria-labelledby="values"><h2 id="values">Values</h2>
      ${value ? html`<${Values} values=${value.values} />` : html`<${Missing} error=${error} what="its config" />`}
    </section>
    <section aria-labelledby="events"><h2 id="events">Events</h2><${Events} /></section>
    <section aria-labelledby="audit"><h2 id="audit">Audit</h2><${Audit} /></section>`;
}

function Values({ values }) {
  const [filter, setFilter] = useState("");
  const found = values.filter((value) => value.key.includes(filter));
  const [limit, more] = useLimit(found.length);
  return html`<${Field} label="Filter by key"><input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} /><//>
    <${Table} caption="Values of the config" rows=${found.slice(0, limit)} rowKey=${(row) => row.key} empty="No key matches."
      columns=${[
        { title: "Key", cell: (row) => html`<code>${visible(row.key)}</code>` },
        { title: "Value", cell: (row) => html`<code>${visible(JSON.stringify(row.value))}</code>` },
        { title: "From", cell: (row) => visible(`${row.file}:${row.line}`) },
      ]} />
    ${more}`;
}

function Events() {
  const found = events.value.filter((event) => event.kind !== "call").slice(0, 100);
  if (!hasEvents.value) return html`<p class="empty">This gateway does not report events.</p>`;
  return html`<${Table} caption="Events" rows=${found} rowKey=${(event) => event.id} empty="No event in the last hour."
    columns=${[
      { title: "Time", cell: (event) => clock(event.time) },
      { title: "Event", cell: (event) => visible(event.kind.replace("_", " ")) },
      { title: "Server", cell: (event) => visible(event.server) },
      { title: "Details", cell: (event) => visible(event.message) },
    ]} />`;
}

/** The audit file and its hash chain, which is verified on request because that reads the whole file. */
function Audit() {
  const [state, setState] = useState({});
  const verify = async () => {
    setState({ isBusy: true });
    await get("/api/v1/audit").then(
      (value) => setState({ value }),
      (error) => setState({ error }),
    );
  };
  const { value } = state;
  return html`<p><button onClick=${verify} disabled=${state.isBusy}>Verify the audit file</button></p>
    <div aria-live="polite">
      <${Failure} error=${state.error} />
      ${value && !value.file ? html`<p class="empty">No audit file is declared: <code>audit = "FILE"</code></p>` : null}
      ${value?.file && value.intact ? html`<p><span class="state good">intact</span> ${count(value.lines)} lines in ${count(value.files)} files, <code>${visible(value.file)}</code></p>` : null}
      ${value?.intact === false ? html`<p class="failure"><${Text}>${value.file}:${value.line}: the chain is broken: ${value.reason}<//></p>` : null}
    </div>`;
}
