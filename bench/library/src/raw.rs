//! The lower bound: the same server on a bare pipe, with the least reading and writing that still checks answers.
//!
//! There are no tasks, no timeouts and no JSON parser: an answer is recognised by its id at a fixed position and by the
//! text that was sent.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use stats::Latencies;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::load::{self, Concurrent, Load};

const ANSWER_START: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

pub(crate) struct Pipe {
    _child: Child,
    stdin: ChildStdin,
    answers: Answers,
}

impl Pipe {
    pub(crate) async fn open(echo_server: &str) -> Result<Self> {
        let mut child = Command::new(echo_server)
            .args(["--id", "s0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the echo server")?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = child.stdout.take().context("stdout")?;
        Ok(Self { _child: child, stdin, answers: Answers { stdout, buffer: Vec::new(), start: 0 } })
    }

    /// Makes `calls` calls of `echo`, one after the other.
    pub(crate) async fn sequential(&mut self, calls: u64) -> Result<()> {
        for number in 0..calls {
            let arguments = format!(r#"{{"text":"call-{number}"}}"#);
            self.stdin.write_all(&request("echo", number, &arguments)).await?;
            let answered = self.answers.next_number().await?;
            if answered != number {
                bail!("answer {answered} instead of {number}");
            }
        }
        Ok(())
    }

    /// Makes the calls of a load with as many of them in flight as it has callers.
    pub(crate) async fn concurrent(&mut self, load: Load) -> Result<Concurrent> {
        let calls = load.calls;
        let outstanding = load.callers;
        let started = Instant::now();
        let mut sent_at = Vec::with_capacity(calls as usize);
        let mut latencies = Latencies::default();
        while latencies.count() < calls {
            while sent_at.len() < calls as usize
                && (sent_at.len() as u64) < latencies.count() + outstanding as u64
            {
                let number = sent_at.len() as u64;
                let message = request(load.tool(), number, &load.arguments(&load::text(number)));
                sent_at.push(Instant::now());
                self.stdin.write_all(&message).await?;
            }
            let answered = self.answers.next_number().await?;
            let sent = sent_at.get(answered as usize).context("an answer with an unknown id")?;
            latencies.push(sent.elapsed());
        }
        Ok(Concurrent { elapsed: started.elapsed(), latencies })
    }
}

fn request(tool: &str, number: u64, arguments: &str) -> Vec<u8> {
    let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
    let mut message =
        format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{params}}}"#).into_bytes();
    message.push(b'\n');
    message
}

/// Splits the child's output into lines and checks them.
struct Answers {
    stdout: ChildStdout,
    buffer: Vec<u8>,
    /// Start of the next line in `buffer`.
    start: usize,
}

impl Answers {
    /// Returns the number of the next call that was answered.
    async fn next_number(&mut self) -> Result<u64> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[self.start..]) {
                let line = &self.buffer[self.start..self.start + end];
                self.start += end + 1;
                return parse_answer(line);
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.buffer.reserve(1 << 16);
            if self.stdout.read_buf(&mut self.buffer).await? == 0 {
                bail!("the echo server exited");
            }
        }
    }
}

/// Returns the id of an answer; an error unless its text is the one that was sent with this id.
fn parse_answer(line: &[u8]) -> Result<u64> {
    let unexpected = || format!("unexpected answer {}", String::from_utf8_lossy(line));
    let rest = line.strip_prefix(ANSWER_START).with_context(unexpected)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let id = std::str::from_utf8(&rest[..digits])?;
    let text = format!(r#""call-{id}""#);
    memchr::memmem::find(rest, text.as_bytes()).with_context(unexpected)?;
    id.parse().with_context(unexpected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_with_the_text_of_another_call_is_rejected() {
        let matching =
            br#"{"jsonrpc":"2.0","id":12,"result":{"content":[{"type":"text","text":"call-12"}]}}"#;
        assert_eq!(parse_answer(matching).expect("a matching answer"), 12);
        let mixed_up =
            br#"{"jsonrpc":"2.0","id":12,"result":{"content":[{"type":"text","text":"call-13"}]}}"#;
        assert!(parse_answer(mixed_up).is_err());
        assert!(parse_answer(br#"{"jsonrpc":"2.0","error":{}}"#).is_err());
    }
}
