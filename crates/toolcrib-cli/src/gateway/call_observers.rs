//! The observers of a gateway.

use std::sync::Arc;

use toolcrib::CribBuilder;

use super::settings::{GatewaySettings, records_arguments};
use crate::audit::Audit;
use crate::command_error::CommandError;
use crate::history::CallHistory;
use crate::paths::Paths;
use crate::telemetry::Telemetry;

/// What records every call: the audit, the metrics and spans, and the history.
pub(super) struct CallObservers {
    pub(super) audit: Arc<Audit>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) history: Arc<CallHistory>,
}

impl CallObservers {
    pub(super) fn open(paths: &Paths, settings: &GatewaySettings) -> Result<Self, CommandError> {
        let arguments = records_arguments(settings.audit.as_ref());
        Ok(Self {
            audit: Arc::new(Audit::new(settings.audit.as_ref())?),
            telemetry: Arc::new(Telemetry::from_env(settings.metrics)),
            history: Arc::new(CallHistory::new(paths.history_dir(), &settings.history, arguments)),
        })
    }

    pub(super) fn attach(&self, builder: CribBuilder) -> CribBuilder {
        let builder = builder.observer(self.audit.clone());
        builder.observer(self.telemetry.clone()).observer(self.history.clone())
    }
}
