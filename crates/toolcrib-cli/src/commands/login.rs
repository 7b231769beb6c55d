//! `toolcrib login` and `toolcrib logout`: the OAuth logins to remote servers.

pub(super) mod browser;
mod redirect_listener;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::config::Config;
use toolcrib::oauth::{Login, LoginRequest, LoginSummary, Logins, OAuthError, OAuthErrorKind};
use toolcrib::spec::Endpoint;
use toolcrib::spec::auth::Grant;
use toolcrib::util::clock::wall_time;
use toolcrib::util::format::format_duration;
use toolcrib::{ServerId, ServerSpec};

use self::redirect_listener::{Redirect, RedirectListener};
use crate::cli::{LoginArgs, LogoutArgs};
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::secrets::SecretLocator;

/// Logs in to one server or to all, or shows the logins.
pub(crate) async fn run(args: &LoginArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let config = paths.valid_config()?;
    let logins = open_logins(paths, &config);
    if args.status {
        return show(args.server.as_deref(), &config, &logins, out);
    }
    let Some(name) = &args.server else { return log_in_to_all(args, &config, &logins, paths, out).await };
    let spec = find_remote(name, &config)?;
    let summary = log_in(spec, args, &logins, out).await?;
    if let Some(summary) = summary {
        report(spec, &summary, out)?;
        restart(&spec.id, paths, out).await?;
        return Ok(ExitStatus::Success);
    }
    Ok(ExitStatus::Interrupted)
}

/// Removes the login to a server.
pub(crate) async fn log_out(args: &LogoutArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let config = paths.valid_config()?;
    let server: ServerId = args.server.parse().map_err(|_| unknown_server(&args.server))?;
    let was_logged_in =
        open_logins(paths, &config).log_out(&server).await.map_err(|error| login_error(&server, &error))?;
    if out.json {
        out.print_json(&json!({"server": server.as_str(), "removed": was_logged_in}))?;
    } else if was_logged_in {
        out.print_note(&format!("logged out of `{server}`"))?;
    } else {
        out.print_note(&format!("there is no login to `{server}`"))?;
    }
    if was_logged_in {
        restart(&server, paths, out).await?;
    }
    Ok(ExitStatus::Success)
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
        match log_in(spec, args, logins, out).await {
            Ok(Some(summary)) => {
                report(spec, &summary, out)?;
                restart(&spec.id, paths, out).await?;
            }
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
    spec: &ServerSpec,
    args: &LoginArgs,
    logins: &Logins,
    out: &mut Output,
) -> Result<Option<LoginSummary>, CommandError> {
    let failed = |error: OAuthError| login_error(&spec.id, &error);
    let unexpected = |error: std::io::Error| CommandError::unexpected(&error);
    let port = last_port(logins, &spec.id).await;
    let mut listener = RedirectListener::bind(port).await.map_err(unexpected)?;
    let redirect_uri = listener.redirect_uri();
    let login = Login::start(LoginRequest { server: spec, logins, redirect_uri: &redirect_uri });
    let login = wait_for(format!("looking for the login of `{}`", spec.id), login).await.map_err(failed)?;
    let opened = !args.no_browser && browser::open(login.url()).await;
    let action = if opened {
        "a browser was opened; if it does not show the login, open"
    } else {
        "open in a browser"
    };
    out.print_stderr(&format!("{action}:\n  {}", login.url())).map_err(unexpected)?;
    let can_paste = out.prompter().is_interactive();
    if can_paste {
        let wait = format_duration(args.timeout);
        let hint = format!(
            "waiting for the login, up to {wait}; if the browser runs on another machine, paste the URL that it ends at here:"
        );
        out.print_stderr(&hint).map_err(unexpected)?;
    }
    let redirect = tokio::time::timeout(args.timeout, next_redirect(&mut listener, &login, can_paste));
    // The line would overwrite what is pasted.
    let redirect = async {
        match can_paste {
            true => redirect.await,
            false => wait_for("waiting for the login in the browser", redirect).await,
        }
    };
    let interrupted =
        super::until_interrupted(redirect).await.map_err(|error| CommandError::unexpected(&error))?;
    let Some(redirect) = interrupted else { return Ok(None) };
    let redirect = redirect.map_err(|_| {
        let message = format!("no login to `{}` within {}", spec.id, format_duration(args.timeout));
        CommandError::new(ExitStatus::TimedOut, "login_timeout", message)
            .hint(format!("toolcrib login {}", spec.id))
    })?;
    let redirect = redirect.map_err(unexpected)?;
    let finished = wait_for("requesting a token", login.finish(&redirect.url)).await;
    let page = match &finished {
        Ok(_) => "You are logged in. You can close this page.".to_owned(),
        Err(error) => format!("The login failed: {error}"),
    };
    redirect.answer(page).await;
    finished.map(Some).map_err(failed)
}

/// Waits for the redirect of a login. Any page in a browser can send requests to the port, so those without the login's
/// `state` are refused and do not end it. A URL that the person pastes is always taken.
async fn next_redirect(
    listener: &mut RedirectListener,
    login: &Login,
    can_paste: bool,
) -> std::io::Result<Redirect> {
    loop {
        let redirect = listener.next(can_paste).await?;
        if redirect.is_pasted() || login.has_state(&redirect.url) {
            return Ok(redirect);
        }
        redirect.answer("This page does not belong to the login.".to_owned()).await;
    }
}

/// Runs a part of the login, and shows the progress line if that takes long.
async fn wait_for<F: Future>(action: impl Into<String>, work: F) -> F::Output {
    Wait::new(action, ServerSource::None).run(work).await
}

/// Returns the port of the last login to a server.
async fn last_port(logins: &Logins, server: &ServerId) -> Option<u16> {
    let logins = logins.clone();
    let server = server.clone();
    tokio::task::spawn_blocking(move || logins.redirect_port(&server)).await.ok().flatten()
}

fn report(spec: &ServerSpec, summary: &LoginSummary, out: &mut Output) -> Result<()> {
    if out.json {
        out.print_json(&summary_json(&spec.id, Some(summary)))?;
        return Ok(());
    }
    let scopes = match summary.scopes.is_empty() {
        true => String::new(),
        false => format!(", scopes {}", summary.scopes.join(" ")),
    };
    out.print_note(&format!("logged in to `{}` at {}{scopes}", spec.id, summary.issuer))?;
    Ok(())
}

/// Makes a running gateway connect again, with the new credentials.
async fn restart(server: &ServerId, paths: &Paths, out: &mut Output) -> Result<()> {
    let Some(client) = GatewayClient::find(paths).await? else { return Ok(()) };
    match client.post(&format!("{}/restart", super::server_path(server.as_str()))).await {
        Ok(_) => Ok(()),
        Err(error) => Ok(out.warn(&format!("the gateway did not reconnect: {}", error.message), None)?),
    }
}

fn show(only: Option<&str>, config: &Config, logins: &Logins, out: &mut Output) -> Result<ExitStatus> {
    if let Some(name) = only {
        find_remote(name, config)?;
    }
    let is_shown = |spec: &&ServerSpec| {
        only.is_none_or(|name| spec.id.as_str() == name) && find_remote(spec.id.as_str(), config).is_ok()
    };
    let servers: Vec<&ServerSpec> = config.roster.servers().filter(is_shown).collect();
    let reports = servers.iter().map(|spec| summary_json(&spec.id, logins.summary(&spec.id).as_ref()));
    if out.json {
        out.print_json(&Value::Array(reports.collect()))?;
        return Ok(ExitStatus::Success);
    }
    let text = |report: &Value, name: &str| report[name].as_str().unwrap_or_default().to_owned();
    let rows =
        reports.map(|report| vec![text(&report, "server"), text(&report, "login"), text(&report, "issuer")]);
    let rows: Vec<Vec<String>> = rows.collect();
    match rows.is_empty() {
        true => out.print_note("no remote servers without an `Authorization` header")?,
        false => out.print_table(&["SERVER", "LOGIN", "ISSUER"], &rows)?,
    }
    Ok(ExitStatus::Success)
}

fn summary_json(server: &ServerId, summary: Option<&LoginSummary>) -> Value {
    let now = wall_time();
    let expires_in = summary.and_then(|summary| summary.expires_at?.duration_since(now).ok());
    json!({
        "server": server.as_str(),
        "login": summary.map_or("none", |summary| summary.state(now).as_str()),
        "issuer": summary.map(|summary| &summary.issuer),
        "scopes": summary.map(|summary| &summary.scopes),
        "missing_scopes": summary.map(|summary| &summary.missing_scopes),
        "expires_in": expires_in.map(|left| left.as_secs_f64()),
        "renewable": summary.map(|summary| summary.is_renewable),
    })
}

fn login_error(server: &ServerId, error: &OAuthError) -> CommandError {
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
        _ => made.hint(format!("toolcrib login {server}")),
    }
}
