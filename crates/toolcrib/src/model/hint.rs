//! `Hint`: the next step after an error, as data.

use std::fmt;

use crate::model::caller::Caller;
use crate::spec::ServerId;

/// The next step after an error. Programs put it into words with their own commands; its text here names none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hint {
    /// A text for people.
    Text(String),
    /// List the tools, because the name is unknown.
    ListTools,
    /// Use the name that is most similar to the unknown one.
    UseName {
        /// The similar name.
        name: String,
    },
    /// Read the log of a server.
    ReadLog {
        /// The server, if it is known.
        server: Option<ServerId>,
    },
    /// Restart a server.
    RestartServer {
        /// The server, if it is known.
        server: Option<ServerId>,
    },
    /// Repair the declaration of a server, then restart it.
    RepairServer {
        /// The server.
        server: ServerId,
    },
    /// Install a program that was not found, or set the command of a server to its path, then restart the server.
    InstallProgram {
        /// The server.
        server: ServerId,
        /// The program, as the server's command names it.
        program: String,
    },
    /// Make the call at a gateway that is not shutting down.
    StartGateway,
    /// Raise a limit.
    RaiseLimit {
        /// The config key that sets the limit.
        key: String,
    },
    /// Raise the time for a start, or find out from the log why it takes so long.
    RaiseStartTimeout {
        /// The server.
        server: ServerId,
    },
    /// Raise the number of servers that may run, or stop one.
    RaiseRunningServers,
    /// Approve the tools of a server.
    ApproveTools {
        /// The server.
        server: ServerId,
    },
    /// Approve a call.
    ApproveCall {
        /// The id of the approval; see [`Crib::pending_approvals`](crate::Crib::pending_approvals).
        id: String,
    },
    /// Set a secret.
    SetSecret {
        /// The name of the secret.
        name: String,
    },
    /// Check the secret store.
    CheckSecrets,
    /// Log in to a server, or set its `Authorization` header.
    Login {
        /// The server.
        server: ServerId,
    },
    /// Log in to a server for one caller, whose login no one else uses.
    LoginAs {
        /// The server.
        server: ServerId,
        /// The name of the caller.
        caller: String,
    },
}

impl Hint {
    /// Returns the hint to log in to a server for a caller; the local caller need not be named.
    pub(crate) fn login_for(server: &ServerId, caller: &Caller) -> Self {
        let server = server.clone();
        match caller.is_local() {
            true => Self::Login { server },
            false => Self::LoginAs { server, caller: caller.as_str().to_owned() },
        }
    }

    /// Returns what to do about a program that was not found, without the restart of the server.
    pub fn install_program(server: &ServerId, program: &str) -> String {
        let product = match program {
            "npm" | "npx" | "node" => "Node.js (https://nodejs.org)",
            "uv" | "uvx" => "uv (https://docs.astral.sh/uv)",
            "bun" | "bunx" => "Bun (https://bun.sh)",
            "docker" => "Docker (https://docs.docker.com/engine/install)",
            "deno" => "Deno (https://deno.com)",
            path if path.contains(['/', '\\']) => {
                return format!("correct `servers.{server}.command`, or install it");
            }
            "python" => return format!("set `servers.{server}.command` to \"python3\", or install Python"),
            _ => "it",
        };
        format!("install {product}, or set `servers.{server}.command` to the absolute path of `{program}`")
    }

    /// Returns the hint with its text, or the program that it names, changed by `change`.
    pub(crate) fn map_text(self, change: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::Text(text) => Self::Text(change(&text)),
            Self::InstallProgram { server, program } => {
                Self::InstallProgram { server, program: change(&program) }
            }
            hint => hint,
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::ListTools => f.write_str("list the tools"),
            Self::UseName { name } => write!(f, "did you mean `{name}`?"),
            Self::ReadLog { server: Some(server) } => write!(f, "read the log of `{server}`"),
            Self::ReadLog { server: None } => f.write_str("read the log of the server"),
            Self::RestartServer { server: Some(server) } => write!(f, "restart `{server}`"),
            Self::RestartServer { server: None } => f.write_str("restart the server"),
            Self::RepairServer { server } => {
                write!(f, "fix `servers.{server}` in the config, then restart `{server}`")
            }
            Self::InstallProgram { server, program } => {
                write!(f, "{}, then restart `{server}`", Self::install_program(server, program))
            }
            Self::StartGateway => f.write_str("call again once it has been started again"),
            Self::RaiseLimit { key } => write!(f, "raise `{key}`"),
            Self::RaiseStartTimeout { server } => {
                write!(f, "raise `servers.{server}.lifecycle.start-timeout`, or read the log of `{server}`")
            }
            Self::RaiseRunningServers => f.write_str("raise `limits.servers-running`, or stop a server"),
            Self::ApproveTools { server } => write!(f, "approve the tools of `{server}`"),
            Self::ApproveCall { id } => write!(f, "approve the call `{id}`"),
            Self::SetSecret { name } => write!(f, "set the secret `{name}`"),
            Self::CheckSecrets => f.write_str("check the secret store"),
            Self::Login { server } => write!(f, "log in to `{server}`, or set `servers.{server}.headers`"),
            Self::LoginAs { server, caller } => write!(f, "log in to `{server}` for the caller `{caller}`"),
        }
    }
}

impl From<&str> for Hint {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Compares the text.
impl PartialEq<str> for Hint {
    fn eq(&self, other: &str) -> bool {
        let text = self.to_string();
        text == other
    }
}

/// Compares the text.
impl PartialEq<&str> for Hint {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

/// Compares the text.
impl PartialEq<String> for Hint {
    fn eq(&self, other: &String) -> bool {
        *self == **other
    }
}
