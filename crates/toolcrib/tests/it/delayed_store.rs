//! The asynchronous store of the library's unit tests, for cribs that share a store.

use toolcrib::Caller;
use toolcrib::store::*;

#[path = "../../src/store/delayed.rs"]
mod delayed;

pub(crate) use delayed::DelayedStore;
