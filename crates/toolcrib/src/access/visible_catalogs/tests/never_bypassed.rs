//! Random test that denials cannot be bypassed: random servers, names and rules, and calls in many spellings. Every call
//! that is allowed is checked again by an independent, naive matcher.
//!
//! `TOOLCRIB_CASES` is the number of calls, 100,000 by default. `TOOLCRIB_SEED` is the seed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use serde_json::json;

use super::super::{VisibleCatalogs, authorize};
use crate::access::policy::{Policy, Profile, Rule, Rules};
use crate::call::Call;
use crate::catalog::Catalog;
use crate::model::caller::Caller;
use crate::model::listing::{DeclaredToolFacts, ListedItem, Listing};
use crate::model::selector::Selector;
use crate::protocol::json::object::Object;
use crate::protocol::list_kind::ListKind;
use crate::protocol::member_names::check_params;
use crate::spec::{NamePattern, ServerId};

/// Calls per scenario.
const CALLS: usize = 200;

const SERVERS: [&str; 6] = ["git", "git-hub", "fs", "a", "notes", "0"];
const NAMES: [&str; 10] =
    ["push", "read", "rm", "delete_all", "Odd Name!", "grün", "a__b", "x_0a1b2c3d", "git.push", "*"];

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns `true` once in `n` times.
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Makes up to `max` values.
    fn several<T>(&mut self, max: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(max + 1)).map(|_| make(self)).collect()
    }

    /// Returns distinct aliases, valid in a config, for some of a server's tools. An alias may be the own name of another
    /// tool.
    fn random_aliases(&mut self, server: &ServerId, tools: &[ListedItem]) -> BTreeMap<String, String> {
        let mut aliases = BTreeMap::new();
        for tool in tools {
            let alias = if self.one_in(2) { self.pick(tools).name.to_string() } else { self.name() };
            let is_valid =
                crate::catalog::public_name::public_name(server, &alias) == format!("{server}__{alias}");
            if self.one_in(3) && is_valid && !aliases.values().any(|taken| *taken == alias) {
                aliases.insert(tool.name.to_string(), alias);
            }
        }
        aliases
    }

    /// Returns another spelling of a name that a server might treat as the same.
    fn respell(&mut self, name: &str) -> String {
        let replace = |from: char, to: &str| name.replacen(from, to, 1);
        match self.below(18) {
            0 => name.to_uppercase(),
            1 => name.to_lowercase(),
            2 => name.chars().rev().collect(),
            3 => replace('a', "а"), // Cyrillic
            4 => replace('e', "ｅ"),
            5 => replace('u', "u\u{301}"),
            6 => name.chars().flat_map(|char| [char, '\u{200b}']).collect(),
            7 => format!("{name} "),
            8 => format!(" {name}"),
            9 => format!("{name}\0"),
            10 => format!("{}__{name}", self.pick(&SERVERS)),
            11 => format!("{}.{name}", self.pick(&SERVERS)),
            12 => name.bytes().map(|byte| format!("%{byte:02X}")).collect(),
            13 => name.bytes().map(|byte| format!("%25{byte:02x}")).collect(),
            14 => format!("x/../{name}"),
            15 => format!("./{name}"),
            16 => replace('_', "-"),
            _ => format!("{name}{name}"),
        }
    }

    fn maybe_respell(&mut self, name: &str) -> String {
        if self.one_in(3) { self.respell(name) } else { name.to_owned() }
    }

    fn name(&mut self) -> String {
        let base = *self.pick(&NAMES);
        match self.below(12) {
            0 => format!("{base}{}", "y".repeat(60)),
            1 => self.respell(base),
            _ => base.to_owned(),
        }
    }

    /// Returns a pattern over names.
    fn pattern(&mut self) -> String {
        let name = self.name();
        let prefix: String = name.chars().take(1 + self.below(4)).collect();
        match self.below(6) {
            0 => format!("{prefix}*"),
            1 => format!("*{}", name.chars().last().unwrap_or('x')),
            2 => format!("*{prefix}*"),
            3 if self.one_in(4) => "*".to_owned(),
            _ => name,
        }
    }

    fn server_pattern(&mut self) -> String {
        match self.below(5) {
            0 => "*".to_owned(),
            1 => "g*".to_owned(),
            _ => (*self.pick(&SERVERS)).to_owned(),
        }
    }
}

/// The rules of one level as text: patterns of servers and names.
#[derive(Default)]
struct RuleTexts {
    allow: Option<Vec<(String, String)>>,
    deny: Vec<(String, String)>,
}

impl RuleTexts {
    fn random(random: &mut Random) -> Self {
        let rule = |random: &mut Random| (random.server_pattern(), random.pattern());
        let wide = |random: &mut Random| match random.below(3) {
            0 => (random.server_pattern(), random.pattern()),
            _ => (random.server_pattern(), "*".to_owned()),
        };
        let allow = random.one_in(3).then(|| random.several(4, wide));
        Self { allow, deny: random.several(3, rule) }
    }

    fn parse(&self) -> Rules {
        let rule = |(server, name): &(String, String)| format!("{server}.{name}").parse::<Rule>().unwrap();
        let rules = Rules::default().denying(self.deny.iter().map(rule));
        match &self.allow {
            Some(allow) => rules.allowing(allow.iter().map(rule)),
            None => rules,
        }
    }

    /// Parses the rules for the list of one server.
    fn parse_names(&self) -> Rules {
        let rule = |(_, name): &(String, String)| Rule::for_name(name.parse::<NamePattern>().unwrap());
        let rules = Rules::default().denying(self.deny.iter().map(rule));
        match &self.allow {
            Some(allow) => rules.allowing(allow.iter().map(rule)),
            None => rules,
        }
    }

    fn allows(&self, server: &str, name: &str) -> bool {
        let matches = |rule: &(String, String)| glob_matches(&rule.0, server) && glob_matches(&rule.1, name);
        !self.deny.iter().any(matches) && self.allow.as_ref().is_none_or(|allow| allow.iter().any(matches))
    }

    /// Like `allows`, for the list of one server.
    fn allows_name(&self, name: &str) -> bool {
        let matches = |rule: &(String, String)| glob_matches(&rule.1, name);
        !self.deny.iter().any(matches) && self.allow.as_ref().is_none_or(|allow| allow.iter().any(matches))
    }
}

/// A naive glob matcher.
fn glob_matches(pattern: &str, text: &str) -> bool {
    let mut chars = pattern.chars();
    match chars.next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = chars.as_str();
            text.char_indices().any(|(at, _)| glob_matches(rest, &text[at..])) || glob_matches(rest, "")
        }
        Some(char) => text.strip_prefix(char).is_some_and(|text| glob_matches(chars.as_str(), text)),
    }
}

/// A naive percent decoder.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        out.push(code.unwrap_or(*byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Member names of a request in which a tool, prompt or resource is named.
const NAMING_MEMBERS: [&str; 3] = ["name", "uri", "taskId"];

/// Returns the member that readers of a server may take a written member for: some ignore case, some map `ſ` and the Kelvin sign to
/// ASCII, some stop at a NUL or drop control characters.
fn readings(member: &str) -> [String; 4] {
    let fold = |text: &str| text.to_lowercase().replace('ſ', "s").replace('\u{212a}', "k");
    let until_nul = member.split('\0').next().unwrap_or_default();
    let printable: String = member.chars().filter(|char| !char.is_control()).collect();
    [member.to_owned(), fold(member), until_nul.to_owned(), fold(&printable)]
}

/// Checks that a request whose members pass is read by every reader with the name that was judged. Returns whether it passes.
fn check_members(random: &mut Random) -> bool {
    let member = *random.pick(&NAMING_MEMBERS);
    let judged = random.name();
    let mut members = vec![(member.to_owned(), judged.clone())];
    let other = *random.pick(&NAMING_MEMBERS);
    let spelled = match random.below(9) {
        0 => other.to_uppercase(),
        1 => other.replacen(|char: char| char.is_ascii_lowercase(), &other[..1].to_uppercase(), 1),
        2 => format!("{other}\0"),
        3 => format!("{other}\0x"),
        4 => other.replace('s', "ſ"),
        5 => other.replace('k', "\u{212a}"),
        6 => format!("{}\u{1}", other.to_uppercase()),
        7 => format!("x-{other}"),
        _ => random.name(),
    };
    let at = random.below(2);
    members.insert(at, (spelled, "forbidden".to_owned()));
    let text: Vec<String> =
        members.iter().map(|(name, value)| format!("{}:{}", json!(name), json!(value))).collect();
    let Ok(params) = Object::parse(&format!("{{{}}}", text.join(",")).into()) else { return false };
    if check_params(&params).is_err() {
        return false;
    }
    for reader in 0..4 {
        let read = members.iter().rfind(|(name, _)| readings(name)[reader].eq_ignore_ascii_case(member));
        assert_eq!(read.map(|(_, value)| value), Some(&judged), "reader {reader} of {members:?}");
    }
    true
}

struct Scenario {
    catalog: Arc<Catalog>,
    visible: VisibleCatalogs,
    policy: Policy,
    levels: Vec<RuleTexts>,
    server_rules: BTreeMap<ServerId, RuleTexts>,
    /// Every own name with its server and kind.
    names: Vec<(ServerId, ListKind, String)>,
    /// Aliases of tools: server, own name, alias.
    aliases: Vec<(ServerId, String, String)>,
    caller: Caller,
}

impl Scenario {
    fn random(random: &mut Random) -> Self {
        let mut listings = BTreeMap::new();
        let mut names = Vec::new();
        let mut aliases = Vec::new();
        for server in SERVERS {
            let id: ServerId = server.parse().unwrap();
            let mut listing = Listing {
                capabilities: r#"{"tools":{},"prompts":{},"resources":{}}"#.into(),
                ..Listing::default()
            };
            for kind in [ListKind::Tools, ListKind::Prompts, ListKind::Resources] {
                let mut items = random.several(4, Random::name);
                if kind == ListKind::Resources {
                    items.iter_mut().for_each(|name| *name = format!("file:///{name}"));
                }
                items.sort();
                items.dedup();
                for name in items {
                    let definition = json!({kind.id_member(): name}).to_string();
                    let Some(listed) = ListedItem::parse(kind, definition.into()) else { continue };
                    match kind {
                        ListKind::Tools => listing.tools.push(listed),
                        ListKind::Prompts => listing.prompts.push(listed),
                        _ => listing.resources.push(listed),
                    }
                    names.push((id.clone(), kind, name));
                }
            }
            let public_names = random.random_aliases(&id, &listing.tools);
            aliases.extend(public_names.iter().map(|(own, alias)| (id.clone(), own.clone(), alias.clone())));
            listing.tool_facts = Arc::new(DeclaredToolFacts { public_names, ..DeclaredToolFacts::default() });
            listings.insert(id, Some(Arc::new(listing)));
        }
        let levels: Vec<RuleTexts> = (0..3).map(|_| RuleTexts::random(random)).collect();
        let with_rules: Vec<ServerId> = listings.keys().filter(|_| random.one_in(4)).cloned().collect();
        let server_rules: BTreeMap<ServerId, RuleTexts> =
            with_rules.into_iter().map(|id| (id, RuleTexts::random(random))).collect();
        let policy = Policy {
            everyone: levels[0].parse(),
            profiles: [("p".to_owned(), Profile { rules: levels[1].parse(), ..Profile::default() })].into(),
            servers: server_rules.iter().map(|(id, rules)| (id.clone(), rules.parse_names())).collect(),
            callers: [("me".to_owned(), levels[2].parse())].into(),
            ..Policy::default()
        };
        let catalog = Arc::new(Catalog::build(1, &listings));
        let visible = VisibleCatalogs::new(policy.clone(), None);
        let caller = Caller::new("me").with_profile("p");
        Self { catalog, visible, policy, levels, server_rules, names, aliases, caller }
    }

    /// Returns whether the rules allow an item, by the naive matcher.
    fn allows(&self, server: &ServerId, name: &str) -> bool {
        self.server_rules.get(server).is_none_or(|rules| rules.allows_name(name))
            && self.levels.iter().all(|level| level.allows(server.as_str(), name))
    }

    /// Returns a call of some item in some spelling.
    fn random_call(&self, random: &mut Random) -> Call {
        let unlisted = (SERVERS[0].parse().unwrap(), ListKind::Tools, random.name());
        let (server, kind, name) = if self.names.is_empty() { &unlisted } else { random.pick(&self.names) };
        let alias = self
            .aliases
            .iter()
            .find(|(of, own, _)| (of, own, *kind) == (server, name, ListKind::Tools) && !random.one_in(4));
        let name = alias.map_or(name, |(_, _, alias)| alias);
        let public = || crate::catalog::public_name::public_name(server, name);
        let is_direct = random.one_in(2);
        let spelled = match (is_direct, random.below(3)) {
            (false, 0) => random.maybe_respell(&public()),
            (false, 1) if *kind == ListKind::Resources => {
                let path: String =
                    random.maybe_respell(name).bytes().map(|byte| format!("%{byte:02X}")).collect();
                format!("toolcrib://{server}/{path}")
            }
            _ => random.maybe_respell(name),
        };
        let method = match kind {
            ListKind::Tools => "tools/call",
            ListKind::Prompts => "prompts/get",
            _ => "resources/read",
        };
        let selector = match kind {
            _ if is_direct => Selector::OnServer(server.clone(), spelled),
            ListKind::Tools => Selector::Tool(spelled),
            ListKind::Prompts => Selector::Prompt(spelled),
            _ => Selector::Resource(spelled),
        };
        Call::request(method, selector, Object::default()).caller(self.caller.clone())
    }

    /// Returns whether a call is allowed, and checks an allowed call with the naive matcher.
    fn check_call(&self, call: &Call) -> bool {
        let view = self.visible.for_caller(self.catalog.clone(), &self.caller);
        let Ok(target) = view.callable.find(&call.selector) else { return false };
        let description = || format!("{:?} reached {target:?}", call.selector);
        let policy = self.visible.policy_for(&self.caller).unwrap().unwrap();
        let is_preauthorized = view.is_preauthorized(&policy, call, &target);
        let unknown = || view.callable.unknown_server_error(target.server.as_str());
        let is_allowed = authorize(&self.policy, &view.callable, call, &target, |_| None, unknown).is_ok();
        assert!(is_allowed || !is_preauthorized, "a denied call is preauthorized: {}", description());
        if !is_allowed {
            return false;
        }
        assert!(self.allows(&target.server, &target.name), "{}", description());
        let is_unrestricted = self.policy.is_unrestricted(&self.caller, &target.server);
        let is_listed =
            self.names.iter().any(|(server, _, name)| (server, &**name) == (&target.server, &*target.name));
        if is_unrestricted || is_listed {
            return true;
        }
        assert_eq!(call.method(), "resources/read", "only a URI need not be listed: {}", description());
        let mut form = target.name.to_string();
        for _ in 0..3 {
            form = decode(&form);
            assert!(self.allows(&target.server, &form), "as {form}: {}", description());
            assert!(!form.split('/').any(|segment| segment == ".."), "{}", description());
        }
        true
    }

    /// Checks that exactly the allowed items are listed.
    fn check_listing(&self) {
        let visible = self.visible.for_caller(self.catalog.clone(), &self.caller).listed;
        for (server, kind, name) in &self.names {
            let is_listed =
                visible.items(*kind).iter().any(|item| item.server == *server && *item.own_name == **name);
            assert_eq!(is_listed, self.allows(server, name), "{kind:?} {server} {name}");
        }
    }
}

#[test]
fn deny_is_never_bypassed() {
    let cases = std::env::var("TOOLCRIB_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100_000);
    let seed = std::env::var("TOOLCRIB_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = Random(seed);
    let mut calls = 0_usize;
    let mut allowed = 0_usize;
    let mut passed = 0_usize;
    while calls < cases {
        let scenario = Scenario::random(&mut random);
        scenario.check_listing();
        for _ in 0..CALLS {
            allowed += usize::from(scenario.check_call(&scenario.random_call(&mut random)));
            passed += usize::from(check_members(&mut random));
        }
        calls += CALLS;
    }
    // For a run by script.
    let _ = writeln!(std::io::stderr(), "{calls} calls, {allowed} allowed, 0 against a rule (seed {seed})");
    assert!(allowed > calls / 50 && allowed < calls, "{allowed} of {calls}: the scenarios prove nothing");
    assert!(passed > calls / 50 && passed < calls, "{passed} of {calls}: the members prove nothing");
}
