//! Reads a secret from the output of a command such as `pass show NAME`, with a timeout and without input.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use toolcrib::{Secret, SecretError};
use zeroize::Zeroizing;

/// Time limit for the command.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Limit on the output size.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Runs a command and returns its output without the final line ending.
pub(super) fn read_secret(argv: &[String]) -> Result<Secret, SecretError> {
    read_secret_within(argv, TIMEOUT)
}

fn read_secret_within(argv: &[String], timeout: Duration) -> Result<Secret, SecretError> {
    let failed = |reason: String| SecretError::Failed(reason);
    let Some((program, args)) = argv.split_first() else {
        return Err(failed("the command is empty".to_owned()));
    };
    // Stderr is discarded because it may contain the secret.
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let child = child.map_err(|error| failed(format!("cannot run `{program}`: {error}")))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is gone after a timeout.
        let _ = sender.send(collect_output(child));
    });
    let Ok(result) = receiver.recv_timeout(timeout) else {
        // Kills the whole process group; the thread reaps the child.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        return Err(failed(format!("`{program}` timed out after {} s", timeout.as_secs())));
    };
    let (output, status) = result.map_err(|error| failed(format!("`{program}`: {error}")))?;
    let is_small = output.len() as u64 <= MAX_OUTPUT_BYTES;
    match std::str::from_utf8(&output) {
        // The status of a command with too much output is not checked: its pipe was closed early.
        Ok(_) if is_small && !status.success() => Err(failed(format!("`{program}` failed: {status}"))),
        Ok(text) if is_small => {
            let value = text.strip_suffix('\n').unwrap_or(text);
            let value = value.strip_suffix('\r').unwrap_or(value);
            if value.is_empty() { Err(SecretError::NotFound) } else { Ok(Secret::new(value)) }
        }
        _ => Err(failed(format!("`{program}` printed too much or invalid UTF-8"))),
    }
}

/// Reads the output up to the size limit and waits for the exit status.
fn collect_output(mut child: Child) -> io::Result<(Zeroizing<Vec<u8>>, ExitStatus)> {
    let mut output = Zeroizing::new(Vec::new());
    let stdout = child.stdout.take();
    stdout.map(|stdout| stdout.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output)).transpose()?;
    Ok((output, child.wait()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Result<Secret, SecretError> {
        read_secret(&["sh", "-c", script].map(str::to_owned))
    }

    #[test]
    fn output_is_the_secret() {
        assert_eq!(sh("echo a b"), Ok(Secret::new("a b")));
        assert_eq!(sh("printf 'x\\n\\n'"), Ok(Secret::new("x\n")));
        assert_eq!(sh("true"), Err(SecretError::NotFound));
    }

    #[test]
    fn errors_never_contain_the_output() {
        for (script, expected) in
            [("echo can4ry; exit 3", "exit status: 3"), ("head -c 100000 /dev/zero", "too much")]
        {
            let Err(SecretError::Failed(reason)) = sh(script) else { panic!("{script}") };
            assert!(reason.contains(expected) && !reason.contains("can4ry"), "{reason}");
        }
        let slow =
            read_secret_within(&["sh", "-c", "sleep 1000"].map(str::to_owned), Duration::from_millis(200));
        assert!(matches!(slow, Err(SecretError::Failed(reason)) if reason.contains("timed out")));
        let missing = read_secret(&["/nowhere/pass".to_owned()]).unwrap_err();
        assert!(missing.message("x").contains("/nowhere/pass"), "{missing:?}");
    }
}
