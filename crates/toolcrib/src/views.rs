//! `Views`: the policy in force, and the catalog as each caller may see it, drawn once for each catalog and caller.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::call::{Call, Caller, Wanted};
use crate::catalog::{Catalog, Target, decoded};
use crate::error::{Error, ErrorKind};
use crate::policy::{Denial, Finding, Guard, Policy};
use crate::spec::ServerId;
use crate::wire::dialect::client::SUBSCRIBE;
use crate::wire::dialect::input::may_need_input;
use crate::wire::kind::Kind;

/// Callers whose view is kept. With more of them views are drawn again now and then.
const MOST_VIEWS: usize = 1000;

/// The policy in force, and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// Whether there is anything to ask the policy about; without, no call pays for it.
    guarded: AtomicBool,
    policy: RwLock<Arc<Policy>>,
    drawn: Mutex<Drawn>,
}

/// Views of one catalog under one policy.
#[derive(Debug, Default)]
struct Drawn {
    of: Option<(Arc<Catalog>, Arc<Policy>)>,
    /// Most callers look through one profile only, or none.
    by_caller: HashMap<Caller, Vec<View>>,
    count: usize,
}

/// The catalog as a caller may see it.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) catalog: Arc<Catalog>,
    /// The profile that the caller looks through.
    profile: Option<Arc<str>>,
    /// The policy that it was drawn by, if that says all there is to say about what is listed: nobody else is asked about a
    /// call.
    by: Option<Arc<Policy>>,
}

impl View {
    /// Whether a call may go where it was found to go, for no other reason than that it is listed here: whatever is was
    /// judged, for this caller, by the policy that is in force.
    pub(crate) fn settles(&self, policy: &Arc<Policy>, call: &Call, target: &Target) -> bool {
        let Subject::Listed(kind, name) = subject(call, &target.name) else { return false };
        self.by.as_ref().is_some_and(|by| Arc::ptr_eq(by, policy))
            && self.catalog.lists(&target.server, kind, name)
    }
}

/// What a request asks a server for, as far as rules can tell.
enum Subject<'a> {
    /// Something that the server lists by name.
    Listed(Kind, &'a str),
    /// Something with a name or an address of its own.
    Named(&'a str),
    /// Nothing but the server: what was begun there is known by names that it made up.
    Server,
    /// Nobody here knows.
    Anything,
}

impl Views {
    pub(crate) fn new(policy: Policy) -> Self {
        let views = Self::default();
        views.set(policy);
        views
    }

    /// Puts another policy in force; the embedder's guard stays.
    pub(crate) fn replace(&self, policy: Policy) {
        let guard: Option<Guard> = self.current().guard.clone();
        self.set(Policy { guard, ..policy });
    }

    fn set(&self, policy: Policy) {
        let guarded = !policy.is_empty();
        let mut current = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(policy);
        self.guarded.store(guarded, Ordering::Release);
    }

    fn current(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The policy in force, if it says anything.
    pub(crate) fn policy(&self) -> Option<Arc<Policy>> {
        self.guarded.load(Ordering::Acquire).then(|| self.current())
    }

    /// The policy for a caller: one that looks through a profile is judged even where there are no rules, because the
    /// profile may be gone.
    pub(crate) fn policy_for(&self, caller: &Caller) -> Option<Arc<Policy>> {
        self.policy().or_else(|| caller.profile().map(|_| self.current()))
    }

    /// Whether there is a profile of this name.
    pub(crate) fn has_profile(&self, name: &str) -> bool {
        self.current().profiles.contains_key(name)
    }

    /// Whether a caller may know of a server.
    pub(crate) fn sees(&self, caller: &Caller, server: &ServerId) -> bool {
        self.policy_for(caller).is_none_or(|policy| policy.sees(caller, server))
    }

    /// A catalog as a caller may see it.
    pub(crate) fn of(&self, whole: Arc<Catalog>, caller: &Caller) -> View {
        let Some(policy) = self.policy_for(caller) else {
            return View { catalog: whole, profile: None, by: None };
        };
        let profile = caller.shared_profile();
        let known = |drawn: &Drawn| {
            let mut views = drawn.by_caller.get(caller)?.iter();
            views.find(|view| view.profile == *profile).cloned()
        };
        if let Some(view) = known(&self.drawn(&whole, &policy)) {
            return view;
        }
        // Not under the lock: the embedder's guard is asked here.
        let catalog = Arc::new(whole.narrowed(
            |server| policy.sees(caller, server),
            |server, name| policy.judge(caller, server, Some(name)).is_ok(),
        ));
        let by = policy.asks_nobody().then(|| policy.clone());
        let view = View { catalog, profile: profile.clone(), by };
        let mut drawn = self.drawn(&whole, &policy);
        if let Some(view) = known(&drawn) {
            return view;
        }
        if drawn.count >= MOST_VIEWS {
            drawn.by_caller.clear();
            drawn.count = 0;
        }
        drawn.count += 1;
        drawn.by_caller.entry(caller.clone()).or_default().push(view.clone());
        view
    }

    /// The views of this catalog under this policy.
    fn drawn(&self, whole: &Arc<Catalog>, policy: &Arc<Policy>) -> MutexGuard<'_, Drawn> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |(catalog, rules): &(Arc<Catalog>, Arc<Policy>)| {
            Arc::ptr_eq(catalog, whole) && Arc::ptr_eq(rules, policy)
        };
        if !drawn.of.as_ref().is_some_and(same) {
            *drawn = Drawn { of: Some((whole.clone(), policy.clone())), ..Drawn::default() };
        }
        drawn
    }
}

/// Whether a call may go where it was found to go. `seen` is the catalog as the caller sees it.
/// A task is judged by the tool that made it, which `maker` knows.
pub(crate) fn permit(
    policy: &Policy,
    seen: &Catalog,
    call: &Call,
    target: &Target,
    maker: impl Fn(&Arc<str>) -> Option<Arc<str>>,
) -> Result<(), Error> {
    let Target { server, name } = target;
    let unknown = || seen.unknown_server(server.as_str());
    let judged = |name: Option<&str>| {
        policy.judge(&call.caller, server, name).inspect_err(|denial: &Denial| {
            call.record.note(|met| met.denial = Some(denial.clone()));
        })
    };
    judged(None).map_err(|_| unknown())?;
    let judge = |name: &str| judged(Some(name)).map_err(|denial| denial.error(&call.caller, server, name));
    let is_open = || policy.is_open(&call.caller, server);
    let denied = |message: String| Error::new(ErrorKind::Denied, message).at(server);
    match subject(call, name) {
        Subject::Server => maker(name).map_or(Ok(()), |tool| judge(&tool)),
        Subject::Named(name) => {
            judge(name)?;
            if is_open() || seen.lists(server, Kind::Resources, name) {
                return Ok(());
            }
            let Some(readings) = readings(name) else {
                let why = "an address that goes by way of `..` must be one that the server lists";
                return Err(denied(why.to_owned()));
            };
            readings.iter().try_for_each(|reading| judge(reading))
        }
        Subject::Listed(kind, name) => {
            judge(name)?;
            // A server may take other spellings for the same thing; what it lists is what was judged.
            if is_open() || seen.lists(server, kind, name) { Ok(()) } else { Err(not_listed(kind, name)) }
        }
        Subject::Anything if is_open() => Ok(()),
        Subject::Anything => Err(denied(format!(
            "`{}` may not use everything of `{server}`, and no rule can tell what `{}` uses",
            call.caller.as_str(),
            call.method()
        ))),
    }
}

/// The rule by which a person must say yes to a call that is permitted.
pub(crate) fn asks<'a>(policy: &'a Policy, call: &'a Call, target: &'a Target) -> Option<Finding<'a>> {
    let asks = |name: &str| policy.asks(&call.caller, &target.server, name);
    match subject(call, &target.name) {
        _ if !may_need_input(call.method()) => None,
        Subject::Server | Subject::Anything => None,
        Subject::Listed(_, name) => asks(name),
        Subject::Named(name) => {
            asks(name).or_else(|| readings(name)?.iter().find_map(|reading| asks(reading)))
        }
    }
}

fn subject<'a>(call: &'a Call, name: &'a str) -> Subject<'a> {
    match (&call.wanted, call.method()) {
        (Wanted::Task(_), _) => Subject::Server,
        (Wanted::Prompt(_) | Wanted::Resource(_), _) => Subject::Named(name),
        (Wanted::Named(_), _) | (Wanted::On(..), "tools/call") => Subject::Listed(Kind::Tools, name),
        (Wanted::On(..), "prompts/get") => Subject::Listed(Kind::Prompts, name),
        (Wanted::On(..), "resources/read" | "completion/complete" | SUBSCRIBE) => Subject::Named(name),
        (Wanted::On(..), "tasks/get" | "tasks/update" | "tasks/result" | "tasks/cancel" | "tasks/list") => {
            Subject::Server
        }
        (Wanted::On(..), _) => Subject::Anything,
    }
}

fn not_listed(kind: Kind, name: &str) -> Error {
    let what = if kind == Kind::Prompts { "prompt" } else { "tool" };
    Error::new(ErrorKind::Unknown, format!("Unknown {what}: {name}"))
}

/// What servers may take an address for, which decode it once, or again and again; `None` if it goes by way of `.` or
/// `..`, which each server reads in its own way.
fn readings(address: &str) -> Option<Vec<String>> {
    let mut readings = Vec::new();
    let mut text = Cow::Borrowed(address);
    while let Some(shorter) = decoded(&text).filter(|shorter| shorter.len() < text.len()) {
        text = Cow::Owned(shorter.into_owned());
        readings.push(text.clone().into_owned());
    }
    let roundabout = text.split(['/', '\\']).any(|step| matches!(step, "." | ".."));
    (!roundabout).then_some(readings)
}
