//! The dashboard: its files, the login with a single-use code or a token, and what a browser without a login cannot do.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::net::SocketAddr;

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::deadline;
use test_support::gateway::{Home, server_config};
use test_support::http::{Response, request};
use test_support::wait_until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_crib");

fn config(more: &str) -> String {
    format!("{more}{}", server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]))
}

/// Runs `ui` and returns the address of the page and the code.
fn open_ui(home: &Home) -> (SocketAddr, String) {
    let mut command = home.command(&["ui", "--json"]);
    let output = deadline::output(command.env("TOOLCRIB_AUTO_START", "true"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    let url = reply["url"].as_str().unwrap();
    let (page, code) = url.split_once("/#code=").unwrap();
    (page.strip_prefix("http://").unwrap().parse().unwrap(), code.to_owned())
}

/// A browser that has logged in.
struct Browser {
    address: SocketAddr,
    cookie: String,
    key: String,
}

impl Browser {
    fn log_in(address: SocketAddr, authorization: &str) -> Result<Self, u16> {
        let reply = request(address, "POST", "/api/v1/login", &[("Authorization", authorization)], b"");
        if reply.status != 200 {
            return Err(reply.status);
        }
        let cookie = reply.header("set-cookie").unwrap();
        for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Ok(Self { address, cookie, key: reply.message()["key"].as_str().unwrap().to_owned() })
    }

    fn send(&self, method: &str, path: &str, more: &[(&str, &str)]) -> Response {
        let own = [("Cookie", self.cookie.as_str()), ("Toolcrib-Session", self.key.as_str())];
        request(self.address, method, path, &[&own, more].concat(), b"")
    }
}

#[test]
fn browser_approves_only_with_the_cookie_and_the_key_of_a_code() {
    let home = Home::new(PROGRAM, &config("[policy]\nask = ['fake.echo']\n"));
    let gateway = home.serve();
    let page = request(gateway.address, "GET", "/", &[("Accept-Encoding", "gzip")], b"");
    assert_eq!((page.status, page.header("content-encoding")), (200, Some("gzip")));
    assert!(
        page.header("content-security-policy").unwrap().starts_with("default-src 'none'; script-src 'self'")
    );
    let known = [("Accept-Encoding", "gzip"), ("If-None-Match", page.header("etag").unwrap())];
    assert_eq!(request(gateway.address, "GET", "/", &known, b"").status, 304);
    assert_eq!(
        request(gateway.address, "GET", "/ui/app.js", &[("Accept-Encoding", "gzip")], b"").status,
        200
    );
    assert_eq!(request(gateway.address, "GET", "/ui/nothing.js", &[], b"").status, 404);

    let (address, code) = open_ui(&home);
    assert_eq!(address, gateway.address);
    assert_eq!(request(address, "POST", "/api/v1/ui", &[], b"").status, 403, "codes only over the socket");
    let browser = Browser::log_in(address, &format!("Code {code}")).unwrap();
    assert_eq!(Browser::log_in(address, &format!("Code {code}")).err(), Some(401), "a code is valid once");
    assert_eq!(Browser::log_in(address, "Bearer x").err(), Some(401), "no session without a secret");

    let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
    let refused =
        client.request("tools/call", &json!({"name": "fake__echo", "arguments": {"text": "x"}})).message();
    let id = refused["error"]["data"]["approval"].as_str().unwrap_or_else(|| panic!("{refused}"));
    let approve = format!("/api/v1/calls/{id}/approve");
    let cookie = [("Cookie", browser.cookie.as_str())];
    let key = [("Toolcrib-Session", browser.key.as_str())];
    for headers in [&[][..], &cookie, &key] {
        assert_eq!(request(address, "POST", &approve, headers, b"").status, 403, "{headers:?}");
    }
    for foreign in [("Origin", "http://evil.example"), ("Sec-Fetch-Site", "same-site")] {
        assert_eq!(browser.send("POST", &approve, &[foreign]).status, 403, "{foreign:?}");
    }
    assert_eq!(browser.send("GET", "/api/v1/session", &[]).message()["can_approve"], true);
    assert_eq!(browser.send("POST", &approve, &[]).status, 200);
    assert_eq!(client.text("fake__echo", &json!({"text": "x"})), "x");
    assert_eq!(browser.send("POST", "/api/v1/logout", &[]).status, 200);
    assert_eq!(browser.send("GET", "/api/v1/session", &[]).message()["can_approve"], false);
}

#[test]
fn gateway_without_a_port_opens_one_for_the_dashboard_alone() {
    let home = Home::new(PROGRAM, &config(""));
    let (address, code) = open_ui(&home);
    assert_eq!(request(address, "GET", "/", &[("Accept-Encoding", "gzip")], b"").status, 200);
    assert_eq!(request(address, "GET", "/api/v1/status", &[], b"").status, 401);
    assert_eq!(request(address, "POST", "/mcp", &[], b"{}").status, 401);
    let browser = Browser::log_in(address, &format!("Code {code}")).unwrap();
    assert_eq!(browser.send("GET", "/api/v1/status", &[]).message()["servers"][0]["name"], "fake");
    let why = browser.send("GET", "/api/v1/servers/fake/why", &[]).message();
    assert!(why["active"] == true && why["values"][0]["line"].is_u64(), "{why}");
    assert_eq!(open_ui(&home).0, address, "one address for all pages");
    assert!(home.run(&["stop-gateway"]).status.success());
}

#[test]
fn token_opens_a_session_with_the_rights_of_its_caller() {
    let callers = "[callers.ops]\ntoken = 'ops-token-1234567'\nadmin = true\n\
                   [callers.dev]\ntoken = 'dev-token-1234567'\nallow = ['fake.echo']\n";
    let home = Home::new(PROGRAM, &config(callers));
    let gateway = home.serve();
    let anonymous = request(gateway.address, "GET", "/api/v1/session", &[], b"").message();
    assert_eq!(anonymous, json!({"caller": null, "admin": false, "can_approve": false, "logged_in": false}));
    assert_eq!(Browser::log_in(gateway.address, "Bearer wrong").err(), Some(401));
    let dev = Browser::log_in(gateway.address, "Bearer dev-token-1234567").unwrap();
    assert_eq!(dev.send("GET", "/api/v1/status", &[]).status, 403);
    let ops = Browser::log_in(gateway.address, "Bearer ops-token-1234567").unwrap();
    let values = ops.send("GET", "/api/v1/config", &[]).text();
    assert!(values.contains("callers.ops.admin") && !values.contains("token-1234567"), "{values}");
    let decide =
        |tool: &str| ops.send("GET", &format!("/api/v1/policy?caller=dev&tool={tool}"), &[]).message();
    assert_eq!(
        (&decide("fake.echo")["allowed"], &decide("fake.pid")["allowed"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(ops.send("POST", "/api/v1/ui", &[]).status, 403, "only the local caller gets codes");
    home.write_config(&config("[callers.ops]\ntoken = 'other-token-12345'\nadmin = true\n"));
    wait_until("the session ends with the access of its caller", || {
        ops.send("GET", "/api/v1/status", &[]).status == 401
    });
}
