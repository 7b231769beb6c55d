//! Calls of servers that are not declared: by their command line, URL or spec.

use serde_json::Value;

use super::Crib;
use crate::call::Call;
use crate::model::error::{Error, ErrorKind};
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;
use crate::model::status::ServerStatus;
use crate::spec::{CommandSpec, HttpSpec, ServerSpec};

impl Crib {
    /// Calls a tool of the server with this command line. See [`Crib::call_spec`].
    ///
    /// ```no_run
    /// # async fn example(crib: toolcrib::Crib) -> Result<(), toolcrib::Error> {
    /// let argv = ["uvx", "mcp-server-time"];
    /// let arguments = serde_json::json!({"timezone": "UTC"});
    /// let outcome = crib.call_command(argv, "get_current_time", &arguments).await?;
    /// println!("{}", outcome.text());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Crib::call_spec`], and with [`ErrorKind::Malformed`] if the command line is empty.
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn call_command<I>(&self, argv: I, tool: &str, arguments: &Value) -> Result<Outcome, Error>
    where
        I: IntoIterator<Item: Into<String>>,
    {
        let command = CommandSpec::argv(argv);
        let command = command.ok_or_else(|| Error::new(ErrorKind::Malformed, "the command is empty"))?;
        self.call_spec(command, Call::tool(tool).arguments(arguments)).await
    }

    /// Calls a tool of the remote server at a URL. See [`Crib::call_spec`].
    ///
    /// # Errors
    /// As [`Crib::call_spec`].
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn call_url(&self, url: &str, tool: &str, arguments: &Value) -> Result<Outcome, Error> {
        self.call_spec(HttpSpec::new(url), Call::tool(tool).arguments(arguments)).await
    }

    /// Runs a call on the server of a spec that is not declared. The name in the call is the server's own name of the
    /// tool, prompt or resource.
    ///
    /// The server is called `adhoc-HASH8`, after the digest of its spec; the name in the spec is ignored. Specs with the
    /// same endpoint and era share one server, which takes over the settings of the latest spec. It is supervised like
    /// any other, and access rules, limits and observers apply to it under that name. At most
    /// [`CribBuilder::max_adhoc_servers`](crate::CribBuilder::max_adhoc_servers) exist; the idle one that was used least
    /// recently is evicted for another. They are not part of [`Crib::roster`], are not listed in any catalog, and are not
    /// changed by [`Crib::apply`]. [`Crib::adhoc_status`] shows them. Nothing about them is kept on disk.
    ///
    /// # Errors
    /// As [`Crib::call`]. Also fails with [`ErrorKind::Denied`] if an access rule denies the whole server, with
    /// [`ErrorKind::OverQuota`] if the maximum is reached and no such server is idle, and with [`ErrorKind::Malformed`] if
    /// the spec is of a server in this process, or the call is about a task.
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn call_spec(&self, spec: impl Into<ServerSpec>, mut call: Call) -> Result<Outcome, Error> {
        let spec = spec.into();
        self.check_open()?;
        let name = call.selector.name().to_owned();
        if matches!(call.selector, Selector::Task(_)) {
            return Err(Error::new(ErrorKind::Malformed, "a task belongs to a declared server"));
        }
        let registry = &self.router().registry;
        let server = registry.adhoc_name(&spec)?;
        if let Some(policy) = self.router().visible_catalogs.policy_for(&call.caller)? {
            // Before anything is started.
            let decision = policy.authorize(&call.caller, &server, None);
            decision.map_err(|denial| denial.into_error(&call.caller, &server, &name))?;
        }
        let used = registry.use_adhoc(spec)?;
        call.set_own_name(&name);
        call.selector = Selector::OnServer(used.server.clone(), name);
        self.call(call).await
    }

    /// Returns the status of the servers that are not declared, sorted by name. See [`Crib::call_spec`].
    pub fn adhoc_status(&self) -> Vec<ServerStatus> {
        self.router().registry.adhoc_servers().iter().map(|entry| self.entry_status(entry)).collect()
    }
}
