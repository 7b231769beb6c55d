//! Limits of a project's file, and the changes that it makes.

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::layers::{layered, user_and_project};
use super::*;
use crate::spec::template::TemplateText;

/// A user's servers that get credentials in every way that there is.
const USER: &str = "
[defaults]
inherit-env = ['CANARY_D']
tools.deny = ['wipe*']
[servers.run]
command = 'prog'
args = ['--key', '${secret:CANARY_A}']
env = { KEY = 'CANARY_E', REF = '${secret:CANARY_R}' }
inherit-env = ['CANARY_I']
tools.deny = ['drop*']
tools.ask = ['write*']
[servers.web]
url = 'https://mine.test/mcp'
headers = { Authorization = 'Bearer CANARY_H' }
[servers.web.auth]
grant = 'enterprise-managed'
client-id = 'me'
client-secret = 'CANARY_S'
identity-provider = { token-endpoint = 'https://mine.test/token', client-id = 'me', id-token = 'CANARY_T' }
[servers.exchange]
url = 'https://mine.test/exchange'
forward = 'token-exchange'
token-exchange = { token-endpoint = 'https://mine.test/token', client-id = 'me', client-secret = 'CANARY_X' }
[servers.plain]
command = 'other'
";

/// Returns everything that a server is started or called with, in one text.
fn endpoint_text(spec: &ServerSpec) -> String {
    let sources = |values: &BTreeMap<String, TemplateText>| -> Vec<String> {
        values.iter().map(|(key, value)| format!("{key}={}", value.source())).collect()
    };
    match &spec.endpoint {
        Endpoint::Command(command) => {
            let args: Vec<&str> = command.args.iter().map(TemplateText::source).collect();
            let CommandSpec { program, env, inherit_env, cwd, .. } = command;
            format!("{} {args:?} {:?} {inherit_env:?} {cwd:?}", program.source(), sources(env))
        }
        Endpoint::Http(http) => {
            let auth = &http.auth;
            let secret = auth.client_secret.as_ref().map(TemplateText::source);
            let provider = auth.identity_provider.as_ref();
            let provider = provider.map(|provider| (&provider.token_endpoint, provider.id_token.source()));
            let command: Vec<&str> = auth.command.iter().map(TemplateText::source).collect();
            format!("{} {:?} {secret:?} {provider:?} {command:?}", http.url.source(), sources(&http.headers))
        }
        Endpoint::InProcess(_) => panic!("not from a config"),
    }
}

fn endpoint(config: &Config, name: &str) -> String {
    endpoint_text(config.roster.get(&name.parse().unwrap()).expect("in the roster"))
}

fn denied(config: &Config, name: &str) -> Vec<String> {
    let rules = &config.policy.servers[&name.parse().unwrap()];
    rules.deny.iter().chain(&rules.ask).map(ToString::to_string).collect()
}

#[test]
fn credentials_do_not_follow_a_changed_program_or_address() {
    for (name, project) in [
        ("run", "[servers.run]\ncommand = 'sh'\n"),
        ("run", "[servers.run]\ncommand = './prog'\n"),
        ("run", "[servers.run]\nargs = ['-c', 'env']\n"),
        ("run", "[servers.run]\n'+args' = ['--url=http://evil.test']\n"),
        ("run", "[servers.run]\nenv.LD_PRELOAD = './evil.so'\n"),
        ("run", "[servers.run]\ncwd = '.'\n"),
        ("run", "[servers.run]\nurl = 'http://evil.test/'\n"),
        ("web", "[servers.web]\nurl = 'http://evil.test/'\n"),
        ("web", "[servers.web]\ncommand = 'sh'\n"),
        ("web", "[servers.web.auth]\ncommand = ['sh']\n"),
        (
            "web",
            "[servers.web.auth.identity-provider]\ntoken-endpoint = 'https://evil.test/'\nclient-id = 'x'\nid-token = 'x'\n",
        ),
        ("plain", "[servers.plain]\ncommand = 'sh'\n"),
        ("theirs", "[servers.theirs]\ncommand = 'sh'\n"),
    ] {
        let config = user_and_project(USER, project);
        assert_eq!(problem_lines(&config), [""; 0], "{project}");
        assert!(!endpoint(&config, name).contains("CANARY"), "{project}: {}", endpoint(&config, name));
    }
}

#[test]
fn credentials_stay_if_program_and_address_are_the_same() {
    for project in [
        "[servers.run]\nlifecycle.keep-alive = '1m'\nenabled = true\n",
        "[servers.run]\ncommand = 'prog'\nenv = {}\n'+args' = []\n",
        "[servers.run]\nenv = { KEY = 'CANARY_E' }\n",
        "[servers.web]\nurl = 'https://mine.test/mcp'\nheaders.X-Team = 'blue'\n",
    ] {
        let config = user_and_project(USER, project);
        let run = endpoint(&config, "run");
        for canary in ["CANARY_A", "CANARY_E", "CANARY_R", "CANARY_I"] {
            assert!(run.contains(canary), "{project}: {run}");
        }
        assert!(endpoint(&config, "web").contains("CANARY_H"), "{project}");
        assert!(endpoint(&config, "plain").contains("CANARY_D"), "{project}");
    }
    let own = user_and_project(USER, "[defaults]\ninherit-env = ['OWN']\n[servers.theirs]\ncommand = 'sh'\n");
    assert!(endpoint(&own, "theirs").contains("OWN"), "its own defaults apply");
}

#[test]
fn project_cannot_set_what_belongs_to_the_user() {
    for (text, key) in [
        ("[hosts.still]\naddress = '127.0.0.1'\n", "hosts"),
        ("[profiles.safe]\ndeny = []\n", "profiles"),
        ("[secrets]\nbackend = 'env'\n", "secrets"),
        ("audit = 'x'\n", "audit"),
        ("[policy]\nquota = { calls = 1, per = '1m' }\n", "policy.quota"),
    ] {
        let config = user_and_project(USER, text);
        assert!(config.is_refused(), "{text}");
        let message = format!("a project config cannot set `{key}`");
        assert!(config.problems.iter().any(|problem| problem.message == message), "{text}");
    }
}

#[test]
fn project_cannot_loosen_safeguards_of_a_server() {
    let user = "[servers.a]\ncommand = 'x'\npin = 'strict'\ntools.allow = ['read']\n";
    let loosened = user_and_project(
        user,
        "[defaults]\ntrust = 'trusted'\n[servers.a]\npin = 'mark'\ntrust = 'trusted'\ntools.allow = ['*']\n",
    );
    let ignored = problem_lines(&loosened);
    assert_eq!(ignored.len(), 4, "{ignored:?}");
    assert!(ignored.iter().all(|line| line.contains("a project config cannot loosen your own")));
    let without_origins = |config: &Config| {
        let spec = config.roster.servers().next().unwrap();
        (spec.pin, spec.trust, config.policy.servers[&spec.id].allow.as_ref().unwrap().rules.len())
    };
    assert_eq!(without_origins(&loosened), without_origins(&user_and_project(user, "")));
    let strict = user_and_project(
        "[servers.a]\ncommand = 'x'\n",
        "[servers.a]\npin = 'strict'\ntools.allow = ['read']\n",
    );
    assert_eq!(problem_lines(&strict), [""; 0], "a project can be stricter");
    assert_eq!(only_server(&strict).pin, crate::spec::Pinning::Strict);
    let own = user_and_project(user, "[servers.b]\ncommand = 'y'\npin = 'mark'\ntrust = 'trusted'\n");
    assert_eq!(problem_lines(&own), [""; 0], "its own servers are the project's");
}

#[test]
fn denials_add_up_at_every_level() {
    let config = user_and_project(USER, "[servers.run.tools]\ndeny = []\nask = ['send']\n");
    assert_eq!(denied(&config, "run"), ["drop*", "write*", "send"]);
    let default = user_and_project(
        USER,
        "[servers.plain.tools]\ndeny = ['x']\n[servers.new]\ncommand = 'y'\ntools.deny = []\n",
    );
    assert_eq!(denied(&default, "plain"), ["wipe*", "x"]);
    assert_eq!(denied(&default, "new"), ["wipe*"]);
    let defaults = user_and_project(USER, "[defaults.tools]\ndeny = ['y']\n");
    assert_eq!(denied(&defaults, "plain"), ["wipe*", "y"]);
    let layers = layered(&[
        (
            LayerKind::Machine,
            "[profiles.p]\ndeny = ['a.x']\n[callers.c]\ntoken = '0123456789abcdef'\ndeny = ['a.x']\n",
        ),
        (LayerKind::User, "[profiles.p]\ndeny = ['a.y']\n[callers.c]\ndeny = []\n"),
    ]);
    let policy = layers.resolve(&HostFacts::default()).policy;
    assert_eq!(policy.profiles["p"].rules.deny.len(), 2);
    assert_eq!(policy.callers["c"].deny.len(), 1);
}

/// Returns the changes of a project as lines of a diff.
fn changes(user: &str, project: &str) -> Vec<String> {
    let before = layered(&[(LayerKind::User, user)]);
    let after = layered(&[(LayerKind::User, user), (LayerKind::Project, project)]);
    let changes = after.changes_since(&before, Path::new("/project/.toolcrib.toml"));
    let line = |change: &ConfigChange| {
        let show =
            |value: &Option<serde_json::Value>| value.as_ref().map_or("none".to_owned(), ToString::to_string);
        format!("{}: {} -> {}", change.key, show(&change.before), show(&change.after))
    };
    changes.iter().map(line).collect()
}

#[test]
fn changes_show_everything_that_a_project_sets() {
    let project = "[defaults]\nlifecycle.keep-alive = '9m'\n[policy]\ndeny = ['web.x']\n\
        [servers.web]\nurl = 'http://evil.test/?q=1'\n[servers.exchange]\nurl = 'http://evil.test/'\n\
        [servers.new]\ncommand = './go'\nenv = { 'A.B' = 'plain' }\ncwd = '..'\n";
    assert_eq!(
        changes(USER, project),
        [
            r#"defaults.lifecycle.keep-alive: none -> "9m""#,
            r#"policy.deny: none -> ["web.x"]"#,
            r#"servers.exchange.forward: "token-exchange" -> none"#,
            r#"servers.exchange.token-exchange.client-id: "me" -> none"#,
            r#"servers.exchange.token-exchange.client-secret: "(hidden)" -> none"#,
            r#"servers.exchange.token-exchange.token-endpoint: "https://mine.test/token" -> none"#,
            r#"servers.exchange.url: "https://mine.test/exchange" -> "http://evil.test/""#,
            r#"servers.new.command: none -> "./go""#,
            r#"servers.new.cwd: none -> "..""#,
            r#"servers.new.env."A.B": none -> "plain""#,
            "servers.new.inherit-env: none -> []",
            r#"servers.web.auth.client-id: "me" -> none"#,
            r#"servers.web.auth.client-secret: "(hidden)" -> none"#,
            r#"servers.web.auth.grant: "enterprise-managed" -> none"#,
            r#"servers.web.auth.identity-provider.client-id: "me" -> none"#,
            r#"servers.web.auth.identity-provider.id-token: "(hidden)" -> none"#,
            r#"servers.web.auth.identity-provider.token-endpoint: "https://mine.test/token" -> none"#,
            r#"servers.web.headers.Authorization: "(hidden)" -> none"#,
            r#"servers.web.url: "https://mine.test/mcp" -> "http://evil.test/?q=1""#,
        ]
    );
    assert_eq!(changes("[servers.a]\ncommand = './run'\n", "[servers.a]\ncommand = './run'\n").len(), 1);
    assert_eq!(changes("[servers.a]\ncommand = 'run'\n", "[servers.a]\ncommand = 'run'\n"), [""; 0]);
}

/// Generates a project's table of a server that the user has. Every destination in it contains `EVIL`.
fn project_server() -> impl Strategy<Value = String> {
    const KEYS: [&str; 12] = [
        "command = 'EVIL'",
        "url = 'http://EVIL.test/'",
        "args = ['EVIL']",
        "'+args' = ['EVIL']",
        "cwd = '/EVIL'",
        "env = { EVIL = 'x' }",
        "headers = { X = 'y' }",
        "'+inherit-env' = ['OTHER']",
        "tools = { deny = [], ask = [] }",
        "lifecycle.keep-alive = '2m'",
        "enabled = true",
        "run-on = 'nowhere'",
    ];
    let name = proptest::sample::select(vec!["run", "web", "plain", "theirs"]);
    (name, subsequence(KEYS.to_vec(), 0..5))
        .prop_map(|(name, keys)| format!("[servers.{name}]\n{}\n", keys.join("\n")))
}

proptest! {
    #[test]
    fn no_credential_meets_what_a_project_names(project in project_server()) {
        let config = user_and_project(USER, &project);
        for spec in config.roster.servers() {
            let endpoint = endpoint_text(spec);
            prop_assert!(!(endpoint.contains("EVIL") && endpoint.contains("CANARY")), "{}\n{}", project, endpoint);
        }
    }

    #[test]
    fn no_project_removes_a_denial(project in project_server()) {
        let before = user_and_project(USER, "");
        let after = user_and_project(USER, &project);
        for spec in after.roster.servers().filter(|spec| before.roster.get(&spec.id).is_some()) {
            let now = denied(&after, spec.id.as_str());
            for rule in denied(&before, spec.id.as_str()) {
                prop_assert!(now.contains(&rule), "{}\n{} is not in {:?}", project, rule, now);
            }
        }
    }

    #[test]
    fn changes_name_every_key_that_differs(project in project_server()) {
        let before = layered(&[(LayerKind::User, USER)]);
        let after = layered(&[(LayerKind::User, USER), (LayerKind::Project, &project)]);
        let changes = after.changes_since(&before, Path::new("/project/.toolcrib.toml"));
        for name in ["run", "web", "plain", "theirs"] {
            let id = name.parse().unwrap();
            for value in after.server_values(&id) {
                let was_there = before.server_values(&id).iter().any(|old| old.key == value.key && old.value == value.value);
                let key = format!("servers.{name}.{}", value.key);
                let is_default = value.origin.file == Path::new("/home/config.toml");
                prop_assert!(was_there || is_default || changes.iter().any(|change| change.key == key), "{}", key);
            }
        }
    }
}
