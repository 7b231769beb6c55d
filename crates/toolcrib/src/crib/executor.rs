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
    /// ```
    /// use serde_json::json;
    /// use toolcrib::{Caller, Crib, SchemaFormat, ServerSpec, Toolbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    /// let tools = Toolbox::new().tool("weather", "Current weather", &schema, |_| async { Ok("rain".to_owned()) });
    /// let crib = Crib::builder().server(ServerSpec::in_process("world".parse()?, tools)).build()?;
    /// let tools = crib.schemas(SchemaFormat::Anthropic, &Caller::local()).await;
    /// let weather = json!({"name": "world__weather", "description": "Current weather", "input_schema": schema});
    /// assert_eq!(tools, [weather]);
    /// # Ok(())
    /// # }
    /// ```
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
