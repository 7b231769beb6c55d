//! Authentication of callers, and the sessions and streams that belong to them.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use serde_json::json;
use test_support::client::{Era, message};
use test_support::deadline::{self, skip};
use test_support::http;

use super::{CALLERS, ask, home, send};

#[test]
fn requests_without_a_valid_token_are_rejected() {
    // No server is listed unasked.
    let (home, _records) = home(&format!("{CALLERS}[limits]\nfirst-listing-wait = '0s'\n"));
    let gateway = home.serve();
    let list = message(Era::Stateless, &1.into(), "tools/list", &json!({}));
    let usual = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/list")];
    let post =
        |path: &str, headers: &[(&str, &str)]| send(&gateway, path, &[&usual, headers].concat(), &list);
    let rows: [&[(&str, &str)]; 11] = [
        &[],
        &[("Authorization", "Bearer")],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", "Bearer ci-Token")],
        &[("Authorization", "Bearer ci-Token-12")],
        &[("Authorization", "Bearer CI-TOKEN-1")],
        &[("Authorization", "Bearer xci-Token-1")],
        &[("Authorization", "Basic ci-Token-1")],
        &[("Authorization", "ci-Token-1")],
        &[("Authorization", "Bearer ci-Token-1"), ("Authorization", "Bearer ci-Token-1")],
        &[("X-Api-Key", "ci-Token-1"), ("Cookie", "token=ci-Token-1")],
    ];
    for headers in rows {
        for path in
            ["/mcp", "/mcp/s/fake", "/mcp?token=ci-Token-1", "/mcp?access_token=ci-Token-1", "/nowhere"]
        {
            let answer = post(path, headers);
            assert_eq!(answer.status, 401, "{path} {headers:?}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"toolcrib\""));
        }
    }
    let get = |path: &str, token: Option<&str>| {
        let authorization = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> =
            authorization.iter().map(|value| ("Authorization", value.as_str())).collect();
        http::request(gateway.address, "GET", path, &headers, b"")
    };
    for path in ["/api/v1/status", "/api/v1/tools", "/api/v1/calls", "/api/v1/events", "/metrics", "/mcp"] {
        assert_eq!(get(path, None).status, 401, "{path}");
    }
    assert_eq!((get("/healthz", None).status, get("/healthz", None).body.len()), (200, 0));
    assert_eq!(get("/readyz", None).status, 200);
    assert_eq!(gateway.children(), [0_u32; 0], "no server was started");
    assert_eq!(get("/api/v1/status", Some("ci-Token-1")).status, 403);
    assert_eq!(get("/api/v1/status", Some("root-Token")).status, 200);
    assert_eq!(post("/mcp", &[("Authorization", "Bearer ci-Token-1")]).status, 200);
    assert_eq!(home.run(&["status"]).status.code(), Some(0), "the command line needs no token");
}

#[test]
fn session_of_another_caller_is_not_found() {
    let (home, _records) = home(CALLERS);
    let gateway = home.serve();
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
        "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let opened = send(&gateway, "/mcp", &[("Authorization", "Bearer ci-Token-1")], &initialize);
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let status = |token: &str, method: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [
            ("Authorization", authorization.as_str()),
            ("Mcp-Session-Id", &session),
            ("Accept", "text/event-stream"),
        ];
        match method {
            "POST" => send(&gateway, "/mcp", &headers[..2], &list).status,
            method => http::open(gateway.address, method, "/mcp", &headers, b"").status,
        }
    };
    for method in ["POST", "GET", "DELETE"] {
        assert_eq!(status("root-Token", method), 404, "{method}");
    }
    assert_eq!(status("unknown-Token", "POST"), 401);
    assert_eq!(
        (status("ci-Token-1", "POST"), status("ci-Token-1", "GET"), status("ci-Token-1", "DELETE")),
        (200, 200, 204)
    );
}

#[test]
fn streams_of_a_removed_token_end_at_reload() {
    let (home, _records) = home(CALLERS);
    let gateway = home.serve();
    let bearer = |token: &str| format!("Bearer {token}");
    let listen = |token: &str| {
        let params = json!({"notifications": {"toolsListChanged": true}});
        let body = message(Era::Stateless, &1.into(), "subscriptions/listen", &params).to_string();
        let authorization = bearer(token);
        let headers = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "subscriptions/listen"),
            ("Authorization", &authorization),
        ];
        let mut stream = http::open(gateway.address, "POST", "/mcp", &headers, body.as_bytes());
        assert!(stream.next_event().is_some(), "the subscription is acknowledged");
        stream
    };
    let open_get_stream = |token: &str| {
        let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
            "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let authorization = bearer(token);
        let opened = send(&gateway, "/mcp", &[("Authorization", &authorization)], &initialize);
        let session = opened.header("mcp-session-id").unwrap().to_owned();
        let headers = [
            ("Authorization", authorization.as_str()),
            ("Mcp-Session-Id", &session),
            ("Accept", "text/event-stream"),
        ];
        let stream = http::open(gateway.address, "GET", "/mcp", &headers, b"");
        assert_eq!(stream.status, 200);
        stream
    };
    assert!(
        ask(&gateway, "/mcp", Some("root-Token"), "tools/list", &json!({})).text().contains("other__echo")
    );
    let mut removed = listen("ci-Token-1");
    let mut removed_get = open_get_stream("ci-Token-1");
    let mut kept = listen("root-Token");
    let config = std::fs::read_to_string(home.file("config.toml")).unwrap();
    home.write_config(&config.replace("ci-Token-1", "ci-Token-2"));
    let reload = [("Authorization", "Bearer root-Token")];
    assert_eq!(http::request(gateway.address, "POST", "/api/v1/reload", &reload, b"").status, 200);
    // Earlier events may still arrive before the end.
    while removed.next_event().is_some() {}
    while removed_get.next_event().is_some() {}
    home.write_config(
        &config.replace("ci-Token-1", "ci-Token-2").replace("[servers.other]", "[servers.another]"),
    );
    assert_eq!(http::request(gateway.address, "POST", "/api/v1/reload", &reload, b"").status, 200);
    let event = kept.next_event().expect("the other stream stays open");
    assert_eq!(event["method"], "notifications/tools/list_changed", "{event}");
}

#[test]
fn socket_rejects_other_users() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (home, _records) = home("");
    let gateway = home.serve();
    let run = home.file("run");
    let socket = std::fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().path());
    let socket = socket.into_iter().find(|path| path.extension().is_some_and(|end| end == "sock")).unwrap();
    // The kernel lets everyone connect; the gateway has to reject them.
    for path in [home.path(), &run, &socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let connect_as = |user: u32| {
        let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
            s.sendall(b'GET /api/v1/status HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n')\n\
            sys.stdout.write(s.recv(12).decode())";
        let mut python = std::process::Command::new("python3");
        python.args(["-c", script]).arg(&socket).uid(user);
        String::from_utf8(deadline::output(&mut python).stdout).unwrap()
    };
    assert_eq!(connect_as(0), "HTTP/1.1 200");
    assert_eq!(connect_as(65534), "");
    assert!(
        gateway.stderr_lines().iter().any(|line| line.contains("rejected a connection from another user")),
        "{:?}",
        gateway.stderr_lines()
    );
}

#[test]
fn admin_api_lists_the_tools_of_its_caller() {
    let (home, _records) =
        home(&CALLERS.replace("admin = true", "admin = true\ndeny = ['other.*', 'fake.record']"));
    let gateway = home.serve();
    let headers = [("Authorization", "Bearer root-Token")];
    let get = |path: &str| http::request(gateway.address, "GET", path, &headers, b"").text();
    let listed = get("/api/v1/tools");
    assert!(
        listed.contains("fake__echo") && !listed.contains("fake__record") && !listed.contains("other"),
        "{listed}"
    );
    assert!(!get("/api/v1/tools?name=fake__record").contains("inputSchema"));
    let local = home.run(&["tools", "--json"]);
    let local = String::from_utf8_lossy(&local.stdout);
    assert!(local.contains("fake__record") && local.contains("other__echo"), "{local}");
}

#[test]
fn remote_addresses_need_tokens() {
    let (home, _records) = home("");
    let refused = home.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no `callers` or `issuers` are declared"));
    let config = std::fs::read_to_string(home.file("config.toml")).unwrap();
    home.write_config(&format!("{config}[callers.a]\ntoken = 'x'\n[callers.b]\ntoken = 'x'\n"));
    for args in [&["serve"][..], &["check"]] {
        let shared = home.run(args);
        assert_eq!(shared.status.code(), Some(6), "{args:?}");
        let output = [shared.stdout, shared.stderr].concat();
        assert!(String::from_utf8_lossy(&output).contains("have the same token"));
    }
    home.write_config(&format!("{config}{CALLERS}"));
    let gateway = home.serve_with(|command| {
        *command = home.command(&["serve", "--listen", "0.0.0.0:0"]);
    });
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address.port()));
    let status =
        |headers: &[(&str, &str)]| http::request(local, "GET", "/api/v1/status", headers, b"").status;
    assert_eq!((status(&[]), status(&[("Authorization", "Bearer root-Token")])), (401, 200));
    home.write_config(&config);
    let reload =
        http::request(local, "POST", "/api/v1/reload", &[("Authorization", "Bearer root-Token")], b"");
    assert_eq!(reload.status, 422, "{}", reload.text());
    assert_eq!(status(&[]), 401);
}
