//! `Reach`: finds a gateway for an agent that lost its own, or is one itself when none comes back.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::{Crib, Project};

use crate::client;
use crate::daemon;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::frontend;
use crate::percent;
use crate::place::Place;

/// How long a message waits for a gateway to come back before this command does without one.
const AWAY: Duration = Duration::from_secs(10);
/// How often to look for it: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// How long a gateway may take to say that it speaks MCP here.
const ANSWER: Duration = Duration::from_secs(5);
/// The longest way of saying that.
const LONGEST_HEAD: usize = 16 << 10;
/// Bytes that may be under way to or from a gateway in this process.
const PIPE: usize = 64 << 10;

/// Where gateways are found.
pub(super) struct Reach<'a> {
    place: &'a Place,
    profile: Option<&'a str>,
    /// What this command runs itself, once it stands alone.
    own: Option<Crib>,
    tasks: TaskTracker,
}

/// A gateway that speaks MCP, one message a line.
pub(super) struct Line {
    pub(super) from: Box<dyn AsyncRead + Unpin>,
    pub(super) to: Box<dyn AsyncWrite + Unpin>,
    /// What it has said already.
    pub(super) first: Vec<u8>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(place: &'a Place, profile: Option<&'a str>) -> Self {
        Self { place, profile, own: None, tasks: TaskTracker::new() }
    }

    /// The largest message; what the config says now, if it can be read.
    pub(super) fn largest(&self) -> usize {
        self.place
            .read()
            .map_or_else(|_| toolcrib::config::HostLimits::default(), |config| config.limits)
            .body
    }

    /// Has the gateway at the other end speak MCP and tells it where we were started; its questions are numbered after `asked`.
    pub(super) async fn upgrade(&self, daemon: UnixStream, asked: u64) -> Result<Line> {
        let (mut from, mut to) = daemon.into_split();
        let project = super::folder().map_or_else(String::new, |folder| {
            format!("{}: {}\r\n", frontend::http::PROJECT, percent::encode(&folder))
        });
        let profile = self.profile.map(|profile| format!("&profile={}", percent::encode(profile)));
        let profile = profile.unwrap_or_default();
        let request = format!(
            "GET /api/v1/stdio?asked={asked}{profile} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: mcp\r\n\
             {project}\r\n"
        );
        to.write_all(request.as_bytes()).await?;
        let first = timeout(ANSWER, upgraded(&mut from)).await.map_err(|_| gone("it does not answer"))??;
        Ok(Line { from: Box::new(from), to: Box::new(to), first })
    }

    /// Looks for a gateway until there is one. After a while, and only if something waits to be said, this command is
    /// one itself; `None` if `over` says that nobody needs one any more.
    pub(super) async fn again(
        &mut self,
        asked: u64,
        waits: impl Fn() -> bool,
        over: impl Fn() -> bool,
    ) -> Result<Option<Line>> {
        self.close().await;
        let (until, mut pause) = (Instant::now() + AWAY, PAUSES[0]);
        while !over() {
            // A folder that is being made anew is not found for a moment: whatever fails now is tried again.
            if let Ok(Some(daemon)) = client::connect(self.place).await
                && let Ok(line) = self.upgrade(daemon, asked).await
            {
                return Ok(Some(line));
            }
            if waits() && Instant::now() >= until {
                return self.alone(asked).map(Some);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
        Ok(None)
    }

    fn alone(&mut self, asked: u64) -> Result<Line> {
        let config = self.place.usable()?;
        let crib = daemon::build(self.place, &config, None)?;
        tracing::warn!("the gateway did not come back: going on without it");
        let face = Arc::new(frontend::Face::new(crib.clone()));
        self.own = Some(crib);
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (reader, writer) = tokio::io::split(theirs);
        let (largest, stop) = (config.limits.body, CancellationToken::new());
        let known = (super::local(self.profile), Project::of(super::folder()), asked);
        self.tasks.spawn(frontend::stdio::serve(reader, writer, face, largest, known, stop));
        let (from, to) = tokio::io::split(ours);
        Ok(Line { from: Box::new(from), to: Box::new(to), first: Vec::new() })
    }

    /// Comes when a command that stands alone finds a gateway and has nothing under way.
    pub(super) async fn back(&self, is_idle: impl Fn() -> bool) {
        if self.own.is_none() {
            return pending().await;
        }
        loop {
            sleep(PAUSES[1]).await;
            if is_idle() && matches!(client::connect(self.place).await, Ok(Some(_))) && is_idle() {
                tracing::info!("there is a gateway again: attached to it");
                return;
            }
        }
    }

    /// Stops whatever this command started itself.
    pub(super) async fn close(&mut self) {
        if let Some(crib) = self.own.take() {
            crib.shutdown(super::super::GRACE).await;
        }
    }
}

/// Reads the answer to a request for an upgrade; gives the bytes that follow it.
async fn upgraded(from_daemon: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            let status = String::from_utf8_lossy(&head[..end]).lines().next().unwrap_or_default().to_owned();
            let accepted = status.split(' ').nth(1) == Some("101");
            return if accepted { Ok(head.split_off(end + 4)) } else { Err(gone(&status).into()) };
        }
        let count: io::Result<usize> = from_daemon.read_buf(&mut head).await;
        if head.len() > LONGEST_HEAD || count? == 0 {
            return Err(gone("its answer ended early").into());
        }
    }
}

fn gone(why: &str) -> Failure {
    Failure::new(Exit::Unreachable, "gateway_lost", format!("the gateway is gone: {why}"))
        .hint("toolcrib status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_follows_the_answer_is_kept() {
        let mut good: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: mcp\r\n\r\n{\"a\":1}\n";
        assert_eq!(upgraded(&mut good).await.unwrap(), b"{\"a\":1}\n");
        for mut bad in [&b"HTTP/1.1 503 no\r\n\r\n"[..], b"", b"HTTP/1.1 101"] {
            assert!(upgraded(&mut bad).await.is_err());
        }
    }
}
