//! `ToolExecutor`: runs tools by name, as an agent asks for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::call::Call;
use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::model::outcome::Outcome;
use crate::util::encoding;

/// The future of one tool call. Dropping it cancels the call.
pub type ExecutorFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send + 'a>>;

/// One call of a tool, as an agent makes it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolCall {
    /// The name of the tool, as the caller wrote it.
    pub name: String,
    /// The arguments.
    pub arguments: Value,
    /// The id of the call, such as the one that a model gave it.
    pub id: String,
    /// The time until which the caller waits, if it is limited.
    pub deadline: Option<Instant>,
    /// The caller.
    pub caller: Caller,
}

impl ToolCall {
    /// Creates a call of the local caller with a random id and no deadline.
    pub fn new(name: impl Into<String>, arguments: Value) -> Self {
        Self {
            name: name.into(),
            arguments,
            id: encoding::random_hex().unwrap_or_default(),
            deadline: None,
            caller: Caller::local(),
        }
    }

    /// Sets the id of the call.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Sets the time until which the caller waits.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the caller.
    #[must_use]
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }
}

/// A call of a tool, as an executor gets it. A call without an id gets a random one, and one without arguments an empty
/// object.
impl From<&Call> for ToolCall {
    fn from(call: &Call) -> Self {
        let arguments = call.get_arguments().and_then(|raw| serde_json::from_slice(raw).ok());
        Self {
            name: call.name().to_owned(),
            arguments: arguments.unwrap_or_else(|| json!({})),
            id: call.get_id().map_or_else(|| encoding::random_hex().unwrap_or_default(), str::to_owned),
            deadline: call.deadline,
            caller: call.caller.clone(),
        }
    }
}

impl From<ToolCall> for Call {
    fn from(call: ToolCall) -> Self {
        let request = Self::tool(call.name).arguments(&call.arguments).caller(call.caller).id(call.id);
        match call.deadline {
            Some(deadline) => request.deadline(deadline),
            None => request,
        }
    }
}

/// Runs tools by name. A [`Crib`](crate::Crib) is one, and so is every async function of a [`ToolCall`].
///
/// ```
/// use toolcrib::{Crib, Outcome, ToolCall, ToolExecutor};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let own_tools = |call: ToolCall| async move {
///     let text = format!("{} for {}", call.name, call.caller.as_str());
///     Ok(Outcome::result(&serde_json::json!({"content": [{"type": "text", "text": text}]})))
/// };
/// let executor: Box<dyn ToolExecutor> = Box::new(Crib::builder().fallback_executor(own_tools).build()?);
/// let call = ToolCall::new("weather", serde_json::json!({"city": "Ulm"})).id("toolu_1");
/// assert_eq!(executor.execute(call).await?.text(), "weather for local");
/// # Ok(())
/// # }
/// ```
pub trait ToolExecutor: Send + Sync {
    /// Runs one call. A failure of the tool itself is an [`Outcome`] with `isError`.
    ///
    /// # Errors
    /// The future fails if no tool answered.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call.
    fn execute(&self, call: ToolCall) -> ExecutorFuture<'_>;
}

impl<F, A> ToolExecutor for F
where
    F: Fn(ToolCall) -> A + Send + Sync,
    A: Future<Output = Result<Outcome, Error>> + Send + 'static,
{
    fn execute(&self, call: ToolCall) -> ExecutorFuture<'_> {
        Box::pin(self(call))
    }
}

impl<E: ToolExecutor + ?Sized> ToolExecutor for Arc<E> {
    fn execute(&self, call: ToolCall) -> ExecutorFuture<'_> {
        (**self).execute(call)
    }
}
