// The page of a host of MCP Apps, bundled for the browser by scripts/mcp-apps.

import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

/** Shows an app in a frame and sends it the result of its tool; returns true when the app is initialized. */
globalThis.showApp = async (html, result) => {
    const frame = document.createElement("iframe");
    frame.style.cssText = "width: 800px; height: 600px";
    document.body.append(frame);
    const bridge = new AppBridge(null, { name: "apps-host", version: "1" }, { openLinks: {}, serverTools: {}, logging: {} });
    bridge.oncalltool = (params) => globalThis.callTool({ name: params.name, arguments: params.arguments ?? {} });
    const initialized = new Promise((resolve, reject) => {
        bridge.oninitialized = () => resolve(true);
        setTimeout(() => reject(new Error("the app did not initialize within 20 s")), 20_000);
    });
    await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
    frame.contentDocument.open();
    frame.contentDocument.write(html);
    frame.contentDocument.close();
    await initialized;
    await bridge.sendToolInput({ arguments: {} });
    await bridge.sendToolResult(result);
    return true;
};
