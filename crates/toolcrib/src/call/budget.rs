//! `Budget`: a number of calls that several calls share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of calls that one unit of work may make. Clones share it, so parallel branches spend from the same budget. A
/// call is charged when it is made, also if it is answered from the cache. A call that is refused, or that never reached
/// its server, costs nothing.
///
/// ```
/// # use toolcrib::{Budget, Call, Crib, ErrorKind, ServerSpec, Toolbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
/// # let crib = Crib::builder().server(ServerSpec::in_process("local".parse()?, tools)).build()?;
/// let budget = Budget::calls(1);
/// crib.call(Call::tool("greet").budget(&budget)).await?;
/// let refused = crib.call(Call::tool("greet").budget(&budget)).await.unwrap_err();
/// assert_eq!((refused.kind(), budget.remaining()), (ErrorKind::OverQuota, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Budget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    limit: u32,
    remaining: AtomicU32,
}

impl Budget {
    /// Creates a budget for this many calls.
    pub fn calls(limit: u32) -> Self {
        Self(Arc::new(BudgetState { limit, remaining: AtomicU32::new(limit) }))
    }

    /// The number of calls that the budget was created for.
    pub fn limit(&self) -> u32 {
        self.0.limit
    }

    /// The number of calls that can still be made.
    pub fn remaining(&self) -> u32 {
        self.0.remaining.load(Ordering::Acquire)
    }

    /// Takes one call. Returns `false` if none remains.
    pub(crate) fn take(&self) -> bool {
        let decrement = |remaining: u32| remaining.checked_sub(1);
        self.0.remaining.fetch_update(Ordering::AcqRel, Ordering::Acquire, decrement).is_ok()
    }

    /// Returns a call that was taken.
    pub(crate) fn release(&self) {
        self.0.remaining.fetch_add(1, Ordering::AcqRel);
    }
}
