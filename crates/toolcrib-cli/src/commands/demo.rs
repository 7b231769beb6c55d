//! `toolcrib demo`: shows the gateway with real processes, offline, and removes everything afterwards.
//!
//! Every printed step is checked, and the demo succeeds only if all steps do.

mod client;
mod leftovers;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::client::{DemoCallResult, DemoClient};
use crate::admin::Admin;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::gateway::{Gateway, GatewayMode, StampedConfig};
use crate::listen::ListenAddr;
use crate::output::Output;
use crate::paths::Paths;

/// The number of restarts that the crashing server may use.
const CRASHING_RESTARTS: u64 = 2;

/// Runs every step and reports whether all succeeded.
pub(crate) async fn run(out: &mut Output) -> Result<ExitStatus> {
    let started = Instant::now();
    let mut report = DemoReport { out, steps: Vec::new() };
    let scratch = ScratchFolder::new()?;
    let result = run_demo(&Paths::under(&scratch.0), &mut report).await;
    drop(scratch);
    let DemoReport { out, steps } = report;
    let took = started.elapsed();
    if out.json {
        out.print_json(&json!({"ok": result.is_ok(), "took": took.as_secs_f64(), "steps": steps}))?;
    }
    match result {
        Err(error) => {
            let message = format!("the demo failed: {error:#}");
            Err(CommandError::new(ExitStatus::CheckFailed, "demo_failed", message).into())
        }
        Ok(Some(())) => {
            out.print_text(&format!("\nall steps succeeded in {}", format_time(took)))?;
            out.print_text(
                "next: `toolcrib init` sets up your agents; `toolcrib add NAME -- COMMAND` declares a server",
            )?;
            Ok(ExitStatus::Success)
        }
        Ok(None) => Ok(ExitStatus::Interrupted),
    }
}

/// Starts a gateway, runs the steps and stops everything. Returns `None` if a signal interrupted the steps.
async fn run_demo(paths: &Paths, report: &mut DemoReport<'_>) -> Result<Option<()>> {
    write_config(paths)?;
    let config = paths.valid_config()?;
    let gateway = report.step("start the gateway", open_gateway(paths, &config)).await?;
    let port = gateway.port().context("the gateway has no port")?;
    let mut client = DemoClient::new(port);
    let steps = super::until_interrupted(run_steps(&mut client, report)).await;
    let noted = client.note_processes().await;
    let close = async {
        gateway.close(std::future::pending()).await;
        let pids = client.seen_pids();
        let remaining = leftovers::find(pids);
        ensure!(remaining.is_empty(), "still running: {}", remaining.join(", "));
        Ok(StepOutcome::new(format!("{} processes were started, none is left", pids.len())))
    };
    let closed = report.step("stop everything", close).await;
    let completed = steps?.transpose()?;
    noted?;
    closed?;
    Ok(completed)
}

async fn open_gateway(paths: &Paths, config: &toolcrib::config::Config) -> Result<StepOutcome<Gateway>> {
    let any_port: ListenAddr = "127.0.0.1:0".parse().map_err(anyhow::Error::msg)?;
    let sources = paths.sources().clone().for_gateway();
    let running = StampedConfig { config, stamp: sources.stamp() };
    let gateway =
        Gateway::open(paths, GatewayMode::Serve(&any_port), &sources, running, None, Admin::routes).await?;
    gateway.accept(None).await;
    Ok(StepOutcome { detail: gateway.address(), value: gateway })
}

async fn run_steps(client: &mut DemoClient, report: &mut DemoReport<'_>) -> Result<()> {
    report.step("the first list has the tools of all that work", list_tools(client)).await?;
    report.step("call a tool", call_echo(client)).await?;
    let pid = report.step("a server keeps its state between calls", call_counter(client)).await?;
    report.step("kill a server with SIGKILL during a call", kill_during_call(client, pid)).await?;
    report.step("the next call starts it again", call_restarted(client, pid)).await?;
    report.step("a server that keeps crashing is ejected", call_until_ejected(client)).await?;
    report.step("the other servers keep working", call_echo(client)).await
}

async fn list_tools(client: &mut DemoClient) -> Result<StepOutcome> {
    let servers = client.servers().await?;
    ensure!(servers.len() == 3, "{} servers instead of 3", servers.len());
    let names = client.tool_names().await?;
    for tool in ["counter__add", "counter__ponder", "echo__say"] {
        ensure!(names.iter().any(|name| name == tool), "`{tool}` is missing from {names:?}");
    }
    Ok(StepOutcome::new(names.join(", ")))
}

async fn call_echo(client: &mut DemoClient) -> Result<StepOutcome> {
    match client.call("echo__say", &json!({"text": "hello"})).await? {
        DemoCallResult::Text(text) if text == "hello" => Ok(StepOutcome::new("echo__say text=hello → hello")),
        other => Err(other.to_error()),
    }
}

/// Returns the pid of the server.
async fn call_counter(client: &mut DemoClient) -> Result<StepOutcome<u64>> {
    for (n, sum) in [(2, "2"), (3, "5")] {
        match client.call("counter__add", &json!({"n": n})).await? {
            DemoCallResult::Text(text) if text == sum => {}
            other => return Err(other.to_error()),
        }
    }
    let pid = counter_pid(client).await?;
    Ok(StepOutcome { detail: format!("add 2, then 3: 5 (pid {pid})"), value: pid })
}

async fn counter_pid(client: &mut DemoClient) -> Result<u64> {
    client.server("counter").await?.pid.context("`counter` has no process")
}

async fn kill_during_call(client: &mut DemoClient, pid: u64) -> Result<StepOutcome> {
    let caller = client.second_client();
    let arguments = json!({});
    let kill = async {
        client.wait_until("counter", |server| server.in_flight == 1).await?;
        client.kill(pid)
    };
    let (result, killed) = tokio::join!(caller.call("counter__ponder", &arguments), kill);
    killed?;
    match result? {
        DemoCallResult::Failed { kind, message } if kind == "lost" => {
            Ok(StepOutcome::new(format!("the call fails immediately: {message}")))
        }
        other => Err(other.to_error()),
    }
}

async fn call_restarted(client: &mut DemoClient, old_pid: u64) -> Result<StepOutcome> {
    match client.call("counter__add", &json!({"n": 1})).await? {
        DemoCallResult::Text(text) if text == "1" => {}
        other => return Err(other.to_error()),
    }
    let pid = counter_pid(client).await?;
    ensure!(pid != old_pid, "the process is the one that was killed");
    Ok(StepOutcome::new(format!("counter__add n=1 → 1, in a new process (pid {old_pid} → {pid})")))
}

async fn call_until_ejected(client: &mut DemoClient) -> Result<StepOutcome> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let message = loop {
        match client.call("crashing__anything", &json!({})).await? {
            DemoCallResult::Failed { kind, message } if kind == "ejected" => break message,
            DemoCallResult::Failed { .. } => {}
            other => return Err(other.to_error()),
        }
        ensure!(Instant::now() < deadline, "`crashing` is not ejected");
    };
    let server = client.server("crashing").await?;
    ensure!(server.ejected, "its state is {}", server.state);
    ensure!(server.restarts_left == 0, "it has {} restarts left", server.restarts_left);
    Ok(StepOutcome::new(message))
}

/// The result of a successful step: a line for the report, and a value for later steps.
struct StepOutcome<T = ()> {
    detail: String,
    value: T,
}

impl StepOutcome {
    fn new(detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), value: () }
    }
}

/// Prints and collects the results of the steps.
struct DemoReport<'o> {
    out: &'o mut Output,
    steps: Vec<Value>,
}

impl DemoReport<'_> {
    /// Runs one step, measures its time and reports its result.
    async fn step<T>(&mut self, name: &str, step: impl Future<Output = Result<StepOutcome<T>>>) -> Result<T> {
        let started = Instant::now();
        let result = step.await;
        let took = started.elapsed();
        let (mark, detail) = match &result {
            Ok(outcome) => ("✓", outcome.detail.clone()),
            Err(error) => ("✗", format!("{error:#}")),
        };
        // A closed stdout does not make a step fail.
        let _ = self.out.print_text(&format!("{mark} {name:<44} {:>8}  {detail}", format_time(took)));
        self.steps
            .push(json!({"step": name, "ok": result.is_ok(), "detail": detail, "took": took.as_secs_f64()}));
        result.map(|outcome| outcome.value).with_context(|| name.to_owned())
    }
}

fn format_time(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

/// Writes the config of the demo servers.
fn write_config(paths: &Paths) -> Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
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
lifecycle = {{ restarts = {{ at-most = {CRASHING_RESTARTS}, within = "1m" }}, backoff = {{ first = "20ms", most = "100ms" }} }}
"#
    );
    std::fs::write(&paths.config, text).with_context(|| format!("cannot write `{}`", paths.config.display()))
}

/// A private temporary folder that is removed when dropped.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let number = getrandom::u64().map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
        let path = std::env::temp_dir().join(format!("toolcrib-demo-{number:016x}"));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create the folder `{}`", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
