//! The asynchronous store of the library's unit tests, for gateways that share a store.

use toolcrib::Caller;
use toolcrib::store::*;

#[path = "../../../toolcrib/src/store/delayed.rs"]
mod delayed;

pub(crate) use delayed::DelayedStore;
