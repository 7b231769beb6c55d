// Clients: the programs that are connected, what each of them sees, and what that costs.

import { html, useEffect } from "./vendor/preact.js";
import { get } from "./api.js";
import { clock, count, duration, visible } from "./format.js";
import { Heading, Missing, Table, useLoaded } from "./parts.js";

/** Time between two readings. */
const INTERVAL = 5000;

export function Clients() {
  const { value, error, reload } = useLoaded("clients", (abort) => get("/api/v1/clients", abort));
  useEffect(() => {
    const timer = setTimeout(() => document.hidden || reload(), INTERVAL);
    return () => clearTimeout(timer);
  }, [value]);
  const since = (client) => (typeof client.connected_for === "number" ? duration(client.connected_for) : client.since ? clock(client.since) : "–");
  return html`<${Heading} title="Clients" />
    ${value
      ? html`<${Table} caption="Clients" rows=${value.clients ?? []} rowKey=${(client) => client.id ?? `${client.name} ${client.caller}`}
          empty="No client is connected."
          columns=${[
            { title: "Client", cell: (client) => visible([client.name ?? client.client, client.version].filter(Boolean).join(" ")) },
            { title: "Caller", cell: (client) => visible(client.caller) },
            { title: "Protocol", cell: (client) => visible(client.protocol_version ?? client.era) },
            { title: "Capabilities", cell: (client) => visible([client.capabilities ?? []].flat().join(", ")) },
            { title: "Connected", cell: since, number: true },
            { title: "Calls", cell: (client) => count(client.calls), number: true },
            { title: "Tools", cell: (client) => count(client.tools), number: true },
            { title: "Tokens", cell: (client) => count(client.tool_tokens ?? client.tokens), number: true },
          ]} />`
      : html`<${Missing} error=${error} what="its clients" />`}`;
}
