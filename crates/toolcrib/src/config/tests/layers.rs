//! Merging of layers, and the origins of values.

use super::*;
use crate::spec::HttpSpec;

pub(super) fn layered(texts: &[(LayerKind, &str)]) -> LayeredConfig {
    let path = |kind: &LayerKind| match kind {
        LayerKind::Machine => Path::new("/etc/toolcrib/config.toml"),
        LayerKind::User => Path::new("/home/config.toml"),
        LayerKind::Project => Path::new("/project/.toolcrib.toml"),
        LayerKind::Standalone => Path::new("/alone.toml"),
    };
    let texts: Vec<_> =
        texts.iter().map(|(kind, text)| LayerText { kind: *kind, path: path(kind), text }).collect();
    LayeredConfig::from_texts(&texts)
}

pub(super) fn user_and_project(user: &str, project: &str) -> Config {
    layered(&[(LayerKind::User, user), (LayerKind::Project, project)]).resolve(&HostFacts::default())
}

fn machine_and_user(machine: &str, user: &str) -> Config {
    layered(&[(LayerKind::Machine, machine), (LayerKind::User, user)]).resolve(&HostFacts::default())
}

pub(super) fn test_facts() -> HostFacts {
    HostFacts {
        host: Ok("Still.local".to_owned()),
        user: Ok("ann".to_owned()),
        os: "linux".to_owned(),
        env: [("CI".to_owned(), "true".to_owned())].into(),
        addresses: Ok(vec!["192.168.1.7".parse().unwrap(), "fd00::7".parse().unwrap()]),
        gateway_mac: Ok("00:11:22:33:44:55".to_owned()),
        ssid: Err("there is no wireless network".to_owned()),
        files: [("Cargo.toml".to_owned(), Ok(Some("Cargo.toml".to_owned()))), ("*.py".to_owned(), Ok(None))]
            .into(),
        project: Some("crib".to_owned()),
        ..HostFacts::default()
    }
}

pub(super) fn standalone(text: &str) -> Config {
    layered(&[(LayerKind::Standalone, text)]).resolve(&test_facts())
}

pub(super) fn reason<'a>(config: &'a Config, name: &str) -> &'a str {
    let found = config.declared.iter().find(|declared| declared.id.as_str() == name);
    &found.expect("declared").reason
}

pub(super) fn is_on(config: &Config, name: &str) -> bool {
    config.declared.iter().any(|declared| declared.id.as_str() == name && declared.active)
}

#[test]
fn nearer_layer_wins_key_by_key() {
    let config = machine_and_user(
        "[servers.a]\ncommand = 'x'\nargs = ['1', '2']\nenv = { K = 'far', L = 'far' }\nlifecycle.keep-alive = '1m'\n\
         lifecycle.start-timeout = '9s'\n[servers.b]\ncommand = 'y'\n",
        "[servers.a]\n'+args' = ['3']\nenv.K = 'near'\nlifecycle.keep-alive = '2m'\n[servers.b]\nenabled = false\n",
    );
    assert_eq!(problem_lines(&config), [""; 0]);
    let a = config.roster.get(&"a".parse().unwrap()).unwrap();
    let words = |texts: &[crate::spec::template::TemplateText]| {
        texts.iter().map(|text| text.source().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(words(&command(a).args), ["1", "2", "3"]);
    let env: Vec<_> = command(a).env.iter().map(|(key, text)| format!("{key}={}", text.source())).collect();
    assert_eq!(env, ["K=near", "L=far"]);
    assert_eq!(a.lifecycle.keep_alive, KeepAlive::For(Duration::from_secs(120)));
    assert_eq!(a.lifecycle.start_timeout, Duration::from_secs(9));
    assert_eq!(reason(&config, "b"), "off: disabled in /home/config.toml:6");
    assert!(!config.roster.get(&"b".parse().unwrap()).unwrap().enabled);
    let origin = Origin { file: "/etc/toolcrib/config.toml".into(), line: 1 };
    assert_eq!(config.origins[&"a".parse().unwrap()], origin);
}

#[test]
fn list_is_replaced_and_plus_key_appends() {
    let replaced =
        user_and_project("[servers.a]\ncommand = 'x'\nargs = ['1']\n", "[servers.a]\nargs = ['2']\n");
    assert_eq!(command(only_server(&replaced)).args.len(), 1);
    let both = user_and_project("", "[servers.a]\ncommand = 'x'\nargs = ['1']\n'+args' = ['2']\n");
    assert_eq!(command(only_server(&both)).args.len(), 2);
}

#[test]
fn paths_are_resolved_against_the_file_that_sets_them() {
    let config = user_and_project("[servers.a]\ncommand = './run'\n", "[servers.a]\ncwd = 'work'\n");
    let spec = command(only_server(&config));
    assert_eq!(spec.program.source(), "/home/run");
    assert_eq!(spec.cwd.as_deref(), Some(Path::new("/project/work")));
}

#[test]
fn nearer_url_replaces_command_and_the_reverse() {
    let config = user_and_project(
        "[servers.a]\ncommand = 'x'\nargs = ['1']\n[servers.b]\nurl = 'https://b.test/'\nheaders = { X = 'y' }\n",
        "[servers.a]\nurl = 'https://a.test/'\n[servers.b]\ncommand = 'y'\n",
    );
    assert_eq!(problem_lines(&config), [""; 0]);
    let endpoint = |name: &str| config.roster.get(&name.parse().unwrap()).unwrap().endpoint.clone();
    assert!(matches!(endpoint("a"), Endpoint::Http(_)) && matches!(endpoint("b"), Endpoint::Command(_)));
    let headers = user_and_project(
        "[servers.a]\nurl = 'https://a.test/'\nheaders = { Authorization = 'far' }\n",
        "[servers.a]\nheaders = { authorization = 'near' }\n",
    );
    let Endpoint::Http(HttpSpec { headers, .. }) = &only_server(&headers).endpoint else {
        panic!("not a URL")
    };
    assert_eq!(headers.len(), 1);
}

#[test]
fn header_names_merge_case_insensitively_in_any_number() {
    for count in [1, 31, 32, 40] {
        let table = |prefix: &str, value: &str| -> String {
            let headers = (0..count).map(|n| format!("{prefix}-{n} = '{value}'\n"));
            format!("[servers.a.headers]\n{}", headers.collect::<String>())
        };
        let config = user_and_project(
            &format!("[servers.a]\nurl = 'https://a.test/'\n{}", table("X-Key", "far")),
            &table("x-key", "near"),
        );
        assert_eq!(problem_lines(&config), [""; 0], "{count} headers");
        let Endpoint::Http(HttpSpec { headers, .. }) = &only_server(&config).endpoint else {
            panic!("not a URL")
        };
        assert_eq!(headers.len(), count);
        assert!(headers.values().all(|value| value.source() == "near"));
    }
}

#[test]
fn problem_is_reported_in_its_own_layer() {
    let config =
        user_and_project("[servers.a]\ncommand = 'x'\n", "# ä\n[servers.a]\n  arg = []\n[servers.c]\n");
    let shown: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "/project/.toolcrib.toml:3:3: unknown key `arg`",
            "/project/.toolcrib.toml:4:10: server `c` has neither `command` nor `url`"
        ]
    );
    assert_eq!(reason(&config, "a"), "off: its config has errors: unknown key `arg`");
    let broken = user_and_project("[servers.a]\ncommand = 'x'\n", "[servers.b\n");
    assert!(broken.is_refused() && broken.problems[0].file == Path::new("/project/.toolcrib.toml"));
}

#[test]
fn name_conflict_across_layers_names_both_files() {
    let config = user_and_project("[servers.a-b]\ncommand = 'x'\n", "[servers.a_b]\ncommand = 'y'\n");
    let shown: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "/home/config.toml:1:10: the server name `a-b` conflicts with `a_b` in /project/.toolcrib.toml:1",
            "/project/.toolcrib.toml:1:10: the server name `a_b` conflicts with `a-b` in /home/config.toml:1"
        ]
    );
    assert!(config.roster.is_empty());
}

#[test]
fn project_can_only_add_denials() {
    let user = "[policy]\ndeny = ['git.push']\nallow = ['git.*']\n";
    let config = user_and_project(user, "[policy]\ndeny = ['git.commit']\n");
    assert_eq!(problem_lines(&config).iter().filter(|line| line.contains("CONFIG")).count(), 0);
    let denied: Vec<String> = config.policy.everyone.deny.iter().map(ToString::to_string).collect();
    assert_eq!(denied, ["git.push", "git.commit"]);
    for text in [
        "[callers.x]\ntoken = 't'\n",
        "[limits]\nbody = '1GiB'\n",
        "[listen]\nhosts = ['x']\n",
        "[policy]\nallow = ['*']\n",
    ] {
        let config = user_and_project(user, text);
        assert!(config.is_refused(), "{text}");
        assert!(
            config.problems.iter().any(|problem| problem.message.starts_with("a project config cannot set")),
            "{text}"
        );
        assert_eq!(config.policy.everyone.allow.as_ref().unwrap().rules.len(), 1);
    }
}

#[test]
fn every_value_has_its_origin() {
    let config = layered(&[
        (LayerKind::Machine, "[defaults]\nlifecycle.keep-alive = '1m'\n[servers.a]\ncommand = 'x'\n"),
        (LayerKind::User, "[servers.a]\ncommand = 'y'\nenv = { T = 's3cret', U = '${env:U}' }\n"),
        (LayerKind::Project, "[servers.a]\ncommand = 'z'\nlifecycle.keep-alive = '2m'\n"),
    ]);
    let values = config.server_values(&"a".parse().unwrap());
    let shown: Vec<String> = values
        .iter()
        .map(|value| {
            let overridden: Vec<String> = value
                .overrides
                .iter()
                .map(|(value, origin)| format!("{value} {}:{}", origin.file.display(), origin.line))
                .collect();
            let Origin { file, line } = &value.origin;
            format!("{} = {} {}:{line} {overridden:?}", value.key, value.value, file.display())
        })
        .collect();
    assert_eq!(
        shown,
        [
            "command = \"z\" /project/.toolcrib.toml:2 [\"\\\"x\\\" /etc/toolcrib/config.toml:4\", \"\\\"y\\\" /home/config.toml:2\"]",
            "lifecycle.keep-alive = \"2m\" /project/.toolcrib.toml:3 [\"\\\"1m\\\" /etc/toolcrib/config.toml:2\"]",
        ]
    );
    let withheld: Vec<String> =
        values[0].withheld.iter().map(|value| format!("{} = {}", value.key, value.value)).collect();
    assert_eq!(withheld, ["env.T = \"(hidden)\"", "env.U = \"${env:U}\""]);
}

#[test]
fn values_show_the_endpoint_that_a_nearer_layer_replaced() {
    let texts = [
        (LayerKind::Machine, "[servers.a]\nurl = 'http://far/'\nheaders = { X = 'y' }\n"),
        (LayerKind::User, "[servers.a]\ncommand = 'npx'\nargs = ['notes']\n"),
        (LayerKind::Project, "[servers.a]\nurl = 'http://near/'\n"),
    ];
    let shown =
        |texts: &[(LayerKind, &str)]| format!("{:?}", layered(texts).server_values(&"a".parse().unwrap()));
    assert!(!shown(&texts[..1]).contains("npx"));
    assert!(shown(&texts[..2]).contains("http://far/"), "{}", shown(&texts[..2]));
    let all = shown(&texts);
    assert!(all.contains("http://near/") && all.contains("npx") && all.contains("http://far/"), "{all}");
}
