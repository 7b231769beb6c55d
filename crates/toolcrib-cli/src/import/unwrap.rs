//! `npx mcp-remote URL` → the URL: a server with an address that somebody had to dress up as a command.

use super::draft::Draft;
use super::references::{self, Ways};

/// What is put before programs of a registry.
const LAUNCHERS: [&str; 6] = ["npx", "npx.cmd", "bunx", "pnpx", "pnpm", "yarn"];
/// Flags of the bridge that take a value that is of no use without it.
const VALUES: [&str; 5] = [
    "--host",
    "--static-oauth-client-metadata",
    "--static-oauth-client-info",
    "--auth-timeout",
    "--resource",
];

/// Takes the bridge away, if there is one.
pub(super) fn unwrap(draft: &mut Draft) {
    let words = without_launcher(&draft.argv);
    let Some((package, rest)) = words.split_first() else { return };
    let is_bridge = package == "mcp-remote" || package.starts_with("mcp-remote@");
    let Some((url, flags)) = rest.split_first().filter(|_| is_bridge) else { return };
    if !url.starts_with("http://") && !url.starts_with("https://") && !url.starts_with("${") {
        return;
    }
    let (url, flags) = (url.clone(), flags.to_vec());
    let mut flags = flags.into_iter();
    while let Some(flag) = flags.next() {
        let (name, joined) = match flag.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (flag, None),
        };
        match name.as_str() {
            "--header" => header(draft, &joined.or_else(|| flags.next()).unwrap_or_default()),
            "--transport" => {
                let choice = joined.or_else(|| flags.next()).unwrap_or_default();
                draft.transport = match choice.as_str() {
                    "sse-only" => Some("sse"),
                    "http-only" => Some("http"),
                    _ => None,
                };
            }
            name if VALUES.contains(&name) => {
                let _ = joined.or_else(|| flags.next());
                draft.notes.push(format!("`{name}` of mcp-remote is left out: toolcrib has no word for it"));
            }
            _ => {}
        }
    }
    draft.argv.clear();
    draft.env.clear();
    draft.url = Some(url);
    draft.notes.push("`mcp-remote` is not needed: toolcrib asks the address itself".to_owned());
}

fn without_launcher(argv: &[String]) -> &[String] {
    let mut words = argv;
    if let [shell, flag, rest @ ..] = words
        && shell.eq_ignore_ascii_case("cmd")
        && flag.eq_ignore_ascii_case("/c")
    {
        words = rest;
    }
    let base = |word: &String| word.rsplit(['/', '\\']).next().map(str::to_owned).unwrap_or_default();
    if words.first().is_some_and(|word| LAUNCHERS.contains(&base(word).as_str())) {
        words = &words[1..];
        while words.first().is_some_and(|word| word.starts_with('-') || word == "dlx") {
            words = &words[1..];
        }
    }
    words
}

/// `NAME: VALUE`; the bridge replaces `${X}` by variables of its own environment.
fn header(draft: &mut Draft, written: &str) {
    let Some((name, value)) = written.split_once(':') else { return };
    let mut value = references::ours(Ways::ANY, value.trim()).unwrap_or_else(|_| value.trim().to_owned());
    for (variable, known) in &draft.env {
        value = value.replace(&format!("${{env:{variable}}}"), known);
    }
    draft.headers.insert(name.trim().to_owned(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrapped(argv: &[&str]) -> Draft {
        let mut draft =
            Draft { argv: argv.iter().map(|&word| word.to_owned()).collect(), ..Draft::default() };
        draft.env.insert("AUTH".to_owned(), "Bearer abc".to_owned());
        unwrap(&mut draft);
        draft
    }

    #[test]
    fn the_bridge_is_taken_away_however_it_is_started() {
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
    fn its_headers_and_its_transport_are_kept() {
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
