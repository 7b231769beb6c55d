//! What an embedder relies on, told as stories: one file each, one binary, in-process servers, a paused clock.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod asked_once;
mod asking;
mod asks;
mod at_most_once;
mod byte_transparency;
mod cache;
mod cancel;
mod deadlines;
mod everything;
#[path = "../../src/supervisor/actor/fake.rs"]
#[expect(dead_code, reason = "the tests of connections use the rest of it")]
mod fake;
mod fan_in;
mod house;
mod hung_servers;
mod looked_after;
mod many_cribs;
mod nobody_waits;
mod one_budget;
mod own_servers;
mod policy;
mod quota;
mod records;
mod registration;
mod reload;
mod room;
mod sharing;
mod sharing_asks;
mod shutdown;
mod storm;
mod subscriptions;
mod survives_a_crash;
mod telling;
mod tracing;
mod typed_errors;
mod wakes_on_demand;

// What the fake finds at the root of the library when it is compiled there.
use toolcrib::InProcess;
