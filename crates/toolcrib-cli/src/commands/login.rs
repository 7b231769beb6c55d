//! `toolcrib login` and `toolcrib logout`: the OAuth logins to remote servers.

pub(super) mod browser;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use toolcrib::config::Config;
use toolcrib::oauth::{DeviceLogin, Login, LoginRequest, LoginSummary, Logins, OAuthError, OAuthErrorKind};
use toolcrib::spec::Endpoint;
use toolcrib::spec::auth::Grant;
use toolcrib::util::clock::wall_time;
use toolcrib::util::encoding::percent_encode;
use toolcrib::util::format::format_duration;
use toolcrib::{Caller, ErrorKind, ServerId, ServerSpec};

use crate::cli::{LoginArgs, LogoutArgs};
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::hints::shell_word;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::redirect_listener::{Redirect, RedirectListener};
use crate::secrets::SecretLocator;

/// A server to log in to, and whose login it is.
struct LoginTarget<'a> {
    spec: &'a ServerSpec,
    caller: Caller,
    logins: Logins,
}

impl<'a> LoginTarget<'a> {
    /// Creates the target of a login for the local user, or for a caller of a server with a login per caller.
    fn new(
        spec: &'a ServerSpec,
        caller: Option<&str>,
        config: &Config,
        logins: &Logins,
    ) -> Result<Self, CommandError> {
        let caller = match caller {
            Some(name) => check_caller(spec, name, config)?,
            None => Caller::local(),
        };
        Ok(Self { spec, logins: logins.for_caller(&caller), caller })
    }

    fn request<'r>(&'r self, redirect_uri: &'r str) -> LoginRequest<'r> {
        LoginRequest { server: self.spec, logins: &self.logins, redirect_uri }
    }

    /// Returns the command that logs in.
    fn command(&self) -> String {
        match self.caller == Caller::local() {
            true => format!("toolcrib login {}", self.spec.id),
            false => format!("toolcrib login {} --as {}", self.spec.id, shell_word(self.caller.as_str())),
        }
    }
}

/// Logs in to one server or to all, or shows the logins.
pub(crate) async fn run(args: &LoginArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let config = paths.valid_config()?;
    let logins = open_logins(paths, &config);
    if args.status {
        return show(args.server.as_deref(), &config, &logins, out);
    }
    let Some(name) = &args.server else { return log_in_to_all(args, &config, &logins, paths, out).await };
    let spec = find_remote(name, &config)?;
    let target = LoginTarget::new(spec, args.caller.as_deref(), &config, &logins)?;
    let Some(summary) = log_in(&target, args, out).await? else { return Ok(ExitStatus::Interrupted) };
    finish(&target, &summary, paths, out).await?;
    Ok(ExitStatus::Success)
}

/// Removes the login to a server.
pub(crate) async fn log_out(args: &LogoutArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let config = paths.valid_config()?;
    let server: ServerId = args.server.parse().map_err(|_| unknown_server(&args.server))?;
    let caller = args.caller.as_deref().map_or_else(Caller::local, Caller::new);
    let logins = open_logins(paths, &config).for_caller(&caller);
    let was_logged_in = logins.log_out(&server).await.map_err(|error| login_error(&server, "", &error))?;
    if out.json {
        let report = json!({"server": server.as_str(), "caller": caller.as_str(), "removed": was_logged_in});
        out.print_json(&report)?;
    } else if was_logged_in {
        out.print_note(&format!("logged out of `{server}`{}", shown_caller(&caller)))?;
    } else {
        out.print_note(&format!("there is no login to `{server}`{}", shown_caller(&caller)))?;
    }
    if was_logged_in && let Some(error) = reconnect(&server, &caller, paths).await?
        // Without a login, that is how a server answers.
        && error.code != ErrorKind::AuthNeeded.facts().name
    {
        warn_of_reconnect(&error, out)?;
    }
    Ok(ExitStatus::Success)
}

/// Checks that a server has a login per caller and that the caller may exist. Callers of issuers are not in the config.
fn check_caller(spec: &ServerSpec, name: &str, config: &Config) -> Result<Caller, CommandError> {
    let server = &spec.id;
    if !spec.has_login_per_caller() {
        let message = format!("all callers share the login to `{server}`");
        let hint =
            format!("set `servers.{server}.sharing = \"per-caller\"`, or run: toolcrib login {server}");
        return Err(CommandError::usage(message).hint(hint));
    }
    let is_known = name == Caller::local().as_str()
        || name.contains(':')
        || config.callers.iter().any(|caller| caller.name == name);
    match is_known {
        true => Ok(Caller::new(name)),
        false => {
            let message = format!("no caller is called `{}`", name.escape_default());
            Err(CommandError::usage(message).hint(format!("declare `callers.{name}` in the config")))
        }
    }
}

fn open_logins(paths: &Paths, config: &Config) -> Logins {
    let secrets = SecretLocator::new(paths, &config.secrets);
    Logins::new(std::sync::Arc::new(secrets), paths.state_dir())
}

fn unknown_server(name: &str) -> CommandError {
    CommandError::usage(format!("no server is called `{}`", name.escape_default())).hint("toolcrib ls")
}

fn find_remote<'a>(name: &str, config: &'a Config) -> Result<&'a ServerSpec, CommandError> {
    let spec = config.roster.servers().find(|spec| spec.id.as_str() == name);
    let spec = spec.ok_or_else(|| unknown_server(name))?;
    let Endpoint::Http(remote) = &spec.endpoint else {
        let message = format!("`{name}` runs on this machine and needs no login");
        return Err(CommandError::usage(message).hint(format!("toolcrib show {name}")));
    };
    if remote.has_authorization() {
        let message =
            format!("`{name}` has an `Authorization` header in the config, which is used instead of a login");
        return Err(CommandError::usage(message).hint(format!("toolcrib why {name}")));
    }
    if remote.auth.grant != Grant::AuthorizationCode {
        let grant = remote.auth.grant.as_str();
        let message = format!("`{name}` gets its tokens with `grant = \"{grant}\"` and needs no login");
        return Err(CommandError::usage(message).hint(format!("toolcrib why {name}")));
    }
    Ok(spec)
}

/// Logs in to every remote server that asks for it. One that fails does not stop the others.
async fn log_in_to_all(
    args: &LoginArgs,
    config: &Config,
    logins: &Logins,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let mut exit = ExitStatus::Success;
    for spec in config.roster.servers().filter(|spec| find_remote(spec.id.as_str(), config).is_ok()) {
        let state = logins.summary(&spec.id).map(|summary| summary.state(wall_time()));
        if state == Some(toolcrib::oauth::LoginState::Ok) {
            out.print_note(&format!("`{}`: logged in", spec.id))?;
            continue;
        }
        let target = LoginTarget::new(spec, None, config, logins)?;
        match log_in(&target, args, out).await {
            Ok(Some(summary)) => finish(&target, &summary, paths, out).await?,
            Ok(None) => return Ok(ExitStatus::Interrupted),
            Err(error) if error.code == OAuthErrorKind::NotRequired.as_str() => {
                out.print_note(&format!("`{}`: no login required", spec.id))?;
            }
            Err(error) => {
                out.print_error(&error)?;
                exit = error.exit;
            }
        }
    }
    Ok(exit)
}

/// Logs in to a server. Returns `None` if a signal interrupts it.
async fn log_in(
    target: &LoginTarget<'_>,
    args: &LoginArgs,
    out: &mut Output,
) -> Result<Option<LoginSummary>, CommandError> {
    if args.device {
        return log_in_with_code(target, args, out).await;
    }
    let LoginTarget { spec, logins, .. } = target;
    let failed = |error: OAuthError| login_error(&spec.id, &target.command(), &error);
    let unexpected = |error: std::io::Error| CommandError::unexpected(&error);
    let listener = RedirectListener::bind_for(logins, &spec.id).await.map_err(unexpected)?;
    let redirect_uri = listener.redirect_uri();
    let login = Login::start(target.request(&redirect_uri));
    let login = wait_for(format!("looking for the login of `{}`", spec.id), login).await.map_err(failed)?;
    let opened = !args.no_browser && browser::open(login.url()).await;
    let can_paste = out.prompter().is_interactive();
    let has_no_browser = !opened && !can_paste && std::env::var_os("SSH_CONNECTION").is_some();
    if has_no_browser && login.offers_device_code() {
        return log_in_with_code(target, args, out).await;
    }
    print_instructions(&login, opened, can_paste, args, out).map_err(unexpected)?;
    let redirect = next_redirect(&listener, &login, can_paste, out);
    // The line would overwrite what is pasted.
    let redirect = async {
        match can_paste {
            true => redirect.await,
            false => wait_for("waiting for the login in the browser", redirect).await,
        }
    };
    let Some(redirect) = until_timeout(target, args, redirect).await? else { return Ok(None) };
    let redirect = redirect.map_err(unexpected)?;
    let finished = wait_for("requesting a token", login.finish(&redirect.url)).await;
    redirect.answer_finished(&finished).await;
    finished.map(Some).map_err(failed)
}

/// Logs in with a code that the person enters in a browser on any machine.
async fn log_in_with_code(
    target: &LoginTarget<'_>,
    args: &LoginArgs,
    out: &mut Output,
) -> Result<Option<LoginSummary>, CommandError> {
    let failed = |error: OAuthError| login_error(&target.spec.id, &target.command(), &error);
    let login = DeviceLogin::start(target.request(""));
    let action = format!("looking for the login of `{}`", target.spec.id);
    let login = wait_for(action, login).await.map_err(failed)?;
    let instructions =
        format!("open in a browser on any machine:\n  {}\nthe code is: {}", login.url(), login.user_code());
    out.print_stderr(&instructions).map_err(|error| CommandError::unexpected(&error))?;
    let finished = wait_for("waiting for the login in the browser", login.finish());
    let Some(finished) = until_timeout(target, args, finished).await? else { return Ok(None) };
    finished.map(Some).map_err(failed)
}

fn print_instructions(
    login: &Login,
    opened: bool,
    can_paste: bool,
    args: &LoginArgs,
    out: &mut Output,
) -> std::io::Result<()> {
    let action = if opened {
        "a browser was opened; if it does not show the login, open"
    } else {
        "open in a browser"
    };
    out.print_stderr(&format!("{action}:\n  {}", login.url()))?;
    if !can_paste {
        return Ok(());
    }
    let wait = format_duration(args.timeout);
    let other_way = match login.offers_device_code() {
        true => ", or log in with `--device`",
        false => "",
    };
    out.print_stderr(&format!(
        "waiting for the login, up to {wait}; if the browser runs on another machine, paste the URL that it ends at here{other_way}:"
    ))
}

/// Waits for a part of the login that depends on the person. Returns `None` if a signal interrupts it.
async fn until_timeout<F: Future>(
    target: &LoginTarget<'_>,
    args: &LoginArgs,
    part: F,
) -> Result<Option<F::Output>, CommandError> {
    let part = tokio::time::timeout(args.timeout, part);
    let ended = super::until_interrupted(part).await.map_err(|error| CommandError::unexpected(&error))?;
    ended.transpose().map_err(|_| {
        let message = format!("no login to `{}` within {}", target.spec.id, format_duration(args.timeout));
        CommandError::new(ExitStatus::TimedOut, "login_timeout", message).hint(target.command())
    })
}

/// Waits for the browser, or for the URL that the person pastes.
async fn next_redirect(
    listener: &RedirectListener,
    login: &Login,
    can_paste: bool,
    out: &mut Output,
) -> std::io::Result<Redirect> {
    tokio::select! {
        redirect = listener.redirect_of(login) => redirect,
        pasted = read_pasted_url(login, out), if can_paste => Ok(Redirect::pasted(&pasted?)),
    }
}

/// Reads lines on stdin up to the URL that the login ends at. Other text, such as another part of the page, is reported and does
/// not end the login.
async fn read_pasted_url(login: &Login, out: &mut Output) -> std::io::Result<String> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line.trim().is_empty() {
            continue;
        }
        match login.check(&line) {
            Err(error)
                if matches!(error.kind(), OAuthErrorKind::InvalidRedirect | OAuthErrorKind::WrongState) =>
            {
                out.print_stderr(&format!("{error}\npaste the URL that the browser ends at:"))?;
            }
            _ => return Ok(line),
        }
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}

/// Runs a part of the login, and shows the progress line if that takes long.
async fn wait_for<F: Future>(action: impl Into<String>, work: F) -> F::Output {
    Wait::new(action, ServerSource::None).run(work).await
}

fn report(target: &LoginTarget<'_>, summary: &LoginSummary, out: &mut Output) -> Result<()> {
    if out.json {
        out.print_json(&summary_json(&target.spec.id, &target.caller, Some(summary)))?;
        return Ok(());
    }
    let scopes = match summary.scopes.is_empty() {
        true => String::new(),
        false => format!(", scopes {}", summary.scopes.join(" ")),
    };
    let caller = shown_caller(&target.caller);
    out.print_note(&format!("logged in to `{}`{caller} at {}{scopes}", target.spec.id, summary.issuer))?;
    Ok(())
}

/// Returns the part of a message that names a caller other than the local user.
fn shown_caller(caller: &Caller) -> String {
    match *caller == Caller::local() {
        true => String::new(),
        false => format!(" for `{}`", caller.as_str()),
    }
}

/// Reports a login, and lets a running gateway use it.
async fn finish(
    target: &LoginTarget<'_>,
    summary: &LoginSummary,
    paths: &Paths,
    out: &mut Output,
) -> Result<()> {
    report(target, summary, out)?;
    if let Some(error) = reconnect(&target.spec.id, &target.caller, paths).await? {
        warn_of_reconnect(&error, out)?;
    }
    Ok(())
}

/// Makes a running gateway connect again, with the changed credentials. Returns the reason if it cannot.
async fn reconnect(server: &ServerId, caller: &Caller, paths: &Paths) -> Result<Option<CommandError>> {
    let Some(client) = GatewayClient::find(paths).await? else { return Ok(None) };
    let caller = percent_encode(caller.as_str());
    let path = format!("{}/restart?caller={caller}", super::server_path(server.as_str()));
    Ok(client.post(&path).await.err())
}

fn warn_of_reconnect(error: &CommandError, out: &mut Output) -> std::io::Result<()> {
    out.warn(&format!("the gateway did not reconnect: {}", error.message), None)
}

fn show(only: Option<&str>, config: &Config, logins: &Logins, out: &mut Output) -> Result<ExitStatus> {
    if let Some(name) = only {
        find_remote(name, config)?;
    }
    let is_shown = |spec: &&ServerSpec| {
        only.is_none_or(|name| spec.id.as_str() == name) && find_remote(spec.id.as_str(), config).is_ok()
    };
    let mut reports = Vec::new();
    for spec in config.roster.servers().filter(is_shown) {
        let callers = if spec.has_login_per_caller() { logins.callers(&spec.id) } else { Vec::new() };
        for caller in std::iter::once(Caller::local()).chain(callers) {
            let summary = logins.for_caller(&caller).summary(&spec.id);
            reports.push(summary_json(&spec.id, &caller, summary.as_ref()));
        }
    }
    if out.json {
        out.print_json(&Value::Array(reports))?;
        return Ok(ExitStatus::Success);
    }
    let row = |report: &Value| {
        let text = |name: &str| report[name].as_str().unwrap_or_default().to_owned();
        ["server", "caller", "login", "issuer"].map(text).to_vec()
    };
    let rows: Vec<Vec<String>> = reports.iter().map(row).collect();
    match rows.is_empty() {
        true => out.print_note("no remote servers without an `Authorization` header")?,
        false => out.print_table(&["SERVER", "CALLER", "LOGIN", "ISSUER"], &rows)?,
    }
    Ok(ExitStatus::Success)
}

fn summary_json(server: &ServerId, caller: &Caller, summary: Option<&LoginSummary>) -> Value {
    let now = wall_time();
    let expires_in = summary.and_then(|summary| summary.expires_at?.duration_since(now).ok());
    json!({
        "server": server.as_str(),
        "caller": caller.as_str(),
        "login": summary.map_or("none", |summary| summary.state(now).as_str()),
        "issuer": summary.map(|summary| &summary.issuer),
        "scopes": summary.map(|summary| &summary.scopes),
        "missing_scopes": summary.map(|summary| &summary.missing_scopes),
        "expires_in": expires_in.map(|left| left.as_secs_f64()),
        "renewable": summary.map(|summary| summary.is_renewable),
    })
}

fn login_error(server: &ServerId, command: &str, error: &OAuthError) -> CommandError {
    let exit = match error.kind() {
        OAuthErrorKind::NotRequired | OAuthErrorKind::Store | OAuthErrorKind::Settings => ExitStatus::Failure,
        OAuthErrorKind::Unreachable => ExitStatus::Unreachable,
        _ => ExitStatus::AuthNeeded,
    };
    let made = CommandError::new(exit, error.kind().as_str(), format!("`{server}`: {error}"));
    match error.kind() {
        OAuthErrorKind::InvalidMetadata | OAuthErrorKind::Registration => {
            made.hint(format!("set `servers.{server}.auth` or `servers.{server}.headers`"))
        }
        OAuthErrorKind::Store => made.hint("toolcrib secret ls"),
        OAuthErrorKind::NotRequired => made.hint(format!("toolcrib tools {server}")),
        OAuthErrorKind::Settings => made.hint("toolcrib check"),
        _ if command.is_empty() => made,
        _ => made.hint(command.to_owned()),
    }
}
