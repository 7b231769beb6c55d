//! `Callers`: who comes in by which door, by the token shown there. Tokens are known by their digests alone.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use toolcrib::Caller;
use toolcrib::config::{self, Config, Digest};

use super::Door;
use crate::exit::Exit;
use crate::failure::{Failure, problem_json};
use crate::secrets::Keeper;

/// Somebody who may come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) caller: Caller,
    /// Whether it may use the admin API.
    pub(crate) admin: bool,
}

/// Everybody who may come in. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Callers {
    local: Known,
    known: Arc<[(Digest, Known)]>,
    /// Rung for each of those when it may not come in any more, and last for everybody who needs no token.
    leave: Arc<[CancellationToken]>,
}

impl Callers {
    /// Those of a config. Tokens that cannot be had now, or that two share, are refused. May take as long as whoever keeps
    /// secrets.
    pub(crate) fn of(config: &Config, keeper: &Keeper) -> Result<Self, Failure> {
        let digests = config::digests(&config.callers, |name| keeper.find(name)).map_err(|problem| {
            let message = problem.to_string();
            let mut failure = Failure::new(Exit::BadConfig, "config_invalid", message);
            failure.hint = problem.hint.clone();
            failure.data = serde_json::json!({"problems": [problem_json(&problem)], "count": 1});
            failure
        })?;
        let known = config.callers.iter().map(|spec| {
            let caller = Caller::named(&spec.name);
            let caller = spec.profile.iter().fold(caller, |caller, profile| caller.within(profile));
            Known { caller, admin: spec.admin }
        });
        let local = Known { caller: Caller::local(), admin: true };
        let known: Arc<[_]> = digests.into_iter().zip(known).collect();
        let leave = (0..=known.len()).map(|_| CancellationToken::new()).collect();
        Ok(Self { local, known, leave })
    }

    /// Ended when a caller that comes in now may not come in any more as it did.
    pub(crate) fn leave(&self, caller: &Caller) -> CancellationToken {
        let at = self.known.iter().position(|(_, known)| known.caller == *caller);
        self.leave.get(at.unwrap_or(self.known.len())).cloned().unwrap_or_default()
    }

    /// Takes over from those who could come in before: whoever comes in by the same token as the same stays, all others
    /// leave.
    pub(crate) fn take_over(&mut self, before: &Self) {
        let place = |entry: &(Digest, Known)| before.known.iter().position(|known| is_same(known, entry));
        let needless = self.known.is_empty() && before.known.is_empty();
        let mut stay: Vec<Option<usize>> = self.known.iter().map(place).collect();
        stay.push(needless.then_some(before.known.len()));
        let kept = |at: &Option<usize>| at.and_then(|at| before.leave.get(at)).cloned();
        self.leave = stay.iter().map(|at| kept(at).unwrap_or_default()).collect();
        let gone = before.leave.iter().enumerate().filter(|(at, _)| !stay.contains(&Some(*at)));
        gone.for_each(|(_, leave)| leave.cancel());
    }

    /// Whether nobody needs a token.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Who comes in; `None` for a stranger. Only this user can open the socket, and only this machine can reach an address
    /// for which no callers are declared.
    pub(crate) fn admit(&self, door: Door, headers: &HeaderMap) -> Option<&Known> {
        if door == Door::Socket || self.known.is_empty() {
            return Some(&self.local);
        }
        let mut shown = headers.get_all(AUTHORIZATION).iter();
        let (Some(shown), None) = (shown.next(), shown.next()) else { return None };
        let (scheme, token) = shown.as_bytes().split_at_checked(b"Bearer ".len())?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        let digest: Digest = Sha256::digest(token).into();
        // Every one is compared, and each to its end: the time taken tells nothing.
        let mut found = None;
        for (known, who) in self.known.iter() {
            if same(known, &digest) {
                found = Some(who);
            }
        }
        found
    }
}

/// Whether two come in by the same token, as the same caller with the same rights.
fn is_same((token, one): &(Digest, Known), (other_token, other): &(Digest, Known)) -> bool {
    (token, one, one.caller.profile()) == (other_token, other, other.caller.profile())
}

fn same(one: &Digest, other: &Digest) -> bool {
    let differing = one.iter().zip(other).fold(0, |differing, (one, other)| differing | (one ^ other));
    std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hyper::header::HeaderValue;

    use super::*;
    use crate::place::Place;

    fn callers(text: &str) -> Result<Callers, Failure> {
        let config = Config::parse(Path::new("/x/config.toml"), text);
        assert!(config.problems.is_empty(), "{:?}", config.problems);
        let keeper = Keeper::new(&Place::below(Path::new("/nowhere")), &config.secrets);
        Callers::of(&config, &keeper)
    }

    fn who<'a>(callers: &'a Callers, door: Door, shown: &[&str]) -> Option<&'a str> {
        let mut headers = HeaderMap::new();
        for value in shown {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        callers.admit(door, &headers).map(|known| known.caller.as_str())
    }

    #[test]
    fn a_caller_is_who_shows_its_token_and_nothing_else() {
        // The digest is that of `second`.
        let callers = callers(
            "[callers.one]\ntoken = 'first-Token'\nadmin = true\n[callers.two]\n\
             token-sha256 = '16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4'",
        )
        .unwrap();
        let by = |shown: &[&str]| who(&callers, Door::Tcp, shown);
        assert_eq!(by(&["Bearer first-Token"]), Some("one"));
        assert_eq!(by(&["bearer first-Token"]), Some("one"));
        assert_eq!(by(&["Bearer second"]), Some("two"));
        for stranger in [
            "",
            "Bearer",
            "Bearer ",
            "first-Token",
            "Bearer first-token",
            "Bearer FIRST-TOKEN",
            "Bearer first-Toke",
            "Bearer first-Tokens",
            "Bearer  first-Token",
            "Bearer first-Token,second",
            "Basic first-Token",
            "Bearer 16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4",
        ] {
            assert_eq!(by(&[stranger]), None, "{stranger}");
        }
        assert_eq!(by(&[]), None);
        assert_eq!(by(&["Bearer first-Token", "Bearer first-Token"]), None);
        assert_eq!(who(&callers, Door::Socket, &[]), Some("local"));
    }

    #[test]
    fn whoever_may_not_come_in_any_more_as_it_did_has_to_leave() {
        let before = callers(
            "[profiles.p]\n[callers.stays]\ntoken = 'a'\n[callers.goes]\ntoken = 'b'\n[callers.rekeyed]\ntoken = 'c'\n\
             [callers.narrowed]\ntoken = 'd'",
        );
        let before = before.unwrap();
        let leave = |name: &str| before.leave(&Caller::named(name));
        let names = ["stays", "goes", "rekeyed", "narrowed", "local"];
        let leaves = names.map(leave);
        let mut after = callers(
            "[profiles.p]\n[callers.rekeyed]\ntoken = 'x'\n[callers.stays]\ntoken = 'a'\n[callers.narrowed]\ntoken = 'd'\n\
             profile = 'p'",
        )
        .unwrap();
        after.take_over(&before);
        assert_eq!(leaves.map(|leave| leave.is_cancelled()), [false, true, true, true, true]);
        let mut open = callers("").unwrap();
        open.take_over(&after);
        assert!(after.leave(&Caller::named("stays")).is_cancelled());
        let local = open.leave(&Caller::local());
        let mut same = callers("").unwrap();
        same.take_over(&open);
        assert!(!local.is_cancelled());
        let mut closed = callers("[callers.a]\ntoken = 'a'").unwrap();
        closed.take_over(&same);
        assert!(local.is_cancelled(), "who needed no token needs one now");
    }

    #[test]
    fn without_callers_everybody_here_is_local() {
        let nobody = callers("").unwrap();
        assert_eq!(who(&nobody, Door::Tcp, &["Bearer anything"]), Some("local"));
    }

    #[test]
    fn a_token_that_two_share_or_that_has_no_value_is_refused() {
        let refused = |text: &str| callers(text).unwrap_err();
        let shared = refused("[callers.a]\ntoken = 'x'\n[callers.b]\ntoken = 'x'");
        assert_eq!(shared.exit, Exit::BadConfig);
        assert_eq!(shared.message, "/x/config.toml:3:1: `callers.a` and `callers.b` have the same token");
        let unset = refused("[callers.a]\ntoken = '${env:NOBODY_SETS_THIS}'");
        assert!(unset.message.contains("`NOBODY_SETS_THIS` is not set"), "{unset}");
        let empty = refused("[callers.a]\ntoken = '${env:NOBODY_SETS_THIS:-}'");
        assert!(empty.message.contains("cannot be sent"), "{empty}");
    }
}
