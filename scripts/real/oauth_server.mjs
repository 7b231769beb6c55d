// An authorization server (oidc-provider) and an MCP server (the TypeScript SDK) that accepts its tokens. Prints the URL of the MCP
// server; `/counts` there tells how often tokens were issued, renewed and revoked.
//
//     node oauth_server.mjs SECONDS [AUDIENCE]      seconds that an access token is valid; its audience, if it is not the server

import { createServer } from "node:http";
import express from "express";
import { createLocalJWKSet, jwtVerify } from "jose";
import Provider from "oidc-provider";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

const lifetime = Number(process.argv[2]);

function listen(server) {
    return new Promise((done) => server.listen(0, "127.0.0.1", () => done(`http://127.0.0.1:${server.address().port}`)));
}

const authorization = createServer();
const resourceServer = createServer();
const issuer = await listen(authorization);
const origin = await listen(resourceServer);
const resource = `${origin}/mcp`;

const counts = { issued: 0, renewed: 0, revoked: 0, refused: 0, registered: 0 };
// The client metadata document that `auth.client-metadata-url` names. It is not on the internet, so it is answered here.
const clientMetadata = {
    client_id: "https://toolcrib.example/client.json", client_name: "toolcrib", application_type: "native",
    redirect_uris: ["http://127.0.0.1/callback"], response_types: ["code"],
    grant_types: ["authorization_code", "refresh_token"], token_endpoint_auth_method: "none",
};
const provider = new Provider(issuer, {
    fetch: async (url) => (String(url) === clientMetadata.client_id ? Response.json(clientMetadata) : Response.error()),
    scopes: ["openid", "offline_access", "mcp:use"],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async () => true,
    ttl: { AccessToken: lifetime, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600 },
    features: {
        registration: { enabled: true },
        deviceFlow: { enabled: true },
        clientIdMetadataDocument: { enabled: true, ack: "draft-02" },
        revocation: { enabled: true },
        devInteractions: { enabled: true },
        resourceIndicators: {
            enabled: true,
            defaultResource: () => resource,
            useGrantedResource: () => true,
            getResourceServerInfo: () => ({
                scope: "mcp:use", audience: process.argv[3] ?? resource, accessTokenFormat: "jwt", accessTokenTTL: lifetime,
            }),
        },
    },
});
provider.on("grant.success", (context) => {
    counts[context.oidc.params.grant_type === "refresh_token" ? "renewed" : "issued"] += 1;
});
provider.on("grant.error", () => (counts.refused += 1));
provider.on("registration_create.success", () => (counts.registered += 1));
provider.on("grant.revoked", () => (counts.revoked += 1));
authorization.on("request", provider.callback());

const keys = createLocalJWKSet(await (await fetch(`${issuer}/jwks`)).json());

async function authorize(request, response, next) {
    try {
        const token = (request.headers.authorization ?? "").replace(/^Bearer /, "");
        await jwtVerify(token, keys, { issuer, audience: resource });
        next();
    } catch (error) {
        const metadata = `${origin}/.well-known/oauth-protected-resource/mcp`;
        const reason = `error="invalid_token", error_description="${error.message.replaceAll('"', "'")}"`;
        response.set("WWW-Authenticate", `Bearer resource_metadata="${metadata}", scope="mcp:use", ${reason}`);
        response.status(401).json({ error: "invalid_token" });
    }
}

const app = express();
app.use(express.json());
app.get("/counts", (request, response) => response.json(counts));
app.get("/.well-known/oauth-protected-resource/mcp", (request, response) =>
    response.json({ resource, authorization_servers: [issuer], scopes_supported: ["mcp:use"] }),
);
app.post("/mcp", authorize, async (request, response) => {
    const server = new McpServer({ name: "protected", version: "1" });
    server.registerTool("hello", { description: "Says hello" }, async () => ({ content: [{ type: "text", text: "hello" }] }));
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    response.on("close", () => void server.close());
    await server.connect(transport);
    await transport.handleRequest(request, response, request.body);
});
app.all("/mcp", (request, response) => response.status(405).end());
resourceServer.on("request", app);
console.log(`listening on ${resource}`);
