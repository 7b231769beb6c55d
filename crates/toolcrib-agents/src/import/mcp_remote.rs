//! Converts `npx mcp-remote URL`, a stdio bridge to an HTTP server, to the URL.

use super::draft::ImportDraft;
use super::references::{self, ReferenceSyntax};

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

/// Adds a header in the form `NAME: VALUE`. `${X}` refers to the environment of the bridge.
fn add_header(draft: &mut ImportDraft, header: &str) {
    let Some((name, value)) = header.split_once(':') else { return };
    let mut value = references::to_toolcrib_syntax(ReferenceSyntax::ANY, value.trim())
        .unwrap_or_else(|_| value.trim().to_owned());
    for (variable, content) in &draft.env {
        value = value.replace(&format!("${{env:{variable}}}"), content);
    }
    draft.headers.insert(name.trim().to_owned(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrapped(argv: &[&str]) -> ImportDraft {
        let mut draft = ImportDraft {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            ..ImportDraft::default()
        };
        draft.env.insert("AUTH".to_owned(), "Bearer abc".to_owned());
        unwrap_bridge(&mut draft);
        draft
    }

    #[test]
    fn bridge_is_removed_with_every_launcher() {
        for argv in [
            &["npx", "-y", "mcp-remote", "https://x/mcp"][..],
            &["npx", "mcp-remote@0.1.30", "https://x/mcp", "3334", "--allow-http"],
            &["cmd", "/c", "npx", "-y", "mcp-remote@latest", "https://x/mcp"],
            &["/usr/bin/bunx", "mcp-remote", "https://x/mcp"],
            &["pnpm", "dlx", "mcp-remote", "https://x/mcp"],
            &["mcp-remote", "https://x/mcp"],
        ] {
            let draft = unwrapped(argv);
            assert_eq!(
                (draft.url.as_deref(), draft.argv.len(), draft.transport),
                (Some("https://x/mcp"), 0, None),
                "{argv:?}"
            );
        }
        assert_eq!(unwrapped(&["npx", "-y", "other", "https://x/mcp"]).url, None);
        assert_eq!(unwrapped(&["npx", "mcp-remote"]).url, None);
    }

    #[test]
    fn bridge_headers_and_transport_are_kept() {
        let draft = unwrapped(&[
            "npx",
            "mcp-remote",
            "https://x/sse",
            "--header",
            "Authorization:${AUTH}",
            "--transport",
            "sse-only",
        ]);
        assert_eq!(draft.headers["Authorization"], "Bearer abc");
        assert_eq!(draft.transport, Some("sse"));
        assert!(draft.env.is_empty());
    }
}
