// An authorization server (oidc-provider) for a gateway. Its tokens are for the resource that a client asks for, name the group `dev`, and
// have the scopes that the client asked for.
//
//     node inbound_issuer.mjs SECONDS      seconds that an access token is valid

import { createServer } from "node:http";
import Provider from "oidc-provider";

const lifetime = Number(process.argv[2]);
const server = createServer();
const issuer = await new Promise((done) =>
    server.listen(0, "127.0.0.1", () => done(`http://127.0.0.1:${server.address().port}`)),
);
const provider = new Provider(issuer, {
    scopes: ["openid", "offline_access", "profile:work"],
    pkce: { required: () => true },
    issueRefreshToken: async () => true,
    extraTokenClaims: () => ({ groups: ["dev"] }),
    ttl: { AccessToken: lifetime, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600 },
    features: {
        registration: { enabled: true },
        devInteractions: { enabled: true },
        resourceIndicators: {
            enabled: true,
            useGrantedResource: () => true,
            getResourceServerInfo: (context, resource) => ({
                scope: "profile:work", audience: resource, accessTokenFormat: "jwt", accessTokenTTL: lifetime,
            }),
        },
    },
});
server.on("request", provider.callback());
console.log(`listening on ${issuer}`);
