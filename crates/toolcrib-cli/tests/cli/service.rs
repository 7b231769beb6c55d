//! Tests of `toolcrib service` with a `systemctl` that only records its arguments: tests have no user manager.

use super::*;

/// A home folder with a recording `systemctl`.
struct ServiceHome {
    home: Home,
    folder: PathBuf,
}

impl ServiceHome {
    /// Creates a home whose `systemctl` runs this shell script after it has recorded its arguments.
    fn new(script: &str) -> Self {
        let home = Home::with_demo_servers();
        let log = home.0.file("systemctl.log");
        let bin = home.0.file("bin");
        std::fs::create_dir(&bin).unwrap();
        let recorded = format!("#!/bin/sh\necho \"$*\" >> '{}'\n{script}\n", log.display());
        process::write_program(&bin.join("systemctl"), &recorded);
        let folder = home.0.file(".config/systemd/user");
        Self { home, folder }
    }

    fn run(&self, args: &[&str]) -> RunResult {
        self.run_verb(&[&["service"], args].concat())
    }

    fn run_verb(&self, args: &[&str]) -> RunResult {
        let mut command = self.home.command(args);
        let path = format!("{}:/usr/bin:/bin", self.home.0.file("bin").display());
        command.env("PATH", path).env("HOME", self.home.0.path()).env_remove("XDG_CONFIG_HOME");
        deadline::output(&mut command).into()
    }

    /// Returns the recorded calls since the last time, without the probe of the manager.
    fn take_calls(&self) -> Vec<String> {
        let log = self.home.0.file("systemctl.log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        let calls = text.lines().filter(|line| !line.ends_with("show-environment"));
        calls.map(|line| line.trim_start_matches("--user ").to_owned()).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

/// Returns what `systemd-analyze` says about units, or `None` if it is not installed.
fn verify_units(files: &[PathBuf], runtime_dir: &Path) -> Option<String> {
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--user"]).args(files).env("XDG_RUNTIME_DIR", runtime_dir);
    let output = command.stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn service_is_installed_once_and_removed_completely() {
    let home = ServiceHome::new("case \"$*\" in *is-active*) echo inactive; echo inactive; exit 3;; esac");
    let shown = home.run(&["install", "--dry-run"]).expect(0).stdout;
    assert!(shown.contains("ListenStream=127.0.0.1:7717") && shown.contains("run systemctl --user enable"));
    assert!(home.files().is_empty() && home.take_calls().is_empty());
    let installed = home.run(&["install"]).expect(0).stderr;
    assert!(installed.contains("undo: toolcrib service remove"), "{installed}");
    let commands = [
        "show --property=MainPID --value toolcrib.service",
        "daemon-reload",
        "stop toolcrib.service",
        "enable toolcrib.socket",
        "restart toolcrib.socket",
    ];
    assert_eq!(home.take_calls(), commands);
    let files = home.files();
    assert_eq!(files.len(), 2, "{files:?}");
    match verify_units(&files, home.home.0.path()) {
        Some(problems) => assert_eq!(problems, ""),
        None => deadline::skip("systemd-analyze is not installed"),
    }
    let again = home.run(&["install", "--json"]).expect(0).json();
    assert_eq!((&again["installed"], &again["changed"]), (&true.into(), &false.into()));
    assert!(home.take_calls().is_empty());
    assert_eq!(home.run(&["status", "--json"]).expect(0).json()["installed"], true);
    let checked = home.run_verb(&["doctor"]).expect(0).stdout;
    let inactive = "warn  service               it is installed, but not active: toolcrib.socket is inactive";
    assert!(checked.contains(inactive), "{checked}");
    home.take_calls();
    home.run(&["remove"]).expect(0);
    assert_eq!(home.take_calls(), ["disable --now toolcrib.socket toolcrib.service", "daemon-reload"]);
    assert!(home.files().is_empty());
    assert_eq!(home.run(&["remove", "--json"]).expect(0).json()["changed"], false);
}

#[test]
fn failed_installation_leaves_nothing_and_foreign_units_stay() {
    let home = ServiceHome::new("[ \"$2\" = restart ] && { echo 'port is in use' >&2; exit 1; }\nexit 0");
    let failed = home.run(&["install"]).expect(1).stderr;
    assert!(failed.contains("restart toolcrib.socket") && failed.contains("port is in use"), "{failed}");
    assert!(home.files().is_empty());
    let foreign = home.folder.join("toolcrib.service");
    std::fs::write(&foreign, "[Service]\n").unwrap();
    for command in ["install", "remove"] {
        assert!(home.run(&[command]).expect(1).stderr.contains("was not written by toolcrib"));
    }
    assert_eq!(std::fs::read_to_string(&foreign).unwrap(), "[Service]\n");
}

#[test]
fn installation_is_repeated_over_the_running_service() {
    let home = ServiceHome::new(
        "case \"$2\" in show) cat \"$HOME/pid\" ;; enable) [ ! -e \"$HOME/broken\" ] ;; esac",
    );
    home.run(&["install"]).expect(0);
    let gateway = home.home.0.serve();
    let install = |listen: &str| home.run(&["install", "--listen", listen]);
    assert!(install("127.0.0.1:7718").expect(1).stderr.contains("toolcrib stop-gateway"));
    std::fs::write(home.home.0.file("pid"), format!("{}\n", gateway.pid())).unwrap();
    install("127.0.0.1:7718").expect(0);
    let texts = || home.files().iter().map(|file| std::fs::read_to_string(file).unwrap()).collect::<Vec<_>>();
    let installed = texts();
    assert!(installed[1].contains("127.0.0.1:7718"), "{installed:?}");
    std::fs::write(home.home.0.file("broken"), "").unwrap();
    let failed = install("127.0.0.1:7719").expect(1).stderr;
    assert!(failed.contains("enable toolcrib.socket"), "{failed}");
    assert_eq!(texts(), installed, "the previous service is restored");
}

#[test]
fn service_without_a_manager_is_not_needed() {
    let home = ServiceHome::new("exit 1");
    let result = home.run(&["install"]).expect(0);
    assert!(result.stderr.contains("`toolcrib stdio` starts a gateway"), "{}", result.stderr);
    assert_eq!(home.run(&["status", "--json"]).expect(0).json()["manager"], Value::Null);
    assert!(home.files().is_empty());
}
