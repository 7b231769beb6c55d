//! Messages and hints of single problems, inside and outside of servers.

use super::*;

/// Returns the only problem of `[servers.x]` with these keys, to which a `command` is added unless they start with one.
fn server_problem(keys: &str) -> Problem {
    let command = if keys.starts_with("command") { "" } else { "command = \"c\"\n" };
    let config = toml(&format!("[servers.good]\ncommand = \"g\"\n[servers.x]\n{command}{keys}"));
    assert_eq!(server_names(&config), ["good"], "{keys}: {:?}", config.problems);
    assert_eq!(config.problems.len(), 1, "{keys}: {:?}", problem_lines(&config));
    assert_eq!(config.problems[0].scope, ProblemScope::Server("x".to_owned()), "{keys}");
    assert!(!config.is_refused());
    config.problems[0].clone()
}

fn check_server(keys: &str, message: &str, hint: &str) {
    let problem = server_problem(keys);
    assert!(problem.message.contains(message), "{keys}: {}", problem.message);
    assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{keys}: {:?}", problem.hint);
}

#[test]
fn server_problems_have_message_and_hint() {
    for (keys, message, hint) in [
        ("command = ''", "`command` is empty", "`command = \"npx\"`"),
        ("command = '  '", "`command` is empty", "`command = \"npx\"`"),
        ("command = 'npx -y @a/b'", "not a command line", "`args = [\"…\"]`"),
        ("command = '~/bin/x'", "`~` is not expanded", "`${env:HOME}`"),
        ("command = 5", "`command` must be a string, not a number", "`command = \"5\"`"),
        ("command = \"a\\u0000\"", "NUL", "remove the character"),
        ("command = 'x'\nurl = 'y'", "cannot be combined", "remove `url` or `command`"),
        ("argss = []", "unknown key `argss`", "did you mean `args`?"),
        ("args = '-y'", "`args` must be an array of strings, not a string", "`args = [\"…\"]`"),
        ("args = ['${secret:a b}']", "`a b` is not a valid secret name", "`${secret:NAME}`"),
        ("args = ['${env:X']", "is not closed", "`}`"),
        ("env = { A = true }", "`env` must contain only strings", "double quotes"),
        ("env = { 'A=' = '' }", "invalid variable name `A=`", "`=`"),
        ("env = { '' = '' }", "invalid variable name", "`=`"),
        ("env = ['A=b']", "`env` must be a table, not an array", "`env = { … }`"),
        ("inherit-env = ['AWS_*']", "invalid variable name", "`\"HTTP_PROXY\"`"),
        ("cwd = ''", "`cwd` is empty", "remove it"),
        ("cwd = '${env:X}'", "not supported yet", "write the path itself"),
        ("cwd = '~'", "`~` is not expanded", "absolute path"),
        ("type = 'http'", "`type` requires `url`", "remove `type`"),
        ("type = 'pipe'", "invalid value `pipe` for `type`", "`stdio`, `http`, `sse`"),
        ("era = 2025-06-18", "`era` must be a string, not a date", "`era = \"2025-06-18\"`"),
        ("era = 'new'", "invalid value `new` for `era`", "`auto`, `modern`, `legacy`, `2024-11-05`"),
        (
            "enabled = 'no'",
            "`enabled` must be `true` or `false`, not a string",
            "`enabled = true` or `false`",
        ),
        (
            "sharing = 'per-caller'\nlifecycle = { start = 'at-boot' }",
            "a server with `sharing = \"per-caller\"` cannot start at boot",
            "`sharing = \"shared\"`, or `start = \"on-demand\"`",
        ),
        ("limits = { instances = 0 }", "`limits.instances` must be", "`instances = 5`"),
        (
            "sharing = 'all'",
            "invalid value `all` for `sharing`",
            "`auto`, `shared`, `one`, `per-client`, `per-project`, `per-caller`",
        ),
        ("trust = 'blind'", "invalid value `blind` for `trust`", "`normal`, `trusted`"),
        ("headers = {}", "`headers` requires `url`", "remove `headers`"),
        ("when = ['a b']", "invalid tag `a b`", "1 to 64 letters"),
        ("when = { some = [] }", "unknown key `when.some`", "`any`, `all`, `not`"),
        ("run-on = 'a'", "unknown host `a`", "`[hosts.a]`"),
        ("'+args' = 'x'", "unknown key `+args`", "did you mean `args`?"),
        ("tools.allow = ['']", "empty pattern", "`*` stands for any characters"),
        ("tools.deny = 'x'", "`tools.deny` must be an array of strings", "deny = [\"…\"]"),
        ("tools.idempotent = ['']", "empty pattern", "the name of a tool"),
        ("tools.idempotent = 'get_*'", "must be an array of strings", "`idempotent = [\"…\"]`"),
        ("tools.call-timeout = { a = 5 }", "must contain only durations", "\"5m\""),
        ("tools.call-timeout = { a = '0s' }", "invalid duration `0s`", "other than zero"),
        ("tools.call-timeout = { a = '1h' }", "is longer than `limits.call-timeout-max`", "a shorter time"),
        ("tools.idempotant = []", "unknown key `tools.idempotant`", "`idempotent`"),
    ] {
        check_server(keys, message, hint);
    }
}

#[test]
fn tool_problems_have_message_and_hint() {
    for (keys, message, hint) in [
        (
            "tools.rename = { a = 1 }",
            "`tools.rename` must contain only strings, not a number",
            "double quotes",
        ),
        ("tools.rename = { a = 'x', b = 'x' }", "`b` and `a` are both renamed to `x`", "its own name"),
        ("tools.rename = { a = '' }", "`x__` is not a valid public name for `a`", "1 to 45 letters"),
        ("tools.rename = { a = 'b c' }", "`x__b c` is not a valid public name for `a`", "letters, digits"),
        ("tools.rename = { a = 'b_0123abcd' }", "is not a valid public name for `a`", "like a digest"),
        ("tools.check = 'yes'", "`tools.check` must be `true` or `false`", "true"),
        ("pin = 'tight'", "invalid value `tight` for `pin`", "write one of `mark`, `strict`"),
    ] {
        check_server(keys, message, hint);
    }
}

#[test]
fn remote_server_problems_have_message_and_hint() {
    let url = "https://example.test/mcp?key=s3cret";
    for (keys, message, hint) in [
        ("url = 'example.test/mcp'", "invalid `url`", "`url = \"https://example.com/mcp\"`"),
        ("url = 'ftp://s3cret'", "must start with `https://`", "`url = "),
        ("url = 'https://a:s3cret@b/'", "a user name or password", "`url = "),
        ("url = 7", "`url` must be a string", "`url = \"7\"`"),
        ("url = 'URL'\ntype = 'stdio'", "cannot be combined with `url`", "remove `type`"),
        ("url = 'URL'\ntype = 'streamable-http'", "invalid value `streamable-http`", "`http`"),
        ("url = 'URL'\nargs = []", "`args` requires `command`", "remove it"),
        ("url = 'URL'\ninherit-env = ['A']", "`inherit-env` requires `command`", "remove it"),
        ("url = 'URL'\nheaders = 's3cret'", "must be a table", "`headers = { … }`"),
        ("url = 'URL'\nheaders = { A = 7 }", "must contain only strings", "double quotes"),
        ("url = 'URL'\nheaders = { 'a b' = 's3cret' }", "invalid header name `a b`", "letters"),
        ("url = 'URL'\nheaders = { Accept = 's3cret' }", "`Accept` is set by toolcrib", "remove it"),
        ("url = 'URL'\nheaders = { Upgrade = 's3cret' }", "set by toolcrib", "remove it"),
        ("url = 'URL'\nheaders = { TE = 's3cret' }", "set by toolcrib", "remove it"),
        ("url = 'URL'\nheaders = { Expect = 's3cret' }", "set by toolcrib", "remove it"),
        ("url = 'URL'\nheaders = { Proxy-Authorization = 's3cret' }", "set by toolcrib", "remove it"),
        ("url = 'URL'\nheaders = { 'Mcp-Param-A' = 's3cret' }", "set by toolcrib", "remove it"),
        ("url = 'URL'\nheaders = { a = 's3cret', A = 's3cret' }", "is defined twice", "remove one"),
        ("url = 'URL'\nheaders = { A = '${env:X' }", "is not closed", "`}`"),
        ("url = 'URL'\nforward = 'all'", "invalid value `all` for `forward`", "`header`"),
        ("url = 'URL'\nforward-header = 'X-A'", "requires `forward = \"header\"`", "add `forward"),
        (
            "url = 'URL'\nforward = 'header'\nforward-header = 'Authorization'",
            "set by toolcrib",
            "X-Toolcrib-Caller",
        ),
        (
            "url = 'URL'\nforward = 'header'\nsharing = 'shared'",
            "connection for each caller",
            "\"per-caller\"",
        ),
        ("url = 'URL'\nforward = 'token-exchange'", "needs `token-exchange`", "token-endpoint"),
        (
            "url = 'URL'\nforward = 'token-exchange'\ntoken-exchange = {}",
            "needs `token-endpoint` and",
            "missing keys",
        ),
    ] {
        let text = format!("[servers.x]\n{}\n", keys.replace("URL", url));
        let config = toml(&text);
        assert_eq!(config.problems.len(), 1, "{keys}: {:?}", problem_lines(&config));
        let problem = &config.problems[0];
        assert!(problem.message.contains(message), "{keys}: {}", problem.message);
        assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{keys}: {:?}", problem.hint);
        assert!(!format!("{problem:?}").contains("s3cret"), "{keys}");
        assert!(config.roster.is_empty());
    }
}

#[test]
fn lifecycle_problems_have_message_and_hint() {
    for (keys, message, hint) in [
        ("lifecycle = 1", "`lifecycle` must be a table, not a number", "`lifecycle = { … }`"),
        ("lifecycle.memory = '1GiB'", "`lifecycle.memory` must be a table", "`memory = { … }`"),
        ("lifecycle.memory.hard = '0B'", "`lifecycle.memory.hard` must not be zero", "`\"32MiB\"`"),
        (
            "lifecycle.memory = { soft = '2GiB', hard = '1GiB' }",
            "`lifecycle.memory.soft` is larger than `lifecycle.memory.hard`",
            "a smaller `soft`",
        ),
        ("lifecycle.keep_alive = '1m'", "unknown key `lifecycle.keep_alive`", "did you mean `keep-alive`?"),
        ("lifecycle.keep-alive = 'never'", "invalid duration `never`", "`\"forever\"`"),
        ("lifecycle.start-timeout = 'forever'", "invalid duration `forever`", "`\"30s\"`"),
        ("lifecycle.start-timeout = '0s'", "must not be zero", "`\"30s\"`"),
        ("lifecycle.start-timeout = 1.5", "must be a duration, not a number", "\"30s\""),
        ("lifecycle.restarts.at-most = -1", "from 0 to 1000000, not `-1`", "`at-most = 5`"),
        ("lifecycle.restarts.within = '0s'", "must not be zero", "`\"5m\"`"),
        (
            "lifecycle.backoff = { first = '9s', most = '8s' }",
            "`lifecycle.backoff.first` is longer",
            "`most`",
        ),
        ("lifecycle.backoff.most = '1ms'", "(1ms)", "`most`"),
        ("lifecycle.breaker.failures = 0", "from 1 to 1000000, not `0`", "`failures = 5`"),
        ("lifecycle.breaker.failures = 'x'", "a whole number", "`failures = 5`"),
        ("limits.in-flight = 99999999999", "from 1 to 1000000", "`in-flight = 5`"),
        ("limits.call-timeout = '10 s'", "invalid duration `10 s`", "a whole number and a unit"),
        ("limits.call-timeout-max = '1s'", "`limits.call-timeout` is longer", "`call-timeout-max`"),
        ("limits.message = 32", "`limits.message` must be a size, not a number", "`message = \"32MiB\"`"),
        ("limits.message = '0B'", "must not be zero", "`\"32MiB\"`"),
    ] {
        check_server(keys, message, hint);
    }
}

#[test]
fn message_is_one_line_of_limited_length() {
    let key = "k".repeat(5000);
    let config = toml(&format!("[servers.\"a\\n\\u001b[2J\"]\ncommand = \"${{x\\ny}}\"\n{key} = 1"));
    assert_eq!(config.problems.len(), 3, "{:?}", problem_lines(&config));
    let mut messages = config.problems.iter().map(ToString::to_string);
    assert!(messages.all(|message| !message.contains(char::is_control) && message.len() < 500));
}

#[test]
fn problem_outside_servers_refuses_the_config() {
    for (text, message, hint) in [
        ("[policy]\nask = ['push']", "invalid pattern `push`: it has no `.`", "write `SERVER.NAME`"),
        ("[policy]\ndeny = ['git']", "invalid pattern `git`: it has no `.`", "`SERVER.NAME`"),
        ("[policy]\nallow = ['Git.x']", "cannot be a server name", "`SERVER.NAME`"),
        ("[policy]\nallow = '*'", "`policy.allow` must be an array of strings", "allow = [\"…\"]"),
        ("[policy]\nforbid = []", "unknown key `policy.forbid`", "`allow`, `deny`"),
        ("[callers]\nme = 'x'", "`callers.me` must be a table, not a string", "`me = { … }`"),
        ("[callers.me]\nadmin = true", "`callers.me` has no `token`", "`token-sha256"),
        ("[callers.me]\ntoken = 7", "`callers.me.token` must be a string", "token"),
        ("[callers.me]\ntoken = 'a b'", "must be printable ASCII", "openssl rand"),
        ("[callers.me]\ntoken = ''", "must be printable ASCII", "openssl rand"),
        ("[callers.me]\ntoken = '${secret:x:-y}'", "is not a valid secret name", "`${secret:NAME}`"),
        ("[callers.me]\ntoken-sha256 = 'abc'", "is not a SHA-256 digest", "64 digits"),
        (
            "[callers.local]\ntoken = 'x'",
            "`local` is reserved for clients of the gateway's own socket",
            "another name",
        ),
        ("[callers.Me]\ntoken = 'x'", "invalid caller name `Me`", "`ci`"),
        ("[limits]\nservers-running = 0", "from 1 to", "`servers-running = 5`"),
        ("[limits]\nmemory = 4", "`limits.memory` must be a size", "`memory = \"4MiB\"`"),
        ("[limits]\ncache = '0B'", "`limits.cache`", "`\"64KiB\"`"),
        ("[defaults.tools]\ncache = ['']", "empty pattern", "the name of a tool"),
        ("[defaults.tools]\ncache = 'get_*'", "`defaults.tools.cache` must be", "[\"…\"]"),
        ("[defaults.limits]\ncache-ttl-max = '0s'", "must not be zero", "`\"30s\"`"),
        ("[defaults.limits]\ncache-entries = -1", "from 0 to", "`cache-entries = 5`"),
        ("[defaults.limits]\nresult-tokens = 499", "from 500 to", "`result-tokens = 500`"),
        (
            "[defaults.tools]\nresult-tokens = { log = 499 }",
            "`log` in `defaults.tools.result-tokens` must be 0, or a whole number from 500 to",
            "`log = 500`",
        ),
        ("[limits.result-tokens]\nide = 'x'", "`ide` in `limits.result-tokens` must be 0", "`ide = 500`"),
        ("[limits]\nbodies = '4GiB'", "unknown key `limits.bodies`", "`body`"),
        ("[limits]\ndrain = '0s'", "`limits.drain` must not be zero", "`\"30s\"`"),
        ("[limits]\nsessions = 0", "from 1 to", "`sessions = 5`"),
        ("[listen]\nhosts = ['http://x']", "`http://x` is not a host name", "`\"still.local\"`"),
        ("[listen]\nhosts = ['*']", "not a host name", "`\"still.local\"`"),
        ("[defaults]\ncommand = 'x'", "unknown key `defaults.command`", "`lifecycle`"),
        ("[defaults.limits]\ncall-timeout = '1h'", "is longer than", "`call-timeout-max`"),
        (
            "[defaults.lifecycle]\nkeep-alive = 5",
            "`defaults.lifecycle.keep-alive` must be",
            "`keep-alive = \"5s\"`",
        ),
        ("[defaults]\nsharing = 'per-clients'", "invalid value `per-clients`", "`per-client`"),
        ("[server.x]", "unknown key `server`", "did you mean `servers`?"),
        ("[mcpServers.x]", "unknown key `mcpServers`", "did you mean `servers`?"),
        ("servers = 1", "`servers` must be a table, not a number", "`servers = { … }`"),
    ] {
        check_refused(text, message, hint);
    }
}

#[test]
fn problem_of_listener_or_proof_refuses_the_config() {
    for (text, message, hint) in [
        ("[listen]\ntls = { cert = 'c' }", "`listen.tls` has no `key`", "key = \"key.pem\""),
        ("[listen]\ntls = 'c'", "`listen.tls` must be a table", "tls = {"),
        ("[listen]\ntls = { cert = '~/c', key = 'k' }", "`~` is not expanded in `cert`", "absolute path"),
        ("[listen]\ntrusted-proxies = ['lan']", "`lan` is not an address", "`\"10.0.0.0/8\"`"),
        ("[callers.me]\nuid = 'me'", "`uid` must be the number of a user", "`id -u NAME`"),
        (
            "[callers.a]\nuid = 7\n[callers.b]\nuid = 7",
            "`callers.a` and `callers.b` have the same `uid`",
            "own user",
        ),
        (
            "[listen]\nany-user = true\n[callers.a]\nuid = 7",
            "cannot be combined with `listen.any-user`",
            "remove",
        ),
        ("[callers.a]\nmtls = { san = 'a' }", "`mtls` needs `client-ca` in `listen.tls`", "client-ca"),
        (
            "[listen]\ntls = { cert = 'c', key = 'k', client-ca = 'a' }\n[callers.a]\nmtls = { san = '*.x' }\n\
          [callers.b]\nmtls = { san = 'b.*' }",
            "match `mtls` of `callers.a` and of `callers.b`",
            "patterns",
        ),
        (
            "[listen]\ntls = { cert = 'c', key = 'k', client-ca = 'a' }\n[callers.a]\nmtls = { subject = 'ci' }",
            "`mtls.subject` is not a list of attributes",
            "`subject = \"CN=ci\"`",
        ),
        (
            "[listen]\ntls = { cert = 'c', key = 'k', client-ca = 'a' }\n[callers.a]\nmtls = {}",
            "`mtls` has neither `san` nor `subject`",
            "`mtls = { san",
        ),
    ] {
        check_refused(text, message, hint);
    }
}

#[test]
fn profile_or_audit_problem_refuses_the_config() {
    for (text, message, hint) in [
        ("[callers.me]\ntoken = 'x'\nprofile = 'p'", "unknown profile `p`", "declare `[profiles.p]`"),
        (
            "[profiles.work]\n[callers.me]\ntoken = 'x'\nprofile = 'wrok'",
            "unknown profile `wrok`",
            "did you mean `work`?",
        ),
        ("[profiles.Work]", "invalid profile name `Work`", "`work`"),
        ("[profiles.p]\nservers = ['a.b']", "invalid server name `a.b`", "from `[servers]`"),
        ("[profiles.p]\nservers = 'a'", "`profiles.p.servers` must be an array of strings", "servers = ["),
        ("[profiles.p]\nallow = ['git']", "invalid pattern `git`", "`SERVER.NAME`"),
        ("[profiles.p]\ntags = ['a b']", "invalid tag `a b`", "letters, digits"),
        ("[profiles.p]\ntags = 'x'", "`profiles.p.tags` must be an array of strings", "tags = ["),
        ("[profiles.p]\ntag = []", "unknown key `profiles.p.tag`", "`tags`"),
        ("[expose]\nmode = 'some'", "invalid value `some` for `expose.mode`", "`auto`, `all`, `search`"),
        ("[expose]\nbudget = 0", "`expose.budget` must be a whole number from 1", "budget = "),
        ("[expose]\nalways-list = ['git']", "invalid pattern `git`", "`SERVER.NAME`"),
        ("[expose.clients]\nide = 1", "invalid value `a number` for `expose.clients.ide`", "`search`"),
        ("[expose]\nmodes = 'all'", "unknown key `expose.modes`", "`mode`"),
        (
            "[profiles.p]\nexpose = 'some'",
            "invalid value `some` for `profiles.p.expose`",
            "`auto`, `all`, `search`",
        ),
        ("[profiles.p]\nserver = []", "unknown key `profiles.p.server`", "`servers`"),
        ("audit = ''", "`audit` is empty", "write a path"),
        ("registry = 'ftp://x'", "`registry` is not an http or https URL", "https://"),
        ("audit = '~/audit'", "`~` is not expanded in `audit`", "the absolute path"),
        ("audit = 1", "`audit` must be a string", "audit = "),
        ("audit-required = true", "`audit-required` requires `audit`", "`audit = \"FILE\"`"),
        ("audit = 'a'\naudit-size = '0B'", "`audit-size` must not be zero", "MiB"),
        ("audit = 'a'\naudit-requierd = true", "unknown key `audit-requierd`", "`audit-required`"),
    ] {
        check_refused(text, message, hint);
    }
}

fn check_refused(text: &str, message: &str, hint: &str) {
    let config = toml(text);
    assert_eq!(config.problems.len(), 1, "{text}: {:?}", problem_lines(&config));
    assert!(config.is_refused(), "{text}");
    let problem = &config.problems[0];
    assert!(problem.message.contains(message), "{text}: {}", problem.message);
    assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{text}: {:?}", problem.hint);
}

#[test]
fn memory_limit_of_a_remote_server_is_rejected() {
    let config = toml(
        "[servers.remote]\nurl = \"https://example.com/mcp\"\n[servers.remote.lifecycle]\nmemory = { hard = \"1GiB\" }\n",
    );
    let lines = problem_lines(&config);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].ends_with("`lifecycle.memory` requires `command`: the memory of a remote server is unknown"),
        "{lines:?}"
    );
    // The limit in `[defaults]` is not an error: it applies to the other servers.
    let defaults = "[defaults.lifecycle]\nmemory = { hard = \"1GiB\" }\n[servers.remote]\nurl = \"https://example.com/mcp\"\n";
    assert_eq!(problem_lines(&toml(defaults)), [""; 0]);
}

#[test]
fn more_boot_servers_than_capacity_is_a_note() {
    let server =
        |name: &str| format!("[servers.{name}]\ncommand = \"x\"\nlifecycle = {{ start = \"at-boot\" }}\n");
    let text = |slots: usize| {
        format!("limits = {{ servers-running = {slots} }}\n{}{}{}", server("a"), server("b"), server("c"))
    };
    assert_eq!(problem_lines(&toml(&text(3))), [""; 0]);
    let config = toml(&text(2));
    let note = "3 servers start at boot, but `limits.servers-running` is 2: the others stay asleep";
    assert_eq!(problem_lines(&config), [format!("8:10 NOTE: {note}")]);
    assert_eq!(server_names(&config), ["a", "b", "c"]);
}
