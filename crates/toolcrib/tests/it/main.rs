//! Integration tests of the library through its public API, with in-process servers and a paused clock.
#![expect(clippy::unwrap_used, reason = "a failing test should panic at the cause")]

mod asking_server;
mod at_most_once;
mod byte_transparency;
mod cache;
mod call_records;
mod cancel;
mod capacity;
mod changed_settings;
mod client_handlers;
mod crash_recovery;
mod deadlines;
mod delayed_store;
mod discovery;
mod embedder_input;
mod embedder_panics;
mod failure_status;
#[path = "../../src/supervisor/actor/fake.rs"]
#[expect(dead_code, reason = "the rest is used by the unit tests of connections")]
mod fake;
mod forwarding;
mod guard;
mod hung_servers;
mod in_process_servers;
mod lazy_start;
mod leases;
mod limits;
mod list_freshness;
mod listing_errors;
mod merged_calls;
mod multiple_cribs;
mod notifying_server;
mod oauth;
mod one_server;
mod policy;
mod prompts_and_resources;
mod published_card;
mod refused_starts;
mod registration;
mod reload;
mod restart_budget;
mod roster_in_force;
mod routing;
mod runtimes;
mod search;
mod server_isolation;
mod server_pages;
mod server_requests;
mod shared_store;
mod sharing;
mod sharing_requests;
mod shutdown;
mod storm;
mod subscriptions;
mod supervision;
mod support;
mod tool_executor;
mod toolbox;
mod tracing;
mod typed_errors;

// The path under which `fake` finds the trait when it is compiled in the library.
use toolcrib::spec;
