"""An MCP server that is its own authorization server (fastmcp's `InMemoryOAuthProvider`).

    python oauth_server.py SECONDS      seconds that an access token is valid
"""

import socket
import sys

from fastmcp import FastMCP
from fastmcp.server.auth.providers import in_memory
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from starlette.responses import JSONResponse

in_memory.DEFAULT_ACCESS_TOKEN_EXPIRY_SECONDS = int(sys.argv[1])
counts = {"issued": 0, "renewed": 0, "revoked": 0, "refused": 0, "registered": 0}


class Provider(in_memory.InMemoryOAuthProvider):
    async def register_client(self, client):
        counts["registered"] += 1
        return await super().register_client(client)

    async def exchange_authorization_code(self, client, code):
        counts["issued"] += 1
        return await super().exchange_authorization_code(client, code)

    async def exchange_refresh_token(self, client, token, scopes):
        counts["renewed"] += 1
        return await super().exchange_refresh_token(client, token, scopes)

    async def revoke_token(self, token):
        counts["revoked"] += 1
        return await super().revoke_token(token)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
origin = f"http://127.0.0.1:{port}"
registration = ClientRegistrationOptions(enabled=True, valid_scopes=["use"], default_scopes=["use"])
provider = Provider(
    base_url=origin,
    client_registration_options=registration,
    revocation_options=RevocationOptions(enabled=True),
    required_scopes=["use"],
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
