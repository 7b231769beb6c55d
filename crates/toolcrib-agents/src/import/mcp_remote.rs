//! Converts `npx mcp-remote URL`, a stdio bridge to an HTTP server, to the URL. The bridge logs in with OAuth, so it is
//! kept unless the entry has credentials of its own or the server is on this machine.

use super::draft::ImportDraft;
use crate::secret_heuristics;

/// Programs that run packages of a registry.
const LAUNCHERS: [&str; 6] = ["npx", "npx.cmd", "bunx", "pnpx", "pnpm", "yarn"];
/// Flags of the bridge whose values are of no use without it.
const IGNORED_VALUE_FLAGS: [&str; 5] = [
    "--host",
    "--static-oauth-client-metadata",
    "--static-oauth-client-info",
    "--auth-timeout",
    "--resource",
];

/// Replaces the bridge in a draft by the server it connects to.
pub(super) fn unwrap_bridge(draft: &mut ImportDraft) {
    let command = strip_launcher(&draft.argv);
    let Some((package, rest)) = command.split_first() else { return };
    let is_bridge = package == "mcp-remote" || package.starts_with("mcp-remote@");
    let Some((url, flags)) = rest.split_first().filter(|_| is_bridge) else { return };
    if !url.starts_with("http://") && !url.starts_with("https://") && !url.starts_with("${") {
        return;
    }
    if !has_credentials(url, flags) && !is_loopback(url) {
        draft.notes.push(format!("`mcp-remote` is kept: it may have to log in to `{}`", host(url)));
        return;
    }
    let url = url.clone();
    let flags = flags.to_vec();
    let mut flags = flags.into_iter();
    while let Some(flag) = flags.next() {
        let (name, inline_value) = match flag.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (flag, None),
        };
        match name.as_str() {
            "--header" => add_header(draft, &inline_value.or_else(|| flags.next()).unwrap_or_default()),
            "--transport" => {
                let choice = inline_value.or_else(|| flags.next()).unwrap_or_default();
                draft.transport = match choice.as_str() {
                    "sse-only" => Some("sse"),
                    "http-only" => Some("http"),
                    _ => None,
                };
            }
            name if IGNORED_VALUE_FLAGS.contains(&name) => {
                let _ = inline_value.or_else(|| flags.next());
                draft
                    .notes
                    .push(format!("`{name}` of mcp-remote is omitted: toolcrib has no setting for it"));
            }
            _ => {}
        }
    }
    draft.argv.clear();
    draft.env.clear();
    draft.url = Some(url);
    draft.notes.push("`mcp-remote` was removed: toolcrib connects to the URL itself".to_owned());
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

/// Returns whether the entry has a header, or a URL with a secret in it.
fn has_credentials(url: &str, flags: &[String]) -> bool {
    let has_header = flags.iter().any(|flag| flag == "--header" || flag.starts_with("--header="));
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let mut query_names = query.split('&').filter_map(|pair| pair.split_once('='));
    has_header
        || secret_heuristics::find_url_password(url).is_some()
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
    fn bridge_is_kept_unless_toolcrib_can_log_in() {
        let kept = unwrapped(&["npx", "mcp-remote", "https://x.example/mcp", "--transport", "http-only"]);
        assert_eq!((kept.url, kept.argv.len()), (None, 5));
        assert_eq!(kept.notes, ["`mcp-remote` is kept: it may have to log in to `x.example`"]);
        for url in [
            "https://x/mcp?api_key=abc",
            "https://me:pw@x/mcp",
            "http://127.0.0.1:80/mcp",
            "http://[::1]/mcp",
        ] {
            assert_eq!(unwrapped(&["npx", "mcp-remote", url]).url.as_deref(), Some(url));
        }
        for url in ["https://localhost.example/mcp", "https://x/localhost"] {
            assert_eq!(unwrapped(&["npx", "mcp-remote", url]).url, None, "{url}");
        }
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
