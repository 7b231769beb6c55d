//! Tests of `doctor`, `add --try`, and `logs` without a gateway.

use super::*;

fn find_check<'a>(report: &'a Value, server: Option<&str>, id: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["server"].as_str() == server && check["id"] == id);
    check.unwrap_or_else(|| panic!("{server:?}: {id} is missing in {report:#}"))
}

/// Returns the status and the fix of a check.
fn status_and_fix(report: &Value, server: Option<&str>, id: &str) -> (String, Option<String>) {
    let check = find_check(report, server, id);
    assert!(check["message"].is_string(), "{check}");
    (check["status"].as_str().unwrap().to_owned(), check["fix"].as_str().map(str::to_owned))
}

#[test]
fn doctor_reports_every_check_with_its_fix() {
    let broken = "[servers.absent]\ncommand = 'no-such-program'\n\
                  [servers.unset]\ncommand = 'cat'\nargs = ['${env:TOOLCRIB_TEST_UNSET}', '${secret:none}']\n\
                  [servers.script]\ncommand = 'sh'\nargs = ['./no-such-script.sh']\n\
                  [servers.invalid]\ncomand = 'x'\n\
                  [servers.off]\ncommand = 'no-such-program'\nenabled = false\n";
    let home = Home::new(&format!("{}\n{}\n{broken}", server("echo", "echo"), crashing()));
    let report = home.run(&["doctor", "--json"]).expect(2).json();
    let check = |server: &str, id: &str| status_and_fix(&report, Some(server), id);
    assert_eq!(check("echo", "start").0, "pass");
    for (server, id, fix) in [
        ("absent", "command", "servers.absent.command"),
        ("absent", "start", "servers.absent"),
        ("unset", "environment", "TOOLCRIB_TEST_UNSET"),
        ("script", "package", "no-such-script.sh"),
        ("crashing", "start", "servers.crashing"),
        ("invalid", "config", "command"),
    ] {
        let (status, text) = check(server, id);
        assert_eq!(status, "fail", "{server}: {id}");
        assert!(text.as_deref().is_some_and(|text| text.contains(fix)), "{server}: {id}: {text:?}");
    }
    assert!(report.to_string().contains("toolcrib secret set none"), "{report:#}");
    assert!(!report["checks"].as_array().unwrap().iter().any(|check| check["server"] == "off"), "{report:#}");

    let shown = home.run(&["doctor", "echo"]).expect(0).stdout;
    assert!(shown.contains("echo: start") && !shown.contains("crashing"), "{shown}");
    let shown = home.run(&["doctor", "crashing"]).expect(2).stdout;
    assert!(shown.contains("crashing on purpose") && shown.contains("\n      fix: "), "{shown}");
    home.run(&["doctor", "nothing"]).expect(1);
    home.write("");
    home.run(&["doctor"]).expect(0);
    std::fs::remove_file(home.config()).unwrap();
    let empty = home.run(&["doctor", "--json"]).expect(0).json();
    assert_eq!(status_and_fix(&empty, None, "config").0, "warn");
}

#[test]
fn doctor_of_one_server_is_about_that_server() {
    let broken = "[servers.invalid]\ncomand = 'x'\n[servers.ls]\ncommand = 'echo'\nargs = ['hello there']\n\
                  [servers.down]\nurl = 'http://127.0.0.1:1/mcp'\n";
    let home = Home::new(&format!("{}\n{broken}", server("echo", "echo")));
    let shown = home.run(&["doctor", "echo"]).expect(0).stdout;
    assert!(shown.contains("`echo`, no problems"), "{shown}");
    let shown = home.run(&["doctor", "ls"]).expect(2).stdout;
    assert!(shown.contains("wrote `hello there`, which is not a message"), "{shown}");
    let shown = home.run(&["doctor", "down"]).expect(2).stdout;
    assert!(shown.contains("cannot be reached") && !shown.contains("next attempt"), "{shown}");
    for command in [&["status", "invalid"][..], &["call", "invalid", "x"]] {
        let shown = home.run(command).expect(6).stderr;
        assert_eq!(shown.matches("error: ").count(), 1, "{shown}");
        let (_, error) = shown.split_once("error: ").unwrap();
        assert!(
            error.contains("unknown key `comand`") && error.contains("did you mean `command`?"),
            "{shown}"
        );
        let reports = shown.lines().filter(|line| line.contains("unknown key") && !line.contains("warning"));
        assert_eq!(reports.count(), 1, "{shown}");
    }
}

#[test]
fn doctor_shows_only_the_line_that_explains_an_exit() {
    let script = r"printf 'npm error code E404\nnpm error 404 Not Found - x\nnpm error A complete log: y\n' >&2; exit 1";
    let home = Home::new(&format!("[servers.npm]\ncommand = 'sh'\nargs = ['-c', '''{script}''']\n"));
    let report = home.run(&["doctor", "--json"]).expect(2).json();
    let start = find_check(&report, Some("npm"), "start").to_string();
    assert!(start.contains("404 Not Found - x") && !start.contains("complete log"), "{start}");
}

#[test]
fn doctor_starts_servers_in_the_gateway() {
    let home = Home::with_demo_servers();
    let gateway = home.serve(&["-q"]);
    let report = home.run(&["doctor", "--json"]).expect(0).json();
    assert_eq!(status_and_fix(&report, None, "gateway").0, "pass");
    assert_eq!(status_and_fix(&report, None, "service").0, "pass");
    let status = home.run(&["status", "--json"]).expect(0).json();
    for server in status["servers"].as_array().unwrap() {
        assert_eq!((&server["state"], &server["generation"]), (&"ready".into(), &1.into()), "{server}");
    }
    let page = home.run(&["status", "echo"]).expect(0).stdout;
    for section in ["State\n", "\nProcess\n", "\nLimits\n", "\nTools\n", "\nRecent events\n"] {
        assert!(page.contains(section), "{section:?}: {page}");
    }
    drop(gateway);
    home.run(&["status", "echo"]).expect(4);
}

#[test]
fn add_try_writes_only_a_server_that_starts() {
    let config = format!("# mine\n{}", server("echo", "echo"));
    let home = Home::new(&config);
    let failed = home.run(&["add", "--try", "bad", "--", PROGRAM, "demo-server", "crashing"]).expect(2);
    assert!(failed.stdout.contains("crashing on purpose"), "{}", failed.stdout);
    let json = home.run(&["add", "--try", "--json", "bad", "--", PROGRAM, "demo-server", "crashing"]);
    assert_eq!(json.expect(2).error()["code"], "check_failed");
    assert_eq!(std::fs::read_to_string(home.config()).unwrap(), config);
    let added = home.run(&["add", "--try", "good", "--", PROGRAM, "demo-server", "echo"]).expect(0);
    assert!(added.stdout.contains("good: start") && !added.stdout.contains("echo: "), "{}", added.stdout);
    assert_eq!(home.run(&["call", "good", "say", "text=x"]).expect(0).stdout, "x\n");
}

#[test]
fn add_try_says_how_to_pass_a_missing_variable() {
    let home = Home::new("");
    let script = "echo 'Error: GITHUB_TOKEN environment variable is required' >&2; exit 1";
    let failed = home.run(&["add", "--try", "hub", "--", "sh", "-c", script]).expect(2);
    let fix = "pass the variable with `-e GITHUB_TOKEN=VALUE` or `--inherit-env GITHUB_TOKEN`";
    assert!(failed.stdout.contains(fix), "{}", failed.stdout);
    let script = "echo 'Error: no such folder' >&2; exit 1";
    let failed = home.run(&["add", "--try", "hub", "--", "sh", "-c", script]).expect(2);
    assert!(failed.stdout.contains("check the command and its arguments"), "{}", failed.stdout);
    assert!(!failed.stdout.contains("servers.hub"), "it is not declared: {}", failed.stdout);
}

#[test]
fn logs_are_read_from_the_file_without_a_gateway() {
    let home = Home::with_demo_servers();
    home.run(&["logs", "echo"]).expect(4);
    let gateway = home.serve(&["-q"]);
    home.run(&["restart", "echo"]).expect(0);
    drop(gateway);
    let lines = |args: &[&str]| -> Vec<String> {
        home.run(args).expect(0).stdout.lines().map(str::to_owned).collect()
    };
    let all = lines(&["logs", "echo"]);
    let is_stamped = |line: &String| line.starts_with("20") && line.as_bytes()[23] == b'Z';
    assert!(all.len() > 2 && all.iter().all(is_stamped), "{all:#?}");
    assert!(all.iter().any(|line| line.contains("`echo` is up")), "{all:#?}");
    assert_eq!(lines(&["logs", "echo", "-n", "2"]), all[all.len() - 2..]);
    assert_eq!(lines(&["logs", "echo", "--since", "1h"]), all);
    assert!(lines(&["logs", "echo", "--since", "2099-01-01"]).is_empty());
    home.run(&["logs", "echo", "--since", "noon"]).expect(1);
    let line: Value = serde_json::from_str(&lines(&["logs", "echo", "--json"])[0]).unwrap();
    assert!(line["at"].is_string() && line["line"].is_string(), "{line}");
    home.run(&["logs", "echo", "-f"]).expect(4);
}
