"""An MCP server with an authorization server that accepts client metadata documents (fastmcp's `OAuthProxy`). People log in at another
authorization server, where the proxy registers itself.

    python oauth_proxy.py ISSUER SECONDS      seconds that an access token is valid
"""

import json
import socket
import sys
import urllib.request

from fastmcp import FastMCP
from fastmcp.server.auth import OAuthProxy
from fastmcp.server.auth.cimd import CIMDDocument, CIMDFetcher
from fastmcp.server.auth.providers.jwt import JWTVerifier
from key_value.aio.stores.memory import MemoryStore
from starlette.responses import JSONResponse

ISSUER, SECONDS = sys.argv[1], int(sys.argv[2])
counts = {"registered": 0}
# The client metadata document that `auth.client-metadata-url` names. It is not on the internet, so it is answered here.
CLIENT_METADATA = {
    "client_id": "https://toolcrib.example/client.json", "client_name": "toolcrib", "redirect_uris": ["http://127.0.0.1/callback"],
    "grant_types": ["authorization_code", "refresh_token"], "token_endpoint_auth_method": "none",
}


async def fetch(self, url):
    if url != CLIENT_METADATA["client_id"]:
        raise ValueError(f"there is no document at {url}")
    return CIMDDocument(**CLIENT_METADATA)


CIMDFetcher.fetch = fetch


class Proxy(OAuthProxy):
    async def register_client(self, client):
        counts["registered"] += 1
        return await super().register_client(client)


def read_json(url, body=None):
    request = urllib.request.Request(url, body and json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
origin = f"http://127.0.0.1:{port}"
issuer = read_json(f"{ISSUER}/.well-known/openid-configuration")
client = read_json(issuer["registration_endpoint"], {
    "redirect_uris": [f"{origin}/auth/callback"], "grant_types": ["authorization_code", "refresh_token"], "application_type": "native",
})
provider = Proxy(
    upstream_authorization_endpoint=issuer["authorization_endpoint"],
    upstream_token_endpoint=issuer["token_endpoint"],
    upstream_client_id=client["client_id"],
    upstream_client_secret=client["client_secret"],
    token_verifier=JWTVerifier(jwks_uri=issuer["jwks_uri"], issuer=issuer["issuer"], required_scopes=["profile:work"]),
    base_url=origin,
    client_storage=MemoryStore(),
    fastmcp_access_token_expiry_seconds=SECONDS,
)
server = FastMCP("protected", auth=provider)


@server.tool
def hello() -> str:
    """Says hello"""
    return "hello"


@server.custom_route("/counts", methods=["GET"])
async def count(request):
    return JSONResponse(counts)


print(f"listening on {origin}/mcp", flush=True)
server.run(transport="http", host="127.0.0.1", port=port, show_banner=False, log_level="warning")
