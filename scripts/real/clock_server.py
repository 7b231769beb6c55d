"""An MCP server with one tool, `now`, without any library."""

import json
import sys

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    match message["method"]:
        case "initialize":
            answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "clock", "version": "1"}}
        case "tools/list":
            answer["result"] = {"tools": [{"name": "now", "description": "Tells the time", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            answer["result"] = {"content": [{"type": "text", "text": "noon"}]}
        case "ping":
            answer["result"] = {}
        case method:
            answer["error"] = {"code": -32601, "message": f"unknown method {method}"}
    print(json.dumps(answer), flush=True)
