//! The commands of `docs/tutorial.md`, run in one shell, with the outputs that it shows; the configs of `docs/recipes.md`.

use std::io::Write as _;
use std::process::{ChildStdin, Command, Stdio};

use test_support::deadline::{self, Lines};
use test_support::gateway::Home;

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");
const RECIPES: &str = include_str!("../../../docs/recipes.md");

/// Printed after each command, before its exit status.
const END_MARK: &str = "=== end of the command: ";

/// One command of the tutorial and the lines that it shows below it.
#[derive(Debug)]
struct Step {
    command: String,
    shown: Vec<String>,
}

impl Step {
    fn is_in_background(&self) -> bool {
        self.command.ends_with('&')
    }

    /// Returns whether the tutorial shows an error.
    fn shows_failure(&self) -> bool {
        self.shown.iter().any(|line| line.starts_with("error:") || line.starts_with("denied:"))
    }

    /// Returns the first line that the output does not have. The output may have more lines than the tutorial shows.
    fn missing_line(&self, output: &[String]) -> Option<&str> {
        let mut output = output.iter();
        let missing = self.shown.iter().find(|shown| !output.any(|line| matches_shown(shown, line)))?;
        Some(missing)
    }
}

/// Returns whether a line is as shown, where `…` stands for any text.
fn matches_shown(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|start| line.strip_prefix(start)) else { return false };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        is_open = part.is_empty();
    }
    is_open || rest.is_empty()
}

/// Returns the steps in the console blocks.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
            steps.push(Step { command: command.to_owned(), shown: Vec::new() });
        } else if let Some(step) = steps.last_mut().filter(|_| is_console) {
            step.shown.push(line.to_owned());
        }
    }
    steps
}

/// Runs a step and checks its output and its exit status.
fn run(step: &Step, shell: &mut ChildStdin, lines: &Lines) {
    let sent = writeln!(shell, "{}\nprintf '\\n{END_MARK}%s\\n' $?", step.command);
    assert!(sent.is_ok(), "the shell ended before {step:?}");
    let mut output = Vec::new();
    let mut status = None;
    while status.is_none() || (step.is_in_background() && step.missing_line(&output).is_some()) {
        let Some(line) = lines.next_line() else { panic!("the shell ended: {step:?}\n{output:#?}") };
        match line.strip_prefix(END_MARK) {
            Some(code) => status = Some(code.to_owned()),
            None => output.push(line),
        }
    }
    assert_eq!(step.missing_line(&output), None, "{step:?}\n{output:#?}");
    assert_eq!(status.as_deref() != Some("0"), step.shows_failure(), "{step:?}\n{output:#?}");
}

#[test]
fn tutorial_shows_what_its_commands_print() {
    let home = tempfile::tempdir().unwrap();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_crib"), bin.join("toolcrib")).unwrap();
    let uvx = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/uvx");
    std::os::unix::fs::symlink(uvx, bin.join("uvx")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.env_clear().env("HOME", home.path()).env("TMPDIR", home.path()).env("PATH", path);
    command.current_dir(&home).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bash = command.spawn().unwrap();
    let mut shell = bash.stdin.take().unwrap();
    let lines = Lines::new(bash.stdout.take().unwrap());
    writeln!(shell, "exec 2>&1; trap 'kill $(jobs -p)' EXIT").unwrap();
    let steps = steps(TUTORIAL);
    assert!(steps.len() > 10, "{steps:#?}");
    for mut step in steps {
        // Another gateway may use the default port.
        step.command = step.command.replace("toolcrib serve", "toolcrib serve --listen 127.0.0.1:0");
        step.shown = step.shown.iter().map(|line| line.replace(":7717", ":…")).collect();
        run(&step, &mut shell, &lines);
    }
    drop(shell);
    while lines.next_line().is_some() {}
    deadline::wait(&mut bash);
}

#[test]
fn recipes_have_valid_configs() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), "");
    let configs = RECIPES.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap());
    for (number, config) in configs.enumerate() {
        let file = home.file(&format!("recipe-{number}.toml"));
        std::fs::write(&file, config).unwrap();
        for secret in config.split("${secret:").skip(1).map(|rest| rest.split('}').next().unwrap()) {
            let mut command = home.command(&["secret", "set", secret]);
            assert!(deadline::output_with_input(&mut command, TOKEN).status.success());
        }
        let mut check = home.command(&["--config", file.to_str().unwrap(), "check"]);
        let output = deadline::output(check.env("TEAM_TOKEN", TOKEN));
        assert!(output.status.success(), "{config}\n{output:?}");
    }
}
