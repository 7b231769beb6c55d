//! `startup`: time from spawning a command to its first complete list and its first correct call.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};
use tokio::process::{Child, Command};

use super::merge;
use crate::cli::StartupOptions;
use crate::client::{Opener, listed_name};
use crate::rpc;

/// Interval between attempts while a server starts; gateways do not announce in a common way that they are ready.
const RETRY_INTERVAL: Duration = Duration::from_micros(500);

/// Times at which each step was first reached, from the spawn on.
struct Milestones {
    begun: Instant,
    reached: Map<String, Value>,
}

impl Milestones {
    fn reach(&mut self, step: &str) {
        let millis = (self.begun.elapsed().as_secs_f64() * 1e4).round() / 10.0;
        self.reached.entry(step).or_insert(json!(millis));
    }
}

pub(crate) async fn run(options: StartupOptions) -> Result<Value> {
    let options = StartupOptions { load: options.load.on_one_server(), ..options };
    let mut milestones = Milestones { begun: Instant::now(), reached: Map::new() };
    let mut child = None;
    if options.connect.url.is_some() {
        child = Some(spawn(&options.command)?);
    }
    let outcome = until_called(&options, &mut milestones, child.as_mut()).await;
    if let Some(child) = child {
        stop(child).await;
    }
    let mut value = json!({"mode": "startup", "ok": outcome.is_ok()});
    if let Err(error) = outcome {
        merge(&mut value, json!({"error": format!("{error:#}")}));
    }
    merge(&mut value, Value::Object(milestones.reached));
    Ok(value)
}

fn spawn(command: &[String]) -> Result<Child> {
    let (program, args) = command.split_first().context("no command")?;
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {program}"))
}

async fn until_called(
    options: &StartupOptions,
    milestones: &mut Milestones,
    mut child: Option<&mut Child>,
) -> Result<()> {
    let own_command: &[String] = if child.is_some() { &[] } else { &options.command };
    let opener = Opener::new(&options.connect, own_command).await?;
    let give_up = Duration::from_secs_f64(options.give_up_s);
    loop {
        if let Some(Ok(Some(status))) = child.as_mut().map(|child| child.try_wait()) {
            bail!("the command ended with {status}");
        }
        match attempt(options, &opener, milestones).await {
            Ok(()) => return Ok(()),
            Err(error) if milestones.begun.elapsed() > give_up => return Err(error.context("gave up")),
            // Timers of the runtime are too coarse, and it has nothing else to do.
            Err(_) => std::thread::sleep(RETRY_INTERVAL),
        }
    }
}

async fn attempt(options: &StartupOptions, opener: &Opener, milestones: &mut Milestones) -> Result<()> {
    let load = &options.load;
    let mut channel = opener.open().await?;
    milestones.reach("handshake_ms");
    let mut tool = load.own_tool_name();
    if load.call_template.is_none() && !options.connect.rest {
        let listing = channel.list().await?;
        milestones.reach("first_list_ms");
        if listing.names.len() < options.expect {
            bail!("{} tools of {}", listing.names.len(), options.expect);
        }
        milestones.reach("all_tools_ms");
        if !load.exact_name {
            tool = listed_name(&listing, &tool)?.to_owned();
        }
    }
    let answer = channel.call(&tool, r#"{"text":"ready"}"#, load.call_template.as_deref()).await?;
    if !answer.text.contains("ready") {
        bail!("wrong text {}", rpc::shorten(&answer.text));
    }
    milestones.reach("first_call_ms");
    Ok(())
}

/// Stops the process group of `child` with SIGTERM, then SIGKILL.
async fn stop(mut child: Child) {
    let Some(pid) = child.id() else { return };
    let group = Pid::from_raw(pid as i32);
    // Fails only if the group has already exited.
    let _ = killpg(group, Signal::SIGTERM);
    if tokio::time::timeout(Duration::from_secs(5), child.wait()).await.is_err() {
        let _ = killpg(group, Signal::SIGKILL);
        let _ = child.wait().await;
    }
}
