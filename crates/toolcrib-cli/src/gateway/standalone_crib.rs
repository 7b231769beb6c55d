//! The crib of a command that runs without a gateway.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::task::TaskTracker;
use toolcrib::config::Config;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Crib, LogLine, ServerId};

use super::log_files::LogFiles;
use super::settings::{library_settings, with_waits};
use super::{build_crib, builder};
use crate::audit::Audit;
use crate::command_error::CommandError;
use crate::paths::Paths;
use crate::secrets::SecretLocator;

/// A crib and the log files of its declared servers.
pub(crate) struct StandaloneCrib {
    pub(crate) crib: Crib,
    /// `None` once it is shut down.
    logs: Mutex<Option<LogFiles>>,
    tasks: TaskTracker,
}

impl StandaloneCrib {
    /// Builds the crib of a config. The log files are those that a gateway would write.
    pub(crate) fn new(paths: &Paths, config: &Config) -> Result<Self, CommandError> {
        let tasks = TaskTracker::new();
        let logs = LogFiles::new(paths.log_dir(), &tasks);
        let sink = logs.sink();
        let declared: HashSet<ServerId> = config.declared.iter().map(|server| server.id.clone()).collect();
        let sink = move |line: LogLine<'_>| {
            if declared.contains(line.server) {
                sink(line);
            }
        };
        let audit = Arc::new(Audit::new(config.audit.as_ref())?);
        let secrets = SecretLocator::new(paths, &config.secrets);
        let builder = builder(paths, library_settings(config), &secrets).observer(audit).log(sink);
        let crib = build_crib(with_waits(builder, &config.limits))?;
        Ok(Self { crib, logs: Mutex::new(Some(logs)), tasks })
    }

    /// Stops the servers, and waits until the last line of their logs is written.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        self.crib.shutdown(grace).await;
        // Ends the log writer after the last line.
        drop(self.logs.lock().ignore_poison().take());
        self.tasks.close();
        self.tasks.wait().await;
    }
}
