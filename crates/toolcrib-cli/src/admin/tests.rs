//! Tests of the admin API with an in-process server.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use toolcrib::config::HistorySpec;
use toolcrib::{Call, Caller, Crib, ServerSpec, Toolbox};
use toolcrib_serve::{AdminRequest, AdminRoutes as _};

use super::Admin;
use super::routes::ROUTES;
use crate::gateway::GatewayHandle;
use crate::history::CallHistory;
use crate::report::tests::openapi;

/// An admin API with one server and an empty config file.
struct TestAdmin {
    admin: Admin,
    handle: GatewayHandle,
    crib: Crib,
    file: tempfile::NamedTempFile,
}

impl TestAdmin {
    fn new() -> Self {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        let greet = Toolbox::new()
            .tool("greet", "Greets", &json!({"type": "object"}), |_| async { Ok("hi".to_owned()) });
        let spec = ServerSpec::in_process("house".parse().unwrap(), greet);
        let crib = Crib::builder().server(spec).build().unwrap();
        let handle = GatewayHandle::for_test(crib.clone(), file.path());
        Self { admin: Admin::new(handle.clone()), handle, crib, file }
    }

    /// Creates an admin API with a history in a folder.
    fn with_history(folder: &std::path::Path) -> Self {
        let history = Arc::new(CallHistory::new(folder.join("history"), &HistorySpec::default(), false));
        let greet = Toolbox::new()
            .tool("greet", "Greets", &json!({"type": "object"}), |_| async { Ok("hi".to_owned()) });
        let spec = ServerSpec::in_process("house".parse().unwrap(), greet);
        let crib = Crib::builder().server(spec).observer(history.clone()).build().unwrap();
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        let handle = GatewayHandle::for_test_with(crib.clone(), file.path(), history);
        Self { admin: Admin::new(handle.clone()), handle, crib, file }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(&Method::GET, path).await
    }

    async fn post(&self, path: &str) -> (u16, Value) {
        self.send(&Method::POST, path).await
    }

    async fn send(&self, method: &Method, target: &str) -> (u16, Value) {
        self.send_as(&Caller::local(), true, method, target).await
    }

    async fn send_as(&self, caller: &Caller, is_admin: bool, method: &Method, target: &str) -> (u16, Value) {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let request =
            AdminRequest { caller, can_approve: false, is_admin, method, path, query, last_event_id: None };
        let reply = self.admin.respond(request).await;
        (reply.status.as_u16(), reply.body)
    }
}

#[tokio::test]
async fn gateway_is_ready_until_it_closes() {
    let test = TestAdmin::new();
    assert_eq!(test.get("/healthz").await, (200, json!({"status": "ok"})));
    assert_eq!(test.get("/readyz").await.0, 200);
    test.handle.close();
    assert_eq!(test.get("/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE.as_u16());
    assert_eq!(test.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn unknown_paths_and_methods_have_different_statuses() {
    let test = TestAdmin::new();
    for path in
        ["/", "/api", "/api/v1/nothing", "/api/v1/servers/house/nothing", "/api/v1/servers/house/stop/x"]
    {
        assert_eq!(test.get(path).await.0, 404, "{path}");
    }
    assert_eq!(test.get("/api/v1/reload").await.0, 405);
    assert_eq!(test.post("/api/v1/status").await.0, 405);
    assert_eq!(test.get("/api/v1/servers/house/restart").await.0, 405);
    let (status, body) = test.post("/api/v1/servers/hause/restart").await;
    assert_eq!((status, &body["error"]["hint"]), (404, &json!("did you mean `house`?")));
    assert_eq!(test.get("/api/v1/servers/No%20Such").await.0, 404);
}

#[tokio::test]
async fn route_has_one_spelling_and_approves_only_if_trusted() {
    let test = TestAdmin::new();
    let refused = StatusCode::FORBIDDEN.as_u16();
    for path in
        ["/api/v1/calls/x/approve", "/api/v1/calls/%78/approve", "/api/v1/servers/house/approve?seal=1"]
    {
        assert_eq!(test.post(path).await.0, refused, "{path}");
    }
    for path in [
        "/healthz",
        "/api/v1/status",
        "/api/v1/servers/house",
        "/api/v1/servers/house/logs",
        "/api/v1/approvals",
    ] {
        assert_eq!(test.get(path).await.0, 200, "{path}");
        let (parent, last) = path.rsplit_once('/').unwrap();
        let (first, rest) = last.split_at(1);
        let encoded = format!("%{:02x}{rest}", first.as_bytes()[0]);
        for other in [
            format!("/{path}"),
            format!("//{path}"),
            path[1..].to_owned(),
            format!("{path}/"),
            format!("{path}/."),
            format!("/.{path}"),
            format!("{path}%00"),
            format!("{parent}/{encoded}"),
            format!("{parent}//{last}"),
            format!("{parent}/{}", last.to_uppercase()),
            path.replacen('/', "\\", 1),
        ] {
            let is_name = path == "/api/v1/servers/house" && other.ends_with("/%68ouse");
            assert_eq!(test.get(&other).await.0, if is_name { 200 } else { 404 }, "{other}");
        }
    }
}

#[tokio::test]
async fn servers_are_listed_restarted_and_stopped() {
    let test = TestAdmin::new();
    let status = test.get("/api/v1/status").await.1;
    assert_eq!(
        (&status["servers"][0]["state"], &status["config"]["generation"]),
        (&json!("asleep"), &json!(1))
    );
    let tools = test.get("/api/v1/tools").await.1;
    assert_eq!(tools["tools"][0]["name"], "house__greet");
    assert_eq!(test.get("/api/v1/tools?name=greet&server=house").await.1["tools"][0]["tool"], "greet");
    assert_eq!(test.get("/api/v1/tools?name=nothing").await.1["tools"], json!([]));
    let (status, server) = test.post("/api/v1/servers/house/restart").await;
    assert_eq!((status, &server["state"]), (200, &json!("ready")));
    let (status, server) = test.post("/api/v1/servers/house/stop").await;
    assert_eq!((status, &server["state"]), (200, &json!("asleep")));
    test.crib.shutdown(std::time::Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn log_request_returns_after_a_timeout_or_on_close() {
    let test = TestAdmin::new();
    let path = "/api/v1/servers/house/logs?after=0&wait=1";
    assert_eq!(test.get(path).await, (200, json!([])), "no line arrived in time");
    let (waiting, ()) = tokio::join!(test.get(path), async { test.handle.close() });
    assert_eq!(waiting, (200, json!([])));
}

#[tokio::test]
async fn invalid_config_changes_nothing() {
    let test = TestAdmin::new();
    std::fs::write(test.file.path(), "[servers\n").unwrap();
    let (status, body) = test.post("/api/v1/reload").await;
    assert_eq!((status, &body["error"]["code"]), (422, &json!("config_invalid")));
    let status = test.get("/api/v1/status").await.1;
    assert_eq!(
        (&status["config"]["generation"], &status["servers"][0]["name"]),
        (&json!(1), &json!("house"))
    );
    assert_eq!(status["config"]["problems"].as_array().map(Vec::len), Some(1));

    std::fs::write(test.file.path(), "[servers.new]\ncommand = \"x\"\n\n[limits]\nsessions = 5\n").unwrap();
    let (status, body) = test.post("/api/v1/reload").await;
    let expected = json!({"generation": 2, "added": ["new"], "removed": ["house"], "changed": [], "restart_needed": true});
    assert_eq!((status, body), (200, expected));
    let limits = "[limits]\ncall-timeout-max = \"1m\"\nmemory = \"1GiB\"\nservers-running = 5\n";
    std::fs::write(test.file.path(), format!("[servers.new]\ncommand = \"x\"\n\n{limits}")).unwrap();
    let (_, body) = test.post("/api/v1/reload").await;
    assert_eq!((&body["changed"], &body["restart_needed"]), (&json!(["new"]), &json!(false)));
}

#[tokio::test]
async fn config_rules_and_audit_are_described_and_codes_need_trust() {
    let test = TestAdmin::new();
    let server = "[servers.house]\ncommand = \"x\"\nenv = { KEY = \"hidden-value\" }\n";
    std::fs::write(test.file.path(), format!("{server}\n[policy]\ndeny = [\"house.greet\"]\n")).unwrap();
    let config = test.get("/api/v1/config").await.1;
    let is_deny = |value: &&Value| value["key"] == "policy.deny";
    let deny = config["values"].as_array().unwrap().iter().find(is_deny).unwrap();
    assert_eq!((&deny["value"], &deny["line"]), (&json!(["house.greet"]), &json!(6)));
    assert!(!config.to_string().contains("hidden-value"), "{config}");
    let decision = test.get("/api/v1/policy?tool=house.greet").await.1;
    assert_eq!((&decision["allowed"], &decision["line"]), (&json!(false), &json!(6)));
    assert_eq!(test.get("/api/v1/policy?tool=nothing.greet").await.0, 404);
    assert_eq!(test.get("/api/v1/servers/house/why").await.1["active"], true);
    assert_eq!(test.get("/api/v1/servers/hause/why").await.0, 404);
    assert_eq!(test.get("/api/v1/audit").await, (200, json!({"file": null, "intact": null})));
    assert_eq!((test.post("/api/v1/ui").await.0, test.post("/api/v1/config").await.0), (403, 405));
}

#[tokio::test]
async fn secrets_that_are_missing_are_named() {
    let test = TestAdmin::new();
    let backend = "[secrets]\nbackend = \"env\"\nenv-prefix = \"TOOLCRIB_TEST_UNUSED_\"\n";
    let server = "[servers.house]\ncommand = \"x\"\nenv = { KEY = \"${secret:house-key}\" }\n";
    std::fs::write(test.file.path(), format!("{backend}{server}")).unwrap();
    let missing = json!([{"name": "house-key", "backend": null, "set": false, "used_by": ["house"]}]);
    assert_eq!(test.get("/api/v1/secrets").await, (200, json!({"secrets": missing})));
    let ada = Caller::new("ada");
    assert_eq!(test.send_as(&ada, false, &Method::GET, "/api/v1/secrets").await.0, 403);
}

#[tokio::test]
async fn brief_lists_have_totals_and_no_definitions() {
    let test = TestAdmin::new();
    let tools = test.get("/api/v1/tools?brief=1&limit=0").await.1;
    assert_eq!((&tools["tools"], &tools["total"]), (&json!([]), &json!(1)));
    let found = test.get("/api/v1/tools?brief=1&q=greets").await.1["tools"][0].clone();
    assert!(
        found["score"].is_number() && found["tokens"].is_u64() && found["definition"].is_null(),
        "{found}"
    );
    assert_eq!(test.get("/api/v1/tools?brief=1&server=other").await.1["total"], 0);
    let brief = test.get("/api/v1/status?brief=1").await.1["servers"][0].clone();
    assert_eq!(brief["stderr_tail"], json!([]));
    let short = test.get("/api/v1/status?short=1").await.1["servers"][0].clone();
    // The uptime differs between two requests.
    for (name, value) in brief.as_object().unwrap().iter().filter(|(name, _)| *name != "uptime") {
        let is_empty = [json!(null), json!(false), json!(0), json!([])].contains(value) || value == "none";
        // The revision of the catalog is the same for all servers, and `memory_bytes` is another name of `memory`.
        let is_left_out = is_empty || ["revision", "memory_bytes"].contains(&name.as_str());
        assert_eq!(short[name], if is_left_out { json!(null) } else { value.clone() }, "{name}");
    }
}

#[tokio::test]
async fn documented_paths_are_those_of_the_program() {
    let document = openapi::document();
    let documented = document["paths"].as_object().unwrap();
    let methods = |path: &str| -> Vec<&String> { documented[path].as_object().unwrap().keys().collect() };
    let mut documented: Vec<String> = documented
        .keys()
        .flat_map(|path| methods(path).into_iter().map(move |method| format!("{method} {path}")))
        .collect();
    let mut own: Vec<String> =
        ROUTES.iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    // These are answered by `toolcrib-serve`, before there is a caller.
    documented.retain(|route| !["session", "login", "logout"].iter().any(|name| route.ends_with(name)));
    documented.sort_unstable();
    own.sort_unstable();
    assert_eq!(documented, own);
    let folder = tempfile::TempDir::new().unwrap();
    let test = TestAdmin::with_history(folder.path());
    for route in ROUTES.iter().filter(|route| route.path != "/api/v1/events") {
        let path = route.path.replace("{server}", "house").replace("{id}", "0000000000000001");
        let method = if route.method == "get" { Method::GET } else { Method::POST };
        let (status, body) = test.send(&method, &path).await;
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(status != 405 && !message.starts_with("unknown path"), "{path}: {status} {body}");
    }
}

#[tokio::test]
async fn calls_are_found_by_their_id_and_shown_to_their_callers() {
    let folder = tempfile::TempDir::new().unwrap();
    let test = TestAdmin::with_history(folder.path());
    let ada = Caller::new("ada");
    test.crib.call(Call::tool("greet").caller(ada.clone())).await.unwrap();
    let error = test.crib.call(Call::tool("nothing")).await.unwrap_err();
    let id = error.call_id().unwrap().to_string();
    assert_eq!(error.data()["call"], json!(id));

    let (status, failed) = test.get(&format!("/api/v1/calls/{id}")).await;
    assert_eq!((status, &failed["outcome"], &failed["error"]), (200, &json!("error"), &json!("unknown")));
    let (_, all) = test.get("/api/v1/calls?since=1h").await;
    assert_eq!(all["calls"].as_array().map(Vec::len), Some(2), "{all}");
    let own = |path: &'static str| test.send_as(&ada, false, &Method::GET, path);
    let (_, calls) = own("/api/v1/calls?caller=local").await;
    assert_eq!((&calls["calls"][0]["caller"], &calls["calls"][1]), (&json!("ada"), &Value::Null));
    assert_eq!(calls["calls"][0]["server_ms"].as_f64().map(|millis| millis > 0.0), Some(true), "{calls}");
    assert_eq!(own("/api/v1/stats").await.1["totals"]["calls"], 1);
    assert_eq!(test.get("/api/v1/stats?step=1m&cost=1").await.1["cost"]["definitions"][0]["tool"], "greet");
    let refused = test.send_as(&ada, false, &Method::GET, &format!("/api/v1/calls/{id}")).await;
    assert_eq!(refused.0, 404, "it is a call of another caller");
    for path in ["/api/v1/status", "/api/v1/approvals", "/api/v1/servers/house"] {
        assert_eq!(test.send_as(&ada, false, &Method::GET, path).await.0, 403, "{path}");
    }
    assert_eq!(test.send_as(&ada, false, &Method::POST, "/api/v1/calls/x/approve").await.0, 403);
    let invalid = ["calls?since=soon", "calls?limit=0", "calls?outcome=x", "calls?before=x", "stats?step=0s"];
    for path in invalid {
        let (status, body) = test.get(&format!("/api/v1/{path}")).await;
        assert_eq!((status, body["error"]["hint"].is_string()), (400, true), "{path}: {body}");
    }
    assert_eq!(TestAdmin::new().get("/api/v1/calls").await.0, 404, "calls are not recorded");
    test.crib.shutdown(std::time::Duration::ZERO).await;
}
