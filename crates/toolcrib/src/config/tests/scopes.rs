//! Scopes, tags and hosts.

use super::layers::{is_on, layered, reason, standalone, test_facts};
use super::*;

#[test]
fn scope_matches_if_all_conditions_hold() {
    for (conditions, matched, reason) in [
        ("host = 'still'", true, "the host is `Still.local`"),
        ("host = 'STILL.*'", true, "the host is `Still.local`"),
        ("host = 'other'", false, "the host is `Still.local`"),
        ("user = 'ann', os = 'linux'", true, "the user is `ann`; the system is `linux`"),
        ("user = 'ann', os = 'macos'", false, "the system is `linux`"),
        ("env = { CI = 'true' }", true, "`CI` matches"),
        ("env = { CI = 'no' }", false, "`CI` has a different value"),
        ("env = { HOME = '*' }", false, "`HOME` is not set"),
        ("files = 'Cargo.toml'", true, "found `Cargo.toml`"),
        ("files = '*.py'", false, "no file matches `*.py`"),
        ("project = 'cr*'", true, "the project is `crib`"),
        ("network = { cidr = '192.168.0.0/16' }", true, "local address `192.168.1.7` is in `192.168.0.0/16`"),
        ("network = { cidr = '10.0.0.0/8' }", false, "no local address is in `10.0.0.0/8`"),
        (
            "network = { cidr = 'fd00::/8', gateway-mac = '0:11:22:33:44:55' }",
            true,
            "local address `fd00::7` is in `fd00::/8`; the gateway is `00:11:22:33:44:55`",
        ),
        (
            "network = { ssid = 'home' }",
            false,
            "the wireless network is unknown: there is no wireless network",
        ),
    ] {
        let config = standalone(&format!(
            "[scopes.s]\nmatch = {{ {conditions} }}\ntags = ['t']\n[servers.a]\ncommand = 'x'\nwhen = ['t']\n"
        ));
        assert_eq!(problem_lines(&config), [""; 0], "{conditions}");
        assert_eq!(
            (config.scopes[0].matched, config.scopes[0].reason.as_str()),
            (matched, reason),
            "{conditions}"
        );
        assert_eq!(
            (is_on(&config, "a"), server_names(&config).len()),
            (matched, usize::from(matched)),
            "{conditions}"
        );
    }
}

#[test]
fn server_is_on_if_its_tag_condition_holds() {
    let config = |when: &str| {
        let scopes = "[scopes.rust]\nmatch = { files = 'Cargo.toml' }\ntags = ['code', 'rust']\n[scopes.py]\nmatch = { files = '*.py' }\ntags = ['py']\n";
        standalone(&format!("{scopes}[servers.a]\ncommand = 'x'\nwhen = {when}\n"))
    };
    for (when, on, why) in [
        ("['code']", true, "on: active: `code` (scope `rust`: found `Cargo.toml`)"),
        ("['py', 'linux']", true, "on: active: `linux` (the system)"),
        ("['py']", false, "off here: tag `py` is not active"),
        ("{ all = ['code', 'py'] }", false, "off here: tag `py` is not active"),
        ("{ not = ['py'] }", true, "on: not active: `py`"),
        (
            "{ any = ['py', 'rust'], not = ['code'] }",
            false,
            "off here: tag `code` (scope `rust`: found `Cargo.toml`) is active, but must not be",
        ),
        ("{ any = ['py', 'x-y'] }", false, "off here: none of the tags `py`, `x-y` is active"),
        ("[]", false, "off here: its `when` is an empty list of tags"),
    ] {
        let config = config(when);
        assert_eq!((is_on(&config, "a"), reason(&config, "a")), (on, why), "{when}");
    }
    assert_eq!(problem_lines(&config("[]")).len(), 1, "a server that is never on is noted");
    assert_eq!(
        reason(&standalone("[servers.a]\ncommand = 'x'\n"), "a"),
        "on: always, because it has no `when`"
    );
}

#[test]
fn profile_contains_servers_with_one_of_its_tags() {
    let config = standalone(
        "[scopes.s]\nmatch = { os = 'linux' }\ntags = ['code', 'office']\n\
         [profiles.p]\ntags = ['code', 'cod']\n[profiles.both]\nservers = ['d']\ntags = ['office']\n[profiles.none]\ntags = []\n\
         [servers.a]\ncommand = 'x'\nwhen = ['code', 'office']\n[servers.b]\ncommand = 'x'\nwhen = { all = ['code'] }\n\
         [servers.c]\ncommand = 'x'\nwhen = { not = ['code'] }\n[servers.d]\ncommand = 'x'\n",
    );
    assert_eq!(problem_lines(&config), ["5:17 NOTE: no scope activates the tag `cod`"]);
    let servers_of = |profile: &str| {
        let caller = crate::Caller::local().with_profile(profile);
        let is_visible = |server: &&str| config.policy.can_see(&caller, &server.parse().expect("a name"));
        ["a", "b", "c", "d"].into_iter().filter(|server| is_visible(server)).collect::<Vec<_>>()
    };
    assert_eq!(
        (servers_of("p"), servers_of("both"), servers_of("none")),
        (vec!["a", "b"], vec!["a", "d"], vec![])
    );
}

#[test]
fn unknown_condition_activates_nothing() {
    let not = |scope: &str| {
        let config = standalone(&format!(
            "[scopes.s]\n{scope}\n[servers.a]\ncommand = 'x'\nwhen = {{ not = ['t'] }}\n"
        ));
        is_on(&config, "a")
    };
    assert!(not("match = { os = 'macos' }\ntags = ['t']"));
    assert!(!not("match = { network = { ssid = 'home' } }\ntags = ['t']"), "the network is unknown");
    assert!(!not("match = { oss = 'macos' }\ntags = ['t']"), "an invalid scope might have matched");
}

#[test]
fn only_facts_that_scopes_need_are_required() {
    let required = |text: &str| layered(&[(LayerKind::Standalone, text)]).required_facts();
    assert_eq!(required("[servers.a]\ncommand = 'x'\n"), RequiredFacts::default());
    let all = required(
        "[scopes.s]\nmatch = { host = 'h', env = { K = 'v' }, files = '*.py', network = { cidr = '10.0.0.0/8', ssid = 's' } }\ntags = []\n",
    );
    assert!(all.host && all.addresses && all.ssid && !all.gateway_mac);
    assert!(all.env.contains("K") && all.files.contains("*.py") && all.ports.is_empty());
    let hosts = required("[hosts.h]\nport = 1234\n[servers.a]\ncommand = 'x'\nrun-on = 'h'\n");
    assert!(hosts.host && hosts.ports.contains(&1234));
}

#[test]
fn server_with_run_on_is_local_or_remote_by_host() {
    let text = |host: &str| {
        format!(
            "[hosts.{host}]\ntoken = '${{env:T}}'\nport = 99\n[servers.m]\ncommand = 'icm'\nrun-on = '{host}'\n"
        )
    };
    let local = standalone(&text("still"));
    assert!(matches!(only_server(&local).endpoint, Endpoint::Command(_)));
    assert_eq!(reason(&local, "m"), "on: always, because it has no `when`; runs here, on `still`");
    let remote = standalone(&text("box"));
    let Endpoint::Http(http) = &only_server(&remote).endpoint else { panic!("not a URL") };
    assert_eq!(http.url.source(), "http://box:99/mcp/s/m");
    assert_eq!(http.headers["Authorization"].source(), "Bearer ${env:T}");
    // If the gateway of this host is another process, it runs the server.
    let client_facts = HostFacts { is_gateway: false, open_ports: [99].into(), ..test_facts() };
    let client = layered(&[(LayerKind::Standalone, &text("still"))]).resolve(&client_facts);
    let Endpoint::Http(http) = &only_server(&client).endpoint else { panic!("not a URL") };
    assert_eq!(http.url.source(), "http://127.0.0.1:99/mcp/s/m");
    assert_eq!(client.declared[0].missing_gateway, None);
    // Also if that gateway does not run: a second copy would be another server.
    let client_facts = HostFacts { open_ports: [].into(), ..client_facts };
    let client = layered(&[(LayerKind::Standalone, &text("still"))]).resolve(&client_facts);
    assert!(matches!(only_server(&client).endpoint, Endpoint::Http(_)));
    assert_eq!(client.declared[0].missing_gateway, Some(99));
}

#[test]
fn host_address_becomes_url_unless_unencrypted_in_public() {
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
        let config = standalone(&format!(
            "[hosts.b]\naddress = '{address}'\n[servers.m]\ncommand = 'icm'\nrun-on = 'b'\n"
        ));
        let found = config.roster.servers().next().map(|spec| match &spec.endpoint {
            Endpoint::Http(http) => http.url.source().to_owned(),
            _ => panic!("not a URL"),
        });
        assert_eq!(found.as_deref(), url, "{address}");
        assert_eq!(config.problems.len(), usize::from(url.is_none()), "{address}");
    }
    let unknown =
        standalone("[hosts.bx]\n[servers.m]\ncommand = 'icm'\nrun-on = 'bxx'\n[servers.n]\ncommand = 'x'\n");
    assert_eq!(server_names(&unknown), ["n"]);
    assert!(unknown.problems[0].hint.as_ref().unwrap().contains("`bx`"));
}
