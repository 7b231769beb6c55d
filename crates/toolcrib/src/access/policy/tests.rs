//! Tests of rules at every level, among them a random test against a simple matcher.

use proptest::prelude::*;

use super::*;
use crate::access::uri_forms::UriForms;

fn rules(allow: Option<&[&str]>, deny: &[&str]) -> Rules {
    let parse = |texts: &[&str]| -> Vec<Rule> { texts.iter().map(|rule| rule.parse().unwrap()).collect() };
    let rules = Rules::default().denying(parse(deny));
    allow.map_or(rules.clone(), |allow| rules.allowing(parse(allow)))
}

/// Rules for the list of one server.
fn server_rules(allow: Option<&[&str]>, deny: &[&str]) -> Rules {
    let parse = |texts: &[&str]| -> Vec<Rule> {
        texts.iter().map(|name| Rule::for_name(name.parse().unwrap())).collect()
    };
    let rules = Rules::default().denying(parse(deny));
    allow.map_or(rules.clone(), |allow| rules.allowing(parse(allow)))
}

fn id(name: &str) -> ServerId {
    name.parse().unwrap()
}

/// Returns `yes`, or `hidden` for a server that the caller may not know of, or the rule that denies.
fn decide(policy: &Policy, caller: &str, item: &str) -> String {
    let (server, name) = item.split_once('.').unwrap();
    let caller = Caller::new(caller);
    let server = id(server);
    match policy.authorize(&caller, &server, Some(name)) {
        Ok(()) => "yes".to_owned(),
        Err(_) if !policy.can_see(&caller, &server) => "hidden".to_owned(),
        Err(denial) => denial.rule,
    }
}

#[test]
fn groups_are_one_level_of_which_one_must_allow() {
    let staff = Profile { groups: vec!["dev".to_owned()], ..Profile::default() };
    let policy = Policy {
        everyone: rules(None, &["git.rm"]),
        profiles: [("staff".to_owned(), staff)].into(),
        groups: [
            ("dev".to_owned(), rules(Some(&["git.*"]), &["git.push"])),
            ("ops".to_owned(), rules(Some(&["time.*"]), &[])),
            ("limited".to_owned(), rules(None, &[])),
        ]
        .into(),
        ..Policy::default()
    };
    let decide = |groups: &[&str], item: &str| {
        let caller = Caller::with_groups("corp:ada", groups.iter().map(|group| (*group).to_owned()));
        let (server, name) = item.split_once('.').unwrap();
        let result = policy.authorize(&caller, &id(server), Some(name));
        result.map_or_else(|denial| denial.rule, |()| "yes".to_owned())
    };
    for (groups, item, verdict) in [
        (&["dev"][..], "git.log", "yes"),
        (&["dev"], "git.push", "`groups.dev.deny` has `git.push`"),
        (&["dev"], "git.rm", "`policy.deny` has `git.rm`"),
        (&["dev"], "time.now", "nothing in `groups.dev.allow` matches"),
        (&["ops", "dev"], "time.now", "yes"),
        (&["ops", "dev"], "git.log", "yes"),
        (&["ops", "dev"], "git.push", "`groups.dev.deny` has `git.push`"),
        (&["ops", "dev"], "web.x", "nothing in `groups.ops.allow` matches"),
        (&["limited"], "web.x", "yes"),
        (&["limited", "dev"], "web.x", "nothing in `groups.dev.allow` matches"),
        (&["unknown"], "web.x", "yes"),
        (&[], "web.x", "yes"),
    ] {
        assert_eq!(decide(groups, item), verdict, "{groups:?} {item}");
    }
    let in_profile = |caller: Caller| policy.can_see(&caller.with_profile("staff"), &id("git"));
    assert!(in_profile(Caller::with_groups("a", ["dev".to_owned()])) && in_profile(Caller::local()));
    assert!(!in_profile(Caller::with_groups("a", ["ops".to_owned()])) && !in_profile(Caller::new("a")));
}

#[test]
fn profile_is_one_more_level_and_a_missing_one_denies_all() {
    let servers =
        Rules::default().allowing([Rule::for_servers("git").unwrap(), Rule::for_servers("t*").unwrap()]);
    let own_rules = rules(Some(&["git.*", "other.*", "time.now"]), &["git.push"]);
    let work = Profile { servers, rules: own_rules, ..Profile::default() };
    let policy = Policy {
        everyone: rules(None, &["git.rm"]),
        profiles: [("work".to_owned(), work), ("all".to_owned(), Profile::default())].into(),
        callers: [("ci".to_owned(), rules(None, &["git.log"]))].into(),
        ..Policy::default()
    };
    let decide = |caller: &str, profile: &str, item: &str| {
        let (server, name) = item.split_once('.').unwrap();
        let result = policy.authorize(&Caller::new(caller).with_profile(profile), &id(server), Some(name));
        result.map_or_else(|denial| denial.rule, |()| "yes".to_owned())
    };
    for (caller, profile, item, verdict) in [
        ("local", "work", "git.log", "yes"),
        ("local", "work", "time.now", "yes"),
        ("local", "work", "time.set", "nothing in `profiles.work.allow` matches"),
        ("local", "work", "git.push", "`profiles.work.deny` has `git.push`"),
        ("local", "work", "git.rm", "`policy.deny` has `git.rm`"),
        ("local", "work", "other.x", "nothing in `profiles.work.servers` matches"),
        ("ci", "work", "git.log", "`callers.ci.deny` has `git.log`"),
        ("local", "all", "other.x", "yes"),
        ("local", "absent", "git.log", "there is no profile `absent`"),
        ("local", "Work", "git.log", "there is no profile `Work`"),
    ] {
        assert_eq!(decide(caller, profile, item), verdict, "{caller} {profile} {item}");
    }
    let absent = Caller::local().with_profile("absent");
    assert!(
        !Policy::default().can_see(&absent, &id("git"))
            && !Policy::default().is_unrestricted(&absent, &id("git"))
    );
}

#[test]
fn every_level_must_allow_and_deny_wins_at_each() {
    let policy = Policy {
        everyone: rules(None, &["git.push*", "*.rm_rf"]),
        servers: [
            (id("time"), server_rules(Some(&["now", "zone*"]), &["zone_set"])),
            (id("off"), server_rules(Some(&[]), &[])),
        ]
        .into(),
        callers: [
            ("ci".to_owned(), rules(Some(&["git.*", "time.now"]), &["git.commit"])),
            ("none".to_owned(), rules(Some(&[]), &[])),
            ("all".to_owned(), rules(Some(&["*"]), &[])),
            ("no-git".to_owned(), rules(None, &["git.*"])),
        ]
        .into(),
        ..Policy::default()
    };
    for (caller, item, verdict) in [
        ("local", "git.log", "yes"),
        ("local", "git.push", "`policy.deny` has `git.push*`"),
        ("local", "git.push_all", "`policy.deny` has `git.push*`"),
        ("local", "git.Push", "yes"),
        ("local", "git.xpush", "yes"),
        ("local", "notes.rm_rf", "`policy.deny` has `*.rm_rf`"),
        ("local", "notes.x.rm_rf", "yes"),
        ("local", "time.now", "yes"),
        ("local", "time.zone", "yes"),
        ("local", "time.zone_set", "`servers.time.tools.deny` has `zone_set`"),
        ("local", "time.set", "nothing in `servers.time.tools.allow` matches"),
        ("local", "off.anything", "hidden"),
        ("ci", "git.log", "yes"),
        ("ci", "git.commit", "`callers.ci.deny` has `git.commit`"),
        ("ci", "git.push", "`policy.deny` has `git.push*`"),
        ("ci", "time.now", "yes"),
        ("ci", "time.zone", "nothing in `callers.ci.allow` matches"),
        ("ci", "notes.list", "hidden"),
        ("none", "git.log", "hidden"),
        ("all", "git.log", "yes"),
        ("all", "git.push", "`policy.deny` has `git.push*`"),
        ("no-git", "git.log", "hidden"),
        ("no-git", "notes.list", "yes"),
    ] {
        assert_eq!(decide(&policy, caller, item), verdict, "{caller} {item}");
    }
}

#[test]
fn pattern_is_split_at_first_dot() {
    for (text, server, name, matches) in [
        ("*", "any", "thing", true),
        ("*.*", "any", "thing", true),
        ("fs.a.b", "fs", "a.b", true),
        ("fs.a.b", "fs", "a.bc", false),
        ("fs.file:///etc/*", "fs", "file:///etc/passwd", true),
        ("fs.*", "fs2", "x", false),
        ("f*.x", "fs", "x", true),
        ("fs.x", "fs", "X", false),
        ("fs.x*", "fs", "x\ny", true),
        ("fs.a?c", "fs", "abc", false),
        ("fs.[ab]", "fs", "a", false),
    ] {
        let rule: Rule = text.parse().unwrap();
        assert_eq!(
            rule.denies(&id(server), Some(name), &UriForms::new(Some(name))),
            matches,
            "{text} {server} {name}"
        );
    }
    for (invalid, reason) in [
        ("", InvalidRule::MissingDot),
        ("git", InvalidRule::MissingDot),
        ("**", InvalidRule::MissingDot),
        (".x", InvalidRule::EmptyPart),
        ("git.", InvalidRule::EmptyPart),
        ("Git.x", InvalidRule::InvalidServer),
        ("g t.x", InvalidRule::InvalidServer),
        ("gіt.x", InvalidRule::InvalidServer),
    ] {
        assert_eq!(invalid.parse::<Rule>().unwrap_err(), reason, "{invalid}");
    }
}

#[test]
fn only_local_caller_sees_rule_location() {
    let origin = Origin { file: "/home/me/config.toml".into(), line: 12 };
    let denial = || Denial { rule: "`policy.deny` has `git.push*`".to_owned(), origin: Some(origin.clone()) };
    let local = denial().into_error(&Caller::local(), &id("git"), "push");
    assert_eq!(
        local.to_string(),
        "`local` may not use `git.push`: `policy.deny` has `git.push*` (/home/me/config.toml:12)"
    );
    assert_eq!((&local.data()["file"], &local.data()["line"]), (&"/home/me/config.toml".into(), &12.into()));
    let remote = denial().into_error(&Caller::new("ci"), &id("git"), "push");
    assert_eq!(remote.to_string(), "`ci` may not use `git.push`: `policy.deny` has `git.push*`");
    assert!(!remote.data().to_string().contains("config.toml"));
    assert_eq!(
        (remote.kind().facts().code, &remote.data()["rule"]),
        (-31010, &"`policy.deny` has `git.push*`".into())
    );
}

#[test]
fn guard_can_only_deny() {
    let guard: Guard = Arc::new(|caller, _, name| match name {
        Some("write") => GuardVerdict::Deny("read only".to_owned()),
        _ if caller.as_str() == "out" => GuardVerdict::Deny("not today".to_owned()),
        _ => GuardVerdict::Allow,
    });
    let policy = Policy { everyone: rules(None, &["a.x"]), guard: Some(guard), ..Policy::default() };
    assert_eq!(decide(&policy, "me", "a.read"), "yes");
    assert_eq!(decide(&policy, "me", "a.write"), "read only");
    assert_eq!(decide(&policy, "me", "a.x"), "`policy.deny` has `a.x`");
    assert_eq!(decide(&policy, "out", "a.read"), "hidden");
    assert!(!policy.is_empty() && !policy.is_unrestricted(&Caller::new("me"), &id("b")));
}

#[test]
fn server_is_unrestricted_only_if_no_rule_can_deny_it() {
    let is_unrestricted = |everyone: Rules| {
        let policy = Policy { everyone, ..Policy::default() };
        policy.is_unrestricted(&Caller::local(), &id("git"))
    };
    for unrestricted in [Rules::default(), rules(None, &["time.*"]), rules(Some(&["git.*"]), &[])] {
        assert!(is_unrestricted(unrestricted.clone()), "{unrestricted:?}");
    }
    for restricted in [rules(None, &["git.x"]), rules(Some(&["git.a*"]), &[]), rules(Some(&[]), &[])] {
        assert!(!is_unrestricted(restricted.clone()), "{restricted:?}");
    }
}

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![Just("*".to_owned()), "[ab*]{1,2}\\.[xy*]{1,3}"]
}

/// The rules of one level as text.
#[derive(Debug)]
struct RuleTexts {
    allow: Option<Vec<String>>,
    deny: Vec<String>,
}

fn any_rules() -> impl Strategy<Value = RuleTexts> {
    let allow = prop::option::of(prop::collection::vec(pattern(), 0..3));
    let deny = prop::collection::vec(pattern(), 0..3);
    (allow, deny).prop_map(|(allow, deny)| RuleTexts { allow, deny })
}

fn parse_rules(texts: &RuleTexts, reversed: bool) -> Rules {
    let parse = |texts: &[String]| -> Vec<Rule> {
        let mut rules: Vec<Rule> = texts.iter().map(|rule| rule.parse().unwrap()).collect();
        if reversed {
            rules.reverse();
        }
        rules
    };
    let rules = Rules::default().denying(parse(&texts.deny));
    texts.allow.as_ref().map_or(rules.clone(), |allow| rules.allowing(parse(allow)))
}

/// A naive glob matcher.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| glob_matches(rest, &text[skip..])),
        Some((byte, rest)) => text.first() == Some(byte) && glob_matches(rest, &text[1..]),
    }
}

fn rule_matches(rule: &str, server: &str, name: &str) -> bool {
    let (servers, names) = if rule == "*" { ("*", "*") } else { rule.split_once('.').unwrap() };
    glob_matches(servers.as_bytes(), server.as_bytes()) && glob_matches(names.as_bytes(), name.as_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn deny_wins_and_rule_order_does_not_matter(
        levels in prop::collection::vec(any_rules(), 2),
        server in "[ab]{1,2}",
        name in "[xyX.]{1,3}",
    ) {
        let policy = |reversed| Policy {
            everyone: parse_rules(&levels[0], reversed),
            callers: [("me".to_owned(), parse_rules(&levels[1], reversed))].into(),
            ..Policy::default()
        };
        let me = Caller::new("me");
        let server_id = id(&server);
        let is_allowed = policy(false).authorize(&me, &server_id, Some(&name)).is_ok();
        prop_assert_eq!(is_allowed, policy(true).authorize(&me, &server_id, Some(&name)).is_ok());
        let any_matches = |rules: &[String]| rules.iter().any(|rule| rule_matches(rule, &server, &name));
        let expected = levels
            .iter()
            .all(|level| !any_matches(&level.deny) && level.allow.as_deref().is_none_or(any_matches));
        prop_assert_eq!(is_allowed, expected);
        // An unrestricted server denies nothing, and a hidden one allows nothing.
        prop_assert!(is_allowed || !policy(false).is_unrestricted(&me, &server_id));
        prop_assert!(!is_allowed || policy(false).can_see(&me, &server_id));
    }
}
