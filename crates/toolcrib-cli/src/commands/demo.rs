//! `toolcrib demo`: the whole idea in one go, on real processes, offline, leaving nothing behind.
//!
//! Every line that is shown was checked; the demo succeeds only if all of it held.

mod leftovers;
mod stage;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::stage::{Called, Stage};
use crate::daemon::Daemon;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::listen::ListenAddr;
use crate::output::Output;
use crate::place::Place;

/// Restarts that the crashing server is forgiven.
const FORGIVEN: u64 = 2;

/// Plays every act and tells whether all of it held.
pub(crate) async fn run(out: &mut Output) -> Result<Exit> {
    let started = Instant::now();
    let mut show = Show { out, steps: Vec::new() };
    let scratch = Scratch::new()?;
    let played = play(&Place::below(&scratch.0), &mut show).await;
    drop(scratch);
    let Show { out, steps } = show;
    let failed = played.as_ref().err().map(|error| format!("{error:#}"));
    let took = started.elapsed();
    if out.json {
        out.value(&json!({"ok": failed.is_none(), "took": took.as_secs_f64(), "steps": steps}))?;
    }
    match (failed, played) {
        (Some(why), _) => {
            Err(Failure::new(Exit::CheckFailed, "demo_failed", format!("the demo failed: {why}")).into())
        }
        (None, Ok(Some(()))) => {
            out.tell(&format!("\nall of it held, in {}", shown(took)))?;
            out.tell("next: write a config, then `toolcrib check` and `toolcrib serve`")?;
            Ok(Exit::Fine)
        }
        (None, _) => Ok(Exit::Interrupted),
    }
}

/// `None` if somebody pressed Ctrl-C; the curtain falls all the same.
async fn play(place: &Place, show: &mut Show<'_>) -> Result<Option<()>> {
    write_config(place)?;
    let config = place.usable()?;
    let daemon = show.step("the gateway is up", open(place, &config)).await?;
    let port = daemon.port().context("the gateway has no port")?;
    let mut stage = Stage::at(port);
    let acted = super::until_interrupted(acts(&mut stage, show)).await;
    let last_look = stage.note_processes().await;
    let closed = async {
        daemon.close(std::future::pending()).await;
        let seen = stage.seen();
        let left = leftovers::of(seen);
        ensure!(left.is_empty(), "still there: {}", left.join(", "));
        Ok((format!("{} processes were started, none is left", seen.len()), ()))
    };
    let closed = show.step("everything is stopped", closed).await;
    let interrupted = acted?.transpose()?;
    last_look?;
    closed?;
    Ok(interrupted)
}

async fn open(place: &Place, config: &toolcrib::config::Config) -> Result<(String, Daemon)> {
    let any_port: ListenAddr = "127.0.0.1:0".parse().map_err(anyhow::Error::msg)?;
    let stamp = place.sources().stamp();
    let daemon = Daemon::open(place, (config, stamp), &any_port).await?;
    daemon.accept();
    Ok((daemon.address(), daemon))
}

async fn acts(stage: &mut Stage, show: &mut Show<'_>) -> Result<()> {
    show.step("nothing runs before it is needed", asleep(stage)).await?;
    show.step("one list of every server's tools", listed(stage)).await?;
    show.step("a call is answered", answered(stage)).await?;
    let before = show.step("a server keeps its memory between calls", counted(stage)).await?;
    show.step("killed with SIGKILL in the middle of a call", killed(stage, before)).await?;
    show.step("the next call finds it alive again", revived(stage, before)).await?;
    show.step("one that keeps crashing is ejected", ejected(stage)).await?;
    show.step("the others serve on", answered(stage)).await
}

async fn asleep(stage: &mut Stage) -> Result<(String, ())> {
    let servers = stage.servers().await?;
    ensure!(servers.len() == 3, "{} servers instead of 3", servers.len());
    ensure!(servers.iter().all(|server| server["state"] == "asleep"), "somebody started a server");
    Ok(("3 servers declared, all asleep".to_owned(), ()))
}

async fn listed(stage: &mut Stage) -> Result<(String, ())> {
    let names = stage.tool_names().await?;
    for tool in ["counter__add", "counter__ponder", "echo__say"] {
        ensure!(names.iter().any(|name| name == tool), "`{tool}` is missing from {names:?}");
    }
    Ok((names.join(", "), ()))
}

async fn answered(stage: &mut Stage) -> Result<(String, ())> {
    match stage.call("echo__say", &json!({"text": "hello"})).await? {
        Called::Text(text) if text == "hello" => Ok(("echo__say text=hello → hello".to_owned(), ())),
        other => Err(other.unexpected()),
    }
}

/// Gives the process that counted.
async fn counted(stage: &mut Stage) -> Result<(String, u64)> {
    for (n, sum) in [(2, "2"), (3, "5")] {
        match stage.call("counter__add", &json!({"n": n})).await? {
            Called::Text(text) if text == sum => {}
            other => return Err(other.unexpected()),
        }
    }
    let pid = stage.server("counter").await?["pid"].as_u64().context("`counter` has no process")?;
    Ok((format!("2, then 3 more: 5 (pid {pid})"), pid))
}

async fn killed(stage: &mut Stage, pid: u64) -> Result<(String, ())> {
    let caller = stage.another();
    let nothing = json!({});
    let kill = async {
        stage.until("counter", |server| server["in_flight"] == 1).await?;
        stage.kill(pid)
    };
    let (called, killed) = tokio::join!(caller.call("counter__ponder", &nothing), kill);
    killed?;
    match called? {
        Called::Failed { kind, message } if kind == "lost" => {
            Ok((format!("the call fails at once: {message}"), ()))
        }
        other => Err(other.unexpected()),
    }
}

async fn revived(stage: &mut Stage, before: u64) -> Result<(String, ())> {
    match stage.call("counter__add", &json!({"n": 1})).await? {
        Called::Text(text) if text == "1" => {}
        other => return Err(other.unexpected()),
    }
    let pid = stage.server("counter").await?["pid"].as_u64().context("`counter` has no process")?;
    ensure!(pid != before, "the process is the one that was killed");
    Ok((format!("counter__add n=1 → 1, in a fresh process (pid {before} → {pid})"), ()))
}

async fn ejected(stage: &mut Stage) -> Result<(String, ())> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let message = loop {
        match stage.call("crashing__anything", &json!({})).await? {
            Called::Failed { kind, message } if kind == "ejected" => break message,
            Called::Failed { .. } => {}
            other => return Err(other.unexpected()),
        }
        ensure!(Instant::now() < deadline, "`crashing` is not ejected");
    };
    let server = stage.server("crashing").await?;
    ensure!(server["ejected"] == true, "its state is {}", server["state"]);
    ensure!(server["restarts_left"] == 0, "it has {} restarts left", server["restarts_left"]);
    Ok((message, ()))
}

/// What is on the program, and how it went.
struct Show<'o> {
    out: &'o mut Output,
    steps: Vec<Value>,
}

impl Show<'_> {
    /// Plays one act, times it, and says how it went.
    async fn step<T>(&mut self, name: &str, act: impl Future<Output = Result<(String, T)>>) -> Result<T> {
        let started = Instant::now();
        let played = act.await;
        let took = started.elapsed();
        let (mark, detail) = match &played {
            Ok((detail, _)) => ("✓", detail.clone()),
            Err(error) => ("✗", format!("{error:#}")),
        };
        // Whether it held does not depend on who is watching.
        let _ = self.out.tell(&format!("{mark} {name:<44} {:>8}  {detail}", shown(took)));
        self.steps
            .push(json!({"step": name, "ok": played.is_ok(), "detail": detail, "took": took.as_secs_f64()}));
        played.map(|(_, given)| given).with_context(|| name.to_owned())
    }
}

fn shown(took: Duration) -> String {
    if took < Duration::from_secs(1) {
        format!("{:.1} ms", took.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", took.as_secs_f64())
    }
}

/// The config that a person would write for these servers.
fn write_config(place: &Place) -> Result<()> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let program = Value::from(program.to_string_lossy());
    let text = format!(
        r#"[servers.echo]
command = {program}
args = ["demo-server", "echo"]

[servers.counter]
command = {program}
args = ["demo-server", "counter"]
lifecycle = {{ backoff = {{ first = "20ms", most = "100ms" }} }}

[servers.crashing]
command = {program}
args = ["demo-server", "crashing"]
lifecycle = {{ restarts = {{ at-most = {FORGIVEN}, within = "1m" }}, backoff = {{ first = "20ms", most = "100ms" }} }}
"#
    );
    std::fs::write(&place.config, text).with_context(|| format!("cannot write `{}`", place.config.display()))
}

/// A private folder that goes when the demo is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let number = getrandom::u64().map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
        let path = std::env::temp_dir().join(format!("toolcrib-demo-{number:016x}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| cannot_make(&path))?;
        Ok(Self(path))
    }
}

fn cannot_make(path: &Path) -> String {
    format!("cannot make the folder `{}`", path.display())
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
