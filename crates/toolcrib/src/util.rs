//! Helpers without a subject of their own: encodings, text formatting, file replacement, locks and clocks.
//!
//! The program uses them too. They are not part of the public interface.

pub(crate) mod change_counter;
pub mod clock;
pub(crate) mod deferred_writes;
pub mod encoding;
pub mod files;
pub mod format;
pub mod locks;
pub mod maps;
pub(crate) mod panics;
pub mod tasks;
pub mod time_id;
pub(crate) mod unicode_fold;
