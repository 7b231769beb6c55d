//! The floor: the same server on a bare pipe, with the least reading and writing that still checks answers.
//!
//! There are no tasks, no timeouts, no JSON parser: an answer is recognised by its id at a fixed place and
//! by the text that was sent. What the library costs is measured against this.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use stats::Latencies;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Concurrent;

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

    /// `calls` calls of `echo`, one after the other.
    pub(crate) async fn sequential(&mut self, calls: u64) -> Result<()> {
        for number in 0..calls {
            let arguments = format!(r#"{{"text":"call-{number}"}}"#);
            self.stdin.write_all(&request("echo", number, &arguments)).await?;
            let answered = self.answers.next().await?;
            if answered != number {
                bail!("answer {answered} instead of {number}");
            }
        }
        Ok(())
    }

    /// `calls` calls of `sleep`, `outstanding` of them always in flight.
    pub(crate) async fn concurrent(
        &mut self,
        outstanding: usize,
        calls: u64,
        sleep_ms: u64,
    ) -> Result<Concurrent> {
        let slow = |number: u64| {
            let arguments = format!(r#"{{"ms":{sleep_ms},"text":"call-{number}"}}"#);
            request("sleep", number, &arguments)
        };
        let started = Instant::now();
        let mut sent_at = Vec::with_capacity(calls as usize);
        let mut latencies = Latencies::default();
        while latencies.count() < calls {
            while sent_at.len() < calls as usize
                && (sent_at.len() as u64) < latencies.count() + outstanding as u64
            {
                let message = slow(sent_at.len() as u64);
                sent_at.push(Instant::now());
                self.stdin.write_all(&message).await?;
            }
            let answered = self.answers.next().await?;
            let sent = sent_at.get(answered as usize).context("an answer to nothing")?;
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

/// Cuts the child's output into lines and checks them.
struct Answers {
    stdout: ChildStdout,
    buffer: Vec<u8>,
    /// Where the next line begins in `buffer`.
    start: usize,
}

impl Answers {
    /// The number of the next call that was answered.
    async fn next(&mut self) -> Result<u64> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[self.start..]) {
                let line = &self.buffer[self.start..self.start + end];
                self.start += end + 1;
                return answered_number(line);
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.buffer.reserve(1 << 16);
            if self.stdout.read_buf(&mut self.buffer).await? == 0 {
                bail!("the echo server ended");
            }
        }
    }
}

/// The id of an answer, if its text is the one that was sent with this id.
fn answered_number(line: &[u8]) -> Result<u64> {
    let wrong = || format!("unexpected answer {}", String::from_utf8_lossy(line));
    let rest = line.strip_prefix(ANSWER_START).with_context(wrong)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let id = std::str::from_utf8(&rest[..digits])?;
    let text = format!(r#""call-{id}""#);
    memchr::memmem::find(rest, text.as_bytes()).with_context(wrong)?;
    id.parse().with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_must_carry_its_own_text() {
        let good = br#"{"jsonrpc":"2.0","id":12,"result":{"content":[{"type":"text","text":"call-12"}]}}"#;
        assert_eq!(answered_number(good).expect("a good answer"), 12);
        let mixed_up =
            br#"{"jsonrpc":"2.0","id":12,"result":{"content":[{"type":"text","text":"call-13"}]}}"#;
        assert!(answered_number(mixed_up).is_err());
        assert!(answered_number(br#"{"jsonrpc":"2.0","error":{}}"#).is_err());
    }
}
