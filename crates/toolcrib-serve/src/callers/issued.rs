//! Callers that tokens of issuers identify.
//!
//! Tokens that were verified are remembered until they expire, so that a client pays for the signature once. The tokens of
//! one caller at one client program are a login: it is revoked when the last of them expires, which ends its sessions and
//! streams, and goes on when the client renews its token.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use toolcrib::config::{Config, GroupSpec, IssuedCallerSpec, IssuerSpec};
use toolcrib::identity::{Issuers, TokenError, VerifiedToken};
use toolcrib::util::clock::wall_time;
use toolcrib::util::encoding;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::util::maps::collect_map;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{Caller, Secret};

use super::AuthenticatedCaller;
use crate::caller_assertion::{IssuedAssertion, unix_seconds};
use crate::resource::ResourceUrl;

/// Tokens that are remembered. All are forgotten when there are more.
const MAX_TOKENS: usize = 10_000;
/// Size of the tokens that are remembered, in bytes.
const MAX_TOKEN_BYTES: usize = 16 << 20;
/// Logins at the same time.
const MAX_LOGINS: usize = 10_000;
/// Client programs at which one caller is logged in at the same time. Without this limit, one caller could use all logins: at many
/// authorization servers anyone can register clients.
const MAX_CLIENTS: usize = 100;
/// Longest time between two looks for logins that have expired.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes at the end of a token by which it is looked up. They belong to its signature, which differs for each token.
const TAIL_LENGTH: usize = 16;

/// The declared issuers, and the rights of their callers.
#[derive(Debug, Clone, Default)]
pub(crate) struct IssuedCallersSpec {
    pub(super) issuers: Vec<IssuerSpec>,
    callers: Vec<IssuedCallerSpec>,
    groups: Vec<GroupSpec>,
}

/// The rights of a caller that a token identifies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct IssuedRights {
    name: String,
    /// The declared groups it is in, sorted.
    groups: Vec<String>,
    admin: bool,
    metrics: bool,
    profile: Option<String>,
}

impl IssuedCallersSpec {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            issuers: config.issuers.clone(),
            callers: config.issued_callers.clone(),
            groups: config.groups.clone(),
        }
    }

    /// Returns the rights of a caller. Groups that are not declared, or not for this issuer, have no meaning.
    fn rights(&self, issuer: &str, subject: &str, claimed: &[String]) -> Result<IssuedRights, TokenError> {
        let name = format!("{issuer}:{subject}");
        let own = self.callers.iter().find(|caller| caller.name == name);
        let declared = |name: &str| self.groups.iter().find(|group| group.name == name);
        let claimed = claimed.iter().filter(|name| declared(name).is_some_and(|group| group.trusts(issuer)));
        let claimed = claimed.chain(own.iter().flat_map(|own| &own.groups));
        let groups: BTreeSet<String> =
            collect_map(claimed.filter_map(|name| Some(declared(name)?.name.clone())));
        let accepted = self.issuers.iter().find(|spec| spec.name == issuer).map(|spec| &spec.groups);
        if accepted.is_some_and(|names| !names.is_empty() && !names.iter().any(|name| groups.contains(name)))
        {
            return Err(TokenError::NotInGroups);
        }
        let is_group_admin = groups.iter().any(|name| declared(name).is_some_and(|group| group.admin));
        Ok(IssuedRights {
            name,
            groups: groups.into_iter().collect(),
            admin: is_group_admin || own.is_some_and(|own| own.admin),
            metrics: own.is_some_and(|own| own.metrics),
            profile: own.and_then(|own| own.profile.clone()),
        })
    }

    fn find_issuer(&self, name: &str) -> Option<&IssuerSpec> {
        self.issuers.iter().find(|issuer| issuer.name == name)
    }
}

/// One caller at one client program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LoginKey {
    rights: IssuedRights,
    client: Option<String>,
}

/// The access that the tokens of one caller at one client program give.
#[derive(Debug)]
struct IssuedLogin {
    access: AuthenticatedCaller,
    issuer: String,
    subject: String,
    /// The groups in the last token.
    claimed_groups: Vec<String>,
    expires: Expiry,
}

/// The end of the last token, by both clocks: the machine may be suspended, and the wall time may be set back.
#[derive(Debug, Clone, Copy)]
struct Expiry {
    wall: SystemTime,
    instant: Instant,
}

impl Expiry {
    fn has_passed(self, wall: SystemTime, now: Instant) -> bool {
        wall >= self.wall || now >= self.instant
    }
}

/// A token that was verified.
#[derive(Debug)]
struct SeenToken {
    /// The whole token; erased from memory when it is forgotten.
    token: Secret,
    expires: SystemTime,
    /// The servers that it is for; absent if the config names the audience, which was checked.
    audiences: Option<Vec<String>>,
    access: Arc<AuthenticatedCaller>,
    login: LoginKey,
}

type TokenTail = [u8; TAIL_LENGTH];

/// The callers of all issuers in force.
#[derive(Debug)]
pub(crate) struct IssuedCallers {
    spec: IssuedCallersSpec,
    issuers: Issuers,
    state: Mutex<IssuedState>,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct IssuedState {
    tokens: HashMap<TokenTail, SeenToken>,
    token_bytes: usize,
    logins: HashMap<LoginKey, IssuedLogin>,
    has_expiry_task: bool,
    /// True after a reload has replaced the issuers: nothing is granted any longer.
    is_replaced: bool,
}

impl IssuedCallers {
    /// Replaces the issuers in force. Logins whose issuer and rights are the same go on, and all others are revoked. Returns
    /// `None` if no issuers are declared.
    pub(super) fn replace(
        previous: Option<&Arc<Self>>,
        spec: &IssuedCallersSpec,
        tasks: &TaskTracker,
    ) -> Option<Arc<Self>> {
        let mut state = previous.map(|previous| previous.take_state()).unwrap_or_default();
        state.revoke_logins(|key, login| {
            let unchanged = previous.and_then(|previous| previous.spec.find_issuer(&login.issuer));
            let is_unchanged = unchanged.is_some_and(|old| spec.find_issuer(&old.name) == Some(old));
            let rights = spec.rights(&login.issuer, &login.subject, &login.claimed_groups);
            !is_unchanged || rights.as_ref() != Ok(&key.rights)
        });
        if spec.issuers.is_empty() {
            return None;
        }
        let known = previous.map(|previous| previous.issuers.clone()).unwrap_or_default();
        let issuers = Issuers::start(&spec.issuers, &known, tasks);
        let has_logins = !state.logins.is_empty();
        state.has_expiry_task = has_logins;
        let issued =
            Arc::new(Self { spec: spec.clone(), issuers, state: Mutex::new(state), tasks: tasks.clone() });
        if has_logins {
            issued.spawn_expiry_task();
        }
        Some(issued)
    }

    fn lock(&self) -> MutexGuard<'_, IssuedState> {
        self.state.lock().ignore_poison()
    }

    fn take_state(&self) -> IssuedState {
        std::mem::replace(&mut *self.lock(), IssuedState { is_replaced: true, ..IssuedState::default() })
    }

    /// Returns the scopes that clients of an endpoint should ask for.
    pub(crate) fn requested_scopes(&self, resource: &ResourceUrl) -> Vec<String> {
        let mut scopes: Vec<String> = Vec::new();
        let of_issuers = self.spec.issuers.iter().flat_map(|issuer| issuer.scopes.iter().cloned());
        for scope in resource.required_scope().into_iter().chain(of_issuers) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes
    }

    /// Returns the URLs of the issuers.
    pub(crate) fn issuer_urls(&self) -> impl Iterator<Item = &str> {
        self.spec.issuers.iter().map(|issuer| issuer.issuer.as_str())
    }

    /// Returns the access of a token that was verified before, or why it is refused; `None` if it is not known.
    pub(crate) fn find(
        &self,
        token: &[u8],
        resource: impl FnOnce() -> ResourceUrl,
    ) -> Option<Result<Arc<AuthenticatedCaller>, TokenError>> {
        let tail = tail(token)?;
        let state = self.lock();
        let seen = state.tokens.get(&tail).filter(|seen| seen.token.expose().as_bytes() == token)?;
        if wall_time() >= seen.expires {
            return Some(Err(TokenError::Expired));
        }
        if seen.access.caller.is_revoked() {
            return None;
        }
        let is_for_resource = seen.audiences.as_ref().is_none_or(|names| resource().is_named_by(names));
        Some(if is_for_resource { Ok(seen.access.clone()) } else { Err(TokenError::Audience) })
    }

    /// Verifies a token and remembers it. Returns `None` if a reload has replaced the issuers meanwhile.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        token: &str,
        resource: &ResourceUrl,
    ) -> Option<Result<Arc<AuthenticatedCaller>, TokenError>> {
        let verified = match self.issuers.verify(token, wall_time()).await {
            Ok(verified) => verified,
            Err(error) => return Some(Err(error)),
        };
        if verified.audiences.as_ref().is_some_and(|names| !resource.is_named_by(names)) {
            return Some(Err(TokenError::Audience));
        }
        match self.spec.rights(&verified.issuer, &verified.subject, &verified.groups) {
            Ok(rights) => self.remember(token, verified, rights),
            Err(error) => Some(Err(error)),
        }
    }

    fn remember(
        self: &Arc<Self>,
        token: &str,
        verified: VerifiedToken,
        rights: IssuedRights,
    ) -> Option<Result<Arc<AuthenticatedCaller>, TokenError>> {
        let tail = tail(token.as_bytes())?;
        let mut state = self.lock();
        if state.is_replaced {
            return None;
        }
        let login = LoginKey { rights, client: verified.client.clone() };
        let access = match state.log_in(&login, &verified) {
            Ok(access) => access,
            Err(error) => return Some(Err(error)),
        };
        let access = Arc::new(AuthenticatedCaller { scopes: Some(verified.scopes.into()), ..access });
        state.insert_token(
            tail,
            SeenToken {
                token: Secret::new(token),
                expires: verified.expires,
                audiences: verified.audiences,
                access: access.clone(),
                login,
            },
        );
        let needs_task = !std::mem::replace(&mut state.has_expiry_task, true);
        drop(state);
        if needs_task {
            self.spawn_expiry_task();
        }
        Some(Ok(access))
    }

    /// Returns what is known of the login with a credential.
    pub(super) fn assert_login(&self, credential: &str) -> Option<IssuedAssertion> {
        let state = self.lock();
        let (key, login) = state.logins.iter().find(|(_, login)| *login.access.credential == *credential)?;
        Some(IssuedAssertion {
            issuer: login.issuer.clone(),
            subject: login.subject.clone(),
            client: key.client.clone(),
            groups: login.claimed_groups.clone(),
            expires: unix_seconds(login.expires.wall),
        })
    }

    /// Logs in a caller whose token another replica has verified. Returns `None` if its issuer is not declared here, its login has
    /// expired, or it may not log in.
    pub(super) fn log_in_asserted(
        self: &Arc<Self>,
        asserted: &IssuedAssertion,
    ) -> Option<Arc<AuthenticatedCaller>> {
        let IssuedAssertion { issuer, subject, client, groups, expires } = asserted.clone();
        self.spec.find_issuer(&issuer)?;
        let rights = self.spec.rights(&issuer, &subject, &groups).ok()?;
        let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(expires))?;
        if expires <= wall_time() {
            return None;
        }
        let login = LoginKey { rights, client: client.clone() };
        let token =
            VerifiedToken { issuer, subject, client, groups, scopes: Vec::new(), audiences: None, expires };
        let mut state = self.lock();
        if state.is_replaced {
            return None;
        }
        let access = state.log_in(&login, &token).ok()?;
        let needs_task = !std::mem::replace(&mut state.has_expiry_task, true);
        drop(state);
        if needs_task {
            self.spawn_expiry_task();
        }
        Some(Arc::new(access))
    }

    fn spawn_expiry_task(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.tasks.spawn_boxed(revoke_expired(weak));
    }
}

/// Revokes logins when they expire, until there are none.
async fn revoke_expired(issued: Weak<IssuedCallers>) {
    loop {
        let Some(callers) = issued.upgrade() else { return };
        let next = {
            let mut state = callers.lock();
            let now = Instant::now();
            let wall = wall_time();
            state.revoke_logins(|_, login| login.expires.has_passed(wall, now));
            let next = state.logins.values().map(|login| login.expires.instant).min();
            state.has_expiry_task = next.is_some();
            next
        };
        drop(callers);
        let Some(next) = next else { return };
        sleep(next.saturating_duration_since(Instant::now()).min(EXPIRY_INTERVAL)).await;
    }
}

impl IssuedState {
    /// Returns the access of a login, which lasts at least as long as the token. Fails if there are too many logins.
    fn log_in(&mut self, key: &LoginKey, token: &VerifiedToken) -> Result<AuthenticatedCaller, TokenError> {
        let remaining = token.expires.duration_since(wall_time()).unwrap_or_default();
        // A time that the clock cannot express is as good as never.
        let never = Duration::from_secs(365 * 24 * 60 * 60);
        let expires = Expiry { wall: token.expires, instant: Instant::now() + remaining.min(never) };
        if let Some(login) = self.logins.get_mut(key) {
            if expires.wall > login.expires.wall {
                login.expires = expires;
            }
            login.claimed_groups.clone_from(&token.groups);
            return Ok(login.access.clone());
        }
        if self.logins.len() >= MAX_LOGINS {
            return Err(TokenError::TooManyLogins);
        }
        let rights = &key.rights;
        let is_own = |other: &&LoginKey| other.rights.name == rights.name;
        if self.logins.keys().filter(is_own).count() >= MAX_CLIENTS {
            return Err(TokenError::TooManyClients);
        }
        let caller = Caller::with_groups(&rights.name, rights.groups.iter().cloned());
        let caller = caller.with_admin(rights.admin).with_metrics(rights.metrics);
        let caller = rights.profile.iter().fold(caller, |caller, profile| caller.with_profile(profile));
        let access = AuthenticatedCaller::new(caller, rights.admin, key.credential());
        let login = IssuedLogin {
            access: access.clone(),
            issuer: token.issuer.clone(),
            subject: token.subject.clone(),
            claimed_groups: token.groups.clone(),
            expires,
        };
        self.logins.insert(key.clone(), login);
        Ok(access)
    }

    fn insert_token(&mut self, tail: TokenTail, token: SeenToken) {
        let bytes = token.token.expose().len();
        if self.tokens.len() >= MAX_TOKENS || self.token_bytes + bytes > MAX_TOKEN_BYTES {
            self.tokens.clear();
            self.token_bytes = 0;
        }
        self.token_bytes += bytes;
        if let Some(replaced) = self.tokens.insert(tail, token) {
            self.token_bytes -= replaced.token.expose().len();
        }
    }

    /// Revokes logins and forgets their tokens.
    fn revoke_logins(&mut self, is_revoked: impl Fn(&LoginKey, &IssuedLogin) -> bool) {
        let revoked: HashMap<LoginKey, IssuedLogin> =
            self.logins.extract_if(|key, login| is_revoked(key, login)).collect();
        if revoked.is_empty() {
            return;
        }
        for login in revoked.values() {
            login.access.revoke();
        }
        self.tokens.retain(|_, token| !revoked.contains_key(&token.login));
        self.token_bytes = self.tokens.values().map(|token| token.token.expose().len()).sum();
    }
}

impl LoginKey {
    /// Returns a digest that sessions belong to.
    fn credential(&self) -> Arc<str> {
        let mut digest = Sha256::new();
        let IssuedRights { name, groups, admin, metrics, profile } = &self.rights;
        let client = self.client.as_deref().unwrap_or_default();
        let parts = [name.as_str(), client, profile.as_deref().unwrap_or_default()];
        for part in parts.into_iter().chain(groups.iter().map(String::as_str)) {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        digest.update([u8::from(profile.is_some()), u8::from(*admin), u8::from(*metrics)]);
        format!("issued:{}", encoding::to_hex(&digest.finalize())).into()
    }
}

fn tail(token: &[u8]) -> Option<TokenTail> {
    token.last_chunk().copied()
}
