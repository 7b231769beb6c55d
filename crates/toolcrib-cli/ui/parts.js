// Small parts that several screens use.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { diffLines, json, visible } from "./format.js";
import { pauseAfter, whenVisible } from "./schedule.js";

/** Text of a server or a file: never markup. */
export const Text = ({ children }) => visible(Array.isArray(children) ? children.join("") : children);

/** A message of the gateway. What it has in backticks is shown as code; a server that writes some gets code, never markup. */
export function Message({ text }) {
  return visible(text)
    .split("`")
    .map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

/** The file and line of a value: the folder and the name of the file, and the whole path when it is pointed at. */
export function Origin({ file, line }) {
  if (!file) return null;
  const short = file.split("/").slice(-2).join("/");
  return html`<span class="origin" title=${visible(`${file}:${line}`)}>${visible(short)}:${line}</span>`;
}

/** A value of the config. */
export const Value = ({ value }) => html`<code>${visible(JSON.stringify(value))}</code>`;

/** The state of a server, as a word and a mark. */
export function State({ state }) {
  const level =
    { ready: "good", asleep: "idle", disabled: "idle", ejected: "bad", tripped: "bad", backing_off: "warn" }[state] ?? "warn";
  return html`<span class="state ${level}">${state.replace("_", " ")}</span>`;
}

let isFirstScreen = true;

/** The heading of a screen. It gets the focus when another screen is opened, so that it is read aloud. */
export function Heading({ title, children }) {
  const heading = useRef();
  useLayoutEffect(() => {
    document.title = `${visible(title)} · toolcrib`;
    if (!isFirstScreen) heading.current.focus({ preventScroll: true });
    isFirstScreen = false;
  }, [title]);
  return html`<div class="heading"><h1 tabindex="-1" ref=${heading}>${visible(title)}</h1>${children}</div>`;
}

/** A table. Columns are [{title, cell(row), number, wide}]; those that are `wide` are left out on phones. A row has a key. */
export function Table({ caption, columns, rows, rowKey, empty }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  const kind = (column) => [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim();
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map((column) => html`<th scope="col" class=${kind(column)}>${column.title}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row) => html`<tr key=${rowKey(row)}>${columns.map((column) => html`<td class=${kind(column)}>${column.cell(row)}</td>`)}</tr>`)}
      </tbody>
    </table>
  </div>`;
}

/** A box with a heading. */
export function Panel({ title, children }) {
  return html`<section class="panel" aria-label=${title}><h2>${title}</h2>${children}</section>`;
}

/** Shows the first rows, and the others on request. */
export function useLimit(total, first = 100) {
  const [limit, setLimit] = useState(first);
  const more = total > limit
    ? html`<p><button onClick=${() => setLimit(limit * 4)}>Show more</button> ${limit} of ${total} are shown.</p>`
    : null;
  return [limit, more];
}

/** Names and values. */
export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** Code that can be copied. */
export function Code({ text, label = "Copy" }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return html`<div class="code">
    <pre tabindex="0"><code>${visible(text)}</code></pre>
    <button class="small" onClick=${copy} aria-label=${label}>${copied ? "Copied" : "Copy"}</button>
  </div>`;
}

export const Json = ({ value }) => html`<pre tabindex="0"><code>${json(value)}</code></pre>`;

/** The differences between two JSON values. */
export function Diff({ before, now }) {
  const lines = diffLines(json(before ?? null), json(now));
  const mark = { same: " ", removed: "−", added: "+" };
  return html`<pre class="diff" tabindex="0" aria-label="differences">${lines.map(
    (line) => html`<span class="line ${line.kind}">${mark[line.kind]} ${line.text}</span>`,
  )}</pre>`;
}

/** A line of values over time. It passes over values that are missing. */
export function Sparkline({ values, label, bad }) {
  const width = 120;
  const height = 28;
  const known = values.filter((value) => value !== null);
  if (!known.length) return html`<svg class="spark" viewBox="0 0 ${width} ${height}" role="img" aria-label="${label}: no data yet" />`;
  const top = Math.max(...known, 0.001);
  const x = (index) => ((index / Math.max(values.length - 1, 1)) * width).toFixed(1);
  const y = (value) => (height - 2 - (value / top) * (height - 4)).toFixed(1);
  const points = values.map((value, index) => (value === null ? null : `${x(index)},${y(value)}`)).filter(Boolean);
  // One value is a short line that ends where the value is.
  const line = points.length > 1 ? `M${points.join("L")}` : `M${points[0]}h${values.length > 1 ? -3 : width}`;
  return html`<svg class="spark ${bad ? "bad" : ""}" viewBox="0 0 ${width} ${height}" role="img" aria-label=${label} preserveAspectRatio="none">
    <path d=${line} />
  </svg>`;
}

/** A larger line with its highest value, its last one and the ends of its period. */
export function Chart({ values, label, format, from }) {
  const known = values.filter((value) => value !== null);
  return html`<figure class="chart">
    <figcaption><span>${label}</span><strong>${known.length ? format(known.at(-1)) : "–"}</strong></figcaption>
    <${Sparkline} values=${values} label="${label}, highest ${format(Math.max(...known, 0))}" />
    <div class="axis"><span>${from}</span><span>${known.length ? `highest ${format(Math.max(...known))}` : "no data yet"}</span><span>now</span></div>
  </figure>`;
}

/** Points on a time line of the last hour: [{time, level, text}]. */
export function TimeLine({ points, label }) {
  const hour = 3_600_000;
  const now = Date.now();
  const shown = points.map((point) => ({ ...point, x: 1 - (now - new Date(point.time).getTime()) / hour })).filter((point) => point.x >= 0);
  return html`<figure class="timeline">
    <svg viewBox="0 0 600 24" preserveAspectRatio="none" role="img" aria-label="${label}: ${shown.length} in the last hour">
      <line x1="0" y1="12" x2="600" y2="12" />
      ${shown.map((point) => html`<rect class=${point.level} x=${point.x * 596} y="3" width="4" height="18"><title>${point.text}</title></rect>`)}
    </svg>
    <figcaption><span>an hour ago</span><span>now</span></figcaption>
  </figure>`;
}

/** Bars with labels: [{label, value, text}]. */
export function Bars({ bars, caption }) {
  const top = Math.max(...bars.map((bar) => bar.value), 1);
  return html`<table class="bars">
    <caption>${caption}</caption>
    <tbody>
      ${bars.map((bar) => html`<tr>
        <th scope="row">${bar.label}</th>
        <td><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect width=${(bar.value / top) * 100} height="10" /></svg></td>
        <td class="number">${bar.text}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

/** A labelled input. */
export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint ? html`<small>${hint}</small>` : null}</label>`;
}

/** An error with its hint. */
export function Failure({ error }) {
  if (!error) return null;
  return html`<p class="failure" role="alert"><${Message} text=${error.message} />${error.hint ? html` <small>Hint: <${Message} text=${error.hint} /></small>` : null}</p>`;
}

/**
 * Loads something when `load` changes its key. Returns {value, error, reload}. A value of an older key is not shown.
 */
export function useLoaded(key, load) {
  const [state, setState] = useState({ key: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    load(abort.signal).then(
      (value) => abort.signal.aborted || setState({ key, value }),
      (error) => abort.signal.aborted || setState({ key, error }),
    );
    return () => abort.abort();
  }, [key, turn]);
  const current = state.key === key ? state : {};
  return { value: current.value, error: current.error, isDone: state.key === key, reload: () => setTurn((last) => last + 1) };
}

/** Like `useLoaded`, but the last value is shown until there is a new one. */
export function useLatest(key, load) {
  const loaded = useLoaded(key, load);
  const [last, setLast] = useState(undefined);
  useEffect(() => {
    if (loaded.value !== undefined) setLast(loaded.value);
  }, [loaded.value]);
  return { ...loaded, value: loaded.value ?? last };
}

/**
 * Reads a path again and again while the page is visible and `isPaused` is not set, at least `interval` apart and less often if that
 * takes long. Returns {value, error}.
 */
export function useRepeated(path, interval, isPaused = false) {
  const [turn, setTurn] = useState(0);
  const pause = useRef(interval);
  const loaded = useLatest(`${path} ${turn}`, async (abort) => {
    const started = performance.now();
    try {
      return await get(path, abort);
    } finally {
      pause.current = pauseAfter(performance.now() - started, interval);
    }
  });
  const isDone = loaded.isDone;
  useEffect(() => {
    if (!isDone || isPaused) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(() => whenVisible().then(() => abort.signal.aborted || setTurn(turn + 1)), pause.current);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [isDone, turn, isPaused]);
  return loaded;
}

/** What a screen shows instead of a value that is not there yet, or that the gateway does not have. */
export function Missing({ error }) {
  if (!error) return html`<p class="empty">Reading …</p>`;
  if (error.status !== 404) return html`<${Failure} error=${error} />`;
  return html`<p class="empty"><${Message} text=${error.message} />${error.hint ? html`: <${Message} text=${error.hint} />` : null}</p>`;
}
