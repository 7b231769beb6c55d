//! Stdio client: one child process, any number of calls in flight on its pipe.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::http::Session;
use crate::pending::{self, Arrived, Pending};
use crate::rpc;

type Lines = mpsc::UnboundedSender<Vec<u8>>;

/// A child that speaks MCP over stdio. Clones share it.
#[derive(Clone)]
pub(crate) struct StdioPeer {
    lines: Lines,
    pending: Pending,
    version: String,
    timeout: Duration,
    pub(crate) session: Session,
}

impl StdioPeer {
    pub(crate) fn spawn(command: &[String], version: &str, timeout: Duration) -> Result<(Self, Child)> {
        let (program, args) = command.split_first().context("no command")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = child.stdout.take().context("stdout")?;
        let (lines, queue) = mpsc::unbounded_channel();
        let pending = Pending::default();
        tokio::spawn(write_lines(stdin, queue));
        tokio::spawn(read_lines(stdout, pending.clone(), lines.clone()));
        let peer = Self { lines, pending, version: version.into(), timeout, session: Session::default() };
        Ok((peer, child))
    }

    fn send(&self, mut message: Vec<u8>) -> Result<()> {
        message.push(b'\n');
        self.lines.send(message).map_err(|_| anyhow!("the child closed its stdin"))
    }

    pub(crate) async fn request(&self, id: u64, method: &str, params: &str) -> Result<Arrived> {
        let receiver = self.pending.expect(id);
        self.send(rpc::request_for(&self.version, id, method, params))?;
        pending::wait(receiver, self.timeout).await
    }

    pub(crate) async fn handshake(&mut self) -> Result<()> {
        if rpc::has_no_handshake(&self.version) {
            self.session.version = self.version.clone();
            return Ok(());
        }
        let (answer, _) = self.request(0, "initialize", &rpc::initialize_params(&self.version)).await?;
        self.session = Session::from_initialize(&answer, None)?;
        self.send(rpc::INITIALIZED.to_vec())
    }
}

/// Writes queued lines; all that are queued go into one write.
async fn write_lines(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    let mut buffer = Vec::new();
    while let Some(line) = queue.recv().await {
        buffer.extend_from_slice(&line);
        while let Ok(line) = queue.try_recv() {
            buffer.extend_from_slice(&line);
        }
        if stdin.write_all(&buffer).await.is_err() {
            return;
        }
        buffer.clear();
    }
}

async fn read_lines(mut stdout: ChildStdout, pending: Pending, replies: Lines) {
    let mut buffer = BytesMut::new();
    let mut scanned = 0;
    loop {
        while let Some(offset) = memchr::memchr(b'\n', &buffer[scanned..]) {
            let line = buffer.split_to(scanned + offset + 1).freeze();
            scanned = 0;
            if let Some(mut reply) = pending.deliver(line) {
                // Requests of a gateway are answered, so that it does not wait for them.
                reply.push(b'\n');
                let _ = replies.send(reply);
            }
        }
        scanned = buffer.len();
        buffer.reserve(1 << 16);
        if !matches!(stdout.read_buf(&mut buffer).await, Ok(count) if count > 0) {
            break;
        }
    }
    pending.close();
}
