//! `echo-server`: MCP over stdio, one thread for requests and one for timers.
//!
//! Requests that arrive together are answered with one write.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Parser;
use echo_server::{Action, Options, Server};

#[derive(Parser)]
#[command(about = "A minimal MCP stdio server")]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Wait this long before reading anything, like a server that starts slowly
    #[arg(long, default_value_t = 0)]
    start_delay_ms: u64,
}

/// A delayed answer: when it is due, and its bytes.
type Timer = (Instant, Vec<u8>);

fn main() -> std::io::Result<()> {
    let cli = Cli::parse();
    std::thread::sleep(Duration::from_millis(cli.start_delay_ms));
    let server = Server::new(cli.options);
    let timers = spawn_timers();
    let mut stdin = std::io::stdin().lock();
    let mut input: Vec<u8> = Vec::with_capacity(1 << 16);
    let mut chunk = vec![0u8; 1 << 16];
    let mut output: Vec<u8> = Vec::with_capacity(1 << 16);
    loop {
        let scanned = input.len();
        let count = stdin.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        input.extend_from_slice(&chunk[..count]);
        let handled = handle_lines(&server, &input, scanned, &timers, &mut output);
        input.drain(..handled);
        if !output.is_empty() {
            write_out(&output)?;
            output.clear();
        }
    }
}

/// Handles the complete lines of `input`, whose first `scanned` bytes hold no line end; returns their length.
fn handle_lines(
    server: &Server,
    input: &[u8],
    scanned: usize,
    timers: &mpsc::Sender<Timer>,
    output: &mut Vec<u8>,
) -> usize {
    let mut start = 0;
    for offset in memchr::memchr_iter(b'\n', &input[scanned..]) {
        let line = input[start..scanned + offset].trim_ascii();
        start = scanned + offset + 1;
        if line.is_empty() {
            continue;
        }
        match server.handle(line, output) {
            Action::Reply => output.push(b'\n'),
            Action::Silent => {}
            Action::Later(delay, mut answer) => {
                answer.push(b'\n');
                // The timer thread ends only when stdout is closed.
                let _ = timers.send((Instant::now() + delay, answer));
            }
            Action::Crash => std::process::exit(3),
        }
    }
    start
}

/// Writes with one lock, so that answers of both threads do not interleave.
fn write_out(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn spawn_timers() -> mpsc::Sender<Timer> {
    let (sender, receiver) = mpsc::channel::<Timer>();
    std::thread::spawn(move || {
        let mut heap: BinaryHeap<Reverse<Timer>> = BinaryHeap::new();
        loop {
            let received = match heap.peek() {
                None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(Reverse((due, _))) => {
                    receiver.recv_timeout(due.saturating_duration_since(Instant::now()))
                }
            };
            match received {
                Ok(timer) => heap.push(Reverse(timer)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while heap.peek().is_some_and(|Reverse((due, _))| *due <= Instant::now()) {
                let Some(Reverse((_, answer))) = heap.pop() else { break };
                if write_out(&answer).is_err() {
                    return;
                }
            }
        }
    });
    sender
}
