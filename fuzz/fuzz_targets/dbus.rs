//! Messages of the session bus: reading never panics and stays within the message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib_cli::fuzzing::read_dbus_message;

fuzz_target!(|bytes: &[u8]| read_dbus_message(bytes));
