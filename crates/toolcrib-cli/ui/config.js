// Config: its files and values with their origins, problems and reload; recent events; and the audit file.

import { html, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { clock, count, visible } from "./format.js";
import { Facts, Failure, Field, Heading, Message, Missing, Origin, Table, Text, Value, useLimit, useLoaded } from "./parts.js";
import { act, events, hasEvents, status } from "./store.js";

export function Config() {
  const generation = status.value?.config.generation;
  const { value, error, reload } = useLoaded(String(generation), (abort) => get("/api/v1/config", abort));
  const problems = status.value?.config.problems ?? [];
  const reloadConfig = async () => {
    const report = await act("/api/v1/reload", "the config was read again");
    if (report) reload();
  };
  const files = value?.files ?? [status.value?.config.file];
  const store = status.value?.store;
  return html`<${Heading} title="Config"><span class="actions"><button onClick=${reloadConfig}>Reload</button></span><//>
    ${problems.length
      ? html`<ul class="attention">${problems.map((found) => html`<li class="bad"><div><strong><${Origin} ...${found} /></strong> <span><${Message} text=${found.message} /> <small><${Message} text=${found.hint ?? ""} /></small></span></div></li>`)}</ul>`
      : html`<p class="calm">The config has no problem.</p>`}
    <${Facts} facts=${[
      ["Version", status.value?.version],
      ["Generation", count(generation)],
      ["Process", status.value?.pid],
      store ? ["Shared store", html`<span class="state ${store.state === "up" ? "good" : "bad"}">${store.state}</span> <code>${visible(store.url)}</code>`] : null,
      store?.address ? ["This replica", html`<code>${visible(store.address)}</code>`] : null,
    ]} />
    <section aria-labelledby="files"><h2 id="files">Files</h2>
      <ol class="files">${files.map((file) => html`<li><code>${visible(file)}</code></li>`)}</ol>
      ${files.length > 1 ? html`<p class="minor">A later file overrides an earlier one.</p>` : null}
    </section>
    <section aria-labelledby="values"><h2 id="values">Values</h2>
      ${value ? html`<${Values} values=${value.values} />` : html`<${Missing} error=${error} />`}
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
        { title: "Key", cell: (row) => html`<code class="key">${visible(row.key)}</code>` },
        { title: "Value", cell: (row) => html`<${Value} value=${row.value} />` },
        { title: "From", cell: (row) => html`<${Origin} ...${row} />` },
      ]} />
    ${more}`;
}

function Events() {
  const found = events.value.slice(0, 100);
  if (!hasEvents.value) return html`<p class="empty">This gateway does not report events.</p>`;
  return html`<${Table} caption="Events" rows=${found} rowKey=${(event) => event.id} empty="No event in the last hour."
    columns=${[
      { title: "Time", cell: (event) => html`<span class="nowrap">${clock(event.time)}</span>` },
      { title: "Event", cell: (event) => html`<span class="nowrap">${visible(event.kind.replace("_", " "))}</span>` },
      { title: "Server", cell: (event) => visible(event.server), wide: true },
      { title: "Details", cell: (event) => html`<${Message} text=${event.message} />` },
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
