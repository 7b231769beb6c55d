"""An authorization server with device codes (Authlib), and an MCP server that accepts its tokens.

    python oauth_device.py SECONDS      seconds that an access token is valid
"""

import os
import socket
import sys
import time

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # it is on loopback

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Request, rfc6749, rfc7591, rfc8628
from flask import Flask, jsonify, request

LIFETIME = int(sys.argv[1])
app = Flask(__name__)
app.config["OAUTH2_TOKEN_EXPIRES_IN"] = {rfc8628.DEVICE_CODE_GRANT_TYPE: LIFETIME, "refresh_token": LIFETIME}
app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
clients, credentials, approved, tokens = {}, {}, set(), {}
counts = {"issued": 0, "renewed": 0, "revoked": 0, "refused": 0, "registered": 0}


class Client(rfc6749.ClientMixin):
    def __init__(self, client_id, metadata):
        self.id, self.metadata = client_id, metadata

    def get_client_id(self):
        return self.id

    def get_allowed_scope(self, scope):
        return scope

    def check_endpoint_auth_method(self, method, endpoint):
        return method == "none"

    def check_grant_type(self, grant_type):
        return grant_type in self.metadata["grant_types"]


class Token(dict, rfc6749.TokenMixin):
    def check_client(self, client):
        return self["client"] == client.get_client_id()

    def get_scope(self):
        return self.get("scope", "")

    def is_revoked(self):
        return self.get("is_revoked", False)


class Registration(rfc7591.ClientRegistrationEndpoint):
    def authenticate_token(self, request):
        return True  # anyone may register a client

    def get_server_metadata(self):
        return {}

    def save_client(self, client_info, client_metadata, request):
        counts["registered"] += 1
        client = Client(client_info["client_id"], client_metadata)
        clients[client.id] = client
        return client


class DeviceAuthorization(rfc8628.DeviceAuthorizationEndpoint):
    INTERVAL = 1

    def get_verification_uri(self):
        return f"{origin}/activate"

    def save_device_credential(self, client_id, scope, data):
        credentials[data["device_code"]] = rfc8628.DeviceCredentialDict(client_id=client_id, scope=scope, expires_at=time.time() + data["expires_in"], **data)


class DeviceCode(rfc8628.DeviceCodeGrant):
    def query_device_credential(self, device_code):
        return credentials.get(device_code)

    def query_user_grant(self, user_code):
        return ("person", True) if user_code in approved else None

    def should_slow_down(self, credential):
        return False


class RefreshToken(rfc6749.RefreshTokenGrant):
    INCLUDE_NEW_REFRESH_TOKEN = True
    TOKEN_ENDPOINT_AUTH_METHODS = ["none"]

    def authenticate_refresh_token(self, refresh_token):
        found = [token for token in tokens.values() if token.get("refresh_token") == refresh_token and not token.is_revoked()]
        return found[0] if found else None

    def authenticate_user(self, refresh_token):
        return "person"

    def revoke_old_credential(self, refresh_token):
        refresh_token["is_revoked"] = True
        counts["renewed"] += 1


def save_token(token, request: OAuth2Request):
    tokens[token["access_token"]] = Token(token, client=request.client.get_client_id(), ends=time.time() + LIFETIME)


server = AuthorizationServer(app, query_client=clients.get, save_token=save_token)
server.register_grant(DeviceCode)
server.register_grant(RefreshToken)
server.register_endpoint(Registration)
server.register_endpoint(DeviceAuthorization)


@app.get("/.well-known/oauth-authorization-server")
def metadata():
    endpoints = {"token_endpoint": "token", "registration_endpoint": "register", "device_authorization_endpoint": "device"}
    return jsonify(issuer=origin, token_endpoint_auth_methods_supported=["none"], **{name: f"{origin}/{path}" for name, path in endpoints.items()})


@app.get("/.well-known/oauth-protected-resource/mcp")
def resource():
    return jsonify(resource=f"{origin}/mcp", authorization_servers=[origin], scopes_supported=["use"])


@app.post("/register")
def register():
    return server.create_endpoint_response(Registration.ENDPOINT_NAME)


@app.post("/device")
def device():
    return server.create_endpoint_response(DeviceAuthorization.ENDPOINT_NAME)


@app.post("/token")
def token():
    return server.create_token_response()


@app.route("/activate", methods=["GET", "POST"])
def activate():
    """The page for the person, who confirms the code."""
    code = request.values.get("user_code", "")
    if request.method == "POST":
        approved.add(code)
        return "done"
    return f'<form method="post"><input name="user_code" value="{code}"><button type="submit">Confirm</button></form>'


@app.get("/counts")
def count():
    return jsonify(counts)


@app.post("/mcp")
def mcp():
    token = tokens.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
    if not token or token["ends"] <= time.time():
        return "", 401, {"WWW-Authenticate": "Bearer"}
    message = request.get_json()
    if "id" not in message:
        return "", 202
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "protected", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": "hello"}]}
    else:
        return jsonify(jsonrpc="2.0", id=message["id"], error={"code": -32601, "message": "method not found"})
    return jsonify(jsonrpc="2.0", id=message["id"], result=result)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
origin = f"http://127.0.0.1:{port}"
print(f"listening on {origin}/mcp", flush=True)
app.run(host="127.0.0.1", port=port, threaded=True)
