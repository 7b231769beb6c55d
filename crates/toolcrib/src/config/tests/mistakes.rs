//! One mistake at a time, inside a server and outside.

use super::*;

/// The only problem of `[servers.x]` with these keys, after `servers.x`'s own `command` unless it has one.
fn problem_of(keys: &str) -> Problem {
    let command = if keys.starts_with("command") { "" } else { "command = \"c\"\n" };
    let config = toml(&format!("[servers.good]\ncommand = \"g\"\n[servers.x]\n{command}{keys}"));
    assert_eq!(names(&config), ["good"], "{keys}: {:?}", config.problems);
    assert_eq!(config.problems.len(), 1, "{keys}: {:?}", lines(&config));
    assert_eq!(config.problems[0].concerns, Concern::Server("x".to_owned()), "{keys}");
    assert!(!config.refused());
    config.problems[0].clone()
}

fn check(keys: &str, message: &str, hint: &str) {
    let problem = problem_of(keys);
    assert!(problem.message.contains(message), "{keys}: {}", problem.message);
    assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{keys}: {:?}", problem.hint);
}

#[test]
fn a_mistake_in_a_server_is_named_where_it_stands() {
    for (keys, message, hint) in [
        ("command = ''", "`command` is empty", "`command = \"npx\"`"),
        ("command = '  '", "`command` is empty", "`command = \"npx\"`"),
        ("command = 'npx -y @a/b'", "not a command line", "`args = [\"…\"]`"),
        ("command = '~/bin/x'", "there is no shell", "`${env:HOME}`"),
        ("command = 5", "`command` must be a string, not a number", "`command = \"5\"`"),
        ("command = \"a\\u0000\"", "NUL", "leave the character out"),
        ("command = 'x'\nurl = 'y'", "never both", "leave `url` out"),
        ("argss = []", "there is no key `argss`", "did you mean `args`?"),
        ("args = '-y'", "`args` must be an array of strings, not a string", "`args = [\"…\"]`"),
        ("args = ['${secret:a b}']", "no secret can be called `a b`", "`${secret:NAME}`"),
        ("args = ['${env:X']", "never closed", "`}`"),
        ("env = { A = true }", "`env` holds only strings", "double quotes"),
        ("env = { 'A=' = '' }", "`A=` cannot be a variable", "`=`"),
        ("env = { '' = '' }", "cannot be a variable", "`=`"),
        ("env = ['A=b']", "`env` must be a table, not an array", "`env = { … }`"),
        ("inherit-env = ['AWS_*']", "no variable", "`\"HTTP_PROXY\"`"),
        ("cwd = ''", "`cwd` is empty", "leave it out"),
        ("cwd = '${env:X}'", "not supported yet", "write the path itself"),
        ("cwd = '~'", "there is no shell", "whole path"),
        ("type = 'http'", "`type` wants a `url`", "leave it out"),
        ("type = 'pipe'", "`type` cannot be `pipe`", "`stdio`, `http`, `sse`"),
        ("era = 2025-06-18", "`era` must be a string, not a date", "`era = \"2025-06-18\"`"),
        ("era = 'new'", "`era` cannot be `new`", "`auto`, `modern`, `legacy`, `2024-11-05`"),
        (
            "enabled = 'no'",
            "`enabled` must be `true` or `false`, not a string",
            "`enabled = true` or `false`",
        ),
        (
            "sharing = 'per-caller'\nlifecycle = { start = 'at-boot' }",
            "a server that is shared `per-caller` cannot start at boot",
            "`sharing = \"shared\"`, or `start = \"on-demand\"`",
        ),
        ("limits = { instances = 0 }", "`limits.instances` must be", "`instances = 5`"),
        (
            "sharing = 'all'",
            "`sharing` cannot be `all`",
            "`shared`, `per-client`, `per-project`, `per-caller`",
        ),
        ("trust = 'blind'", "`trust` cannot be `blind`", "`normal`, `trusted`"),
        ("headers = {}", "`headers` wants a `url`", "leave it out"),
        ("when = ['a b']", "`a b` cannot be a tag", "1 to 64 letters"),
        ("when = { some = [] }", "there is no key `when.some`", "`any`, `all`, `not`"),
        ("run-on = 'a'", "no host is called `a`", "`[hosts.a]`"),
        ("'+args' = 'x'", "there is no key `+args`", "did you mean `args`?"),
        ("tools.allow = ['']", "a pattern is empty", "`*` stands for any characters"),
        ("tools.deny = 'x'", "`tools.deny` must be an array of strings", "deny = [\"…\"]"),
        ("tools.idempotent = ['']", "a pattern is empty", "the name of a tool"),
        ("tools.idempotent = 'get_*'", "must be an array of strings", "`idempotent = [\"…\"]`"),
        ("tools.call-timeout = { a = 5 }", "holds only durations", "\"5m\""),
        ("tools.call-timeout = { a = '0s' }", "is not a duration", "not zero"),
        ("tools.call-timeout = { a = '1h' }", "is longer than `limits.call-timeout-max`", "a shorter time"),
        ("tools.idempotant = []", "there is no key `tools.idempotant`", "`idempotent`"),
    ] {
        check(keys, message, hint);
    }
}

#[test]
fn a_mistake_about_its_tools_is_named_too() {
    for (keys, message, hint) in [
        ("tools.rename = { a = 1 }", "`tools.rename` holds only strings, not a number", "double quotes"),
        ("tools.rename = { a = 'x', b = 'x' }", "`b` and `a` would both be called `x`", "a name of its own"),
        ("tools.rename = { a = '' }", "`x__` cannot be the public name of `a`", "1 to 45 letters"),
        ("tools.rename = { a = 'b c' }", "`x__b c` cannot be the public name of `a`", "letters, digits"),
        ("tools.rename = { a = 'b_0123abcd' }", "cannot be the public name of `a`", "like a digest"),
        ("tools.check = 'yes'", "`tools.check` must be `true` or `false`", "true"),
        ("pin = 'tight'", "`pin` cannot be `tight`", "write one of `mark`, `strict`"),
    ] {
        check(keys, message, hint);
    }
}

#[test]
fn a_mistake_in_a_remote_server_is_named_where_it_stands() {
    let url = "https://example.test/mcp?key=s3cret";
    for (keys, message, hint) in [
        ("url = 'example.test/mcp'", "`url` cannot be used", "`url = \"https://example.com/mcp\"`"),
        ("url = 'ftp://s3cret'", "does not begin with `https://`", "`url = "),
        ("url = 'https://a:s3cret@b/'", "a user and password", "`url = "),
        ("url = 7", "`url` must be a string", "`url = \"7\"`"),
        ("url = 'URL'\ntype = 'stdio'", "is not `stdio`", "leave `type` out"),
        ("url = 'URL'\ntype = 'streamable-http'", "cannot be `streamable-http`", "`http`"),
        ("url = 'URL'\nargs = []", "`args` wants a `command`", "leave it out"),
        ("url = 'URL'\ninherit-env = ['A']", "`inherit-env` wants a `command`", "leave it out"),
        ("url = 'URL'\nheaders = 's3cret'", "must be a table", "`headers = { … }`"),
        ("url = 'URL'\nheaders = { A = 7 }", "holds only strings", "double quotes"),
        ("url = 'URL'\nheaders = { 'a b' = 's3cret' }", "`a b` cannot be a header", "letters"),
        ("url = 'URL'\nheaders = { Accept = 's3cret' }", "`Accept` is set by toolcrib", "leave it out"),
        ("url = 'URL'\nheaders = { Upgrade = 's3cret' }", "set by toolcrib", "leave it out"),
        ("url = 'URL'\nheaders = { TE = 's3cret' }", "set by toolcrib", "leave it out"),
        ("url = 'URL'\nheaders = { Expect = 's3cret' }", "set by toolcrib", "leave it out"),
        ("url = 'URL'\nheaders = { Proxy-Authorization = 's3cret' }", "set by toolcrib", "leave it out"),
        ("url = 'URL'\nheaders = { 'Mcp-Param-A' = 's3cret' }", "set by toolcrib", "leave it out"),
        ("url = 'URL'\nheaders = { a = 's3cret', A = 's3cret' }", "is there twice", "keep one"),
        ("url = 'URL'\nheaders = { A = '${env:X' }", "never closed", "`}`"),
    ] {
        let text = format!("[servers.x]\n{}\n", keys.replace("URL", url));
        let config = toml(&text);
        assert_eq!(config.problems.len(), 1, "{keys}: {:?}", lines(&config));
        let problem = &config.problems[0];
        assert!(problem.message.contains(message), "{keys}: {}", problem.message);
        assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{keys}: {:?}", problem.hint);
        assert!(!format!("{problem:?}").contains("s3cret"), "{keys}");
        assert!(config.roster.is_empty());
    }
}

#[test]
fn a_mistake_in_how_a_server_is_looked_after_is_named_where_it_stands() {
    for (keys, message, hint) in [
        ("lifecycle = 1", "`lifecycle` must be a table, not a number", "`lifecycle = { … }`"),
        ("lifecycle.memory = '1GiB'", "`lifecycle.memory` must be a table", "`memory = { … }`"),
        ("lifecycle.memory.hard = '0B'", "`lifecycle.memory.hard` may not be zero", "`\"32MiB\"`"),
        (
            "lifecycle.memory = { soft = '2GiB', hard = '1GiB' }",
            "`lifecycle.memory.soft` is more than `lifecycle.memory.hard`",
            "a smaller `soft`",
        ),
        (
            "lifecycle.keep_alive = '1m'",
            "there is no key `lifecycle.keep_alive`",
            "did you mean `keep-alive`?",
        ),
        ("lifecycle.keep-alive = 'never'", "not a duration: `never`", "`\"forever\"`"),
        ("lifecycle.start-timeout = 'forever'", "not a duration: `forever`", "`\"30s\"`"),
        ("lifecycle.start-timeout = '0s'", "may not be zero", "`\"30s\"`"),
        ("lifecycle.start-timeout = 1.5", "must be a duration, not a number", "\"30s\""),
        ("lifecycle.restarts.at-most = -1", "from 0 to 1000000, not `-1`", "`at-most = 5`"),
        ("lifecycle.restarts.within = '0s'", "may not be zero", "`\"5m\"`"),
        (
            "lifecycle.backoff = { first = '9s', most = '8s' }",
            "`lifecycle.backoff.first` is longer",
            "`most`",
        ),
        ("lifecycle.backoff.most = '1ms'", "which is 1ms", "`most`"),
        ("lifecycle.breaker.failures = 0", "from 1 to 1000000, not `0`", "`failures = 5`"),
        ("lifecycle.breaker.failures = 'x'", "a whole number", "`failures = 5`"),
        ("limits.in-flight = 99999999999", "from 1 to 1000000", "`in-flight = 5`"),
        ("limits.call-timeout = '10 s'", "not a duration: `10 s`", "one whole number and a unit"),
        ("limits.call-timeout-max = '1s'", "`limits.call-timeout` is longer", "`call-timeout-max`"),
        ("limits.message = 32", "`limits.message` must be a size, not a number", "`message = \"32MiB\"`"),
        ("limits.message = '0B'", "may not be zero", "`\"32MiB\"`"),
    ] {
        check(keys, message, hint);
    }
}

#[test]
fn a_message_is_one_line_whatever_the_file_says() {
    let key = "k".repeat(5000);
    let config = toml(&format!("[servers.\"a\\n\\u001b[2J\"]\ncommand = \"${{x\\ny}}\"\n{key} = 1"));
    assert_eq!(config.problems.len(), 3, "{:?}", lines(&config));
    let mut messages = config.problems.iter().map(ToString::to_string);
    assert!(messages.all(|message| !message.contains(char::is_control) && message.len() < 500));
}

#[test]
fn a_problem_outside_the_servers_refuses_the_file() {
    for (text, message, hint) in [
        ("[policy]\nask = ['push']", "`push` is no pattern: it has no `.`", "write `SERVER.NAME`"),
        ("[policy]\ndeny = ['git']", "`git` is no pattern: it has no `.`", "`SERVER.NAME`"),
        ("[policy]\nallow = ['Git.x']", "no server can be called", "`SERVER.NAME`"),
        ("[policy]\nallow = '*'", "`policy.allow` must be an array of strings", "allow = [\"…\"]"),
        ("[policy]\nforbid = []", "there is no key `policy.forbid`", "`allow`, `deny`"),
        ("[callers]\nme = 'x'", "`callers.me` must be a table, not a string", "`me = { … }`"),
        ("[callers.me]\nadmin = true", "`callers.me` has no `token`", "`token-sha256"),
        ("[callers.me]\ntoken = 7", "`callers.me.token` must be a string", "token"),
        ("[callers.me]\ntoken = 'a b'", "`token` cannot be sent in a header", "openssl rand"),
        ("[callers.me]\ntoken = ''", "`token` cannot be sent in a header", "openssl rand"),
        ("[callers.me]\ntoken = '${secret:x:-y}'", "no secret can be called", "`${secret:NAME}`"),
        ("[callers.me]\ntoken-sha256 = 'abc'", "no SHA-256 in hexadecimal", "64 digits"),
        (
            "[callers.local]\ntoken = 'x'",
            "`local` is whoever comes by the gateway's own socket",
            "another name",
        ),
        ("[callers.Me]\ntoken = 'x'", "`Me` cannot be a caller", "`ci`"),
        ("[limits]\nservers-running = 0", "from 1 to", "`servers-running = 5`"),
        ("[limits]\nmemory = 4", "`limits.memory` must be a size", "`memory = \"4MiB\"`"),
        ("[limits]\ncache = '0B'", "`limits.cache`", "`\"64KiB\"`"),
        ("[defaults.tools]\ncache = ['']", "a pattern is empty", "the name of a tool"),
        ("[defaults.tools]\ncache = 'get_*'", "`defaults.tools.cache` must be", "[\"…\"]"),
        ("[defaults.limits]\ncache-ttl-max = '0s'", "may not be zero", "`\"30s\"`"),
        ("[defaults.limits]\ncache-entries = -1", "from 0 to", "`cache-entries = 5`"),
        ("[limits]\nbodies = '4GiB'", "there is no key `limits.bodies`", "`body`"),
        ("[limits]\ndrain = '0s'", "`limits.drain` may not be zero", "`\"30s\"`"),
        ("[limits]\nsessions = 0", "from 1 to", "`sessions = 5`"),
        ("[listen]\nhosts = ['http://x']", "`http://x` is not the name of a host", "`\"still.local\"`"),
        ("[listen]\nhosts = ['*']", "not the name of a host", "`\"still.local\"`"),
        ("[defaults]\ncommand = 'x'", "there is no key `defaults.command`", "`lifecycle`"),
        ("[defaults.limits]\ncall-timeout = '1h'", "is longer than", "`call-timeout-max`"),
        (
            "[defaults.lifecycle]\nkeep-alive = 5",
            "`defaults.lifecycle.keep-alive` must be",
            "`keep-alive = \"5s\"`",
        ),
        ("[defaults]\nsharing = 'per-clients'", "cannot be `per-clients`", "`per-client`"),
        ("[server.x]", "there is no key `server`", "did you mean `servers`?"),
        ("[mcpServers.x]", "there is no key `mcpServers`", "did you mean `servers`?"),
        ("servers = 1", "`servers` must be a table, not a number", "`servers = { … }`"),
    ] {
        check_refused(text, message, hint);
    }
}

#[test]
fn a_problem_of_a_profile_or_of_the_audit_refuses_the_file() {
    for (text, message, hint) in [
        ("[callers.me]\ntoken = 'x'\nprofile = 'p'", "there is no profile `p`", "declare `[profiles.p]`"),
        (
            "[profiles.work]\n[callers.me]\ntoken = 'x'\nprofile = 'wrok'",
            "there is no profile `wrok`",
            "did you mean `work`?",
        ),
        ("[profiles.Work]", "`Work` cannot be a profile", "`work`"),
        ("[profiles.p]\nservers = ['a.b']", "`a.b` cannot be a server", "under `[servers]`"),
        ("[profiles.p]\nservers = 'a'", "`profiles.p.servers` must be an array of strings", "servers = ["),
        ("[profiles.p]\nallow = ['git']", "`git` is no pattern", "`SERVER.NAME`"),
        ("[profiles.p]\ntags = ['a b']", "`a b` cannot be a tag", "letters, digits"),
        ("[profiles.p]\ntags = 'x'", "`profiles.p.tags` must be an array of strings", "tags = ["),
        ("[profiles.p]\ntag = []", "there is no key `profiles.p.tag`", "`tags`"),
        ("[profiles.p]\nexpose = 'search'", "`expose = \"search\"` is not supported yet", "leave it out"),
        ("[profiles.p]\nexpose = 'some'", "`profiles.p.expose` cannot be `some`", "`auto`, `all`, `search`"),
        ("[profiles.p]\nserver = []", "there is no key `profiles.p.server`", "`servers`"),
        ("audit = ''", "`audit` is empty", "write a path"),
        ("audit = '~/audit'", "`~` means nothing in `audit`", "the whole path"),
        ("audit = 1", "`audit` must be a string", "audit = "),
        ("audit-required = true", "`audit-required` means nothing without `audit`", "`audit = \"FILE\"`"),
        ("audit = 'a'\naudit-size = '0B'", "`audit-size` may not be zero", "MiB"),
        ("audit = 'a'\naudit-requierd = true", "there is no key `audit-requierd`", "`audit-required`"),
    ] {
        check_refused(text, message, hint);
    }
}

fn check_refused(text: &str, message: &str, hint: &str) {
    let config = toml(text);
    assert_eq!(config.problems.len(), 1, "{text}: {:?}", lines(&config));
    assert!(config.refused(), "{text}");
    let problem = &config.problems[0];
    assert!(problem.message.contains(message), "{text}: {}", problem.message);
    assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{text}: {:?}", problem.hint);
}

#[test]
fn a_limit_of_memory_is_for_what_runs_here() {
    let config = toml(
        "[servers.far]\nurl = \"https://example.com/mcp\"\n[servers.far.lifecycle]\nmemory = { hard = \"1GiB\" }\n",
    );
    let said = lines(&config);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].ends_with("`lifecycle.memory` wants a `command`: what runs elsewhere cannot be weighed"),
        "{said:?}"
    );
    // What is said for all is for those whom it concerns.
    let both = "[defaults.lifecycle]\nmemory = { hard = \"1GiB\" }\n[servers.far]\nurl = \"https://example.com/mcp\"\n";
    assert_eq!(lines(&toml(both)), [""; 0]);
}

#[test]
fn more_servers_at_boot_than_may_run_are_noted() {
    let server =
        |name: &str| format!("[servers.{name}]\ncommand = \"x\"\nlifecycle = {{ start = \"at-boot\" }}\n");
    let text = |seats: usize| {
        format!("limits = {{ servers-running = {seats} }}\n{}{}{}", server("a"), server("b"), server("c"))
    };
    assert_eq!(lines(&toml(&text(3))), [""; 0]);
    let config = toml(&text(2));
    let note = "3 servers start at boot and `limits.servers-running` is 2: the others stay asleep";
    assert_eq!(lines(&config), [format!("8:10 NOTE: {note}")]);
    assert_eq!(names(&config), ["a", "b", "c"]);
}
