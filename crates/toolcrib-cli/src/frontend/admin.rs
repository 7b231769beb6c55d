//! The admin API that the command line and the dashboard use: what is running, restart, stop, logs, reload.
//!
//! It answers in JSON and knows nothing of connections; who may ask is decided before it is asked.

pub(crate) mod approvals;
mod no;
mod report;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hyper::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use toolcrib::config::{Config, HostLimits, Listen};
use toolcrib::{Caller, Changes, Crib, Error, ServerId, ServerStatus, Wanted};

use self::no::{failed, refusal};
use super::Door;
use super::callers::{Callers, Known};
use crate::audit::Audit;
use crate::daemon::watch;
use crate::exit::Exit;
use crate::failure::{Failure, problem_json};
use crate::offer::{self, Offer};
use crate::percent;
use crate::secrets::Keeper;
use crate::sources::{Sources, Stamp};

/// How long a reader of logs waits for a line before it is told that there is none yet.
const LONG_POLL: Duration = Duration::from_secs(20);

/// A status and a JSON body.
type Told = (StatusCode, Value);

/// Answers questions about the daemon, and does what people ask of it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Admin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    crib: Crib,
    file: PathBuf,
    sources: Sources,
    started: Instant,
    loaded: Mutex<Loaded>,
    callers: RwLock<Callers>,
    audit: Arc<Audit>,
    keeper: Keeper,
    /// Whether other machines can reach us: somebody must have to show a token then.
    is_open: bool,
    /// One reload after the other: two at once could leave the older roster in place. Whoever waited while another one
    /// was begun shares its outcome.
    reload: tokio::sync::Mutex<Option<Result<Reloaded, Failure>>>,
    /// How many reloads were begun.
    begun: AtomicU64,
    closing: CancellationToken,
}

/// What is known of the config in use.
#[derive(Debug)]
struct Loaded {
    generation: u64,
    problems: Vec<Value>,
    listen: Listen,
    limits: HostLimits,
    /// What was read last, taken or not.
    stamp: Stamp,
}

/// What a reload did.
#[derive(Debug, Clone)]
pub(crate) struct Reloaded {
    /// Which config this is since the start, from 1.
    pub(crate) generation: u64,
    /// What it changed.
    pub(crate) changes: Changes,
    /// Whether something changed that only a restart of the gateway can apply.
    pub(crate) restart_needed: bool,
}

impl Admin {
    /// The admin of a crib that was built from this config, which was read from its sources as the stamp knows them.
    pub(crate) fn new(
        crib: Crib,
        config: &Config,
        (sources, stamp): (Sources, Stamp),
        (callers, audit, keeper): (Callers, Arc<Audit>, Keeper),
        is_open: bool,
    ) -> Self {
        let loaded = Loaded {
            generation: 1,
            problems: config.problems.iter().map(problem_json).collect(),
            listen: config.listen.clone(),
            limits: config.limits.clone(),
            stamp,
        };
        Self(Arc::new(Inner {
            crib,
            file: config.file.clone(),
            sources,
            started: Instant::now(),
            loaded: Mutex::new(loaded),
            callers: RwLock::new(callers),
            audit,
            keeper,
            is_open,
            reload: tokio::sync::Mutex::default(),
            begun: AtomicU64::new(0),
            closing: CancellationToken::new(),
        }))
    }

    /// Who comes in; `None` for a stranger.
    pub(crate) fn admit(&self, door: Door, headers: &HeaderMap) -> Option<Known> {
        self.0.callers.read().unwrap_or_else(PoisonError::into_inner).admit(door, headers).cloned()
    }

    /// Ended when a caller may not come in any more as it does now.
    pub(crate) fn leave(&self, caller: &Caller) -> CancellationToken {
        self.0.callers.read().unwrap_or_else(PoisonError::into_inner).leave(caller)
    }

    fn replace(&self, mut callers: Callers) {
        let mut current = self.0.callers.write().unwrap_or_else(PoisonError::into_inner);
        callers.take_over(&current);
        *current = callers;
    }

    /// From now on it says that it is not ready, and nobody waits for log lines any more.
    pub(crate) fn close(&self) {
        self.0.closing.cancel();
    }

    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        caller: &Caller,
        method: &Method,
        path: &str,
        query: Option<&str>,
    ) -> Told {
        let segments: Vec<String> = path.trim_start_matches('/').split('/').map(percent::decode).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let get = method == Method::GET;
        let post = method == Method::POST;
        match segments.as_slice() {
            ["healthz"] if get => (StatusCode::OK, json!({"status": "ok"})),
            ["readyz"] if get => self.ready(),
            ["api", "v1", "status"] if get => (StatusCode::OK, self.status().await),
            ["api", "v1", "tools"] if get => (StatusCode::OK, self.tools(caller, query).await),
            ["api", "v1", "reload"] if post => self.reload_told().await,
            ["api", "v1", "servers", server] if get => self.server(server).await,
            ["api", "v1", "servers", server, "logs"] if get => self.logs(server, query).await,
            ["api", "v1", "servers", server, action @ ("restart" | "stop")] if post => {
                self.act(server, action).await
            }
            ["healthz" | "readyz"]
            | ["api", "v1", "status" | "tools" | "reload"]
            | ["api", "v1", "servers", _]
            | ["api", "v1", "servers", _, "logs" | "restart" | "stop"] => {
                refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("`{path}` does not take {method}"))
            }
            segments => self
                .ask_person(method, segments, query)
                .await
                .unwrap_or_else(|| refusal(StatusCode::NOT_FOUND, &format!("there is nothing at `{path}`"))),
        }
    }

    fn ready(&self) -> Told {
        match self.0.closing.is_cancelled() {
            false => (StatusCode::OK, json!({"status": "ready"})),
            true => (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "shutting_down"})),
        }
    }

    /// Every server as it is now. The system is asked what each process uses, and no call should wait for that.
    async fn servers(&self) -> Vec<ServerStatus> {
        let crib = self.0.crib.clone();
        tokio::task::spawn_blocking(move || crib.status()).await.unwrap_or_default()
    }

    /// The object of `status --json`.
    async fn status(&self) -> Value {
        let revision = self.0.crib.catalog().revision();
        let servers: Vec<Value> =
            self.servers().await.iter().map(|status| report::server(status, revision)).collect();
        let loaded = self.loaded();
        let problems: Vec<Value> = loaded.problems.iter().cloned().chain(self.0.audit.problem()).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime": self.0.started.elapsed().as_secs_f64(),
            "config": {
                "file": self.0.file.display().to_string(),
                "generation": loaded.generation,
                "problems": problems,
            },
            "servers": servers,
            "quota": self.0.crib.standings().iter().map(report::standing).collect::<Vec<_>>(),
        })
    }

    async fn server(&self, name: &str) -> Told {
        let revision = self.0.crib.catalog().revision();
        match self.servers().await.iter().find(|status| status.server.as_str() == name) {
            Some(status) => (StatusCode::OK, report::server(status, revision)),
            None => failed(&self.0.crib.catalog().unknown_server(name)),
        }
    }

    /// Everything on offer to a caller; with `name`, and maybe `server`, only the tool that is meant, or the name it is `near`.
    async fn tools(&self, caller: &Caller, query: Option<&str>) -> Value {
        let Some(name) = percent::query(query, "name") else {
            return Offer::of(&self.0.crib, caller).await.to_json();
        };
        let wanted = match percent::query(query, "server").map(|server| server.parse()) {
            Some(Ok(server)) => Some(Wanted::On(server, name)),
            Some(Err(_)) => None,
            None => Some(Wanted::Named(name)),
        };
        let found = match &wanted {
            Some(wanted) => offer::look_up(&self.0.crib, caller, wanted).await,
            None => None,
        };
        let catalog = self.0.crib.catalog_for(caller);
        let near = wanted.as_ref().and_then(|wanted| catalog.near(wanted));
        json!({"tools": found.iter().map(offer::tool_json).collect::<Vec<_>>(), "failed": [], "near": near})
    }

    async fn logs(&self, name: &str, query: Option<&str>) -> Told {
        let server = match self.find(name) {
            Ok(server) => server,
            Err(error) => return failed(&error),
        };
        let after = percent::query(query, "after").and_then(|after| after.parse().ok()).unwrap_or(0);
        let wait = percent::query(query, "wait").is_some_and(|wait| wait == "1");
        let lines = tokio::select! {
            lines = timeout(LONG_POLL, self.0.crib.logs(&server, after, wait)) => lines.unwrap_or_else(|_| Ok(Vec::new())),
            () = self.0.closing.cancelled() => Ok(Vec::new()),
        };
        match lines {
            Ok(lines) => {
                let lines: Vec<Value> =
                    lines.iter().map(|(seq, line)| json!({"seq": seq, "line": line})).collect();
                (StatusCode::OK, lines.into())
            }
            Err(error) => failed(&error),
        }
    }

    async fn act(&self, name: &str, action: &str) -> Told {
        let server = match self.find(name) {
            Ok(server) => server,
            Err(error) => return failed(&error),
        };
        let done = match action {
            "restart" => self.0.crib.restart(&server).await,
            _ => self.0.crib.stop(&server).await,
        };
        match done {
            Ok(()) => self.server(name).await,
            Err(error) => failed(&error),
        }
    }

    fn find(&self, name: &str) -> Result<ServerId, Error> {
        name.parse().map_err(|_| self.0.crib.catalog().unknown_server(name))
    }

    /// Reads the config again and applies it; one that is refused leaves everything as it is.
    pub(crate) async fn reload(&self) -> Result<Reloaded, Failure> {
        let before = self.0.begun.load(Ordering::Acquire);
        let mut turn = self.0.reload.lock().await;
        if let Some(outcome) = turn.as_ref().filter(|_| self.0.begun.load(Ordering::Acquire) > before) {
            return outcome.clone();
        }
        self.0.begun.fetch_add(1, Ordering::AcqRel);
        // Whoever is dropped half-way leaves nothing to share.
        *turn = None;
        let outcome = self.read_again().await;
        *turn = Some(outcome.clone());
        outcome
    }

    async fn read_again(&self) -> Result<Reloaded, Failure> {
        let (sources, keeper) = (self.0.sources.clone(), self.0.keeper.clone());
        let read = tokio::task::spawn_blocking(move || {
            let (config, stamp) = sources.load_whole();
            let callers = match config.refused() {
                true => Err(Failure::bad_config(&config)),
                false => Callers::of(&config, &keeper.looking_in(&config.secrets)),
            };
            (config, stamp, callers)
        });
        let (config, stamp, callers) = read.await.map_err(|error| {
            Failure::new(Exit::Unexpected, "unexpected", format!("the config could not be read: {error}"))
        })?;
        let problems: Vec<Value> = config.problems.iter().map(problem_json).collect();
        let callers = callers
            .and_then(|callers| self.guarded(callers))
            .and_then(|callers| self.0.audit.change(config.audit.as_ref()).map(|()| callers));
        let callers = match callers {
            Ok(callers) => callers,
            Err(failure) => {
                let mut loaded = self.loaded();
                (loaded.problems, loaded.stamp) = (problems, stamp);
                return Err(failure);
            }
        };
        // Noted first: the roster is in use from the first moment of `apply`, which may then wait for calls to end.
        let (generation, restart_needed) = {
            let mut loaded = self.loaded();
            loaded.generation += 1;
            (loaded.problems, loaded.stamp) = (problems, stamp);
            // How long any call may take is known to each server, and came with the roster.
            let call_timeout_max = loaded.limits.call_timeout_max;
            let limits = HostLimits { call_timeout_max, ..config.limits.clone() };
            (loaded.generation, loaded.limits != limits || loaded.listen != config.listen)
        };
        // Before the servers: nobody sees a new one by the old rules.
        self.replace(callers);
        self.0.keeper.change(config.secrets);
        self.0.crib.govern(config.policy);
        self.0.crib.ration(config.quota);
        self.0.crib.resize(config.capacity);
        let changes = self.0.crib.apply(config.roster).await;
        Ok(Reloaded { generation, changes, restart_needed })
    }

    fn guarded(&self, callers: Callers) -> Result<Callers, Failure> {
        if self.0.is_open && callers.is_empty() {
            let message = "other machines can reach this gateway, and no `callers` are declared any more";
            return Err(Failure::new(Exit::BadConfig, "config_invalid", message).hint("keep at least one"));
        }
        Ok(callers)
    }

    /// Waits until the config is another one than the one read last.
    pub(crate) async fn config_changed(&self) {
        let look = || async {
            let sources = self.0.sources.clone();
            let known = self.loaded().stamp.clone();
            tokio::task::spawn_blocking(move || sources.stamp()).await.unwrap_or(known)
        };
        watch::changed(|| self.loaded().stamp.clone(), look).await;
    }

    async fn reload_told(&self) -> Told {
        match self.reload().await {
            Ok(reloaded) => (StatusCode::OK, reloaded.to_json()),
            Err(failure) => (StatusCode::UNPROCESSABLE_ENTITY, failure.to_json()),
        }
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reloaded {
    fn to_json(&self) -> Value {
        json!({
            "generation": self.generation,
            "added": names(&self.changes.added),
            "removed": names(&self.changes.removed),
            "changed": names(&self.changes.changed),
            "restart_needed": self.restart_needed,
        })
    }
}

fn names(servers: &[ServerId]) -> Vec<&str> {
    servers.iter().map(ServerId::as_str).collect()
}
