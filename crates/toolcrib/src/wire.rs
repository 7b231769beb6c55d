//! What toolcrib reads of a message, and what it refuses to touch.
//!
//! The envelope and the few members that decide anything are read strictly and written again by us; everything below
//! them is carried as the bytes it was. Nothing under `wire` does I/O or reads a clock.

pub(crate) mod canonical;
pub mod dialect;
pub mod frame;
pub mod kind;
pub mod message;
pub mod mirror;
pub mod object;
pub mod revision;
pub(crate) mod scan;
pub mod sse;
