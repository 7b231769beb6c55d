//! Chaos runs against real processes. The tests of this package and the `chaos` program use them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "test support stops at the first surprise")]

pub mod chaos;
