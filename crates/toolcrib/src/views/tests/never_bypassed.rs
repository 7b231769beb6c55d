//! Deny is never bypassed: worlds of servers, names and rules are drawn at random, things are asked for in every spelling
//! that comes to mind, and whatever gets through is judged once more by a reader of rules who knows nothing of ours.
//!
//! `TOOLCRIB_CASES` says how many things are asked for: 100,000 if it says nothing.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use serde_json::json;

use super::super::{Views, permit};
use crate::call::{Call, Caller, Wanted};
use crate::catalog::Catalog;
use crate::connection::listing::{Listed, Listing, Remarks};
use crate::policy::{Policy, Profile, Rule, Rules};
use crate::spec::{Pattern, ServerId};
use crate::wire::kind::Kind;
use crate::wire::object::Object;

/// Things that are asked for in one world.
const ASKED: usize = 200;

const SERVERS: [&str; 6] = ["git", "git-hub", "fs", "a", "notes", "0"];
const WORDS: [&str; 10] =
    ["push", "read", "rm", "delete_all", "Odd Name!", "grün", "a__b", "x_0a1b2c3d", "git.push", "*"];

/// Numbers that look random, and are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len())]
    }

    fn is(&mut self, one_in: usize) -> bool {
        self.roll(one_in) == 0
    }

    /// Up to `most` of something.
    fn several<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.roll(most + 1)).map(|_| make(self)).collect()
    }

    /// Other names for some of a server's tools, among them those that it has for others; no two are the same, and all are
    /// such as a config may give.
    fn renames(&mut self, server: &ServerId, tools: &[Listed]) -> BTreeMap<String, String> {
        let mut given = BTreeMap::new();
        for tool in tools {
            let alias = if self.is(2) { self.pick(tools).name.to_string() } else { self.name() };
            let good = crate::catalog::name::public(server, &alias) == format!("{server}__{alias}");
            if self.is(3) && good && !given.values().any(|taken| *taken == alias) {
                given.insert(tool.name.to_string(), alias);
            }
        }
        given
    }

    /// Another spelling of a name, which somebody may take for the same.
    fn respelled(&mut self, name: &str) -> String {
        let with = |from: char, to: &str| name.replacen(from, to, 1);
        match self.roll(18) {
            0 => name.to_uppercase(),
            1 => name.to_lowercase(),
            2 => name.chars().rev().collect(),
            3 => with('a', "а"), // Cyrillic
            4 => with('e', "ｅ"),
            5 => with('u', "u\u{301}"),
            6 => name.chars().flat_map(|letter| [letter, '\u{200b}']).collect(),
            7 => format!("{name} "),
            8 => format!(" {name}"),
            9 => format!("{name}\0"),
            10 => format!("{}__{name}", self.pick(&SERVERS)),
            11 => format!("{}.{name}", self.pick(&SERVERS)),
            12 => name.bytes().map(|byte| format!("%{byte:02X}")).collect(),
            13 => name.bytes().map(|byte| format!("%25{byte:02x}")).collect(),
            14 => format!("x/../{name}"),
            15 => format!("./{name}"),
            16 => with('_', "-"),
            _ => format!("{name}{name}"),
        }
    }

    fn maybe_respelled(&mut self, name: &str) -> String {
        if self.is(3) { self.respelled(name) } else { name.to_owned() }
    }

    fn name(&mut self) -> String {
        let word = *self.pick(&WORDS);
        match self.roll(12) {
            0 => format!("{word}{}", "y".repeat(60)),
            1 => self.respelled(word),
            _ => word.to_owned(),
        }
    }

    /// A pattern over names, which always says something.
    fn pattern(&mut self) -> String {
        let name = self.name();
        let cut: String = name.chars().take(1 + self.roll(4)).collect();
        match self.roll(6) {
            0 => format!("{cut}*"),
            1 => format!("*{}", name.chars().last().unwrap_or('x')),
            2 => format!("*{cut}*"),
            3 if self.is(4) => "*".to_owned(),
            _ => name,
        }
    }

    fn server_pattern(&mut self) -> String {
        match self.roll(5) {
            0 => "*".to_owned(),
            1 => "g*".to_owned(),
            _ => (*self.pick(&SERVERS)).to_owned(),
        }
    }
}

/// Rules as they are written: a server and a name each.
#[derive(Default)]
struct Written {
    allow: Option<Vec<(String, String)>>,
    deny: Vec<(String, String)>,
}

impl Written {
    fn drawn(dice: &mut Dice) -> Self {
        let rule = |dice: &mut Dice| (dice.server_pattern(), dice.pattern());
        let wide = |dice: &mut Dice| match dice.roll(3) {
            0 => (dice.server_pattern(), dice.pattern()),
            _ => (dice.server_pattern(), "*".to_owned()),
        };
        let allow = dice.is(3).then(|| dice.several(4, wide));
        Self { allow, deny: dice.several(3, rule) }
    }

    fn read(&self) -> Rules {
        let rule = |(server, name): &(String, String)| format!("{server}.{name}").parse::<Rule>().unwrap();
        let rules = Rules::default().denying(self.deny.iter().map(rule));
        match &self.allow {
            Some(allow) => rules.allowing(allow.iter().map(rule)),
            None => rules,
        }
    }

    /// The same over the names of one server.
    fn read_bare(&self) -> Rules {
        let rule = |(_, name): &(String, String)| Rule::bare(name.parse::<Pattern>().unwrap());
        let rules = Rules::default().denying(self.deny.iter().map(rule));
        match &self.allow {
            Some(allow) => rules.allowing(allow.iter().map(rule)),
            None => rules,
        }
    }

    fn lets_through(&self, server: &str, name: &str) -> bool {
        let fit = |rule: &(String, String)| fits(&rule.0, server) && fits(&rule.1, name);
        !self.deny.iter().any(fit) && self.allow.as_ref().is_none_or(|allow| allow.iter().any(fit))
    }
}

/// A glob by the book: one letter at a time.
fn fits(pattern: &str, text: &str) -> bool {
    let mut letters = pattern.chars();
    match letters.next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = letters.as_str();
            text.char_indices().any(|(at, _)| fits(rest, &text[at..])) || fits(rest, "")
        }
        Some(letter) => text.strip_prefix(letter).is_some_and(|text| fits(letters.as_str(), text)),
    }
}

/// What a server that decodes addresses may take one for.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        out.push(code.unwrap_or(*byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

struct World {
    whole: Arc<Catalog>,
    views: Views,
    policy: Policy,
    levels: Vec<Written>,
    of_servers: BTreeMap<ServerId, Written>,
    /// Every name of each server and kind.
    names: Vec<(ServerId, Kind, String)>,
    /// Tools that have another name here than their server has for them.
    renamed: Vec<(ServerId, String, String)>,
    caller: Caller,
}

impl World {
    fn drawn(dice: &mut Dice) -> Self {
        let (mut listings, mut names, mut renamed) = (BTreeMap::new(), Vec::new(), Vec::new());
        for server in SERVERS {
            let id: ServerId = server.parse().unwrap();
            let mut listing = Listing {
                capabilities: r#"{"tools":{},"prompts":{},"resources":{}}"#.into(),
                ..Listing::default()
            };
            for kind in [Kind::Tools, Kind::Prompts, Kind::Resources] {
                let mut drawn = dice.several(4, Dice::name);
                if kind == Kind::Resources {
                    drawn.iter_mut().for_each(|name| *name = format!("file:///{name}"));
                }
                drawn.sort();
                drawn.dedup();
                for name in drawn {
                    let definition = json!({kind.key(): name}).to_string();
                    let Some(listed) = Listed::read(kind, definition.into()) else { continue };
                    match kind {
                        Kind::Tools => listing.tools.push(listed),
                        Kind::Prompts => listing.prompts.push(listed),
                        _ => listing.resources.push(listed),
                    }
                    names.push((id.clone(), kind, name));
                }
            }
            let given = dice.renames(&id, &listing.tools);
            renamed.extend(given.iter().map(|(own, alias)| (id.clone(), own.clone(), alias.clone())));
            listing.remarks = Arc::new(Remarks { names: given, ..Remarks::default() });
            listings.insert(id, Some(Arc::new(listing)));
        }
        let levels: Vec<Written> = (0..3).map(|_| Written::drawn(dice)).collect();
        let of_servers: BTreeMap<ServerId, Written> = listings
            .keys()
            .filter(|_| dice.is(4))
            .cloned()
            .collect::<Vec<_>>()
            .into_iter()
            .map(|id| (id, Written::drawn(dice)))
            .collect();
        let policy = Policy {
            everyone: levels[0].read(),
            profiles: [("p".to_owned(), Profile { rules: levels[1].read(), ..Profile::default() })].into(),
            servers: of_servers.iter().map(|(id, written)| (id.clone(), written.read_bare())).collect(),
            callers: [("me".to_owned(), levels[2].read())].into(),
            ..Policy::default()
        };
        let (whole, views) = (Arc::new(Catalog::build(1, &listings)), Views::new(policy.clone()));
        let caller = Caller::named("me").within("p");
        Self { whole, views, policy, levels, of_servers, names, renamed, caller }
    }

    /// What the rules say, read by the book.
    fn may(&self, server: &ServerId, name: &str) -> bool {
        let own = self.of_servers.get(server).is_none_or(|written| {
            let fit = |rule: &(String, String)| fits(&rule.1, name);
            !written.deny.iter().any(fit) && written.allow.as_ref().is_none_or(|allow| allow.iter().any(fit))
        });
        own && self.levels.iter().all(|level| level.lets_through(server.as_str(), name))
    }

    /// Something to ask for, in some spelling.
    fn wish(&self, dice: &mut Dice) -> Call {
        let stranger = (SERVERS[0].parse().unwrap(), Kind::Tools, dice.name());
        let (server, kind, name) = if self.names.is_empty() { &stranger } else { dice.pick(&self.names) };
        let alias = self
            .renamed
            .iter()
            .find(|(of, own, _)| (of, own, *kind) == (server, name, Kind::Tools) && !dice.is(4));
        let name = alias.map_or(name, |(_, _, alias)| alias);
        let public = || crate::catalog::name::public(server, name);
        let direct = dice.is(2);
        let spelled = match (direct, dice.roll(3)) {
            (false, 0) => dice.maybe_respelled(&public()),
            (false, 1) if *kind == Kind::Resources => {
                let path: String =
                    dice.maybe_respelled(name).bytes().map(|byte| format!("%{byte:02X}")).collect();
                format!("toolcrib://{server}/{path}")
            }
            _ => dice.maybe_respelled(name),
        };
        let method = match kind {
            Kind::Tools => "tools/call",
            Kind::Prompts => "prompts/get",
            _ => "resources/read",
        };
        let wanted = match kind {
            _ if direct => Wanted::On(server.clone(), spelled),
            Kind::Tools => Wanted::Named(spelled),
            Kind::Prompts => Wanted::Prompt(spelled),
            _ => Wanted::Resource(spelled),
        };
        Call::request(method, wanted, Object::default()).by(self.caller.clone())
    }

    /// Asks for something; whether it got through. What gets through is judged by the book.
    fn ask(&self, call: &Call) -> bool {
        let view = self.views.of(self.whole.clone(), &self.caller);
        let Ok(target) = view.catalog.find(&call.wanted) else { return false };
        let told = || format!("{:?} reached {target:?}", call.wanted);
        let in_force = self.views.policy_for(&self.caller).unwrap();
        let settled = view.settles(&in_force, call, &target);
        let permitted = permit(&self.policy, &view.catalog, call, &target, |_| None).is_ok();
        assert!(permitted || !settled, "what is not judged again would not be permitted: {}", told());
        if !permitted {
            return false;
        }
        assert!(self.may(&target.server, &target.name), "{}", told());
        let open = self.policy.is_open(&self.caller, &target.server);
        let is_listed =
            self.names.iter().any(|(server, _, name)| (server, &**name) == (&target.server, &*target.name));
        if open || is_listed {
            return true;
        }
        assert_eq!(call.method(), "resources/read", "only an address need not be listed: {}", told());
        let mut read = target.name.to_string();
        for _ in 0..3 {
            read = decoded(&read);
            assert!(self.may(&target.server, &read), "as {read}: {}", told());
            assert!(!read.split('/').any(|step| step == ".."), "{}", told());
        }
        true
    }

    /// Whether what is listed is what may be used.
    fn lists_what_may_be_used(&self) {
        let seen = self.views.of(self.whole.clone(), &self.caller).catalog;
        for (server, kind, name) in &self.names {
            let is_seen =
                seen.items(*kind).iter().any(|item| item.server == *server && *item.own_name == **name);
            assert_eq!(is_seen, self.may(server, name), "{kind:?} {server} {name}");
        }
    }
}

#[test]
fn deny_is_never_bypassed() {
    let cases = std::env::var("TOOLCRIB_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100_000);
    let seed = std::env::var("TOOLCRIB_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut dice = Dice(seed);
    let (mut asked, mut through) = (0_usize, 0_usize);
    while asked < cases {
        let world = World::drawn(&mut dice);
        world.lists_what_may_be_used();
        for _ in 0..ASKED {
            through += usize::from(world.ask(&world.wish(&mut dice)));
        }
        asked += ASKED;
    }
    // A run by script wants the figures.
    let _ = writeln!(
        std::io::stderr(),
        "{asked} asked for, {through} got through, 0 of them against a rule (seed {seed})"
    );
    assert!(through > asked / 50 && through < asked, "{through} of {asked}: worlds like that show nothing");
}
