//! Layers: who wins, and who said so.

use super::*;
use crate::spec::HttpSpec;

pub(super) fn draft(texts: &[(Rank, &str)]) -> Draft {
    let file = |rank: &Rank| match rank {
        Rank::Machine => Path::new("/etc/toolcrib/config.toml"),
        Rank::User => Path::new("/home/config.toml"),
        Rank::Project => Path::new("/project/.toolcrib.toml"),
        Rank::Alone => Path::new("/alone.toml"),
    };
    let texts: Vec<_> = texts.iter().map(|(rank, text)| (*rank, file(rank), *text)).collect();
    Draft::of_texts(&texts)
}

fn two(user: &str, project: &str) -> Config {
    draft(&[(Rank::User, user), (Rank::Project, project)]).resolve(&Facts::default())
}

pub(super) fn here() -> Facts {
    Facts {
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
        ..Facts::default()
    }
}

pub(super) fn alone(text: &str) -> Config {
    draft(&[(Rank::Alone, text)]).resolve(&here())
}

pub(super) fn reason<'a>(config: &'a Config, name: &str) -> &'a str {
    let found = config.declared.iter().find(|declared| declared.id.as_str() == name);
    &found.expect("declared").reason
}

pub(super) fn is_on(config: &Config, name: &str) -> bool {
    config.declared.iter().any(|declared| declared.id.as_str() == name && declared.active)
}

#[test]
fn the_nearer_layer_wins_key_by_key() {
    let config = two(
        "[servers.a]\ncommand = 'x'\nargs = ['1', '2']\nenv = { K = 'far', L = 'far' }\nlifecycle.keep-alive = '1m'\n\
         lifecycle.start-timeout = '9s'\n[servers.b]\ncommand = 'y'\n",
        "[servers.a]\n'+args' = ['3']\nenv.K = 'near'\nlifecycle.keep-alive = '2m'\n[servers.b]\nenabled = false\n",
    );
    assert_eq!(lines(&config), [""; 0]);
    let a = config.roster.get(&"a".parse().unwrap()).unwrap();
    let words =
        |texts: &[crate::text::Text]| texts.iter().map(|text| text.written().to_owned()).collect::<Vec<_>>();
    assert_eq!(words(&command(a).args), ["1", "2", "3"]);
    let env: Vec<_> = command(a).env.iter().map(|(key, text)| format!("{key}={}", text.written())).collect();
    assert_eq!(env, ["K=near", "L=far"]);
    assert_eq!(a.lifecycle.keep_alive, KeepAlive::For(Duration::from_secs(120)));
    assert_eq!(a.lifecycle.start_timeout, Duration::from_secs(9));
    assert_eq!(reason(&config, "b"), "off: switched off in /project/.toolcrib.toml:6");
    assert!(!config.roster.get(&"b".parse().unwrap()).unwrap().enabled);
    assert_eq!(config.origins[&"a".parse().unwrap()], Origin { file: "/home/config.toml".into(), line: 1 });
}

#[test]
fn a_list_without_a_plus_is_replaced_and_one_layer_may_write_both() {
    let replaced = two("[servers.a]\ncommand = 'x'\nargs = ['1']\n", "[servers.a]\nargs = ['2']\n");
    assert_eq!(command(only(&replaced)).args.len(), 1);
    let both = two("", "[servers.a]\ncommand = 'x'\nargs = ['1']\n'+args' = ['2']\n");
    assert_eq!(command(only(&both)).args.len(), 2);
}

#[test]
fn paths_are_relative_to_the_file_they_are_written_in() {
    let config = two("[servers.a]\ncommand = './run'\n", "[servers.a]\ncwd = 'work'\n");
    let spec = command(only(&config));
    assert_eq!(spec.program.written(), "/home/run");
    assert_eq!(spec.cwd.as_deref(), Some(Path::new("/project/work")));
}

#[test]
fn an_address_takes_the_place_of_a_command_and_the_reverse() {
    let config = two(
        "[servers.a]\ncommand = 'x'\nargs = ['1']\n[servers.b]\nurl = 'https://b.test/'\nheaders = { X = 'y' }\n",
        "[servers.a]\nurl = 'https://a.test/'\n[servers.b]\ncommand = 'y'\n",
    );
    assert_eq!(lines(&config), [""; 0]);
    let endpoint = |name: &str| config.roster.get(&name.parse().unwrap()).unwrap().endpoint.clone();
    assert!(matches!(endpoint("a"), Endpoint::Http(_)) && matches!(endpoint("b"), Endpoint::Command(_)));
    let headers = two(
        "[servers.a]\nurl = 'https://a.test/'\nheaders = { Authorization = 'far' }\n",
        "[servers.a]\nheaders = { authorization = 'near' }\n",
    );
    let Endpoint::Http(HttpSpec { headers, .. }) = &only(&headers).endpoint else { panic!("an address") };
    assert_eq!(headers.len(), 1);
}

#[test]
fn a_problem_is_placed_in_the_layer_it_is_in() {
    let config = two("[servers.a]\ncommand = 'x'\n", "# ä\n[servers.a]\n  arg = []\n[servers.c]\n");
    let shown: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "/project/.toolcrib.toml:3:3: there is no key `arg`",
            "/project/.toolcrib.toml:4:10: `c` needs `command` or `url`"
        ]
    );
    assert_eq!(reason(&config, "a"), "off: something is wrong with it: there is no key `arg`");
    let broken = two("[servers.a]\ncommand = 'x'\n", "[servers.b\n");
    assert!(broken.refused() && broken.problems[0].file == Path::new("/project/.toolcrib.toml"));
}

#[test]
fn names_that_are_the_same_in_two_layers_are_named_with_both_places() {
    let config = two("[servers.a-b]\ncommand = 'x'\n", "[servers.a_b]\ncommand = 'y'\n");
    let shown: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "/home/config.toml:1:10: `a-b` and `a_b` in /project/.toolcrib.toml:1 are the same name here",
            "/project/.toolcrib.toml:1:10: `a_b` and `a-b` in /home/config.toml:1 are the same name here"
        ]
    );
    assert!(config.roster.is_empty());
}

#[test]
fn a_project_forbids_more_and_never_less() {
    let user = "[policy]\ndeny = ['git.push']\nallow = ['git.*']\n";
    let config = two(user, "[policy]\ndeny = ['git.commit']\n");
    assert_eq!(lines(&config).iter().filter(|line| line.contains("WHOLE")).count(), 0);
    let denied: Vec<String> = config.policy.everyone.deny.iter().map(ToString::to_string).collect();
    assert_eq!(denied, ["git.push", "git.commit"]);
    for text in [
        "[callers.x]\ntoken = 't'\n",
        "[limits]\nbody = '1GiB'\n",
        "[listen]\nhosts = ['x']\n",
        "[policy]\nallow = ['*']\n",
    ] {
        let config = two(user, text);
        assert!(config.refused(), "{text}");
        assert!(
            config.problems.iter().any(|problem| problem.message.starts_with("a project cannot decide")),
            "{text}"
        );
        assert_eq!(config.policy.everyone.allow.as_ref().unwrap().rules.len(), 1);
    }
}

#[test]
fn every_value_says_who_wrote_it() {
    let draft = draft(&[
        (Rank::Machine, "[defaults]\nlifecycle.keep-alive = '1m'\n[servers.a]\ncommand = 'x'\n"),
        (Rank::User, "[servers.a]\ncommand = 'y'\nenv = { T = 's3cret', U = '${env:U}' }\n"),
        (Rank::Project, "[servers.a]\ncommand = 'z'\nlifecycle.keep-alive = '2m'\n"),
    ]);
    let settings = draft.settings(&"a".parse().unwrap());
    let shown: Vec<String> = settings
        .iter()
        .map(|setting| {
            let over: Vec<String> = setting
                .overrides
                .iter()
                .map(|(value, at)| format!("{value} {}:{}", at.file.display(), at.line))
                .collect();
            let Origin { file, line } = &setting.origin;
            format!("{} = {} {}:{line} {over:?}", setting.key, setting.value, file.display())
        })
        .collect();
    assert_eq!(
        shown,
        [
            "command = \"z\" /project/.toolcrib.toml:2 [\"\\\"x\\\" /etc/toolcrib/config.toml:4\", \"\\\"y\\\" /home/config.toml:2\"]",
            "env.T = \"(hidden)\" /home/config.toml:3 []",
            "env.U = \"${env:U}\" /home/config.toml:3 []",
            "lifecycle.keep-alive = \"2m\" /project/.toolcrib.toml:3 [\"\\\"1m\\\" /etc/toolcrib/config.toml:2\"]",
        ]
    );
}
