//! Other users of the machine, and servers that read the gateway's own process.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Uid;
use test_support::deadline;
use test_support::gateway::{GatewayProcess, Home};

const OTHER_USER: u32 = 65533;
const CALLERS: &str = "[callers.scraper]\ntoken = 'scraper-token-0123456789'\nadmin = true\n";
const TOKEN: &str = "Authorization: Bearer scraper-token-0123456789\r\n";

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &format!("[servers.a]\ncommand = 'true'\n{config}"))
}

/// Returns the gateway on a loopback address.
fn serve(home: &Home, address: &str) -> GatewayProcess {
    home.serve_command(home.command(&["serve", "--listen", address]))
}

/// Returns the status that a user gets for a request with these headers.
fn request_as(user: u32, gateway: &GatewayProcess, path: &str, headers: &str) -> String {
    let address = gateway.address;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    let script = r#"exec 3<>"/dev/tcp/$1/$2"; printf '%s' "$3" >&3; cat <&3"#;
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", &address.ip().to_string(), &address.port().to_string(), &request]);
    let output = deadline::output(command.uid(user).current_dir("/"));
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    let status = answer.split_whitespace().nth(1).unwrap_or_default().to_owned();
    assert!(!status.is_empty(), "{answer}{}", String::from_utf8_lossy(&output.stderr));
    if status == "403" {
        assert!(answer.contains("[callers.NAME]") && answer.contains("listen.any-user"), "{answer}");
    }
    status
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        deadline::skip("only root can be another user");
    }
    is_root
}

#[test]
fn other_user_is_refused_without_callers() {
    if !is_root() {
        return;
    }
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let home = home("");
        let gateway = serve(&home, address);
        for path in ["/api/v1/status", "/mcp"] {
            assert_eq!(request_as(OTHER_USER, &gateway, path, ""), "403", "{address}");
        }
        assert_eq!(
            request_as(OTHER_USER, &gateway, "/healthz", ""),
            "200",
            "{address}: the status is public"
        );
        assert_eq!(request_as(0, &gateway, "/api/v1/status", ""), "200", "{address}");
    }
}

#[test]
fn other_user_with_a_token_or_any_user_is_served() {
    if !is_root() {
        return;
    }
    let declared = home(CALLERS);
    let gateway = serve(&declared, "127.0.0.1:0");
    assert_eq!(request_as(OTHER_USER, &gateway, "/api/v1/status", TOKEN), "200");
    assert_eq!(request_as(OTHER_USER, &gateway, "/api/v1/status", ""), "401");
    let open = home("[listen]\nany-user = true\n");
    let gateway = serve(&open, "127.0.0.1:0");
    assert_eq!(request_as(OTHER_USER, &gateway, "/api/v1/status", ""), "200");
}

#[test]
fn reload_without_callers_refuses_open_connections_of_other_users() {
    if !is_root() {
        return;
    }
    let home = home(CALLERS);
    let gateway = serve(&home, "127.0.0.1:0");
    assert_eq!(request_as(OTHER_USER, &gateway, "/api/v1/status", TOKEN), "200");
    home.write_config("[servers.a]\ncommand = 'true'\n");
    gateway.wait_for_line("config reloaded");
    assert_eq!(request_as(OTHER_USER, &gateway, "/api/v1/status", TOKEN), "403");
}

#[test]
fn key_is_removed_from_the_environment_of_the_gateway() {
    let home = home("");
    let gateway = home.serve_with(|command| {
        command.env("TOOLCRIB_KEY", "AGE-SECRET-KEY-1CANARY");
    });
    match std::fs::read(format!("/proc/{}/environ", gateway.pid())) {
        Ok(environment) => {
            assert!(rustix::process::geteuid().is_root(), "only root may read it");
            let text = String::from_utf8_lossy(&environment);
            assert!(text.contains("TOOLCRIB_HOME") && !text.contains("CANARY"), "{text}");
        }
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
    }
}

#[test]
fn short_token_is_reported_by_check_and_serve() {
    let home = home("[callers.a]\ntoken = 'short'\n[callers.b]\ntoken = 'long-enough-0123456789'\n");
    let note = "the token of `callers.a` has fewer than 16 characters";
    let output = home.run(&["check"]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains(note) && !printed.contains("callers.b"), "{printed}");
    let gateway = home.serve();
    assert!(gateway.stderr_lines().iter().any(|line| line.contains(note)), "{:?}", gateway.stderr_lines());
}

/// Returns a socket whose listener belongs to another user, as far as its clients can tell.
fn listen_as_other_user(path: PathBuf) -> io::Result<UnixListener> {
    let listen = move || {
        // Changes this thread only.
        rustix::thread::set_thread_uid(Uid::from_raw(OTHER_USER))?;
        UnixListener::bind(path)
    };
    std::thread::spawn(listen).join().map_err(|_| io::Error::other("the thread panicked"))?
}

/// Writes and locks the lock file of a gateway with this process id.
fn hold_lock(path: &Path, pid: u32) -> io::Result<File> {
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path)?;
    write!(file, "{pid}\nauto-started\n")?;
    file.lock()?;
    Ok(file)
}

#[test]
fn gateway_files_of_other_users_are_ignored() {
    if !is_root() {
        return;
    }
    let home = home("");
    home.serve().stop();
    let records = std::fs::read_dir(home.path().join("state/gateways")).unwrap();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "address");
    let record = records.map(|entry| entry.unwrap().path()).find(is_record).unwrap();
    let folder = home.path().join("other");
    let socket = folder.join(record.with_extension("sock").file_name().unwrap());
    let lock = socket.with_extension("lock");
    std::fs::create_dir(&folder).unwrap();
    let set_mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set_mode(home.path(), 0o711);
    set_mode(&folder, 0o777);
    let listener = listen_as_other_user(socket.clone()).unwrap();
    set_mode(&folder, 0o755);
    std::fs::write(&record, socket.as_os_str().as_bytes()).unwrap();
    let mut victim = Command::new("sleep").arg("1000").spawn().unwrap();
    let held = hold_lock(&lock, victim.id()).unwrap();

    let output = home.run(&["status"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("belongs to another user"), "{output:?}");
    let mut received = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
    assert_eq!(String::from_utf8_lossy(&received), "", "sent to another user");

    let output = home.run(&["stop-gateway"]);
    assert_eq!(output.status.code(), Some(1), "the lock is held by another process: {output:?}");
    std::os::unix::fs::chown(&lock, Some(OTHER_USER), None).unwrap();
    assert!(home.run(&["stop-gateway"]).status.success(), "the lock file of another user does not count");
    std::os::unix::fs::chown(&lock, Some(0), None).unwrap();
    let link = home.path().join("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    std::fs::write(&record, link.join(socket.file_name().unwrap()).as_os_str().as_bytes()).unwrap();
    assert!(home.run(&["stop-gateway"]).status.success(), "links are not followed");

    std::fs::write(&record, socket.as_os_str().as_bytes()).unwrap();
    drop(held);
    home.serve().stop();
    assert_eq!(victim.try_wait().unwrap(), None, "another process was signalled");
    victim.kill().unwrap();
    victim.wait().unwrap();
}
