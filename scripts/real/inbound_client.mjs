// Logs in to a gateway by itself with the TypeScript SDK, and calls a tool. Prints the text of the answer.
//
//     CHROMIUM=path node inbound_client.mjs URL TOOL [FOLDER [OTHER_URL]]
//
// With OTHER_URL, it then sends its token to that gateway, and prints the status and the challenge.

import { execFile } from "node:child_process";
import { createServer } from "node:http";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, tool, , otherUrl] = process.argv.slice(2);
let receive;
const redirect = new Promise((done) => (receive = done));
const listener = createServer((request, response) => {
    receive(new URL(request.url, "http://localhost").searchParams);
    response.end("done");
});
const redirectUrl = await new Promise((done) =>
    listener.listen(0, "127.0.0.1", () => done(`http://127.0.0.1:${listener.address().port}/callback`)),
);

class Login {
    redirectUrl = redirectUrl;
    clientMetadata = { redirect_uris: [redirectUrl], client_name: "check", token_endpoint_auth_method: "none", grant_types: ["authorization_code", "refresh_token"] };
    clientInformation = () => this.client;
    saveClientInformation = (client) => void (this.client = client);
    tokens = () => this.saved;
    saveTokens = (tokens) => void (this.saved = tokens);
    saveCodeVerifier = (verifier) => void (this.verifier = verifier);
    codeVerifier = () => this.verifier;
    redirectToAuthorization = (page) => void execFile("node", ["oauth_browser.mjs", page.href], { cwd: import.meta.dirname });
}

const authProvider = new Login();
const connect = async () => {
    const client = new Client({ name: "check", version: "1" });
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
    try {
        await client.connect(transport);
    } catch (error) {
        if (!(error instanceof UnauthorizedError)) throw error;
        const answer = await redirect;
        if (!answer.has("code")) throw new Error(`no code: ${answer}`);
        await transport.finishAuth(answer.get("code"));
        return null;
    }
    return client;
};
const client = (await connect()) ?? (await connect());
const answer = await client.callTool({ name: tool, arguments: {} });
console.log(answer.content[0].text);
await client.close();
listener.close();
if (otherUrl) {
    const headers = { Authorization: `Bearer ${authProvider.saved.access_token}`, "Content-Type": "application/json" };
    const refused = await fetch(otherUrl, { method: "POST", headers, body: "{}" });
    console.log(refused.status, refused.headers.get("WWW-Authenticate"));
}
