//! Commands as a person uses them: at a terminal, with and without a gateway.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::process::Command;

use serde_json::Value;
use test_support::deadline;
use test_support::gateway::{GatewayProcess, Home, server_config};
use test_support::terminal::{self, TerminalRun};

const COLUMNS: u16 = 60;

/// A home with the reference server, and a gateway for it if one is wanted.
struct Setup {
    home: Home,
    _gateway: Option<GatewayProcess>,
}

impl Setup {
    fn new(with_gateway: bool) -> Self {
        let server = env!("CARGO_BIN_EXE_reference-server");
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &server_config(server, "reference", &["--stdio"]));
        let gateway = with_gateway.then(|| home.serve());
        Self { home, _gateway: gateway }
    }

    /// Returns what a command prints on stdout into a pipe.
    #[track_caller]
    fn stdout(&self, args: &[&str]) -> String {
        let output = self.home.run(args);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(args)).unwrap()
    }

    #[track_caller]
    fn type_keys(&self, args: &[&str], keys: &str) -> TerminalRun {
        let run = terminal::run(self.home.command(args), COLUMNS, keys);
        assert_eq!(run.status.code(), Some(0), "{}", run.shown);
        run
    }
}

#[test]
fn questions_of_servers_are_asked_at_the_terminal() {
    for with_gateway in [false, true] {
        let setup = Setup::new(with_gateway);
        let call = ["call", "reference", "test_elicitation_sep1330_enums"];
        // In the order of the names: legacyEnum, titledMulti, titledSingle, untitledMulti, untitledSingle.
        let run = setup.type_keys(&call, "opt2\n1,value3\n9\n2\n\noption1\n");
        assert!(run.shown.contains("Choose of every kind"), "{}", run.shown);
        assert!(run.shown.contains("2. value2 (Second Option)"), "{}", run.shown);
        assert!(run.shown.contains("`9` is not one of the values"), "{}", run.shown);
        for answer in [
            r#""legacyEnum":"opt2""#,
            r#""titledMulti":["value1","value3"]"#,
            r#""titledSingle":"value2""#,
            r#""untitledSingle":"option1""#,
        ] {
            assert!(run.shown.contains(answer), "{answer}: {}", run.shown);
        }
        assert!(!run.shown.contains("untitledMulti\":"), "{}", run.shown);
        let rounds = ["call", "reference.test_input_required_result_multi_round"];
        let run = setup.type_keys(&rounds, "Ada\nred\n");
        assert!(run.shown.contains("Ada") && run.shown.contains("\"color\":\"red\""), "{}", run.shown);
        let declined = terminal::run(
            setup.home.command(&["call", "reference.test_elicitation", "message=Who?"]),
            COLUMNS,
            "\u{4}",
        );
        assert!(declined.shown.contains("\"action\":\"decline\""), "{}", declined.shown);
        // Without a terminal the server is told that no person can be asked.
        let refused = setup.home.run(&["call", "reference.test_elicitation", "message=Who?"]);
        assert_eq!(refused.status.code(), Some(5), "{refused:?}");
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            message.contains("elicitation") && message.contains("hint: run the command in a terminal"),
            "{message}"
        );
    }
}

#[test]
fn binary_content_is_described_or_saved() {
    for with_gateway in [false, true] {
        let setup = Setup::new(with_gateway);
        let call = ["call", "reference.test_multiple_content_types"];
        let printed = setup.stdout(&call);
        assert!(printed.contains("[image: image/png, 69 B; --save DIR saves it]"), "{printed}");
        assert!(printed.contains(r#"{"test":"data","value":123}"#), "{printed}");
        let folder = setup.home.file("saved");
        let folder_text = folder.to_str().unwrap();
        setup.stdout(&[&call[..], &["--save", folder_text]].concat());
        assert!(std::fs::read(folder.join("image.png")).unwrap().starts_with(b"\x89PNG"));
        let raw = setup.json(&[&call[..], &["--json"]].concat());
        assert_eq!(raw["content"][1]["mimeType"], "image/png");
        setup.stdout(&["resources", "test://static-binary", "--save", folder_text]);
        assert!(std::fs::read(folder.join("static-binary.png")).unwrap().starts_with(b"\x89PNG"));
        let shown = setup.type_keys(&["resources", "test://static-binary"], "").shown;
        assert!(shown.contains("[resource test://static-binary: image/png, 69 B"), "{shown}");
    }
}

#[test]
fn resources_prompts_and_completions() {
    for with_gateway in [false, true] {
        let setup = Setup::new(with_gateway);
        let listed = setup.json(&["resources", "--json"]);
        assert_eq!(listed["resources"][0]["uri"], "test://static-text");
        assert_eq!(listed["templates"][0]["uriTemplate"], "test://template/{id}/data");
        assert!(setup.stdout(&["resources"]).contains("test://static-text\ttext/plain\t"));
        let text = setup.stdout(&["resources", "test://static-text"]);
        assert_eq!(text, "This is the content of the static text resource.\n");
        let prompts = setup.stdout(&["prompts"]);
        assert!(prompts.contains("reference__test_prompt_with_arguments\targ1 arg2\t"), "{prompts}");
        let words = ["prompts", "reference.test_prompt_with_arguments", "arg1=x", "arg2=1"];
        assert_eq!(setup.stdout(&words), "user: Prompt with arguments: arg1='x', arg2='1'\n");
        let name = "reference__test_prompt_with_arguments";
        setup.json(&["complete", name, "arg1=p", "--json"])["completion"]["values"].as_array().unwrap();
        let unknown = setup.home.run(&["resources", "test://nothing"]);
        assert_eq!(unknown.status.code(), Some(5), "{unknown:?}");
    }
}

#[test]
fn tools_fit_the_terminal_and_their_examples_work() {
    let setup = Setup::new(true);
    let shown = setup.type_keys(&["tools"], "").shown;
    assert!(shown.starts_with("reference (") && shown.contains("\n  greet "), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= COLUMNS.into()), "{shown}");
    let cost = setup.stdout(&["tools", "--cost"]);
    let total: usize = cost.lines().last().unwrap().rsplit('\t').next().unwrap().parse().unwrap();
    assert!(total > 100, "{cost}");
    for tool in ["greet", "test_simple_text", "json_schema_2020_12_tool"] {
        let page = setup.stdout(&["tools", &format!("reference.{tool}")]);
        let example = page.lines().last().unwrap().trim();
        let arguments = example.strip_prefix(&format!("toolcrib call reference__{tool}")).unwrap();
        // As it is copied into a shell.
        let script = format!("\"$0\" call reference__{tool}{arguments}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_crib")]).env("TOOLCRIB_HOME", setup.home.path());
        let output = deadline::output(&mut shell);
        assert_eq!(output.status.code(), Some(0), "{example}: {output:?}");
    }
}
