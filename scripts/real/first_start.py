"""An MCP server that needs long for its first start, as one that is downloaded first: `first_start.py FOLDER NAME SECONDS|hang`.

FOLDER remembers that a start was completed; later ones are immediate. With `hang`, no start is ever completed. The server has one
tool, `echo`.
"""

import json
import pathlib
import sys
import time

folder, name, seconds = sys.argv[1:]
started = pathlib.Path(folder, name)
if seconds == "hang":
    while True:
        time.sleep(3600)
if not started.exists():
    time.sleep(float(seconds))
    started.touch()

TOOL = {"name": "echo", "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    params = asked.get("params", {})
    answers = {
        "initialize": {"capabilities": {"tools": {}}, "serverInfo": {"name": name, "version": "1"}},
        "ping": {},
        "tools/list": {"tools": [TOOL]},
        "tools/call": {"content": [{"type": "text", "text": f"Echo: {params.get('arguments', {}).get('message')}"}]},
    }
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked.get("method") in answers:
        answer["result"] = answers[asked["method"]]
        if asked["method"] == "initialize":
            answer["result"]["protocolVersion"] = params["protocolVersion"]
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(answer), flush=True)
