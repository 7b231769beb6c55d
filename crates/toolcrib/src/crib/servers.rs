//! Changing the servers of a crib: all of them with `apply`, or one at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{BuildError, Crib, Settings};
use crate::call::client_context::ClientContext;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::protocol::era::capabilities::Client;
use crate::registry::{self, AppliedRoster, Registry, RosterChanges};
use crate::spec::{Roster, ServerId, ServerSpec};

impl Crib {
    /// Replaces the servers, rules, limits and capacity. Rules and limits apply before new servers are visible. A changed
    /// server is restarted only if its process depends on the change; otherwise it takes over its new settings while it
    /// runs. The catalog is up to date when this returns. Replaced and removed servers finish their calls in flight,
    /// within their limits, in the background.
    ///
    /// Waits for new servers that start at boot: until each is up, has failed once, or has used up its `start_timeout`. A
    /// server that fails is reported in [`RosterChanges::failed`] and affects no other server.
    ///
    /// ```
    /// use toolcrib::{Call, Crib, ErrorKind, Policy, Roster, Rules, ServerSpec, Settings, Toolbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let schema = serde_json::json!({"type": "object"});
    /// let tools = Toolbox::new()
    ///     .tool("read", "", &schema, |_| async { Ok("content".to_owned()) })
    ///     .tool("delete", "", &schema, |_| async { Ok("gone".to_owned()) });
    /// let mut roster = Roster::default();
    /// roster.add(ServerSpec::in_process("files".parse()?, tools))?;
    /// let rules = Rules::default().denying(["files.delete".parse()?]);
    ///
    /// let crib = Crib::builder().build()?;
    /// let changes = crib.apply(Settings::new(roster).policy(Policy::for_everyone(rules))).await?;
    /// assert_eq!(changes.added, ["files".parse()?]);
    /// assert!(changes.failed.is_empty());
    /// assert_eq!(crib.call(Call::tool("read")).await?.text(), "content");
    /// let denied = crib.call(Call::tool("files__delete")).await.unwrap_err();
    /// assert_eq!(denied.kind(), ErrorKind::Denied);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails, and changes nothing, if the crib is shut down, or if a server is remote and the library was compiled without
    /// the feature `http`.
    ///
    /// # Cancel safety
    /// The settings are in force when this is first polled; dropping the future only skips waiting.
    pub async fn apply(&self, settings: Settings) -> Result<RosterChanges, Error> {
        let applied = self.set_all(settings)?;
        Ok(wait_for_boot(applied).await)
    }

    /// Like [`Crib::apply`], without waiting for servers that start at boot. Their failures are in [`Crib::status`] and
    /// [`Crib::events`], and not in the returned value.
    ///
    /// # Errors
    /// As [`Crib::apply`].
    ///
    /// # Cancel safety
    /// As [`Crib::apply`].
    pub async fn apply_without_boot(&self, settings: Settings) -> Result<RosterChanges, Error> {
        let applied = self.set_all(settings)?;
        Ok(applied.changes)
    }

    /// Replaces the set of servers and leaves the other settings as they are.
    ///
    /// # Errors
    /// As [`Crib::apply`].
    ///
    /// # Cancel safety
    /// As [`Crib::apply`].
    pub async fn apply_roster(&self, roster: Roster) -> Result<RosterChanges, Error> {
        self.check_open()?;
        roster.servers().try_for_each(check_supported)?;
        let applied = self.change_servers(|registry| registry.apply(roster))?;
        Ok(wait_for_boot(applied).await)
    }

    /// Adds one server and leaves the others as they are. If it starts at boot, waits for its start as [`Crib::apply`]
    /// does, and reports a failure in [`RosterChanges::failed`]; the server is added in any case.
    ///
    /// ```
    /// # use toolcrib::{Call, Crib, ErrorKind, ServerSpec, Toolbox};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let schema = serde_json::json!({"type": "object"});
    /// # let tools = || Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
    /// let crib = Crib::builder().build()?;
    /// let house = ServerSpec::in_process("house".parse()?, tools());
    /// crib.add(house.clone()).await?;
    /// assert_eq!(crib.call(Call::tool("house__greet")).await?.text(), "hello");
    /// assert_eq!(crib.add(house).await.unwrap_err().kind(), ErrorKind::Malformed);
    /// crib.remove(&"house".parse()?).await?;
    /// assert!(crib.roster().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails, and changes nothing, if the name is taken or differs from a taken one only in `-` and `_`
    /// ([`ErrorKind::Malformed`], with the taken name as [`Error::server`]), if the server is remote and the library was
    /// compiled without the feature `http`, or if the crib is shut down. [`Crib::replace`] changes a server that exists.
    ///
    /// # Cancel safety
    /// As [`Crib::apply`].
    pub async fn add(&self, spec: ServerSpec) -> Result<RosterChanges, Error> {
        self.check_open()?;
        check_supported(&spec)?;
        let applied = self.change_servers(|registry| registry.add(spec))?;
        Ok(wait_for_boot(applied).await)
    }

    /// Changes the server of this name, or adds it, and leaves the others as they are. A changed server is treated as by
    /// [`Crib::apply`].
    ///
    /// # Errors
    /// Fails, and changes nothing, if the name differs from a taken one only in `-` and `_`, if the server is remote and
    /// the library was compiled without the feature `http`, or if the crib is shut down.
    ///
    /// # Cancel safety
    /// As [`Crib::apply`].
    pub async fn replace(&self, spec: ServerSpec) -> Result<RosterChanges, Error> {
        self.check_open()?;
        check_supported(&spec)?;
        let applied = self.change_servers(|registry| registry.replace(spec))?;
        Ok(wait_for_boot(applied).await)
    }

    /// Removes one server and leaves the others as they are. Its calls in flight are finished in the background.
    ///
    /// # Errors
    /// Fails if there is no such server, or if the crib is shut down.
    ///
    /// # Cancel safety
    /// As [`Crib::apply`].
    pub async fn remove(&self, server: &ServerId) -> Result<RosterChanges, Error> {
        self.check_open()?;
        let applied = self.change_servers(|registry| registry.remove(server))?;
        Ok(wait_for_boot(applied).await)
    }

    /// Returns whether the rules and the guard let a caller use an item of a server, by the server's own name for it.
    pub fn can_use(&self, caller: &Caller, server: &ServerId, name: &str) -> bool {
        let policy = self.router().visible_catalogs.policy_for(caller);
        policy.is_ok_and(|policy| {
            policy.is_none_or(|policy| policy.authorize(caller, server, Some(name)).is_ok())
        })
    }

    /// Reports that a client opened a session at the endpoint of one server. It is sent what that server sends outside of
    /// calls, as long as it is the only client.
    pub fn client_connected(&self, server: &ServerId, client: &Client, context: &Arc<ClientContext>) {
        self.router().registry.client_connected(server, client, context);
    }

    /// Returns the specs of all declared servers, also of disabled ones.
    pub fn roster(&self) -> Roster {
        self.router().registry.roster()
    }

    /// Returns the spec of a declared server, also of a disabled one.
    pub fn spec(&self, server: &ServerId) -> Option<ServerSpec> {
        self.router().registry.spec(server)
    }

    /// Returns whether any server, tool or client has `result_tokens`.
    pub fn limits_results(&self) -> bool {
        self.router().registry.limits_results()
    }

    /// Returns whether a server that a caller may see has `result_tokens`, for all of its tools or some.
    pub fn limits_results_for(&self, caller: &Caller) -> bool {
        let can_see = |server: &ServerId| self.can_see(caller, server);
        let registry = &self.router().registry;
        registry.limits_results() && registry.limited_servers().iter().any(can_see)
    }

    /// Returns the `result_tokens` of a tool, by the server's own name for it, or else those of its server.
    pub fn result_tokens(&self, server: &ServerId, tool: Option<&str>) -> Option<usize> {
        self.router().registry.result_tokens(server, tool)
    }

    /// Puts all settings in force.
    fn set_all(&self, settings: Settings) -> Result<AppliedRoster, Error> {
        let Settings { roster, policy, expose, limits, capacity } = settings;
        self.check_open()?;
        roster.servers().try_for_each(check_supported)?;
        self.set_policy(policy);
        self.set_expose(expose);
        self.set_limits(limits);
        self.set_capacity(capacity);
        // What was wrong with a server may have been corrected outside of the settings.
        self.router().discoverer.renew_all();
        self.change_servers(|registry| registry.apply(roster))
    }

    /// Returns an error if the crib is shut down, or is being shut down.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        match self.inner.closing.load(Ordering::Acquire) {
            true => Err(registry::shut_down_error()),
            false => Ok(()),
        }
    }

    /// Changes the servers. The catalog has the change when this returns.
    fn change_servers(
        &self,
        change: impl FnOnce(&Registry) -> Result<AppliedRoster, Error>,
    ) -> Result<AppliedRoster, Error> {
        let router = self.router();
        let applied = change(&router.registry)?;
        router.discoverer.roster_changed(&applied.changes);
        // The memory limits of servers may have changed.
        self.inner.capacity.send_modify(|_| ());
        self.inner.catalog_publisher.publish(router);
        Ok(applied)
    }
}

/// Waits for the servers that start because of a change.
async fn wait_for_boot(applied: AppliedRoster) -> RosterChanges {
    let AppliedRoster { mut changes, booting } = applied;
    changes.failed = registry::failed_starts(booting).await;
    changes
}

/// Fails if the server cannot be reached by this build of the library.
fn check_supported(spec: &ServerSpec) -> Result<(), Error> {
    match spec.endpoint.is_supported() {
        true => Ok(()),
        false => {
            let error = BuildError::RemoteUnsupported(spec.id.clone());
            Err(Error::new(ErrorKind::Malformed, error.to_string()).with_server(&spec.id).mark_not_sent())
        }
    }
}
