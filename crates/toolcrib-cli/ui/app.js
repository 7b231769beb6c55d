// The shell of the dashboard: login, navigation and the screen that the address names.

import { html, render, signal, useEffect, useState } from "./vendor/preact.js";
import { logInWithToken, logOut, openSession, session } from "./api.js";
import { Failure, Field } from "./parts.js";
import { attention, notice, problem, status, watch } from "./store.js";
import { Overview } from "./overview.js";
import { Servers } from "./servers.js";
import { Tools } from "./tools.js";
import { Calls } from "./calls.js";
import { Access } from "./access.js";
import { Clients } from "./clients.js";
import { Config } from "./config.js";

/** The screens. Those that need the admin API are not shown to callers without it. */
const SCREENS = [
  { name: "", title: "Overview", screen: Overview, admin: true, icon: "M3 3h6v8H3zM11 3h6v5h-6zM11 10h6v7h-6zM3 13h6v4H3z" },
  { name: "servers", title: "Servers", screen: Servers, admin: true, icon: "M3 3.5h14v5.5H3zM3 11h14v5.5H3zM6 6.2h2M6 13.7h2" },
  { name: "tools", title: "Tools", screen: Tools, admin: false, icon: "M17 6.5a4.2 4.2 0 0 1-5.6 4.9L6 17l-3-3 5.6-5.4A4.2 4.2 0 0 1 13.5 3L11 5.5l.6 2.9 2.9.6z" },
  { name: "calls", title: "Calls", screen: Calls, admin: false, icon: "M3 7h13M12.5 3.5 16 7l-3.5 3.5M17 13H4M7.5 9.5 4 13l3.5 3.5" },
  { name: "access", title: "Access", screen: Access, admin: true, icon: "M10 2.5 16 5v4.5c0 3.8-2.4 6.5-6 8-3.6-1.5-6-4.2-6-8V5zM7.5 10l2 2 3.5-4" },
  { name: "clients", title: "Clients", screen: Clients, admin: true, icon: "M2.5 4h15v9.5h-15zM7 17h6M10 13.5V17" },
  { name: "config", title: "Config", screen: Config, admin: true, icon: "M3 6h8M15 6h2M13 4v4M3 14h2M9 14h8M7 12v4" },
];

/** The parts of the address behind `#/`, decoded. */
const route = signal(readRoute());

function readRoute() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  return parts.map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

function Navigation({ screens, current }) {
  const waiting = attention.value.length;
  return html`<nav aria-label="Screens">
    <a class="brand" href="#/"><img src="/ui/icon.svg" alt="" width="22" height="22" /> toolcrib</a>
    <ul>
      ${screens.map(({ name, title, icon }) => html`<li>
        <a href="#/${name}" aria-current=${name === current ? "page" : undefined}>
          <svg viewBox="0 0 20 20" aria-hidden="true"><path d=${icon} /></svg>
          ${title}${name === "" && waiting ? html` <span class="badge">${waiting}<span class="hidden"> need attention</span></span>` : null}
        </a>
      </li>`)}
    </ul>
    <div class="who">
      <span class="live ${problem.value ? "bad" : ""}">${problem.value ? "not connected" : "connected"}</span>
      <span>${session.value.caller}</span>
      ${session.value.logged_in ? html`<button class="small" onClick=${logOut}>Log out</button>` : null}
    </div>
  </nav>`;
}

/** The form for the token of a caller, with what else is possible. */
function Login({ message }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    await logInWithToken(token.trim()).catch((refusal) =>
      setError(refusal.status === 401 ? new Error("this is not the token of a caller") : refusal),
    );
  };
  return html`<main class="login">
    <h1>toolcrib</h1>
    ${message ? html`<p class="failure" role="alert">${message}</p>` : null}
    <p>Run <code>toolcrib ui</code> on the machine of the gateway: it opens this page logged in.</p>
    <form onSubmit=${submit}>
      <${Field} label="Or log in with the token of a caller" hint="A caller with admin = true sees everything; any other one sees its tools and calls.">
        <input type="password" autocomplete="current-password" required value=${token} onInput=${(event) => setToken(event.target.value)} />
      <//>
      <${Failure} error=${error} />
      <button>Log in</button>
    </form>
  </main>`;
}

/** What the page may not do, and how to get there. */
function Rights() {
  if (!session.value.admin) return html`<p class="note">This caller is not an admin: the page shows its tools and calls only.</p>`;
  if (session.value.can_approve) return null;
  return html`<p class="note">You are not logged in, so nothing can be approved here. Run <code>toolcrib ui</code> to log in.</p>`;
}

function Notice() {
  const message = notice.value;
  useEffect(() => {
    if (!message || message.bad) return undefined;
    const timer = setTimeout(() => (notice.value = null), 6000);
    return () => clearTimeout(timer);
  }, [message]);
  return html`<div class="notice ${message?.bad ? "bad" : ""}" role="status" hidden=${!message}>
    <span>${message?.text}</span>
    <button class="small" onClick=${() => (notice.value = null)}>Close</button>
  </div>`;
}

function Shell() {
  const screens = SCREENS.filter((screen) => !screen.admin || session.value.admin);
  const [name, ...rest] = route.value;
  const current = screens.find((screen) => screen.name === name) ?? screens[0];
  useEffect(() => {
    const abort = new AbortController();
    watch(abort.signal);
    return () => abort.abort();
  }, [session.value.caller, session.value.logged_in]);
  const isWaiting = current.admin && !status.value && !problem.value;
  return html`<a class="skip" href="#main" onClick=${skipToMain}>Skip to the content</a>
    <${Navigation} screens=${screens} current=${current.name} />
    <main id="main" tabindex="-1">
      <${Rights} />
      <${Failure} error=${problem.value} />
      ${isWaiting ? html`<p class="empty">Reading the status …</p>` : html`<${current.screen} path=${rest} key=${current.name} />`}
    </main>
    <${Notice} />`;
}

function skipToMain(event) {
  event.preventDefault();
  document.querySelector("#main").focus();
}

function App({ message }) {
  if (!session.value) return html`<p class="loading">Loading …</p>`;
  return session.value.caller ? html`<${Shell} />` : html`<${Login} message=${message} />`;
}

/** `/` goes to the search field of the screen, as on other sites. */
function onKey(event) {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && !isTyping && search && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
  }
}

addEventListener("hashchange", () => {
  // A link with a login code may be opened in a page that is open already.
  if (location.hash.startsWith("#code=")) location.reload();
  route.value = readRoute();
});
addEventListener("keydown", onKey);
const root = document.querySelector("#app");
root.replaceChildren();
try {
  render(html`<${App} message=${await openSession()} />`, root);
  route.value = readRoute();
} catch (error) {
  render(html`<main class="login"><h1>toolcrib</h1><${Failure} error=${error} /></main>`, root);
}
