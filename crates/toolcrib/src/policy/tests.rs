//! What rules come to, level by level, and what no combination of them can come to.

use proptest::prelude::*;

use super::*;

fn rules(allow: Option<&[&str]>, deny: &[&str]) -> Rules {
    let parsed =
        |written: &[&str]| -> Vec<Rule> { written.iter().map(|rule| rule.parse().unwrap()).collect() };
    let rules = Rules::default().denying(parsed(deny));
    allow.map_or(rules.clone(), |allow| rules.allowing(parsed(allow)))
}

fn bare(allow: Option<&[&str]>, deny: &[&str]) -> Rules {
    let parsed = |written: &[&str]| -> Vec<Rule> {
        written.iter().map(|name| Rule::bare(name.parse().unwrap())).collect()
    };
    let rules = Rules::default().denying(parsed(deny));
    allow.map_or(rules.clone(), |allow| rules.allowing(parsed(allow)))
}

fn id(name: &str) -> ServerId {
    name.parse().unwrap()
}

/// `yes`, `hidden` for a server that the caller may not know of, or the rule that says no.
fn judged(policy: &Policy, caller: &str, thing: &str) -> String {
    let (server, name) = thing.split_once('.').unwrap();
    let (caller, server) = (Caller::named(caller), id(server));
    match policy.judge(&caller, &server, Some(name)) {
        Ok(()) => "yes".to_owned(),
        Err(_) if !policy.sees(&caller, &server) => "hidden".to_owned(),
        Err(denial) => denial.rule,
    }
}

#[test]
fn a_profile_is_one_more_level_and_one_that_is_gone_has_nothing() {
    let servers = Rules::default().allowing([Rule::server("git").unwrap(), Rule::server("t*").unwrap()]);
    let work = Profile { servers, rules: rules(Some(&["git.*", "other.*", "time.now"]), &["git.push"]) };
    let policy = Policy {
        everyone: rules(None, &["git.rm"]),
        profiles: [("work".to_owned(), work), ("all".to_owned(), Profile::default())].into(),
        callers: [("ci".to_owned(), rules(None, &["git.log"]))].into(),
        ..Policy::default()
    };
    let judged = |caller: &str, profile: &str, thing: &str| {
        let (server, name) = thing.split_once('.').unwrap();
        let judged = policy.judge(&Caller::named(caller).within(profile), &id(server), Some(name));
        judged.map_or_else(|denial| denial.rule, |()| "yes".to_owned())
    };
    for (caller, profile, thing, verdict) in [
        ("local", "work", "git.log", "yes"),
        ("local", "work", "time.now", "yes"),
        ("local", "work", "time.set", "nothing in `profiles.work.allow` lets it through"),
        ("local", "work", "git.push", "`profiles.work.deny` has `git.push`"),
        ("local", "work", "git.rm", "`policy.deny` has `git.rm`"),
        ("local", "work", "other.x", "nothing in `profiles.work.servers` lets it through"),
        ("ci", "work", "git.log", "`callers.ci.deny` has `git.log`"),
        ("local", "all", "other.x", "yes"),
        ("local", "gone", "git.log", "there is no profile `gone`"),
        ("local", "Work", "git.log", "there is no profile `Work`"),
    ] {
        assert_eq!(judged(caller, profile, thing), verdict, "{caller} {profile} {thing}");
    }
    let gone = Caller::local().within("gone");
    assert!(!Policy::default().sees(&gone, &id("git")) && !Policy::default().is_open(&gone, &id("git")));
}

#[test]
fn every_level_must_agree_and_deny_wins_at_each() {
    let policy = Policy {
        everyone: rules(None, &["git.push*", "*.rm_rf"]),
        servers: [
            (id("time"), bare(Some(&["now", "zone*"]), &["zone_set"])),
            (id("off"), bare(Some(&[]), &[])),
        ]
        .into(),
        callers: [
            ("ci".to_owned(), rules(Some(&["git.*", "time.now"]), &["git.commit"])),
            ("nobody".to_owned(), rules(Some(&[]), &[])),
            ("all".to_owned(), rules(Some(&["*"]), &[])),
            ("no-git".to_owned(), rules(None, &["git.*"])),
        ]
        .into(),
        ..Policy::default()
    };
    for (caller, thing, verdict) in [
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
        ("local", "time.set", "nothing in `servers.time.tools.allow` lets it through"),
        ("local", "off.anything", "hidden"),
        ("ci", "git.log", "yes"),
        ("ci", "git.commit", "`callers.ci.deny` has `git.commit`"),
        ("ci", "git.push", "`policy.deny` has `git.push*`"),
        ("ci", "time.now", "yes"),
        ("ci", "time.zone", "nothing in `callers.ci.allow` lets it through"),
        ("ci", "notes.list", "hidden"),
        ("nobody", "git.log", "hidden"),
        ("all", "git.log", "yes"),
        ("all", "git.push", "`policy.deny` has `git.push*`"),
        ("no-git", "git.log", "hidden"),
        ("no-git", "notes.list", "yes"),
    ] {
        assert_eq!(judged(&policy, caller, thing), verdict, "{caller} {thing}");
    }
}

#[test]
fn a_pattern_is_split_at_its_first_dot() {
    for (written, server, name, fits) in [
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
        let rule: Rule = written.parse().unwrap();
        assert_eq!(rule.denies(&id(server), Some(name)), fits, "{written} {server} {name}");
    }
    for (bad, why) in [
        ("", BadRule::NoDot),
        ("git", BadRule::NoDot),
        ("**", BadRule::NoDot),
        (".x", BadRule::Empty),
        ("git.", BadRule::Empty),
        ("Git.x", BadRule::NoServer),
        ("g t.x", BadRule::NoServer),
        ("gіt.x", BadRule::NoServer),
    ] {
        assert_eq!(bad.parse::<Rule>().unwrap_err(), why, "{bad}");
    }
}

#[test]
fn only_who_is_local_learns_where_a_rule_is_written() {
    let origin = Origin { file: "/home/me/config.toml".into(), line: 12 };
    let denial = || Denial { rule: "`policy.deny` has `git.push*`".to_owned(), origin: Some(origin.clone()) };
    let local = denial().error(&Caller::local(), &id("git"), "push");
    assert_eq!(
        local.to_string(),
        "`local` may not use `git.push`: `policy.deny` has `git.push*` (/home/me/config.toml:12)"
    );
    assert_eq!((&local.data()["file"], &local.data()["line"]), (&"/home/me/config.toml".into(), &12.into()));
    let far = denial().error(&Caller::named("ci"), &id("git"), "push");
    assert_eq!(far.to_string(), "`ci` may not use `git.push`: `policy.deny` has `git.push*`");
    assert!(!far.data().to_string().contains("config.toml"));
    assert_eq!(
        (far.kind().facts().code, &far.data()["rule"]),
        (-31010, &"`policy.deny` has `git.push*`".into())
    );
}

#[test]
fn an_embedders_guard_can_only_take_away() {
    let guard: Guard = Arc::new(|caller, _, name| match name {
        Some("write") => Verdict::Deny("read only".to_owned()),
        _ if caller.as_str() == "out" => Verdict::Deny("not today".to_owned()),
        _ => Verdict::Allow,
    });
    let policy = Policy { everyone: rules(None, &["a.x"]), guard: Some(guard), ..Policy::default() };
    assert_eq!(judged(&policy, "me", "a.read"), "yes");
    assert_eq!(judged(&policy, "me", "a.write"), "read only");
    assert_eq!(judged(&policy, "me", "a.x"), "`policy.deny` has `a.x`");
    assert_eq!(judged(&policy, "out", "a.read"), "hidden");
    assert!(!policy.is_empty() && !policy.is_open(&Caller::named("me"), &id("b")));
}

#[test]
fn a_server_is_open_only_if_no_rule_could_keep_anything_of_it_back() {
    let open = |everyone: Rules| {
        let policy = Policy { everyone, ..Policy::default() };
        policy.is_open(&Caller::local(), &id("git"))
    };
    assert!(open(Rules::default()) && open(rules(None, &["time.*"])) && open(rules(Some(&["git.*"]), &[])));
    assert!(
        !open(rules(None, &["git.x"]))
            && !open(rules(Some(&["git.a*"]), &[]))
            && !open(rules(Some(&[]), &[]))
    );
}

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![Just("*".to_owned()), "[ab*]{1,2}\\.[xy*]{1,3}"]
}

fn any_rules() -> impl Strategy<Value = (Option<Vec<String>>, Vec<String>)> {
    (prop::option::of(prop::collection::vec(pattern(), 0..3)), prop::collection::vec(pattern(), 0..3))
}

fn made((allow, deny): &(Option<Vec<String>>, Vec<String>), backwards: bool) -> Rules {
    let parsed = |written: &[String]| -> Vec<Rule> {
        let mut rules: Vec<Rule> = written.iter().map(|rule| rule.parse().unwrap()).collect();
        if backwards {
            rules.reverse();
        }
        rules
    };
    let rules = Rules::default().denying(parsed(deny));
    allow.as_ref().map_or(rules.clone(), |allow| rules.allowing(parsed(allow)))
}

/// A glob by the book: one letter at a time.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| fits(rest, &text[skip..])),
        Some((letter, rest)) => text.first() == Some(letter) && fits(rest, &text[1..]),
    }
}

fn fits_rule(rule: &str, server: &str, name: &str) -> bool {
    let (left, right) = if rule == "*" { ("*", "*") } else { rule.split_once('.').unwrap() };
    fits(left.as_bytes(), server.as_bytes()) && fits(right.as_bytes(), name.as_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn deny_wins_and_the_order_of_rules_does_not_matter(
        levels in prop::collection::vec(any_rules(), 2),
        server in "[ab]{1,2}",
        name in "[xyX.]{1,3}",
    ) {
        let policy = |backwards| Policy {
            everyone: made(&levels[0], backwards),
            callers: [("me".to_owned(), made(&levels[1], backwards))].into(),
            ..Policy::default()
        };
        let (me, there) = (Caller::named("me"), id(&server));
        let may = policy(false).judge(&me, &there, Some(&name)).is_ok();
        prop_assert_eq!(may, policy(true).judge(&me, &there, Some(&name)).is_ok());
        let fit = |rules: &[String]| rules.iter().any(|rule| fits_rule(rule, &server, &name));
        let expected = levels.iter().all(|(allow, deny)| !fit(deny) && allow.as_deref().is_none_or(fit));
        prop_assert_eq!(may, expected);
        // What is open has nothing to refuse, and what is hidden nothing to offer.
        prop_assert!(may || !policy(false).is_open(&me, &there));
        prop_assert!(!may || policy(false).sees(&me, &there));
    }
}
