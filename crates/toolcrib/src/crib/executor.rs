//! The crib as an agent's tool executor: tool definitions in the form of a model API, and calls by name.

use serde_json::Value;

use super::Crib;
use crate::call::Call;
use crate::call::executor::{ExecutorFuture, ToolCall, ToolExecutor};
use crate::catalog::schemas::SchemaFormat;
use crate::model::caller::Caller;

impl Crib {
    /// Returns the definitions of all tools that are listed to a caller, sorted by public name, in the form that an agent
    /// passes to a model. Lists first, as [`Crib::list`] does; see [`Catalog::schemas`](crate::Catalog::schemas) for a
    /// catalog at hand.
    ///
    /// # Cancel safety
    /// As [`Crib::list`].
    pub async fn schemas(&self, format: SchemaFormat, caller: &Caller) -> Vec<Value> {
        self.list_for(caller).await.schemas(format)
    }
}

impl ToolExecutor for Crib {
    /// Runs the tool with this public name, or with this bare name if only one server has it; see [`Crib::call`].
    fn execute(&self, call: ToolCall) -> ExecutorFuture<'_> {
        Box::pin(self.call(Call::from(call)))
    }
}
