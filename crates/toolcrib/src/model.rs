//! Plain values that every layer uses. Nothing here uses tokio, locks or I/O.

pub mod call_id;
pub mod caller;
pub mod denial;
pub mod error;
pub mod event;
pub mod exit_report;
pub mod failure_class;
pub mod hint;
pub mod instance_key;
pub(crate) mod listing;
pub mod log_line;
pub mod outcome;
pub mod pin_status;
pub mod selector;
pub(crate) mod spoken_eras;
pub mod status;
pub mod target;
