//! `toolcrib stdio`: MCP on stdin and stdout, attached to the running gateway or standing alone.
//!
//! Nothing but MCP goes to stdout here.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use toolcrib::Project;

use crate::cli::Stdio;
use crate::client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::frontend;
use crate::output::Output;
use crate::percent;
use crate::place::Place;

/// Asks the gateway to speak MCP on this very connection, one message a line, and says where we were started.
fn upgrade() -> String {
    let head = "GET /api/v1/stdio HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: mcp\r\n";
    match folder() {
        Some(folder) => format!("{head}{}: {}\r\n\r\n", frontend::http::PROJECT, percent::encode(&folder)),
        None => format!("{head}\r\n"),
    }
}

/// The folder we were started in, if it has a name that can be said.
fn folder() -> Option<String> {
    std::env::current_dir().ok().and_then(|folder| folder.to_str().map(str::to_owned))
}

/// The longest answer to that.
const LONGEST_HEAD: usize = 16 << 10;

/// Serves until stdin ends.
pub(crate) async fn run(args: &Stdio, place: &Place, out: &mut Output) -> Result<Exit> {
    if args.profile.is_some() {
        return Err(Failure::usage("profiles are not supported yet").hint("toolcrib stdio").into());
    }
    match client::connect(place).await? {
        Some(daemon) => {
            super::until_interrupted(attached(daemon)).await?.transpose()?;
        }
        None => {
            let largest = place.usable()?.limits.body;
            let serve = async |crib| {
                let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
                let face = Arc::new(frontend::Face::new(crib));
                let project = Project::of(folder());
                frontend::stdio::serve(stdin, stdout, face, largest, project, CancellationToken::new()).await;
            };
            super::alone(place, out, super::Waits::ForSome, serve).await?;
        }
    }
    Ok(Exit::Fine)
}

async fn attached(daemon: UnixStream) -> Result<()> {
    let (mut from_daemon, mut to_daemon) = daemon.into_split();
    to_daemon.write_all(upgrade().as_bytes()).await.map_err(lost)?;
    let mut stdout = tokio::io::stdout();
    let first = upgraded(&mut from_daemon).await?;
    stdout.write_all(&first).await?;
    stdout.flush().await?;
    let upwards = async {
        let copied = tokio::io::copy(&mut tokio::io::stdin(), &mut to_daemon).await;
        let _ = to_daemon.shutdown().await;
        copied
    };
    let downwards = tokio::io::copy(&mut from_daemon, &mut stdout);
    tokio::pin!(upwards, downwards);
    // The agent's last word is not the last answer: what is under way is still written.
    let told = tokio::select! {
        ended = &mut downwards => { received(ended)?; return Err(refused("it has stopped").into()); }
        told = &mut upwards => told,
    };
    received(downwards.await)?;
    told.map(drop).map_err(lost)
}

/// What came from the gateway up to its end. One that left without reading everything resets the connection; a broken
/// pipe is the agent's.
fn received(copied: io::Result<u64>) -> Result<()> {
    match copied {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(lost(error)),
        copied => Ok(copied.map(drop)?),
    }
}

/// Why nothing can be told to the gateway any more.
fn lost(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => refused("it has stopped").into(),
        _ => error.into(),
    }
}

/// Reads the answer to `upgrade`; gives the bytes that follow it.
async fn upgraded(from_daemon: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            let status = String::from_utf8_lossy(&head[..end]).lines().next().unwrap_or_default().to_owned();
            let accepted = status.split(' ').nth(1) == Some("101");
            return if accepted { Ok(head.split_off(end + 4)) } else { Err(refused(&status).into()) };
        }
        if head.len() > LONGEST_HEAD || from_daemon.read_buf(&mut head).await.map_err(lost)? == 0 {
            return Err(refused("its answer ended early").into());
        }
    }
}

fn refused(why: &str) -> Failure {
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
