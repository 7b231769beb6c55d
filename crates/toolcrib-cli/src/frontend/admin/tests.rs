//! The admin API over a crib whose servers live in this process.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use toolcrib::{Caller, Crib, ServerSpec, Toolbox};

use super::Admin;
use crate::audit::Audit;
use crate::frontend::callers::Callers;
use crate::place::Place;
use crate::secrets::Keeper;
use crate::sources::Sources;

struct Office {
    admin: Admin,
    crib: Crib,
    file: tempfile::NamedTempFile,
}

impl Office {
    fn new() -> Self {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        let greet = Toolbox::new()
            .tool("greet", "Greets", &json!({"type": "object"}), |_| async { Ok("hi".to_owned()) });
        let spec = ServerSpec::in_process("house".parse().unwrap(), greet);
        let crib = Crib::builder().server(spec).build().unwrap();
        Self {
            admin: {
                let sources = Sources::alone(file.path());
                let (config, stamp) = sources.load_whole();
                let keeper = Keeper::new(&Place::below(std::path::Path::new("/nowhere")), &config.secrets);
                let callers = Callers::of(&config, &keeper).unwrap();
                let audit = Arc::new(Audit::new(None).unwrap());
                Admin::new(crib.clone(), &config, (sources, stamp), (callers, audit, keeper), false)
            },
            crib,
            file,
        }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(&Method::GET, path).await
    }

    async fn post(&self, path: &str) -> (u16, Value) {
        self.ask(&Method::POST, path).await
    }

    async fn ask(&self, method: &Method, target: &str) -> (u16, Value) {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let (status, body) = self.admin.answer(&Caller::local(), method, path, query).await;
        (status.as_u16(), body)
    }
}

#[tokio::test]
async fn it_is_ready_until_it_closes() {
    let office = Office::new();
    assert_eq!(office.get("/healthz").await, (200, json!({"status": "ok"})));
    assert_eq!(office.get("/readyz").await.0, 200);
    office.admin.close();
    assert_eq!(office.get("/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE.as_u16());
    assert_eq!(office.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn wrong_paths_and_methods_are_told_apart() {
    let office = Office::new();
    for path in
        ["/", "/api", "/api/v1/nothing", "/api/v1/servers/house/nothing", "/api/v1/servers/house/stop/x"]
    {
        assert_eq!(office.get(path).await.0, 404, "{path}");
    }
    assert_eq!(office.get("/api/v1/reload").await.0, 405);
    assert_eq!(office.post("/api/v1/status").await.0, 405);
    assert_eq!(office.get("/api/v1/servers/house/restart").await.0, 405);
    let (status, body) = office.post("/api/v1/servers/hause/restart").await;
    assert_eq!((status, &body["error"]["hint"]), (404, &json!("did you mean `house`?")));
    assert_eq!(office.get("/api/v1/servers/No%20Such").await.0, 404);
}

#[tokio::test]
async fn servers_are_shown_restarted_and_stopped() {
    let office = Office::new();
    let status = office.get("/api/v1/status").await.1;
    assert_eq!(
        (&status["servers"][0]["state"], &status["config"]["generation"]),
        (&json!("asleep"), &json!(1))
    );
    let tools = office.get("/api/v1/tools").await.1;
    assert_eq!(tools["tools"][0]["name"], "house__greet");
    assert_eq!(office.get("/api/v1/tools?name=greet&server=house").await.1["tools"][0]["tool"], "greet");
    assert_eq!(office.get("/api/v1/tools?name=nothing").await.1["tools"], json!([]));
    let (status, server) = office.post("/api/v1/servers/house/restart").await;
    assert_eq!((status, &server["state"]), (200, &json!("ready")));
    let (status, server) = office.post("/api/v1/servers/house/stop").await;
    assert_eq!((status, &server["state"]), (200, &json!("asleep")));
    office.crib.shutdown(std::time::Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_line_for_ever() {
    let office = Office::new();
    let path = "/api/v1/servers/house/logs?after=0&wait=1";
    assert_eq!(office.get(path).await, (200, json!([])), "told after a while that there is none");
    let (waiting, ()) = tokio::join!(office.get(path), async { office.admin.close() });
    assert_eq!(waiting, (200, json!([])));
}

#[tokio::test]
async fn a_config_that_is_refused_changes_nothing() {
    let office = Office::new();
    std::fs::write(office.file.path(), "[servers\n").unwrap();
    let (status, body) = office.post("/api/v1/reload").await;
    assert_eq!((status, &body["error"]["code"]), (422, &json!("config_invalid")));
    let told = office.get("/api/v1/status").await.1;
    assert_eq!((&told["config"]["generation"], &told["servers"][0]["name"]), (&json!(1), &json!("house")));
    assert_eq!(told["config"]["problems"].as_array().map(Vec::len), Some(1));

    std::fs::write(office.file.path(), "[servers.new]\ncommand = \"x\"\n\n[limits]\nsessions = 5\n").unwrap();
    let (status, body) = office.post("/api/v1/reload").await;
    let expected = json!({"generation": 2, "added": ["new"], "removed": ["house"], "changed": [], "restart_needed": true});
    assert_eq!((status, body), (200, expected));
    let limits = "[limits]\ncall-timeout-max = \"1m\"\nmemory = \"1GiB\"\nservers-running = 5\n";
    std::fs::write(office.file.path(), format!("[servers.new]\ncommand = \"x\"\n\n{limits}")).unwrap();
    let (_, body) = office.post("/api/v1/reload").await;
    assert_eq!((&body["changed"], &body["restart_needed"]), (&json!(["new"]), &json!(false)));
}
