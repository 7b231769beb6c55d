//! The pipe of an agent that outlives the gateway it is attached to. It connects to the next gateway, opens the session
//! there again and resends what is safe to resend.

use std::io;
use std::sync::{Mutex, MutexGuard};

use anyhow::Result;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use toolcrib::protocol::framing::{Frame, FrameDecoder, OversizeMessage};
use toolcrib::protocol::jsonrpc::{code, encode_error_response, error_object, find_request_id};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::util::tasks::SpawnBoxed as _;

use super::connector::{GatewayConnector, GatewayPipe};
use super::replay_log::{AgentLineAction, ReplayLog};

/// Capacity of the channels of messages from the agent and to the agent.
const CHANNEL_CAPACITY: usize = 64;
/// The size limit of messages from the gateway, which applies its own limits.
const NO_LIMIT: usize = usize::MAX >> 1;

/// A message from the agent.
enum AgentInput {
    Line(Bytes),
    /// A message over the size limit.
    TooLong(OversizeMessage),
}

/// The agent's side of the pipe.
struct AgentPipe {
    input: mpsc::Receiver<AgentInput>,
    output: mpsc::Sender<Bytes>,
    log: Mutex<ReplayLog>,
}

/// Serves until stdin ends and every request is answered.
pub(super) async fn run(connector: &mut GatewayConnector<'_>, stream: UnixStream) -> Result<()> {
    let tasks = TaskTracker::new();
    let (input_sender, input) = mpsc::channel(CHANNEL_CAPACITY);
    let (output, output_receiver) = mpsc::channel(CHANNEL_CAPACITY);
    let reader = read_agent(tokio::io::stdin(), connector.max_message_size(), input_sender);
    let _reader = AbortOnDropHandle::new(tasks.spawn_boxed(reader));
    let writer = AbortOnDropHandle::new(tasks.spawn_boxed(write_agent(tokio::io::stdout(), output_receiver)));
    let mut agent = AgentPipe { input, output, log: Mutex::default() };
    let pipe = connector.upgrade(stream, 0).await.ok();
    let served = agent.serve_gateways(connector, pipe).await;
    // Closes the output, so that the writer ends after the last responses.
    drop(agent);
    let written = writer.await;
    served?;
    Ok(written.unwrap_or(Ok(()))?)
}

impl AgentPipe {
    fn log(&self) -> MutexGuard<'_, ReplayLog> {
        self.log.lock().ignore_poison()
    }

    /// Returns whether the agent has disconnected and all its messages were taken.
    fn has_disconnected(&self) -> bool {
        self.input.is_closed() && self.input.is_empty()
    }

    /// Serves the agent with one gateway after the other.
    async fn serve_gateways(
        &mut self,
        connector: &mut GatewayConnector<'_>,
        mut pipe: Option<GatewayPipe>,
    ) -> Result<()> {
        loop {
            if let Some(pipe) = pipe {
                self.serve(connector, pipe).await;
            }
            let errors = self.log().gateway_lost();
            self.send_all(errors).await;
            let last_question = self.log().last_question();
            let has_work = || !self.input.is_empty() || !self.log().is_idle();
            let is_done = || self.output.is_closed() || self.has_disconnected() && self.log().is_idle();
            pipe = match connector.reconnect(last_question, has_work, is_done).await {
                Ok(None) => return Ok(()),
                Ok(pipe) => pipe,
                Err(error) => {
                    self.fail_all(&error.to_string()).await;
                    return Err(error);
                }
            };
        }
    }

    /// Answers every outstanding request with an error.
    async fn fail_all(&mut self, reason: &str) {
        while let Ok(input) = self.input.try_recv() {
            if let AgentInput::Line(line) = input {
                self.log().record_agent_line(&line);
            }
        }
        let errors = self.log().fail_all(reason);
        self.send_all(errors).await;
    }

    async fn send_all(&self, lines: Vec<Vec<u8>>) {
        for line in lines {
            // A closed output is handled by the caller's loop.
            let _ = self.output.send(line.into()).await;
        }
    }

    /// Forwards messages in both directions until the gateway is lost or, if this command is its own gateway, until another
    /// one is available.
    async fn serve(&mut self, connector: &GatewayConnector<'_>, pipe: GatewayPipe) {
        let GatewayPipe { from, to, buffered } = pipe;
        let replayed = self.log().replay();
        let notifications = self.log().change_notifications();
        self.send_all(notifications).await;
        let log = &self.log;
        let output = &self.output;
        let other_gateway = connector.wait_for_gateway(|| log.lock().ignore_poison().is_idle());
        let to_gateway = forward_to_gateway(to, replayed, &mut self.input, other_gateway, log, output);
        let to_agent = forward_to_agent(from, buffered, log, output);
        tokio::pin!(to_gateway, to_agent);
        // After the last message to the gateway, its responses are still to come.
        tokio::select! {
            () = &mut to_agent => {}
            () = &mut to_gateway => to_agent.await,
        }
    }
}

/// Sends the replayed lines and then the agent's input to the gateway, until either side disconnects or `other_gateway`
/// completes.
async fn forward_to_gateway(
    mut to: Box<dyn AsyncWrite + Unpin>,
    replayed: Vec<Bytes>,
    input: &mut mpsc::Receiver<AgentInput>,
    other_gateway: impl Future<Output = ()>,
    log: &Mutex<ReplayLog>,
    output: &mpsc::Sender<Bytes>,
) {
    tokio::pin!(other_gateway);
    for line in replayed {
        if write_line(&mut to, &line).await.is_err() {
            return;
        }
    }
    loop {
        let received = tokio::select! {
            biased;
            received = input.recv() => received,
            () = &mut other_gateway => None,
        };
        let line = match received {
            None => break,
            Some(AgentInput::Line(line)) => line,
            Some(AgentInput::TooLong(oversize)) => {
                let error = error_object(code::INVALID_REQUEST, &oversize.describe_request(), None);
                let response = encode_error_response(find_request_id(&oversize.head).as_ref(), &error);
                let _ = output.send(response.into()).await;
                continue;
            }
        };
        let action = log.lock().ignore_poison().record_agent_line(&line);
        let AgentLineAction::Forward(number) = action else { continue };
        if let Err(written) = write_line(&mut to, &line).await {
            if let (0, Some(number)) = (written, number) {
                log.lock().ignore_poison().mark_unsent(number);
            }
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Writes a line. On failure, returns how many bytes were written.
async fn write_line(to: &mut (impl AsyncWrite + Unpin), line: &Bytes) -> Result<(), usize> {
    let mut whole = Vec::with_capacity(line.len() + 1);
    whole.extend_from_slice(line);
    whole.push(b'\n');
    let mut written = 0;
    while written < whole.len() {
        match to.write(&whole[written..]).await {
            Ok(count @ 1..) => written += count,
            _ => return Err(written),
        }
    }
    to.flush().await.map_err(|_| written)
}

/// Forwards the gateway's messages to the agent until either side disconnects.
async fn forward_to_agent(
    mut from: Box<dyn AsyncRead + Unpin>,
    buffered: Vec<u8>,
    log: &Mutex<ReplayLog>,
    output: &mpsc::Sender<Bytes>,
) {
    let mut frames = FrameDecoder::new(NO_LIMIT);
    frames.push(&buffered);
    loop {
        while let Some(frame) = frames.next_frame() {
            let Frame::Line(line) = frame else { continue };
            let is_for_agent = log.lock().ignore_poison().record_gateway_line(&line);
            if is_for_agent && output.send(line).await.is_err() {
                return;
            }
        }
        if !matches!(from.read_buf(frames.read_buffer()).await, Ok(1..)) {
            return;
        }
    }
}

/// Reads messages of the agent until it disconnects.
async fn read_agent(
    mut stdin: impl AsyncRead + Unpin,
    max_message_size: usize,
    sender: mpsc::Sender<AgentInput>,
) {
    let mut frames = FrameDecoder::new(max_message_size);
    while matches!(stdin.read_buf(frames.read_buffer()).await, Ok(1..)) {
        while let Some(frame) = frames.next_frame() {
            let input = match frame {
                Frame::Line(line) if line.trim_ascii().is_empty() => continue,
                Frame::Line(line) => AgentInput::Line(line),
                Frame::Oversize(OversizeMessage { end: Some(_), .. }) => continue,
                Frame::Oversize(oversize) => AgentInput::TooLong(oversize),
            };
            if sender.send(input).await.is_err() {
                return;
            }
        }
    }
    if let Some(rest) = frames.take_remainder() {
        let _ = sender.send(AgentInput::Line(rest)).await;
    }
}

/// Writes lines to the agent, and flushes when no more are ready.
async fn write_agent(
    mut stdout: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<Bytes>,
) -> io::Result<()> {
    let mut batch = Vec::new();
    while lines.recv_many(&mut batch, CHANNEL_CAPACITY).await > 0 {
        for line in batch.drain(..) {
            stdout.write_all(&line).await?;
            stdout.write_all(b"\n").await?;
        }
        stdout.flush().await?;
    }
    Ok(())
}
