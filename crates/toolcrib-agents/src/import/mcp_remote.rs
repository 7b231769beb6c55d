//! Converts `npx mcp-remote URL`, a stdio bridge to an HTTP server, to the URL. The bridge is kept if it has an option that
//! toolcrib cannot express.

use super::draft::ImportDraft;
use crate::secret_heuristics;

/// Programs that run packages of a registry.
const LAUNCHERS: [&str; 6] = ["npx", "npx.cmd", "bunx", "pnpx", "pnpm", "yarn"];
/// Flags of the bridge that change nothing for toolcrib.
const IGNORED_FLAGS: [&str; 4] = ["--allow-http", "--debug", "--silent", "--enable-proxy"];
/// Flags with a value that change nothing for toolcrib: they concern the login of the bridge itself.
const IGNORED_VALUE_FLAGS: [&str; 2] = ["--host", "--auth-timeout"];

/// The arguments of a bridge after its URL.
#[derive(Debug, Default)]
struct BridgeOptions {
    /// Headers in the form `NAME: VALUE`.
    headers: Vec<String>,
    transport: Option<&'static str>,
    /// Patterns of tools that are hidden.
    ignored_tools: Vec<String>,
}

impl BridgeOptions {
    /// Reads the arguments. The error is a flag that toolcrib cannot express.
    fn parse(flags: &[String]) -> Result<Self, &str> {
        let mut options = Self::default();
        let mut flags = flags.iter().map(String::as_str);
        while let Some(flag) = flags.next() {
            let (name, inline_value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            let mut value = || inline_value.or_else(|| flags.next()).unwrap_or_default();
            match name {
                "--header" => options.headers.push(value().to_owned()),
                "--ignore-tool" => options.ignored_tools.push(value().to_owned()),
                "--transport" => {
                    options.transport = match value() {
                        "sse-only" => Some("sse"),
                        "http-only" => Some("http"),
                        _ => None,
                    };
                }
                name if IGNORED_VALUE_FLAGS.contains(&name) => drop(value()),
                name if name.starts_with('-') && !IGNORED_FLAGS.contains(&name) => return Err(name),
                // The port for the login of the bridge.
                _ => {}
            }
        }
        Ok(options)
    }
}

/// Replaces the bridge in a draft by the server it connects to. Returns whether that server may ask for a login.
pub(super) fn unwrap_bridge(draft: &mut ImportDraft) -> bool {
    let command = strip_launcher(&draft.argv);
    let Some((package, rest)) = command.split_first() else { return false };
    let is_bridge = package == "mcp-remote" || package.starts_with("mcp-remote@");
    let Some((url, flags)) = rest.split_first().filter(|_| is_bridge) else { return false };
    if !url.starts_with("http://") && !url.starts_with("https://") && !url.starts_with("${") {
        return false;
    }
    let options = match BridgeOptions::parse(flags) {
        Ok(options) => options,
        Err(flag) => {
            let note = format!("`mcp-remote` is kept: toolcrib has no setting for its option `{flag}`");
            draft.notes.push(note);
            return false;
        }
    };
    let url = url.clone();
    let may_need_login = options.headers.is_empty() && !has_credentials(&url) && !is_loopback(&url);
    options.headers.iter().for_each(|header| add_header(draft, header));
    draft.transport = options.transport;
    draft.deny.extend(options.ignored_tools);
    draft.argv.clear();
    draft.env.clear();
    draft.url = Some(url);
    draft.notes.push("`mcp-remote` was removed: toolcrib connects to the URL itself".to_owned());
    may_need_login
}

/// Returns the command without `cmd /c`, a launcher such as `npx`, and the launcher's flags.
fn strip_launcher(argv: &[String]) -> &[String] {
    let mut command = argv;
    if let [shell, flag, rest @ ..] = command
        && shell.eq_ignore_ascii_case("cmd")
        && flag.eq_ignore_ascii_case("/c")
    {
        command = rest;
    }
    let file_name =
        |argument: &String| argument.rsplit(['/', '\\']).next().map(str::to_owned).unwrap_or_default();
    if command.first().is_some_and(|argument| LAUNCHERS.contains(&file_name(argument).as_str())) {
        command = &command[1..];
        while command.first().is_some_and(|argument| argument.starts_with('-') || argument == "dlx") {
            command = &command[1..];
        }
    }
    command
}

/// Returns whether a URL has a secret in it.
fn has_credentials(url: &str) -> bool {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let mut query_names = query.split('&').filter_map(|pair| pair.split_once('='));
    secret_heuristics::find_url_password(url).is_some()
        || query_names.any(|(name, _)| secret_heuristics::is_secret_name(name))
        || path.split('/').skip(3).any(secret_heuristics::is_secret_value)
}

/// Returns the host and port of a URL.
fn host(url: &str) -> &str {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    authority.split(['/', '?', '#']).next().unwrap_or_default()
}

fn is_loopback(url: &str) -> bool {
    let host = host(url);
    let name = if host.starts_with('[') { host } else { host.split(':').next().unwrap_or_default() };
    name == "localhost" || name.starts_with("127.") || host.starts_with("[::1]")
}

/// Adds a header in the form `NAME: VALUE`. Its references have been converted.
fn add_header(draft: &mut ImportDraft, header: &str) {
    if let Some((name, value)) = header.split_once(':') {
        draft.headers.insert(name.trim().to_owned(), value.trim().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrapped(argv: &[&str]) -> ImportDraft {
        let mut draft = ImportDraft {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            ..ImportDraft::default()
        };
        unwrap_bridge(&mut draft);
        draft
    }

    #[test]
    fn bridge_is_removed_with_every_launcher() {
        for argv in [
            &["npx", "-y", "mcp-remote", "http://localhost:1/mcp"][..],
            &["npx", "mcp-remote@0.1.30", "http://localhost:1/mcp", "3334", "--allow-http"],
            &["cmd", "/c", "npx", "-y", "mcp-remote@latest", "http://localhost:1/mcp"],
            &["/usr/bin/bunx", "mcp-remote", "http://localhost:1/mcp"],
            &["pnpm", "dlx", "mcp-remote", "http://localhost:1/mcp"],
            &["mcp-remote", "http://localhost:1/mcp"],
        ] {
            let draft = unwrapped(argv);
            assert_eq!(
                (draft.url.as_deref(), draft.argv.len(), draft.transport),
                (Some("http://localhost:1/mcp"), 0, None),
                "{argv:?}"
            );
        }
        assert_eq!(unwrapped(&["npx", "-y", "other", "https://x/mcp"]).url, None);
        assert_eq!(unwrapped(&["npx", "mcp-remote"]).url, None);
    }

    #[test]
    fn login_is_needed_unless_the_entry_has_credentials() {
        for (url, expected) in [
            ("https://x.example/mcp", true),
            ("https://localhost.example/mcp", true),
            ("https://x/localhost", true),
            ("https://x/mcp?api_key=abc", false),
            ("https://me:pw@x/mcp", false),
            ("http://127.0.0.1:80/mcp", false),
            ("http://[::1]/mcp", false),
        ] {
            let mut draft = ImportDraft { argv: vec!["mcp-remote".into(), url.into()], ..Default::default() };
            assert_eq!(unwrap_bridge(&mut draft), expected, "{url}");
            assert_eq!(draft.url.as_deref(), Some(url));
        }
    }

    #[test]
    fn bridge_is_kept_with_options_that_toolcrib_lacks() {
        for flag in
            ["--static-oauth-client-info", "--static-oauth-client-metadata=@a.json", "--resource", "--new"]
        {
            let kept = unwrapped(&["npx", "mcp-remote", "https://x.example/mcp", "--debug", flag, "v"]);
            assert_eq!((kept.url, kept.argv.len()), (None, 6), "{flag}");
            let name = flag.split('=').next().unwrap();
            let note = format!("`mcp-remote` is kept: toolcrib has no setting for its option `{name}`");
            assert_eq!(kept.notes, [note]);
        }
        let flags = ["3334", "--host", "127.0.0.1", "--auth-timeout=60", "--ignore-tool", "delete*"];
        let draft = unwrapped(&[&["mcp-remote", "https://x.example/mcp"][..], &flags].concat());
        assert_eq!((draft.url.is_some(), draft.deny), (true, vec!["delete*".to_owned()]));
    }

    #[test]
    fn bridge_headers_and_transport_are_kept() {
        let header = "Authorization: Bearer ${env:AUTH}";
        let draft =
            unwrapped(&["npx", "mcp-remote", "https://x/sse", "--header", header, "--transport", "sse-only"]);
        assert_eq!(draft.headers["Authorization"], "Bearer ${env:AUTH}");
        assert_eq!(draft.transport, Some("sse"));
    }
}
