//! The services that start the processes of a crib. A builder may open them before it builds the crib.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::{CribBuilder, LISTINGS_FOLDER};
use crate::process::Spawner;
use crate::spec::Endpoint;

/// The spawner of a crib, and the tasks that wait for what it starts.
pub(super) struct ProcessServices {
    pub(super) spawner: Arc<Spawner>,
    pub(super) tasks: TaskTracker,
}

impl CribBuilder {
    /// Starts the fork server now if no server was ever listed, because the first list starts all of them. A caller that has work
    /// to do before it builds the crib calls this first: the fork server needs more than a millisecond until it is ready.
    /// Settings that follow must not change the shim or the folder of the state.
    #[doc(hidden)]
    #[must_use]
    pub fn start_fork_server_early(mut self) -> Self {
        if self.was_never_listed() && self.check().is_ok() {
            let services = self.process_services();
            services.spawner.start_fork_server(&services.tasks);
            self.process_services = Some(services);
        }
        self
    }

    /// Returns whether there are processes to start and no listing of any server is remembered.
    fn was_never_listed(&self) -> bool {
        let mut servers = self.roster.servers();
        let has_process = servers.any(|spec| spec.enabled && matches!(spec.endpoint, Endpoint::Command(_)));
        let listings = self.state_dir.as_ref().map(|folder| folder.join(LISTINGS_FOLDER));
        has_process && listings.is_none_or(|folder| !folder.exists())
    }

    /// Takes the services that were opened before, or opens them.
    pub(super) fn process_services(&mut self) -> ProcessServices {
        if let Some(services) = self.process_services.take() {
            return services;
        }
        let trees_dir = self.state_dir.as_ref().map(|dir| dir.join("trees"));
        let spawner = Arc::new(Spawner::new(self.shim.clone(), trees_dir));
        ProcessServices { spawner, tasks: TaskTracker::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{CommandSpec, ServerSpec};

    fn server() -> ServerSpec {
        ServerSpec::command("echo".parse().unwrap(), CommandSpec::new("echo"))
    }

    #[test]
    fn servers_were_never_listed_until_there_is_a_folder_of_listings() {
        assert!(!CribBuilder::default().was_never_listed(), "there is no server");
        let disabled = ServerSpec { enabled: false, ..server() };
        assert!(!CribBuilder::default().server(disabled).was_never_listed());
        assert!(CribBuilder::default().server(server()).was_never_listed());
        let state = tempfile::tempdir().unwrap();
        let builder = CribBuilder::default().server(server()).state_dir(state.path());
        assert!(builder.was_never_listed());
        std::fs::create_dir(state.path().join(LISTINGS_FOLDER)).unwrap();
        assert!(!builder.was_never_listed());
    }
}
