//! Authenticates callers by bearer token, client certificate or user. Only the digests of tokens are kept.

mod asserted;
mod issued;
mod proof;
mod revocations;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockWriteGuard};

use bytes::Bytes;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::{self, CallerSpec, Config, Problem, Sha256Digest};
use toolcrib::identity::TokenError;
use toolcrib::store::Store;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Caller, Secret, SecretError};

pub(crate) use self::issued::IssuedCallers;
use self::issued::IssuedCallersSpec;
use self::proof::CallerProof;
pub use self::revocations::PendingRevocations;
use crate::client_memory::CallerMemory;
use crate::connection_peer::{ConnectionPeer, Entrypoint};
use crate::resource::ResourceUrl;

/// The credential of callers that need no token.
const LOCAL_CREDENTIAL: &str = "local";

/// A caller that may use the gateway.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuthenticatedCaller {
    /// The caller, with its profile.
    pub caller: Caller,
    /// True if it may use the admin API.
    pub admin: bool,
    /// Cancelled when the caller loses access or its rights change. The [`Caller`] is revoked at the same time.
    pub revoked: CancellationToken,
    /// Identifies the token and the rights.
    pub(crate) credential: Arc<str>,
    /// The memory that clients of this caller use.
    pub(crate) memory: Arc<CallerMemory>,
    /// The scopes of its token; absent if access does not depend on scopes.
    pub(crate) scopes: Option<Arc<[String]>>,
}

impl AuthenticatedCaller {
    fn new(caller: Caller, admin: bool, credential: Arc<str>) -> Self {
        let memory = Arc::new(CallerMemory::new(&caller));
        Self { caller, admin, revoked: CancellationToken::new(), credential, memory, scopes: None }
    }

    /// Creates a caller that needs no token.
    pub(crate) fn trusted(caller: Caller, admin: bool) -> Self {
        Self::new(caller, admin, LOCAL_CREDENTIAL.into())
    }

    /// Returns the same access, restricted to a profile.
    pub(crate) fn with_profile(&self, profile: &str) -> Self {
        Self { caller: self.caller.clone().with_profile(profile), ..self.clone() }
    }

    /// Returns whether its token has a scope, or needs none.
    pub(crate) fn has_scope(&self, scope: &str) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.iter().any(|own| own == scope))
    }

    fn revoke(&self) {
        self.caller.revoke();
        self.revoked.cancel();
    }
}

/// All callers that may use the gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Callers {
    /// The caller of the gateway's own socket, and of every request if no callers are declared.
    local: Arc<AuthenticatedCaller>,
    /// True if callers or issuers are declared.
    requires_token: bool,
    entries: Arc<[CallerEntry]>,
    issued: IssuedCallersSpec,
}

/// A declared caller and how it is recognized.
#[derive(Debug, Clone)]
struct CallerEntry {
    proof: CallerProof,
    authenticated: Arc<AuthenticatedCaller>,
}

impl CallerEntry {
    fn new(proof: CallerProof, caller: Caller, admin: bool) -> Self {
        let credential = proof.credential_id(&caller, admin).into();
        let authenticated = Arc::new(AuthenticatedCaller::new(caller, admin, credential));
        Self { proof, authenticated }
    }

    /// Returns whether both have the same proof, caller, rights and profile.
    fn grants_same_access(&self, other: &Self) -> bool {
        let own = &self.authenticated;
        let others = &other.authenticated;
        self.proof == other.proof
            && own.caller == others.caller
            && own.caller.profile() == others.caller.profile()
            && own.caller.groups() == others.caller.groups()
            && own.admin == others.admin
            && own.caller.can_read_metrics() == others.caller.can_read_metrics()
    }
}

impl Callers {
    /// Declares no callers: every client is the local caller, and no token is needed.
    pub fn none() -> Self {
        Self {
            local: Arc::new(AuthenticatedCaller::trusted(Caller::local(), true)),
            requires_token: false,
            entries: Arc::default(),
            issued: IssuedCallersSpec::default(),
        }
    }

    /// Declares callers and resolves their tokens; `secret` looks up secrets by name, and may block.
    ///
    /// # Errors
    /// Returns a problem of the whole config if a token cannot be resolved, or two callers have the same token.
    pub fn resolve(
        specs: &[CallerSpec],
        secret: impl Fn(&str) -> Result<Secret, SecretError>,
    ) -> Result<Self, Box<Problem>> {
        let digests = config::resolve_token_digests(specs, secret)?;
        let entries = digests.into_iter().zip(specs).map(|(token_digest, spec)| {
            let groups = spec.groups.iter().cloned();
            let caller =
                Caller::with_groups(&spec.name, groups).with_admin(spec.admin).with_metrics(spec.metrics);
            let caller = spec.profile.iter().fold(caller, |caller, profile| caller.with_profile(profile));
            CallerEntry::new(CallerProof::new(token_digest, spec), caller, spec.admin)
        });
        Ok(Self { requires_token: !specs.is_empty(), entries: entries.collect(), ..Self::none() })
    }

    /// Accepts tokens of the issuers of a config too.
    #[must_use]
    pub fn with_issuers(mut self, config: &Config) -> Self {
        self.issued = IssuedCallersSpec::new(config);
        self.requires_token |= !self.issued.issuers.is_empty();
        self
    }

    /// Takes over the callers whose access is unchanged, and revokes the access of all others. Returns the credentials of
    /// these.
    fn replace_previous(&mut self, previous: &Self) -> Vec<Arc<str>> {
        let unchanged = |entry: &CallerEntry| {
            previous.entries.iter().find(|old| old.grants_same_access(entry)).unwrap_or(entry).clone()
        };
        self.entries = self.entries.iter().map(unchanged).collect();
        let revoked = previous.revoke_changed(self);
        if !self.requires_token && !previous.requires_token {
            self.local = previous.local.clone();
        }
        revoked
    }

    /// Returns whether a caller has the same access in both.
    fn has_same_entry(&self, entry: &CallerEntry) -> bool {
        self.entries.iter().any(|own| own.grants_same_access(entry))
    }

    /// Revokes the access of every caller that has other access in `next`. Returns their credentials.
    fn revoke_changed(&self, next: &Self) -> Vec<Arc<str>> {
        let mut revoked = Vec::new();
        for entry in self.entries.iter().filter(|entry| !next.has_same_entry(entry)) {
            entry.authenticated.revoke();
            revoked.push(entry.authenticated.credential.clone());
        }
        if self.requires_token || next.requires_token {
            self.local.revoke();
        }
        revoked
    }

    /// Revokes a credential. Requests need a token nevertheless if no caller is left.
    fn revoke(&mut self, credential: &str) {
        let is_revoked = |entry: &&CallerEntry| *entry.authenticated.credential == *credential;
        for entry in self.entries.iter().filter(is_revoked) {
            entry.authenticated.revoke();
        }
        self.entries = self.entries.iter().filter(|entry| !is_revoked(entry)).cloned().collect();
    }

    fn credentials(&self) -> impl Iterator<Item = &Arc<str>> {
        self.entries.iter().map(|entry| &entry.authenticated.credential)
    }

    /// Returns whether a caller is declared for a user of this machine.
    pub fn has_users(&self) -> bool {
        self.entries.iter().any(|entry| entry.proof.has_user())
    }

    /// Returns whether no callers are declared, so that no token is needed.
    pub fn is_empty(&self) -> bool {
        !self.requires_token
    }

    /// Returns the caller of a request, or `None` if it has none. A token decides if there is one, then a certificate, then the
    /// user. The gateway's own user needs none of them on a Unix socket, or if no callers are declared, because the gateway then
    /// listens on loopback only and the program tells connections of other users apart.
    fn authenticate(&self, peer: &ConnectionPeer, headers: &HeaderMap) -> Option<&Arc<AuthenticatedCaller>> {
        if self.is_empty() && peer.entrypoint == Entrypoint::Tcp {
            return Some(&self.local);
        }
        if peer.entrypoint == Entrypoint::Socket {
            return Some(self.find_connection(peer).unwrap_or(&self.local));
        }
        if headers.contains_key(AUTHORIZATION) {
            return self.find_token(peer, headers);
        }
        self.find_connection(peer)
    }

    /// Returns the caller that a connection without a token belongs to.
    fn find_connection(&self, peer: &ConnectionPeer) -> Option<&Arc<AuthenticatedCaller>> {
        // The certificate and the user of a proxy say nothing about its clients.
        if peer.is_proxy || (peer.certificate.is_none() && peer.uid.is_none()) {
            return None;
        }
        let mut found = self.entries.iter().filter(|entry| entry.proof.accepts_connection(peer));
        let entry = found.next()?;
        match found.next() {
            None => Some(&entry.authenticated),
            Some(other) => {
                let names = [entry, other].map(|entry| entry.authenticated.caller.as_str());
                let [one, other] = names;
                tracing::warn!("refused a certificate that matches `callers.{one}` and `callers.{other}`");
                None
            }
        }
    }

    fn find_token(&self, peer: &ConnectionPeer, headers: &HeaderMap) -> Option<&Arc<AuthenticatedCaller>> {
        let digest: Sha256Digest = Sha256::digest(bearer_token(headers)?).into();
        // All entries are compared in constant time, so that the duration reveals nothing.
        let mut found = None;
        for entry in self.entries.iter() {
            if entry.proof.has_token(&digest) {
                found = Some(entry);
            }
        }
        let found = found.filter(|entry| entry.proof.accepts_certificate(peer.certificate.as_deref()));
        found.map(|entry| &entry.authenticated)
    }
}

/// Returns the token of a request, if it has exactly one.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Returns whether a token looks like one of an issuer: the start of a JSON object in base64, and two dots.
pub(crate) fn is_signed_token(token: &str) -> bool {
    token.starts_with('e') && token.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// The callers in force, shared by all connections. A reload replaces them together with the rules, so that no request is
/// decided by rules that were made for other callers.
#[derive(Debug)]
pub struct ActiveCallers {
    state: RwLock<CallersState>,
    /// True if issuers are declared. Without issuers, no token is compared with theirs.
    has_issuers: AtomicBool,
    /// Owns the tasks that fetch the keys of issuers and revoke logins.
    tasks: TaskTracker,
    /// The store that other gateways use.
    store: OnceLock<Arc<dyn Store>>,
}

#[derive(Debug)]
struct CallersState {
    callers: Callers,
    /// The callers of issuers, if there are any.
    issued: Option<Arc<IssuedCallers>>,
    /// The credentials of the config that was read last, with those that another gateway has revoked.
    declared: HashSet<Arc<str>>,
    /// Revocations of other gateways that were applied, by credential.
    applied: HashMap<String, Bytes>,
}

impl ActiveCallers {
    /// Starts with these callers.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime if they include issuers.
    pub fn new(callers: Callers) -> Self {
        let declared = callers.credentials().cloned().collect();
        let tasks = TaskTracker::new();
        let issued = IssuedCallers::replace(None, &callers.issued, &tasks);
        let has_issuers = AtomicBool::new(issued.is_some());
        let state = CallersState { callers, issued, declared, applied: HashMap::new() };
        Self { state: RwLock::new(state), has_issuers, tasks, store: OnceLock::new() }
    }

    /// Returns the callers of issuers, if there are any.
    pub(crate) fn issued(&self) -> Option<Arc<IssuedCallers>> {
        if !self.has_issuers.load(Ordering::Acquire) {
            return None;
        }
        self.state.read().ignore_poison().issued.clone()
    }

    /// Returns the access of a token of an issuer at an endpoint, as requests get it. For benchmarks.
    #[doc(hidden)]
    pub async fn authenticate_issued(
        &self,
        token: &str,
        base_url: &str,
        path: &str,
    ) -> Option<Result<Arc<AuthenticatedCaller>, TokenError>> {
        let resource =
            || ResourceUrl { base: base_url.to_owned(), path: path.to_owned(), ..ResourceUrl::default() };
        let issued = self.issued()?;
        match issued.find(token.as_bytes(), resource) {
            Some(known) => Some(known),
            None => issued.verify(token, &resource()).await,
        }
    }

    /// Stores later revocations for the other gateways on a store.
    pub(crate) fn share(&self, store: Arc<dyn Store>) {
        // A second gateway for the same callers has the same store.
        let _ = self.store.set(store);
    }

    fn write(&self) -> RwLockWriteGuard<'_, CallersState> {
        self.state.write().ignore_poison()
    }

    /// Returns the caller of a request, or `None` if it has none.
    pub fn authenticate(
        &self,
        peer: &ConnectionPeer,
        headers: &HeaderMap,
    ) -> Option<Arc<AuthenticatedCaller>> {
        self.state.read().ignore_poison().callers.authenticate(peer, headers).cloned()
    }

    /// Returns whether no callers are declared, so that clients of the gateway's own user need no token.
    pub fn is_empty(&self) -> bool {
        self.state.read().ignore_poison().callers.is_empty()
    }

    /// Replaces the callers and, with `set_rules`, the rules that were made for them. Access that `next` removes or changes
    /// is revoked before the rules change, here and then in other gateways on the same store, and new access is granted
    /// after. Callers whose access is unchanged keep their sessions and streams. Credentials that other gateways have revoked
    /// are valid again if they are among the callers.
    ///
    /// Requests wait to be authenticated while `set_rules` runs; it must be short and must not call
    /// [`ActiveCallers::authenticate`].
    pub fn replace(&self, mut next: Callers, set_rules: impl FnOnce()) -> PendingRevocations {
        let mut state = self.write();
        let revoked = next.replace_previous(&state.callers);
        let issued = IssuedCallers::replace(state.issued.as_ref(), &next.issued, &self.tasks);
        set_rules();
        let declared: HashSet<Arc<str>> = next.credentials().cloned().collect();
        let granted: Vec<Arc<str>> = declared.difference(&state.declared).cloned().collect();
        self.has_issuers.store(issued.is_some(), Ordering::Release);
        state.issued = issued;
        state.callers = next;
        state.declared = declared;
        drop(state);
        PendingRevocations::start(self.store.get(), &revoked, &granted)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hyper::header::HeaderValue;
    use toolcrib::Config;
    use toolcrib::config::CertificateNames;

    use super::*;

    fn callers(text: &str) -> Result<Callers, Box<Problem>> {
        let config = Config::parse(Path::new("/x/config.toml"), text);
        assert!(config.problems.is_empty(), "{:?}", config.problems);
        Callers::resolve(&config.callers, |_| Err(SecretError::NotFound))
    }

    /// Returns the revocation token of a caller, or of clients without a token for `local`.
    fn revocation(callers: &Callers, name: &str) -> CancellationToken {
        let entries = callers.entries.iter().map(|entry| &entry.authenticated);
        let found = entries.chain([&callers.local]).find(|found| found.caller.as_str() == name);
        found.unwrap().revoked.clone()
    }

    fn authenticate<'a>(callers: &'a Callers, entrypoint: Entrypoint, values: &[&str]) -> Option<&'a str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        callers.authenticate(&entrypoint.into(), &headers).map(|authenticated| authenticated.caller.as_str())
    }

    #[test]
    fn caller_is_identified_by_exactly_its_token() {
        // The digest is that of `second`.
        let callers = callers(
            "[callers.one]\ntoken = 'first-Token'\nadmin = true\n[callers.two]\n\
             token-sha256 = '16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4'",
        )
        .unwrap();
        let caller_of = |values: &[&str]| authenticate(&callers, Entrypoint::Tcp, values);
        assert_eq!(caller_of(&["Bearer first-Token"]), Some("one"));
        assert_eq!(caller_of(&["bearer first-Token"]), Some("one"));
        assert_eq!(caller_of(&["Bearer second"]), Some("two"));
        for invalid in [
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
            assert_eq!(caller_of(&[invalid]), None, "{invalid}");
        }
        assert_eq!(caller_of(&[]), None);
        assert_eq!(caller_of(&["Bearer first-Token", "Bearer first-Token"]), None);
        assert_eq!(authenticate(&callers, Entrypoint::Socket, &[]), Some("local"));
        let of_other_user = |values: &[&str]| authenticate(&callers, Entrypoint::OtherUser, values);
        assert_eq!(of_other_user(&["Bearer second"]), Some("two"));
        assert_eq!(of_other_user(&[]), None);
    }

    #[test]
    fn other_user_is_refused_without_declared_callers() {
        let callers = callers("").unwrap();
        assert_eq!(authenticate(&callers, Entrypoint::Tcp, &[]), Some("local"));
        assert_eq!(authenticate(&callers, Entrypoint::Socket, &[]), Some("local"));
        for values in [&[][..], &["Bearer "], &["Bearer local"]] {
            assert_eq!(authenticate(&callers, Entrypoint::OtherUser, values), None, "{values:?}");
        }
    }

    #[test]
    fn user_is_a_caller_unless_a_token_or_certificate_decides() {
        let callers = callers("[callers.build]\nuid = 1001\n[callers.one]\ntoken = 'first-Token'").unwrap();
        let authenticate = |entrypoint: Entrypoint, uid, token: &str| {
            let mut headers = HeaderMap::new();
            if !token.is_empty() {
                headers.insert(AUTHORIZATION, HeaderValue::from_str(token).unwrap());
            }
            let peer = ConnectionPeer::from(entrypoint).with_uid(uid);
            callers.authenticate(&peer, &headers).map(|found| found.caller.as_str().to_owned())
        };
        let name = |name: &str| Some(name.to_owned());
        for entrypoint in [Entrypoint::Tcp, Entrypoint::OtherUser] {
            assert_eq!(authenticate(entrypoint, Some(1001), ""), name("build"));
            assert_eq!(authenticate(entrypoint, Some(1001), "Bearer first-Token"), name("one"));
            assert_eq!(authenticate(entrypoint, Some(1001), "Bearer wrong"), None);
            assert_eq!(authenticate(entrypoint, Some(1002), ""), None);
            assert_eq!(authenticate(entrypoint, None, ""), None);
        }
        assert_eq!(authenticate(Entrypoint::Socket, Some(1001), ""), name("build"));
        assert_eq!(authenticate(Entrypoint::Socket, Some(1002), ""), name("local"));
        let peer = ConnectionPeer::from(Entrypoint::Tcp)
            .with_uid(Some(1001))
            .with_tls(Some(CertificateNames::default()));
        assert!(
            callers.authenticate(&peer, &HeaderMap::new()).is_none(),
            "a certificate that matches no caller"
        );
    }

    #[test]
    fn reload_revokes_callers_whose_access_changed() {
        let before = callers(
            "[profiles.p]\n[callers.stays]\ntoken = 'a'\n[callers.goes]\ntoken = 'b'\n[callers.rekeyed]\ntoken = 'c'\n\
             [callers.narrowed]\ntoken = 'd'",
        );
        let before = before.unwrap();
        let names = ["stays", "goes", "rekeyed", "narrowed", "local"];
        let revocations = names.map(|name| revocation(&before, name));
        let mut after = callers(
            "[profiles.p]\n[callers.rekeyed]\ntoken = 'x'\n[callers.stays]\ntoken = 'a'\n[callers.narrowed]\ntoken = 'd'\n\
             profile = 'p'",
        )
        .unwrap();
        after.replace_previous(&before);
        assert_eq!(revocations.map(|revoked| revoked.is_cancelled()), [false, true, true, true, true]);
        let mut open = callers("").unwrap();
        open.replace_previous(&after);
        assert!(revocation(&after, "stays").is_cancelled());
        let local = revocation(&open, "local");
        let mut same = callers("").unwrap();
        same.replace_previous(&open);
        assert!(!local.is_cancelled());
        let mut closed = callers("[callers.a]\ntoken = 'a'").unwrap();
        closed.replace_previous(&same);
        assert!(local.is_cancelled(), "clients without a token lose access");
    }

    #[test]
    fn access_is_revoked_before_rules_change_and_granted_after() {
        let bearer = |token: &str| {
            HeaderMap::from_iter([(
                AUTHORIZATION,
                HeaderValue::from_str(&format!("Bearer {token}")).unwrap(),
            )])
        };
        let both = "[callers.stays]\ntoken = 'a'\n[callers.goes]\ntoken = 'b'";
        let active = ActiveCallers::new(callers(both).unwrap());
        let access = |token: &str| active.authenticate(&Entrypoint::Tcp.into(), &bearer(token));
        let can_use = |token: &str| access(token).is_some();
        let is_revoked = |found: &AuthenticatedCaller| {
            assert_eq!(found.caller.is_revoked(), found.revoked.is_cancelled());
            found.caller.is_revoked()
        };
        let unchanged = access("a").unwrap();
        let removed = access("b").unwrap();
        let next = callers("[callers.stays]\ntoken = 'a'\n[callers.comes]\ntoken = 'c'").unwrap();
        let comes = next.entries[1].authenticated.clone();
        drop(active.replace(next, || {
            assert_eq!([&unchanged, &removed].map(|found| is_revoked(found)), [false, true]);
        }));
        assert_eq!(["a", "b", "c"].map(can_use), [true, false, true]);
        assert_eq!([&unchanged, &comes].map(|found| is_revoked(found)), [false, false]);
        drop(active.replace(callers("").unwrap(), || assert!(is_revoked(&comes))));
        assert_eq!(["a", "b", "c"].map(can_use), [true, true, true]);
        let local = access("").unwrap();
        drop(active.replace(callers("").unwrap(), || {}));
        assert!(can_use("a") && !is_revoked(&local));
        drop(active.replace(callers(both).unwrap(), || assert!(is_revoked(&local))));
        assert!(can_use("a") && !can_use(""));
    }

    #[test]
    fn without_callers_every_client_is_local() {
        let none = callers("").unwrap();
        assert_eq!(authenticate(&none, Entrypoint::Tcp, &["Bearer anything"]), Some("local"));
    }

    #[test]
    fn shared_or_empty_token_is_refused() {
        let refused = |text: &str| callers(text).unwrap_err();
        let shared = refused("[callers.a]\ntoken = 'x'\n[callers.b]\ntoken = 'x'");
        assert_eq!(shared.to_string(), "/x/config.toml:3:1: `callers.a` and `callers.b` have the same token");
        let unset = refused("[callers.a]\ntoken = '${env:TOOLCRIB_TEST_UNSET}'");
        assert!(unset.message.contains("`TOOLCRIB_TEST_UNSET` is not set"), "{unset}");
        let empty = refused("[callers.a]\ntoken = '${env:TOOLCRIB_TEST_UNSET:-}'");
        assert!(empty.message.contains("must be printable ASCII"), "{empty}");
    }
}
