//! `probe`: checks of behaviour: negotiation, encodings, head-of-line blocking, errors, recovery.
//!
//! It kills the server behind the gateway, so it is the last mode in a benchmark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use echo_server::blob_text;
use serde_json::{Value, json};

use super::merge;
use crate::cli::{Kind, Load, Match, ProbeOptions};
use crate::client::{Channel, Opener, tool_name};
use crate::drive::drive;
use crate::rpc;
use crate::work::{Route, Work};

/// Limit on the answer to a crash, and on the recovery from it.
const CRASH_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit on one call after the crash.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between attempts while a gateway recovers.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Characters that re-encoding tends to damage.
const UNUSUAL_CHARACTERS: &str = "quote\" back\\slash tab\t nl\n nul\u{1} é 😀 \u{2028} </script>";

struct Probe {
    opener: Opener,
    channel: Channel,
    load: Load,
    echo: String,
}

pub(crate) async fn run(options: ProbeOptions) -> Result<Value> {
    let load = options.load.on_one_server();
    let opener = Opener::new(&options.connect, &options.command).await?;
    let mut channel = opener.open().await?;
    let echo = tool_name(&mut channel, &load, "echo").await?;
    let session = channel.session();
    let mut out = json!({
        "mode": "probe",
        "protocol": session.version,
        "server": session.server,
        "session_id": session.id.is_some(),
        "echo_tool": echo,
    });
    let mut probe = Probe { opener, channel, load, echo };
    merge(&mut out, probe.odd_characters().await);
    merge(&mut out, probe.sixteen_sleeps().await?);
    merge(&mut out, probe.megabyte_request().await);
    if !options.connect.rest {
        merge(&mut out, probe.unknown_tool().await);
    }
    if !options.no_crash {
        merge(&mut out, probe.crash().await?);
        merge(&mut out, probe.recovery().await?);
    }
    Ok(out)
}

impl Probe {
    async fn echo(&mut self, text: &str) -> Result<String> {
        let arguments = json!({"text": text}).to_string();
        let answer = self.channel.call(&self.echo, &arguments, self.load.call_template.as_deref()).await?;
        Ok(answer.text)
    }

    async fn odd_characters(&mut self) -> Value {
        let verdict = match self.echo(UNUSUAL_CHARACTERS).await {
            Ok(text) if text == UNUSUAL_CHARACTERS => "ok".to_owned(),
            Ok(text) if self.load.matching == Match::Contains => format!("wrapped: {}", rpc::shorten(&text)),
            Ok(text) => format!("changed: {}", rpc::shorten(&text)),
            Err(error) => format!("error: {error:#}"),
        };
        json!({"odd_characters": verdict})
    }

    /// Makes sixteen concurrent calls of 200 ms: about 0.2 s if the gateway runs them concurrently, 3.2 s if not.
    async fn sixteen_sleeps(&mut self) -> Result<Value> {
        let sleep = tool_name(&mut self.channel, &self.load, "sleep").await?;
        let load = Load { kind: Kind::Sleep, sleep_ms: 200, size: 64, ..self.load.clone() };
        let channels = (0..16).map(|_| self.opener.share(&self.channel)).collect::<Result<Vec<_>>>()?;
        let route = Route::new(sleep, load.call_template.clone());
        let work = Arc::new(Work::new(&load, vec![route], 16));
        let (_, report, elapsed) = drive(channels, work).await?;
        Ok(json!({
            "sixteen_sleeps_s": elapsed.as_secs_f64(),
            "sixteen_sleeps_errors": report.errors + report.mismatches,
            "sixteen_sleeps_samples": report.samples,
        }))
    }

    async fn megabyte_request(&mut self) -> Value {
        let big = blob_text("", 1 << 20);
        let wrapped = self.load.matching == Match::Contains;
        let verdict = match self.echo(&big).await {
            Ok(text) if text == big || (wrapped && text.len() >= big.len()) => "ok".to_owned(),
            Ok(text) => format!("changed, {} bytes", text.len()),
            Err(error) => format!("error: {error:#}"),
        };
        json!({"megabyte_request": verdict})
    }

    async fn unknown_tool(&mut self) -> Value {
        let params = match &self.load.call_template {
            Some(template) => template.replace("$TOOL", "no_such_tool").replace("$ARGS", "{}"),
            None => json!({"name": "no_such_tool", "arguments": {}}).to_string(),
        };
        let verdict = match self.channel.request("tools/call", &params, Some("no_such_tool")).await {
            Ok((_, body, _)) => rpc::shorten(&String::from_utf8_lossy(&body)),
            Err(error) => format!("{error:#}"),
        };
        json!({"unknown_tool": verdict})
    }

    /// Kills the server and reports the error that its caller gets.
    async fn crash(&mut self) -> Result<Value> {
        let crash = tool_name(&mut self.channel, &self.load, "crash").await?;
        let started = Instant::now();
        let call = self.channel.call(&crash, "{}", self.load.call_template.as_deref());
        let verdict = match tokio::time::timeout(CRASH_TIMEOUT, call).await {
            Ok(Ok(answer)) => format!("answered: {}", rpc::shorten(&answer.text)),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("no answer in {} s", CRASH_TIMEOUT.as_secs()),
        };
        Ok(json!({"crash": verdict, "crash_answer_s": started.elapsed().as_secs_f64()}))
    }

    /// Calls until a call succeeds, in the old session if that still works, otherwise in a new one.
    async fn recovery(&mut self) -> Result<Value> {
        let started = Instant::now();
        let mut same = self.opener.share(&self.channel)?;
        while started.elapsed() < CRASH_TIMEOUT {
            if self.answers_again(&mut same).await.is_ok() {
                let seconds = started.elapsed().as_secs_f64();
                return Ok(json!({"after_crash": format!("same session, {seconds:.2} s")}));
            }
            let fresh = tokio::time::timeout(CALL_TIMEOUT, self.opener.open()).await;
            if let Ok(Ok(mut fresh)) = fresh
                && self.answers_again(&mut fresh).await.is_ok()
            {
                let seconds = started.elapsed().as_secs_f64();
                return Ok(json!({"after_crash": format!("new session, {seconds:.2} s")}));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        Ok(json!({"after_crash": format!("no, not in {} s", CRASH_TIMEOUT.as_secs())}))
    }

    async fn answers_again(&self, channel: &mut Channel) -> Result<()> {
        let call = channel.call(&self.echo, r#"{"text":"again"}"#, self.load.call_template.as_deref());
        match tokio::time::timeout(CALL_TIMEOUT, call).await?? {
            answer if answer.text.contains("again") => Ok(()),
            answer => bail!("wrong text {}", rpc::shorten(&answer.text)),
        }
    }
}
