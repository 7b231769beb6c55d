//! Scopes, tags and hosts: what is on here, and why.

use super::layers::{alone, draft, here, is_on, reason};
use super::*;

#[test]
fn all_conditions_of_a_scope_must_hold() {
    for (conditions, matched, fact) in [
        ("host = 'still'", true, "the host is `Still.local`"),
        ("host = 'STILL.*'", true, "the host is `Still.local`"),
        ("host = 'other'", false, "the host is `Still.local`"),
        ("user = 'ann', os = 'linux'", true, "the user is `ann`; the system is `linux`"),
        ("user = 'ann', os = 'macos'", false, "the system is `linux`"),
        ("env = { CI = 'true' }", true, "`CI` fits"),
        ("env = { CI = 'no' }", false, "`CI` has another value"),
        ("env = { HOME = '*' }", false, "`HOME` is not set"),
        ("files = 'Cargo.toml'", true, "`Cargo.toml` is here"),
        ("files = '*.py'", false, "there is no `*.py` here"),
        ("project = 'cr*'", true, "the project is `crib`"),
        ("network = { cidr = '192.168.0.0/16' }", true, "our address `192.168.1.7` is in `192.168.0.0/16`"),
        ("network = { cidr = '10.0.0.0/8' }", false, "no address of ours is in `10.0.0.0/8`"),
        (
            "network = { cidr = 'fd00::/8', gateway-mac = '0:11:22:33:44:55' }",
            true,
            "our address `fd00::7` is in `fd00::/8`; the gateway is `00:11:22:33:44:55`",
        ),
        (
            "network = { ssid = 'home' }",
            false,
            "the wireless network is not known: there is no wireless network",
        ),
    ] {
        let config = alone(&format!(
            "[scopes.s]\nmatch = {{ {conditions} }}\ntags = ['t']\n[servers.a]\ncommand = 'x'\nwhen = ['t']\n"
        ));
        assert_eq!(lines(&config), [""; 0], "{conditions}");
        assert_eq!(
            (config.scopes[0].matched, config.scopes[0].fact.as_str()),
            (matched, fact),
            "{conditions}"
        );
        assert_eq!(
            (is_on(&config, "a"), names(&config).len()),
            (matched, usize::from(matched)),
            "{conditions}"
        );
    }
}

#[test]
fn tags_join_scopes_and_servers() {
    let config = |when: &str| {
        let scopes = "[scopes.rust]\nmatch = { files = 'Cargo.toml' }\ntags = ['code', 'rust']\n[scopes.py]\nmatch = { files = '*.py' }\ntags = ['py']\n";
        alone(&format!("{scopes}[servers.a]\ncommand = 'x'\nwhen = {when}\n"))
    };
    for (when, on, why) in [
        ("['code']", true, "on: active: `code` (scope `rust`: `Cargo.toml` is here)"),
        ("['py', 'linux']", true, "on: active: `linux` (the system)"),
        ("['py']", false, "off here: the tag `py` is not active"),
        ("{ all = ['code', 'py'] }", false, "off here: the tag `py` is not active"),
        ("{ not = ['py'] }", true, "on: not active: `py`"),
        (
            "{ any = ['py', 'rust'], not = ['code'] }",
            false,
            "off here: the tag `code` (scope `rust`: `Cargo.toml` is here) is active, and it must not be",
        ),
        ("{ any = ['py', 'x-y'] }", false, "off here: none of the tags `py`, `x-y` is active"),
        ("[]", false, "off here: it wants one of no tags"),
    ] {
        let config = config(when);
        assert_eq!((is_on(&config, "a"), reason(&config, "a")), (on, why), "{when}");
    }
    assert_eq!(lines(&config("[]")).len(), 1, "a server that is never on is mentioned");
    assert_eq!(reason(&alone("[servers.a]\ncommand = 'x'\n"), "a"), "on: always, because it has no `when`");
}

#[test]
fn a_profile_has_the_servers_that_want_one_of_its_tags() {
    let config = alone(
        "[scopes.s]\nmatch = { os = 'linux' }\ntags = ['code', 'desk']\n\
         [profiles.p]\ntags = ['code', 'cod']\n[profiles.both]\nservers = ['d']\ntags = ['desk']\n[profiles.none]\ntags = []\n\
         [servers.a]\ncommand = 'x'\nwhen = ['code', 'desk']\n[servers.b]\ncommand = 'x'\nwhen = { all = ['code'] }\n\
         [servers.c]\ncommand = 'x'\nwhen = { not = ['code'] }\n[servers.d]\ncommand = 'x'\n",
    );
    assert_eq!(lines(&config), ["5:17 NOTE: no scope has the tag `cod`"]);
    let has = |profile: &str| {
        let caller = crate::Caller::local().within(profile);
        let seen = |server: &&str| config.policy.sees(&caller, &server.parse().expect("a name"));
        ["a", "b", "c", "d"].into_iter().filter(|server| seen(server)).collect::<Vec<_>>()
    };
    assert_eq!((has("p"), has("both"), has("none")), (vec!["a", "b"], vec!["a", "d"], vec![]));
}

#[test]
fn what_nobody_can_tell_switches_nothing_on() {
    let not = |scope: &str| {
        let config =
            alone(&format!("[scopes.s]\n{scope}\n[servers.a]\ncommand = 'x'\nwhen = {{ not = ['t'] }}\n"));
        is_on(&config, "a")
    };
    assert!(not("match = { os = 'macos' }\ntags = ['t']"));
    assert!(!not("match = { network = { ssid = 'home' } }\ntags = ['t']"), "nobody knows the network");
    assert!(!not("match = { oss = 'macos' }\ntags = ['t']"), "a broken scope might have matched");
}

#[test]
fn only_what_a_scope_asks_for_is_wanted() {
    let wanted = |text: &str| draft(&[(Rank::Alone, text)]).wanted();
    assert_eq!(wanted("[servers.a]\ncommand = 'x'\n"), Wanted::default());
    let all = wanted(
        "[scopes.s]\nmatch = { host = 'h', env = { K = 'v' }, files = '*.py', network = { cidr = '10.0.0.0/8', ssid = 's' } }\ntags = []\n",
    );
    assert!(all.host && all.addresses && all.ssid && !all.gateway_mac);
    assert!(all.env.contains("K") && all.files.contains("*.py") && all.ports.is_empty());
    let hosts = wanted("[hosts.h]\nport = 1234\n[servers.a]\ncommand = 'x'\nrun-on = 'h'\n");
    assert!(hosts.host && hosts.ports.contains(&1234));
}

#[test]
fn a_server_of_one_host_is_a_child_there_and_an_address_elsewhere() {
    let text = |host: &str| {
        format!(
            "[hosts.{host}]\ntoken = '${{env:T}}'\nport = 99\n[servers.m]\ncommand = 'icm'\nrun-on = '{host}'\n"
        )
    };
    let here_too = alone(&text("still"));
    assert!(matches!(only(&here_too).endpoint, Endpoint::Command(_)));
    assert_eq!(reason(&here_too, "m"), "on: always, because it has no `when`; it runs here, on `still`");
    let there = alone(&text("box"));
    let Endpoint::Http(http) = &only(&there).endpoint else { panic!("an address") };
    assert_eq!(http.url.written(), "http://box:99/mcp/s/m");
    assert_eq!(http.headers["Authorization"].written(), "Bearer ${env:T}");
    // Beside the gateway of this host, it is the gateway's.
    let beside = Facts { serving: false, answering: [99].into(), ..here() };
    let beside = draft(&[(Rank::Alone, &text("still"))]).resolve(&beside);
    let Endpoint::Http(http) = &only(&beside).endpoint else { panic!("an address") };
    assert_eq!(http.url.written(), "http://127.0.0.1:99/mcp/s/m");
}

#[test]
fn an_address_of_a_host_is_written_as_it_must_be_and_never_in_clear_to_strangers() {
    for (address, url) in [
        ("fd00::5", Some("http://[fd00::5]:7717/mcp/s/m")),
        ("10.1.2.3", Some("http://10.1.2.3:7717/mcp/s/m")),
        ("100.64.0.1", Some("http://100.64.0.1:7717/mcp/s/m")),
        ("box.local", Some("http://box.local:7717/mcp/s/m")),
        ("https://box.example.com", Some("https://box.example.com/mcp/s/m")),
        ("8.8.8.8", None),
        ("2001:4860::1", None),
        ("box.example.com", None),
    ] {
        let config =
            alone(&format!("[hosts.b]\naddress = '{address}'\n[servers.m]\ncommand = 'icm'\nrun-on = 'b'\n"));
        let found = config.roster.servers().next().map(|spec| match &spec.endpoint {
            Endpoint::Http(http) => http.url.written().to_owned(),
            _ => panic!("an address"),
        });
        assert_eq!(found.as_deref(), url, "{address}");
        assert_eq!(config.problems.len(), usize::from(url.is_none()), "{address}");
    }
    let unknown =
        alone("[hosts.bx]\n[servers.m]\ncommand = 'icm'\nrun-on = 'bxx'\n[servers.n]\ncommand = 'x'\n");
    assert_eq!(names(&unknown), ["n"]);
    assert!(unknown.problems[0].hint.as_ref().unwrap().contains("`bx`"));
}
