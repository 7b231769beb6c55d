//! The service as a unit of the systemd user manager. systemd listens on the sockets and starts the gateway with the first
//! connection.

use std::path::Path;

use super::user_service::{MARKER, ServiceFile, ServicePlan, ServiceSpec, command};
use crate::listen::ListenAddr;

/// Returns the files of the service, and the commands that install it.
pub(super) fn install_plan(spec: &ServiceSpec, folder: &Path) -> ServicePlan {
    let socket_unit = format!("{}.socket", spec.name);
    let service_unit = format!("{}.service", spec.name);
    ServicePlan {
        files: vec![
            ServiceFile { path: folder.join(&socket_unit), text: socket_text(spec) },
            ServiceFile { path: folder.join(&service_unit), text: service_text(spec, &socket_unit) },
        ],
        commands: vec![
            systemctl(&["daemon-reload"]),
            // A running gateway keeps systemd from opening its sockets.
            systemctl(&["stop", &service_unit]),
            systemctl(&["enable", &socket_unit]),
            systemctl(&["restart", &socket_unit]),
        ],
    }
}

/// Returns the commands that stop the service, and those after its files were removed.
pub(super) fn remove_commands(name: &str) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
    let stop = ["disable", "--now", &format!("{name}.socket"), &format!("{name}.service")].map(str::to_owned);
    let stop: Vec<&str> = stop.iter().map(String::as_str).collect();
    (vec![systemctl(&stop)], vec![systemctl(&["daemon-reload"])])
}

/// Returns the command that prints the states of the units, one per line.
pub(super) fn status_command(name: &str) -> Vec<String> {
    systemctl(&["is-active", &format!("{name}.socket"), &format!("{name}.service")])
}

fn systemctl(args: &[&str]) -> Vec<String> {
    command(&[&["systemctl", "--user"], args].concat())
}

fn socket_text(spec: &ServiceSpec) -> String {
    let address = match &spec.listen {
        ListenAddr::Tcp(address) => format!("ListenStream={address}\n"),
        ListenAddr::Unix(_) => String::new(),
    };
    format!(
        "{MARKER}\n[Unit]\nDescription=Sockets of toolcrib, a gateway in front of MCP servers\n\n\
         [Socket]\nListenStream={}\n{address}SocketMode=0600\nDirectoryMode=0700\n\n\
         [Install]\nWantedBy=sockets.target\n",
        escape_specifiers(&spec.socket.display().to_string())
    )
}

fn service_text(spec: &ServiceSpec, socket_unit: &str) -> String {
    let words: Vec<String> = spec.command().iter().map(|word| quote(&word.replace('$', "$$"))).collect();
    let environment: String = spec
        .environment
        .iter()
        .map(|(name, value)| format!("Environment={}\n", quote(&format!("{name}={value}"))))
        .collect();
    format!(
        "{MARKER}\n[Unit]\nDescription=toolcrib, a gateway in front of MCP servers\nRequires={socket_unit}\nAfter={socket_unit}\n\n\
         [Service]\nType=exec\nExecStart={}\nExecReload=/bin/kill -HUP $MAINPID\n{environment}Restart=on-failure\nRestartSec=1\n\
         # The gateway stops its servers itself, after their calls.\nKillMode=mixed\nTimeoutStopSec=30\n",
        words.join(" ")
    )
}

/// Quotes a word of a unit file.
fn quote(word: &str) -> String {
    format!("\"{}\"", escape_specifiers(word).replace('\\', "\\\\").replace('"', "\\\""))
}

fn escape_specifiers(text: &str) -> String {
    text.replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_quote_paths_and_open_both_sockets() {
        let spec =
            ServiceSpec { config_flag: Some("/my \"own\" %h/$x.toml".into()), ..ServiceSpec::for_test() };
        let plan = install_plan(&spec, Path::new("/u"));
        let [socket, service] = &plan.files[..] else { panic!("{} files", plan.files.len()) };
        assert_eq!(socket.path, Path::new("/u/toolcrib.socket"));
        assert!(
            socket.text.contains("ListenStream=/run/user/7/toolcrib/k.sock\nListenStream=127.0.0.1:7717\n")
        );
        let line = |start: &str| service.text.lines().find(|line| line.starts_with(start)).unwrap();
        assert_eq!(
            line("ExecStart="),
            r#"ExecStart="/opt/toolcrib" "serve" "--listen" "127.0.0.1:7717" "--config" "/my \"own\" %%h/$$x.toml""#
        );
        assert_eq!(line("Environment="), r#"Environment="PATH=/bin:/usr/bin""#);
        assert!(service.text.contains("KillMode=mixed"));
    }
}
