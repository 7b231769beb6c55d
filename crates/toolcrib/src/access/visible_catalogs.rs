//! `VisibleCatalogs`: the policy in force, and the catalog that each caller may see, computed once per catalog and caller.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use crate::access::policy::{Guard, Policy, PolicyVerdict};
use crate::access::uri_forms::{decoded_stages, expand_template};
use crate::call::Call;
use crate::catalog::Catalog;
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::model::error::{Error, ErrorKind};
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::protocol::era::client::SUBSCRIBE;
use crate::protocol::era::extensions::{GET_SKILL, READ_DIRECTORY};
use crate::protocol::era::input::can_require_input;
use crate::protocol::json::object::Object;
use crate::protocol::list_kind::ListKind;
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;
use crate::util::panics;

/// Views that are cached. All are dropped when there are more.
const MAX_VIEWS: usize = 1000;
/// Characters of a URI that an error shows.
const MAX_SHOWN_CHARS: usize = 200;

/// The policy in force and the views that follow from it.
#[derive(Debug, Default)]
pub(crate) struct VisibleCatalogs {
    /// Whether the policy has any rules. Without rules a call does not take a lock.
    has_rules: AtomicBool,
    policy: RwLock<Arc<Policy>>,
    exposure: Option<Arc<dyn Exposure>>,
    views: Mutex<CachedViews>,
}

/// The views of one catalog under one policy.
#[derive(Debug, Default)]
struct CachedViews {
    source: Option<ViewSource>,
    /// One view per profile and set of groups; most callers use one profile or none, and are in the same groups.
    by_caller: HashMap<Caller, Vec<VisibleCatalog>>,
    count: usize,
}

/// The catalog and the policy that views were computed from.
#[derive(Debug)]
struct ViewSource {
    catalog: Arc<Catalog>,
    policy: Arc<Policy>,
}

/// Decides which of the items that a caller may call are listed to it.
///
/// ```
/// use std::sync::Arc;
/// use toolcrib::{Call, Caller, Catalog, Crib, Exposure, ServerSpec, Toolbox};
///
/// /// Lists nothing to the caller `planner`, which knows the names already.
/// #[derive(Debug)]
/// struct HiddenFromPlanner;
///
/// impl Exposure for HiddenFromPlanner {
///     fn listed(&self, caller: &Caller, callable: &Arc<Catalog>) -> Arc<Catalog> {
///         match caller.as_str() {
///             "planner" => Arc::default(),
///             _ => callable.clone(),
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
/// # let house = ServerSpec::in_process("house".parse()?, tools);
/// let crib = Crib::builder().server(house).exposure(Arc::new(HiddenFromPlanner)).build()?;
/// let planner = Caller::new("planner");
/// assert_eq!(crib.list().await.tools().len(), 1);
/// assert!(crib.list_for(&planner).await.tools().is_empty());
/// assert_eq!(crib.call(Call::tool("house__greet").caller(planner)).await?.text(), "hello");
/// # Ok(())
/// # }
/// ```
pub trait Exposure: fmt::Debug + Send + Sync {
    /// Returns the catalog that is listed to a caller, a part of what it may call. It is computed once per catalog, policy
    /// and caller.
    fn listed(&self, caller: &Caller, callable: &Arc<Catalog>) -> Arc<Catalog>;
}

/// The part of the catalog that one caller may use.
#[derive(Debug, Clone)]
pub(crate) struct VisibleCatalog {
    /// The items that lists show: the same as `callable` unless an [`Exposure`] narrows it.
    pub(crate) listed: Arc<Catalog>,
    /// The items that may be called.
    pub(crate) callable: Arc<Catalog>,
    /// The caller's profile.
    profile: Option<Arc<str>>,
    /// The caller's groups.
    groups: Option<Arc<[String]>>,
    /// The policy behind this view, if its rules alone decide about every call.
    deciding_policy: Option<Arc<Policy>>,
    /// The last result of [`VisibleCatalog::guarded`], which is kept while the guard denies the same. A view that is not
    /// cached keeps none.
    last_guarded: Option<Arc<Mutex<Option<GuardedCatalog>>>>,
}

/// What is left of a view without the items that a guard denies.
#[derive(Debug)]
struct GuardedCatalog {
    denied: HashSet<DeniedItem>,
    listed: Arc<Catalog>,
    callable: Arc<Catalog>,
}

/// An item that a guard denies, or a whole server without a name.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DeniedItem {
    server: ServerId,
    name: Option<String>,
}

impl VisibleCatalog {
    /// Returns a view of a whole catalog.
    fn unrestricted(catalog: Arc<Catalog>) -> Self {
        Self {
            listed: catalog.clone(),
            callable: catalog,
            profile: None,
            groups: None,
            deciding_policy: None,
            last_guarded: None,
        }
    }

    /// Returns the view without what the guard denies now.
    fn guarded(self, policy: &Policy, caller: &Caller) -> Self {
        let mut denied = HashSet::new();
        self.callable.visit_items(|server, name| {
            let is_allowed = policy.ask_guard(caller, server, name).is_ok();
            if !is_allowed {
                denied.insert(DeniedItem { server: server.clone(), name: name.map(str::to_owned) });
            }
            is_allowed
        });
        if denied.is_empty() {
            return self;
        }
        let last_guarded = self.last_guarded.clone().unwrap_or_default();
        let mut last = last_guarded.lock().ignore_poison();
        if last.as_ref().is_none_or(|last| last.denied != denied) {
            let is_denied = |server: &ServerId, name: Option<&str>| {
                denied.contains(&DeniedItem { server: server.clone(), name: name.map(str::to_owned) })
            };
            let filter = |catalog: &Catalog| {
                Arc::new(catalog.filtered(
                    |server| !is_denied(server, None),
                    |server, name| !is_denied(server, Some(name)),
                ))
            };
            let callable = filter(&self.callable);
            let listed = match Arc::ptr_eq(&self.listed, &self.callable) {
                true => callable.clone(),
                false => filter(&self.listed),
            };
            *last = Some(GuardedCatalog { denied, listed, callable });
        }
        let guarded = last.as_ref().map(|last| (last.listed.clone(), last.callable.clone()));
        drop(last);
        match guarded {
            Some((listed, callable)) => Self { listed, callable, ..self },
            None => self,
        }
    }

    /// Returns whether a call is allowed because its target is listed here: everything listed was authorized for this
    /// caller by the policy in force.
    pub(crate) fn is_preauthorized(&self, policy: &Arc<Policy>, call: &Call, target: &Target) -> bool {
        let RuleSubject::Listed(kind, name) = rule_subject(call, &target.name) else { return false };
        self.deciding_policy.as_ref().is_some_and(|deciding| Arc::ptr_eq(deciding, policy))
            && self.callable.has_item(&target.server, kind, name)
    }
}

/// The part of a request that rules are applied to.
enum RuleSubject<'a> {
    /// An item that the server lists by name.
    Listed(ListKind, &'a str),
    /// An item with a name or URI that need not be listed.
    Named(&'a str),
    /// Only the server: the request is about something that the server named itself, such as a task.
    Server,
    /// Unknown: the method is not one that rules know.
    Unknown,
}

impl VisibleCatalogs {
    pub(crate) fn new(policy: Policy, exposure: Option<Arc<dyn Exposure>>) -> Self {
        let catalogs = Self { exposure, ..Self::default() };
        catalogs.update_policy(|_| policy);
        catalogs
    }

    /// Replaces the policy. The embedder's guard stays.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.update_policy(|current| Policy { guard: current.guard.clone(), ..policy });
    }

    /// Sets, replaces or removes the embedder's guard. The rules stay.
    pub(crate) fn set_guard(&self, guard: Option<Guard>) {
        self.update_policy(|current| Policy { guard, ..current.clone() });
    }

    fn update_policy(&self, update: impl FnOnce(&Policy) -> Policy) {
        let mut current = self.policy.write().ignore_poison();
        let policy = update(&current);
        let has_rules = !policy.is_empty();
        let replaced = std::mem::replace(&mut *current, Arc::new(policy));
        self.has_rules.store(has_rules, Ordering::Release);
        drop(current);
        // Dropping an embedder's guard may take a while and must not happen under the lock.
        drop(replaced);
    }

    /// Returns whether a server may start without a call.
    pub(crate) fn can_start_unasked(&self, server: &ServerId) -> bool {
        self.policy().is_none_or(|policy| policy.can_start_unasked(server))
    }

    fn current_policy(&self) -> Arc<Policy> {
        self.policy.read().ignore_poison().clone()
    }

    /// Returns the policy in force, if it has any rules.
    pub(crate) fn policy(&self) -> Option<Arc<Policy>> {
        self.has_rules.load(Ordering::Acquire).then(|| self.current_policy())
    }

    /// Returns the policy for a caller. It applies to a caller with a profile even without rules, because the profile may
    /// not exist.
    ///
    /// # Errors
    /// Returns a denial if the caller's access was revoked.
    pub(crate) fn policy_for(&self, caller: &Caller) -> Result<Option<Arc<Policy>>, Error> {
        let policy = self.policy().or_else(|| caller.profile().map(|_| self.current_policy()));
        // Checked after the policy was read: a caller is revoked before the rules that were made for it change.
        if caller.is_revoked() {
            return Err(revoked_error(caller));
        }
        Ok(policy)
    }

    /// Returns whether less may be listed than may be called.
    pub(crate) fn has_exposure(&self) -> bool {
        self.exposure.is_some()
    }

    pub(crate) fn has_profile(&self, name: &str) -> bool {
        self.current_policy().profiles.contains_key(name)
    }

    /// Returns the local caller, or one of its agents, with its profile.
    pub(crate) fn local_caller(&self, agent: Option<&str>, profile: Option<&str>) -> Caller {
        self.current_policy().local_caller(agent, profile)
    }

    /// Returns whether a profile exists and its groups do not exclude a caller.
    pub(crate) fn can_use_profile(&self, caller: &Caller, name: &str) -> bool {
        self.current_policy().can_use_profile(caller, name)
    }

    /// Returns whether a caller may know of a server.
    pub(crate) fn can_see(&self, caller: &Caller, server: &ServerId) -> bool {
        self.policy_for(caller).is_ok_and(|policy| policy.is_none_or(|policy| policy.can_see(caller, server)))
    }

    /// Returns the part of a catalog that a caller may use now: what the rules allow and the guard does not deny. The guard
    /// is asked about every item.
    pub(crate) fn for_caller(&self, full: Arc<Catalog>, caller: &Caller) -> VisibleCatalog {
        let by_rules = self.for_caller_by_rules(full, caller);
        match self.policy() {
            Some(policy) if policy.guard.is_some() => by_rules.guarded(&policy, caller),
            _ => by_rules,
        }
    }

    /// Returns the part of a catalog that the rules allow a caller to use. The guard still has to be asked about the items
    /// that are used.
    pub(crate) fn for_caller_by_rules(&self, full: Arc<Catalog>, caller: &Caller) -> VisibleCatalog {
        let policy = match (self.policy_for(caller), &self.exposure) {
            (Ok(Some(policy)), _) => policy,
            (Ok(None), Some(_)) => self.current_policy(),
            (Ok(None), None) => return VisibleCatalog::unrestricted(full),
            // Not cached, because another caller may have the same name.
            (Err(_), _) => {
                return VisibleCatalog::unrestricted(Arc::new(full.filtered(|_| false, |_, _| false)));
            }
        };
        let profile = caller.shared_profile();
        let groups = caller.shared_groups();
        let find_view = |views: &CachedViews| {
            let mut views = views.by_caller.get(caller)?.iter();
            views.find(|view| view.profile == *profile && view.groups == *groups).cloned()
        };
        if let Some(view) = find_view(&self.lock_views(&full, &policy)) {
            return view;
        }
        // Without the lock, because this calls the embedder's exposure.
        let view = self.compute(&full, &policy, caller);
        let mut views = self.lock_views(&full, &policy);
        if let Some(view) = find_view(&views) {
            return view;
        }
        if views.count >= MAX_VIEWS {
            views.by_caller.clear();
            views.count = 0;
        }
        views.count += 1;
        views.by_caller.entry(caller.clone()).or_default().push(view.clone());
        view
    }

    /// Like [`for_caller`](Self::for_caller), for a catalog that is used once.
    pub(crate) fn for_caller_uncached(&self, full: Arc<Catalog>, caller: &Caller) -> VisibleCatalog {
        let policy = match (self.policy_for(caller), &self.exposure) {
            (Ok(Some(policy)), _) => policy,
            (Ok(None), Some(_)) => self.current_policy(),
            (Ok(None), None) => return VisibleCatalog::unrestricted(full),
            (Err(_), _) => return self.for_caller_by_rules(full, caller),
        };
        let view = self.compute(&full, &policy, caller);
        if policy.guard.is_some() { view.guarded(&policy, caller) } else { view }
    }

    fn compute(&self, full: &Catalog, policy: &Arc<Policy>, caller: &Caller) -> VisibleCatalog {
        let callable = Arc::new(full.filtered(
            |server| policy.authorize_by_rules(caller, server, None).is_ok(),
            |server, name| policy.authorize_by_rules(caller, server, Some(name)).is_ok(),
        ));
        let listed = match &self.exposure {
            Some(exposure) => {
                panics::contain("exposure", || exposure.listed(caller, &callable)).unwrap_or_default()
            }
            None => callable.clone(),
        };
        let deciding_policy = policy.is_rules_only().then(|| policy.clone());
        VisibleCatalog {
            listed,
            callable,
            profile: caller.shared_profile().clone(),
            groups: caller.shared_groups().clone(),
            deciding_policy,
            last_guarded: Some(Arc::default()),
        }
    }

    /// Locks the views, and drops them first if they are of another catalog or policy.
    fn lock_views(&self, catalog: &Arc<Catalog>, policy: &Arc<Policy>) -> MutexGuard<'_, CachedViews> {
        let mut views = self.views.lock().ignore_poison();
        let is_current = views.source.as_ref().is_some_and(|source| {
            Arc::ptr_eq(&source.catalog, catalog) && Arc::ptr_eq(&source.policy, policy)
        });
        if !is_current {
            let source = ViewSource { catalog: catalog.clone(), policy: policy.clone() };
            *views = CachedViews { source: Some(source), ..CachedViews::default() };
        }
        views
    }
}

/// Checks what the rules and the guard say about a call without the listing of its server. `unknown_server` returns the error for
/// a server that the caller may not see.
pub(crate) fn authorize_unlisted(
    policy: &Policy,
    call: &Call,
    target: &Target,
    unknown_server: impl Fn() -> Error,
) -> Result<(), Error> {
    let Target { server, name } = target;
    check_item(policy, call, server, None).map_err(|_| unknown_server())?;
    match rule_subject(call, name) {
        RuleSubject::Listed(_, name) | RuleSubject::Named(name) => check_name(policy, call, server, name),
        RuleSubject::Unknown if !policy.is_unrestricted(&call.caller, server) => {
            let message = format!(
                "`{}` may not use everything of `{server}`, and rules do not apply to method `{}`",
                call.caller.as_str(),
                call.method()
            );
            Err(Error::new(ErrorKind::Denied, message).with_server(server))
        }
        RuleSubject::Server | RuleSubject::Unknown => Ok(()),
    }
}

/// Checks an item of a server, or the server without a name, and records a denial.
fn check_item(policy: &Policy, call: &Call, server: &ServerId, name: Option<&str>) -> Result<(), Denial> {
    policy.authorize(&call.caller, server, name).inspect_err(|denial: &Denial| {
        call.trace.record(|facts| facts.denial = Some(denial.clone()));
    })
}

/// Checks an item of a server by its name.
fn check_name(policy: &Policy, call: &Call, server: &ServerId, name: &str) -> Result<(), Error> {
    let checked = check_item(policy, call, server, Some(name));
    checked.map_err(|denial| denial.into_error(&call.caller, server, name))
}

/// Checks whether a call may be sent to its target. `visible` is the catalog that the rules allow the caller to see. A task
/// is authorized by the tool that created it, which `find_tool` returns. `unknown_server` returns the error for a server
/// that the caller may not see.
pub(crate) fn authorize(
    policy: &Policy,
    visible: &Catalog,
    call: &Call,
    target: &Target,
    find_tool: impl Fn(&Arc<str>) -> Option<Arc<str>>,
    unknown_server: impl Fn() -> Error,
) -> Result<(), Error> {
    authorize_unlisted(policy, call, target, unknown_server)?;
    let Target { server, name } = target;
    let check_name = |name: &str| check_name(policy, call, server, name);
    let is_unrestricted = || policy.is_unrestricted(&call.caller, server);
    match rule_subject(call, name) {
        RuleSubject::Server => find_tool(name).map_or(Ok(()), |tool| check_name(&tool)),
        RuleSubject::Unknown => Ok(()),
        RuleSubject::Named(_) | RuleSubject::Listed(..) if is_unrestricted() => Ok(()),
        RuleSubject::Named(name) => {
            let check_stages = |uri: &str| {
                let stages = decoded_stages(uri).map_err(|unclear| {
                    let shown: String = uri.chars().take(MAX_SHOWN_CHARS).collect();
                    let message = format!("the URI `{shown}` {unclear} and is not listed by `{server}`");
                    Error::new(ErrorKind::Denied, message).with_server(server)
                })?;
                stages.iter().try_for_each(|stage| check_name(stage))
            };
            if let Some(uri) = completed_uri(call, name) {
                check_name(&uri)?;
                check_stages(&uri)?;
            }
            if visible.has_item(server, ListKind::Resources, name) {
                return Ok(());
            }
            check_stages(name)?;
            check_listed(policy, visible, call, target)
        }
        // A server may accept other spellings of a denied name; only listed names were authorized.
        RuleSubject::Listed(kind, name) => match visible.has_item(server, kind, name) {
            true => Ok(()),
            false => Err(not_listed_error(kind, name)),
        },
    }
}

/// Returns the verdict that requires approval of an authorized call, if there is one.
pub(crate) fn required_approval<'a>(
    policy: &'a Policy,
    call: &'a Call,
    target: &'a Target,
) -> Option<PolicyVerdict<'a>> {
    if !can_require_input(call.method()) {
        return None;
    }
    let find_verdict = |name: &str| policy.required_approval(&call.caller, &target.server, name);
    match rule_subject(call, &target.name) {
        RuleSubject::Server | RuleSubject::Unknown => None,
        RuleSubject::Listed(_, name) => find_verdict(name),
        RuleSubject::Named(name) => find_verdict(name)
            .or_else(|| decoded_stages(name).ok()?.iter().find_map(|form| find_verdict(form))),
    }
}

/// Returns what the rules apply to. The method decides, because it is what the server acts on.
fn rule_subject<'a>(call: &'a Call, name: &'a str) -> RuleSubject<'a> {
    match (call.method(), &call.selector) {
        ("tools/call", _) => RuleSubject::Listed(ListKind::Tools, name),
        ("prompts/get", Selector::OnServer(..)) => RuleSubject::Listed(ListKind::Prompts, name),
        ("prompts/get" | "resources/read" | "completion/complete" | SUBSCRIBE, _) => RuleSubject::Named(name),
        (GET_SKILL | READ_DIRECTORY, _) => RuleSubject::Named(name),
        ("tasks/get" | "tasks/update" | "tasks/result" | "tasks/cancel" | "tasks/list", _) => {
            RuleSubject::Server
        }
        _ => RuleSubject::Unknown,
    }
}

/// Fails if URIs of a server are denied and it does not list the one that a call names. A server may accept spellings that no
/// rule foresees; those that it lists are known.
fn check_listed(policy: &Policy, visible: &Catalog, call: &Call, target: &Target) -> Result<(), Error> {
    let Target { server, name } = target;
    if !policy.denies_uris(&call.caller, server) || is_listed_uri(visible, call, target) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_SHOWN_CHARS).collect();
    let message = format!("the URI `{shown}` of `{server}` is not listed and fits no listed template");
    Err(Error::new(ErrorKind::Denied, message).with_server(server))
}

/// Returns whether the server lists the URI that a call names, or a template for it. Prompts, which are not URIs, count as
/// listed: their names are checked elsewhere.
fn is_listed_uri(visible: &Catalog, call: &Call, target: &Target) -> bool {
    let Target { server, name } = target;
    match call.method() {
        "resources/read" | SUBSCRIBE => visible.fits_template(server, name),
        "completion/complete" => {
            visible.has_item(server, ListKind::Templates, name)
                || visible.has_item(server, ListKind::Prompts, name)
        }
        _ => true,
    }
}

fn revoked_error(caller: &Caller) -> Error {
    let message =
        format!("the access of `{}` has changed since this request was authenticated", caller.as_str());
    Error::new(ErrorKind::Denied, message).with_hint("send the request again")
}

fn not_listed_error(kind: ListKind, name: &str) -> Error {
    let noun = if kind == ListKind::Prompts { "prompt" } else { "tool" };
    Error::new(ErrorKind::Unknown, format!("Unknown {noun}: {name}"))
}

/// Returns the URI that a completion request is about: the template with the values that the client has so far.
fn completed_uri(call: &Call, template: &str) -> Option<String> {
    if call.method() != "completion/complete" || !template.contains('{') {
        return None;
    }
    let argument = Object::parse(call.params.get("argument")?).ok()?;
    let context = call.params.get("context").and_then(|raw| Object::parse(raw).ok());
    let known = context.and_then(|context| Object::parse(context.get("arguments")?).ok()).unwrap_or_default();
    Some(expand_template(template, |name| {
        let is_completed = argument.get_string("name").as_deref() == Some(name);
        if is_completed { argument.get_string("value") } else { known.get_string(name) }
    }))
}
