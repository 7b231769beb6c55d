//! Secrets that a command prints, such as `pass show NAME`. It is given little time, no input, and its words stay here.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use toolcrib::{NoSecret, Secret};
use zeroize::Zeroizing;

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most that it may print.
const LARGEST: u64 = 64 << 10;

/// What the command prints, without the end of its last line.
pub(super) fn ask(words: &[String]) -> Result<Secret, NoSecret> {
    ask_within(words, PATIENCE)
}

fn ask_within(words: &[String], patience: Duration) -> Result<Secret, NoSecret> {
    let failed = |why: String| NoSecret::Failed(why);
    let Some((program, args)) = words.split_first() else {
        return Err(failed("there is no command".to_owned()));
    };
    // Its stderr goes nowhere: what it says there may hold what it was asked for.
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let child = child.map_err(|error| failed(format!("cannot run `{program}`: {error}")))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Whoever waited may have given up.
        let _ = tell.send(listen(child));
    });
    let Ok(heard) = told.recv_timeout(patience) else {
        // It and whatever it started; the thread sees it out.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        return Err(failed(format!("`{program}` took longer than {} s", patience.as_secs())));
    };
    let (said, ended) = heard.map_err(|error| failed(format!("`{program}`: {error}")))?;
    let is_small = said.len() as u64 <= LARGEST;
    match std::str::from_utf8(&said) {
        // One that is not read to its end may end badly for that alone.
        Ok(_) if is_small && !ended.success() => Err(failed(format!("`{program}` ended with {ended}"))),
        Ok(text) if is_small => {
            let value = text.strip_suffix('\n').unwrap_or(text);
            let value = value.strip_suffix('\r').unwrap_or(value);
            if value.is_empty() { Err(NoSecret::NotFound) } else { Ok(Secret::new(value)) }
        }
        _ => Err(failed(format!("`{program}` printed what is no secret"))),
    }
}

/// Everything that it prints, and how it ends.
fn listen(mut child: Child) -> io::Result<(Zeroizing<Vec<u8>>, ExitStatus)> {
    let mut said = Zeroizing::new(Vec::new());
    let stdout = child.stdout.take();
    stdout.map(|stdout| stdout.take(LARGEST + 1).read_to_end(&mut said)).transpose()?;
    Ok((said, child.wait()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Result<Secret, NoSecret> {
        ask(&["sh", "-c", script].map(str::to_owned))
    }

    #[test]
    fn what_is_printed_is_the_secret() {
        assert_eq!(sh("echo a b"), Ok(Secret::new("a b")));
        assert_eq!(sh("printf 'x\\n\\n'"), Ok(Secret::new("x\n")));
        assert_eq!(sh("true"), Err(NoSecret::NotFound));
    }

    #[test]
    fn what_goes_wrong_is_said_without_what_was_printed() {
        for (script, words) in
            [("echo can4ry; exit 3", "exit status: 3"), ("head -c 100000 /dev/zero", "no secret")]
        {
            let Err(NoSecret::Failed(why)) = sh(script) else { panic!("{script}") };
            assert!(why.contains(words) && !why.contains("can4ry"), "{why}");
        }
        let slow = ask_within(&["sh", "-c", "sleep 1000"].map(str::to_owned), Duration::from_millis(200));
        assert!(matches!(slow, Err(NoSecret::Failed(why)) if why.contains("took longer")));
        let gone = ask(&["/nowhere/pass".to_owned()]).unwrap_err();
        assert!(gone.of("x").contains("/nowhere/pass"), "{gone:?}");
    }
}
