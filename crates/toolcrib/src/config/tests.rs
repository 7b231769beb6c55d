//! Tests of reading and resolving configs.

#[cfg(unix)]
mod files;
mod issuers;
mod json;
mod keys;
mod layers;
mod problems;
mod project;
mod properties;
mod quota;
mod resolve_properties;
mod scopes;

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::protocol::versions::{Era, Revision};
use crate::spec::{
    Capacity, CommandSpec, Endpoint, EraChoice, KeepAlive, ServerSpec, StartPolicy, TransportKind,
};

fn toml(text: &str) -> Config {
    Config::parse(Path::new("/folder/config.toml"), text)
}

fn json(text: &str) -> Config {
    Config::parse(Path::new("/folder/servers.json"), text)
}

/// Returns each problem as `LINE:COLUMN SCOPE: MESSAGE`.
fn problem_lines(config: &Config) -> Vec<String> {
    let line = |problem: &Problem| {
        assert!(problem.hint.as_ref().is_some_and(|hint| !hint.is_empty()), "{problem} has no hint");
        let Position { line, column } = problem.position.expect("has a position");
        let scope = match &problem.scope {
            ProblemScope::Server(name) => name,
            ProblemScope::WholeConfig => "CONFIG",
            ProblemScope::Section => "SECTION",
            ProblemScope::Note => "NOTE",
        };
        format!("{line}:{column} {scope}: {}", problem.message)
    };
    config.problems.iter().map(line).collect()
}

fn server_names(config: &Config) -> Vec<&str> {
    config.roster.servers().map(|spec| spec.id.as_str()).collect()
}

fn only_server(config: &Config) -> &ServerSpec {
    assert_eq!(problem_lines(config), [""; 0]);
    let mut servers = config.roster.servers();
    let spec = servers.next().expect("one server");
    assert!(servers.next().is_none());
    spec
}

fn command(spec: &ServerSpec) -> &CommandSpec {
    let Endpoint::Command(command) = &spec.endpoint else { panic!("a command") };
    command
}

#[test]
fn list_ttl_may_be_zero() {
    for (lifecycle, seconds) in [("", 300), ("lifecycle = { list-ttl = '0s' }", 0)] {
        let config = toml(&format!("[servers.git]\ncommand = 'git'\n{lifecycle}"));
        assert_eq!(only_server(&config).lifecycle.list_ttl.as_secs(), seconds);
    }
}

#[test]
fn all_keys_of_a_server_are_read() {
    let config = toml(
        r#"
        [servers.git]
        command = "uvx"
        args = ["mcp-server-git", "--repo=${env:REPO:-.}"]
        env = { TOKEN = "${file:token}" }
        inherit-env = ["HTTP_PROXY"]
        cwd = "./work/."
        type = "stdio"
        era = "legacy"
        enabled = false
        sharing = "shared"
        trust = "normal"
        [servers.git.lifecycle]
        start = "at-boot"
        keep-alive = "0s"
        start-timeout = "1m"
        restarts = { at-most = 0, within = "1h" }
        backoff = { first = "1s", most = "1s" }
        breaker = { failures = 1, cool-off = "100ms" }
        [servers.git.limits]
        call-timeout = "2m"
        call-timeout-max = "2m"
        in-flight = 1
        message = "64KiB"
        instances = 3
        cache-entries = 0
        cache-ttl-max = "5m"
        [servers.git.tools]
        cache = ["get_*", "log"]
        "#,
    );
    let spec = only_server(&config);
    let (lifecycle, limits) = (&spec.lifecycle, &spec.limits);
    assert!(!spec.enabled);
    assert_eq!(spec.era, EraChoice::Era(Era::Session));
    assert_eq!(
        (lifecycle.start, lifecycle.keep_alive),
        (StartPolicy::AtBoot, KeepAlive::For(Duration::ZERO))
    );
    assert_eq!((lifecycle.restarts.at_most, lifecycle.restarts.within.as_secs()), (0, 3600));
    assert_eq!(lifecycle.start_timeout.as_secs(), 60);
    assert_eq!(lifecycle.backoff.first, lifecycle.backoff.most);
    assert_eq!((lifecycle.breaker.failures.get(), lifecycle.breaker.cool_off.as_millis()), (1, 100));
    assert_eq!(
        (limits.call_timeout, limits.call_timeout_max),
        (Duration::from_secs(120), Duration::from_secs(120))
    );
    assert_eq!((limits.in_flight.get(), limits.message, limits.instances.get()), (1, 64 << 10, 3));
    assert_eq!((limits.cache_entries, limits.cache_ttl_max), (0, Duration::from_secs(300)));
    assert_eq!(spec.tools.cache, ["get_*", "log"].map(|pattern| pattern.parse().unwrap()));
    let command = command(spec);
    assert_eq!(command.program.source(), "uvx");
    assert_eq!(command.args[1].source(), "--repo=${env:REPO:-.}");
    assert_eq!(command.env["TOKEN"].source(), "${file:token}");
    assert_eq!(command.inherit_env, ["HTTP_PROXY"]);
    assert_eq!(command.cwd.as_deref(), Some(Path::new("/folder/work")));
    assert_eq!(config.origins[&spec.id], Origin { file: "/folder/config.toml".into(), line: 2 });
}

#[test]
fn server_with_only_a_command_has_library_defaults() {
    let config = toml("[servers.a]\ncommand = 'x'");
    assert_eq!(*only_server(&config), ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x")));
    assert_eq!((config.listen, config.limits), (ListenSpec::default(), GatewayLimits::default()));
    assert_eq!(config.capacity, Capacity { servers: 32, ..Capacity::default() });
}

#[test]
fn gateway_sections_are_read() {
    let config = toml(
        "[gateway]\nauto-start = false\nidle-exit = '2s'\n[listen]\nhosts = ['still.local']\norigins = ['http://localhost:6274/']\nsse = true\nany-user = true\n[limits]\nbody = '1MiB'\nclient-memory = '2MiB'\nsessions = 7\ndrain = '1s'\nlisting-wait = '0s'\nservers-running = 3\nmemory = '4GiB'\ncache = '8MiB'",
    );
    assert_eq!(problem_lines(&config), [""; 0]);
    assert_eq!(
        config.listen,
        ListenSpec {
            hosts: vec!["still.local".to_owned()],
            origins: vec!["http://localhost:6274".to_owned()],
            sse: true,
            any_user: true,
            ..ListenSpec::default()
        }
    );
    assert_eq!(config.auto_start, AutoStart { enabled: false, idle_exit: Duration::from_secs(2) });
    assert_eq!(config.capacity, Capacity { servers: 3, memory: Some(4 << 30), cache: 8 << 20 });
    assert_eq!(
        config.limits,
        GatewayLimits {
            body: 1 << 20,
            sessions: 7,
            client_memory: Some(2 << 20),
            drain: Duration::from_secs(1),
            listing_wait: Duration::ZERO,
            ..GatewayLimits::default()
        }
    );
}

#[test]
fn client_memory_has_room_for_bodies() {
    let memory = |text: &str| toml(&format!("[limits]\n{text}")).limits.client_memory();
    assert_eq!(memory(""), 256 << 20);
    assert_eq!(memory("body = '100MiB'"), 400 << 20);
    assert_eq!(memory("body = '100MiB'\nclient-memory = '200MiB'"), 200 << 20);
    let config = toml("[limits]\nclient-memory = '63MiB'");
    let expected = "2:17 CONFIG: `limits.client-memory` must be at least twice `limits.body`";
    assert_eq!(problem_lines(&config), [expected]);
    assert!(config.is_refused());
}

#[test]
fn era_is_a_name_or_a_revision() {
    let era = |word: &str| only_server(&toml(&format!("[servers.a]\ncommand = 'x'\nera = '{word}'"))).era;
    assert_eq!(era("auto"), EraChoice::Auto);
    assert_eq!(era("modern"), EraChoice::Era(Era::Stateless));
    assert_eq!(era("2025-06-18"), EraChoice::Revision(Revision::V2025_06_18));
}

#[test]
fn server_values_override_defaults_key_by_key() {
    let config = toml(
        "[defaults]\ninherit-env = ['A']\nlimits = { in-flight = 3, message = '1MiB' }\n\
         lifecycle = { restarts = { at-most = 1, within = '1m' }, start-timeout = '1s' }\n\
         [servers.a]\ncommand = 'x'\ninherit-env = ['B']\nlimits.in-flight = 4\n\
         lifecycle.restarts.at-most = 9\n",
    );
    let spec = only_server(&config);
    assert_eq!(command(spec).inherit_env, ["B"]);
    assert_eq!((spec.limits.in_flight.get(), spec.limits.message), (4, 1 << 20));
    assert_eq!((spec.lifecycle.restarts.at_most, spec.lifecycle.restarts.within.as_secs()), (9, 60));
    assert_eq!(spec.lifecycle.start_timeout.as_secs(), 1);
}

#[test]
fn server_started_at_boot_runs_forever_by_default() {
    let keep_alive = |defaults: &str, own: &str| {
        let text = format!(
            "[defaults.lifecycle]\n{defaults}\n[servers.a]\ncommand = 'x'\n[servers.a.lifecycle]\n{own}"
        );
        only_server(&toml(&text)).lifecycle.keep_alive
    };
    let minute = KeepAlive::For(Duration::from_secs(60));
    assert_eq!(keep_alive("", "start = 'at-boot'"), KeepAlive::Forever);
    assert_eq!(keep_alive("start = 'at-boot'", ""), KeepAlive::Forever);
    assert_eq!(keep_alive("keep-alive = '1m'", "start = 'at-boot'"), minute);
    assert_eq!(keep_alive("start = 'at-boot'", "keep-alive = '1m'"), minute);
    assert_eq!(keep_alive("", "keep-alive = 'forever'"), KeepAlive::Forever);
    assert_eq!(keep_alive("", ""), KeepAlive::For(Duration::from_secs(300)));
}

const TEN_PROBLEMS: &str = r#"[servers.good]
command = "x"
[servers.one]
command = "x"
arguments = []
[servers.two]
url = "example.org"
[servers.three]
command = "x"
lifecycle = { keep-alive = 300, start = "boot" }
[servers.four]
args = ["é", 5]
command = "x"
env = { "ö" = "${X}" }
[servers.Five]
command = "npx -y some-server"
[servers.six-a]
command = "x"
limits = { message = "1MB", call-timeout = "20m" }
[servers.fine]
command = "y"
"#;

#[test]
fn all_problems_are_reported_and_valid_servers_kept() {
    let config = toml(TEN_PROBLEMS);
    assert_eq!(
        problem_lines(&config),
        [
            "5:1 one: unknown key `arguments`",
            "7:7 two: invalid `url`: it must start with `https://` or `http://` and a host",
            "10:28 three: `lifecycle.keep-alive` must be a duration, not a number",
            "10:41 three: invalid value `boot` for `lifecycle.start`",
            "12:14 four: `args` must contain only strings, not a number",
            "14:15 four: `${X}` is not a reference",
            "15:10 Five: invalid server name `Five`: a name contains only `a-z`, `0-9`, `-` and `_`, \
             and starts with a letter or digit",
            "16:11 Five: `command` must be one program, not a command line",
            "19:22 six-a: invalid size `1MB` for `limits.message`",
            "19:44 six-a: `limits.call-timeout` is longer than `limits.call-timeout-max` (10m)",
        ]
    );
    let hints: Vec<_> = config.problems.iter().filter_map(|problem| problem.hint.as_deref()).collect();
    for (hint, needle) in hints.iter().zip([
        "valid keys are",
        "`url = \"https://example.com/mcp\"`",
        "`keep-alive = \"300s\"`",
        "`on-demand`, `at-boot`",
        "double quotes",
        "`${env:X}`",
        "write `five`",
        "`command = \"npx\"`",
        "`\"32MiB\"`",
        "at least as long",
    ]) {
        assert!(hint.contains(needle), "{hint} lacks {needle}");
    }
    assert_eq!(server_names(&config), ["fine", "good"]);
    assert_eq!(config.origins.len(), 7, "servers with problems have an origin too");
    assert!(!config.is_refused());
    assert_eq!(config.problems[0].to_string(), "/folder/config.toml:5:1: unknown key `arguments`");
}

#[test]
fn all_syntax_errors_are_reported() {
    let config = toml("[servers.a]\ncommand = npx\n[servers.b]\ncommand = \"x\ncwd = \n[servers.a]\n");
    assert_eq!(
        problem_lines(&config),
        [
            "2:11 CONFIG: invalid float",
            "4:13 CONFIG: invalid basic string",
            "5:7 CONFIG: string values must be quoted",
            "6:10 CONFIG: this key is already defined"
        ]
    );
    assert!(config.is_refused() && config.roster.is_empty());
}

#[test]
fn unclosed_bracket_is_one_problem() {
    for text in [
        "[servers.a]\nargs = ['x', 'y'\n[servers.b]\ncommand = 'x'\n",
        "env = { A = 'b'\n[servers.b]\na = 'b'\n",
    ] {
        let config = toml(text);
        assert_eq!(config.problems.len(), 1, "{:?}", problem_lines(&config));
        assert_eq!(config.problems[0].message, "a bracket before this is not closed");
    }
}

#[test]
fn names_that_differ_only_in_dashes_are_all_rejected() {
    let config =
        toml("[servers.a-b]\ncommand = 'x'\n[servers.c]\ncommand = 'x'\n[servers.a_b]\ncommand = 'x'");
    assert_eq!(
        problem_lines(&config),
        [
            "1:10 a-b: the server name `a-b` conflicts with `a_b` on line 5",
            "5:10 a_b: the server name `a_b` conflicts with `a-b` on line 1"
        ]
    );
    assert_eq!(server_names(&config), ["c"]);
}

#[test]
fn relative_command_is_resolved_against_the_file() {
    for (written, program) in [
        ("npx", "npx"),
        ("./x", "/folder/x"),
        ("bin/x", "/folder/bin/x"),
        ("../x", "/folder/../x"),
        ("/usr/bin/x", "/usr/bin/x"),
        ("${env:HOME}/x", "${env:HOME}/x"),
        ("./my tools/${env:X}", "/folder/my tools/${env:X}"),
    ] {
        let config = toml(&format!("[servers.a]\ncommand = '{written}'"));
        assert_eq!(command(only_server(&config)).program.source(), program);
    }
}

#[test]
fn messages_do_not_quote_possible_secrets() {
    let config = toml(
        "[servers.a]\ncommand = 'x --token s3cr3t'\nargs = [5353]\nenv = { A = 5353, B = '${s3cr3t s}' }",
    );
    let messages = format!("{:?}", config.problems);
    assert!(
        config.problems.len() == 4 && !messages.contains("5353") && !messages.contains("--token"),
        "{messages}"
    );
}

#[test]
fn tool_settings_override_defaults() {
    let config = Config::parse(
        Path::new("/folder/config.toml"),
        r#"
        [defaults]
        trust = "trusted"
        [defaults.tools]
        idempotent = ["get_*"]
        call-timeout = { "slow_*" = "5m", build = "2m" }
        [limits]
        call-timeout-max = "8m"
        [servers.plain]
        command = "x"
        [servers.own]
        command = "x"
        trust = "normal"
        [servers.own.tools]
        idempotent = []
        call-timeout = { build = "9m" }
        result-tokens = { build = 0, "b*" = 2000 }
        [limits.result-tokens]
        ide = 500
        "#,
    );
    assert_eq!(config.problems, []);
    let spec = |name: &str| config.roster.get(&name.parse().unwrap()).unwrap().clone();
    let (plain, own) = (spec("plain"), spec("own"));
    assert_eq!((plain.trust, own.trust), (crate::spec::Trust::Trusted, crate::spec::Trust::Normal));
    assert!(plain.tools.is_idempotent("get_log") && !own.tools.is_idempotent("get_log"));
    let limit =
        |spec: &ServerSpec, tool: &str| spec.tools.find_call_timeout(tool).map(|(_, limit)| limit.as_secs());
    assert_eq!(
        (limit(&plain, "slow_a"), limit(&plain, "build"), limit(&plain, "x")),
        (Some(300), Some(120), None)
    );
    assert_eq!((limit(&own, "slow_a"), limit(&own, "build")), (Some(300), Some(540)));
    let tokens = ["build", "bisect", "log"].map(|tool| own.tools.find_result_tokens(tool));
    assert_eq!(tokens, [Some(0), Some(2000), None]);
    assert_eq!(config.expose.result_tokens, [("ide".to_owned(), 500)].into());
    assert_eq!(config.expose.mode, crate::access::expose::ExposeMode::All);
    assert_eq!(own.limits.gateway_call_timeout_max, Some(Duration::from_secs(480)));
}

#[test]
fn server_that_learns_of_its_caller_is_per_caller() {
    let config = toml(
        "[servers.a]\nurl = 'https://a.test'\nforward = 'header'\n[servers.b]\nurl = 'https://b.test'\nforward = 'token-exchange'\n\
         token-exchange = { token-endpoint = 'https://login.test/token', client-id = 'gateway', audience = 'b' }",
    );
    assert_eq!(problem_lines(&config), [""; 0]);
    let specs: Vec<&ServerSpec> = config.roster.servers().collect();
    let is_per_caller = |spec: &&ServerSpec| spec.sharing == crate::spec::Sharing::PerCaller;
    assert_eq!(specs.iter().filter(|spec| is_per_caller(spec) && spec.forwards_callers()).count(), 2);
}
