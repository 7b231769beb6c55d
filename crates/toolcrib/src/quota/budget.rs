//! `Budget`: how many calls one unit of work may make, shared by everything that works on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many calls one unit of work may make. Clones share it, so parallel branches spend from the same one. A call is
/// charged when it is made, also if the answer is known already; one that is refused, or that certainly never reached
/// its server, costs nothing.
///
/// ```
/// # use toolcrib::{Budget, Call, Crib, ErrorKind, ServerSpec, Toolbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
/// # let crib = Crib::builder().server(ServerSpec::in_process("house".parse()?, tools)).build()?;
/// let budget = Budget::calls(1);
/// crib.call(Call::tool("greet").within(&budget)).await?;
/// let refused = crib.call(Call::tool("greet").within(&budget)).await.unwrap_err();
/// assert_eq!((refused.kind(), budget.left()), (ErrorKind::OverQuota, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Budget(Arc<Purse>);

#[derive(Debug)]
struct Purse {
    whole: u32,
    left: AtomicU32,
}

impl Budget {
    /// For so many calls.
    pub fn calls(whole: u32) -> Self {
        Self(Arc::new(Purse { whole, left: AtomicU32::new(whole) }))
    }

    /// How many it was opened for.
    pub fn whole(&self) -> u32 {
        self.0.whole
    }

    /// How many are left.
    pub fn left(&self) -> u32 {
        self.0.left.load(Ordering::Acquire)
    }

    /// Takes one, if there is one.
    pub(super) fn take(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.0.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// Puts one back that was taken.
    pub(super) fn give_back(&self) {
        self.0.left.fetch_add(1, Ordering::AcqRel);
    }
}
