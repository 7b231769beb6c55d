//! The state that replicas of a gateway share, in Valkey or Redis.
#![doc = include_str!("../README.md")]
//!
//! # Keys
//! All keys start with the prefix of [`ValkeyOptions`]. Scripts change the keys of one operation together. In a cluster, the values
//! of one kind share a slot, and so does the usage of all callers.
//!
//! # Failures
//! One task owns the connection, sends operations in order and connects again with growing, random pauses. While there is no
//! connection, operations fail immediately; see [`ValkeyStore::status`].

mod command;
mod connection;
mod health;
mod leases;
mod link;
mod operation;
mod resp;
mod store;
mod store_url;
mod usage;
mod worker;

pub use health::{StateWatch, StoreState, StoreStatus};
pub use store::{ValkeyOptions, ValkeyStore};
pub use store_url::{StoreUrl, StoreUrlError};
