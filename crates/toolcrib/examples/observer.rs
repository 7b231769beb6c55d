//! An observer that counts calls by how they ended and prints one line per call.
//!
//! ```text
//! cargo run -p toolcrib --example observer
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use toolcrib::{Call, CallRecord, Caller, Crib, Observer, Policy, Rules, ServerId, ServerSpec, Toolbox};

/// Counts calls by their end.
#[derive(Default)]
struct Counter {
    counts: Mutex<BTreeMap<&'static str, u32>>,
}

impl Observer for Counter {
    fn call_ended(&self, record: &CallRecord) {
        let server = record.server.as_ref().map_or("-", ServerId::as_str);
        let end = record.end.name();
        println!("{}: {server}.{} {end} in {:?}", record.caller.as_str(), record.name, record.duration);
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(end).or_default() += 1;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let schema = json!({"type": "object"});
    let tools = Toolbox::new()
        .tool("greet", "Returns a greeting", &schema, |_| async { Ok("hello".to_owned()) })
        .tool("fail", "Always fails", &schema, |_| async { Err("out of order".to_owned()) })
        .tool("secret", "Denied by a rule", &schema, |_| async { Ok("never returned".to_owned()) });
    let counter = Arc::new(Counter::default());
    let crib = Crib::builder()
        .server(ServerSpec::in_process("own".parse()?, tools))
        .policy(Policy::for_everyone(Rules::default().denying(["own.secret".parse()?])))
        .observer(counter.clone())
        .build()?;
    for tool in ["greet", "fail", "own__secret", "missing", "greet"] {
        // The observer reports every end, so the outcome is not needed here.
        let _ = crib.call(Call::tool(tool).caller(Caller::new("example"))).await;
    }
    crib.shutdown(Duration::from_secs(1)).await;
    println!("{:?}", counter.counts.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}
