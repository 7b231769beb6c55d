//! The measured side: calls through [`toolcrib::Crib`], as an embedder makes them.

use std::time::Duration;

use anyhow::{Result, bail};
use toolcrib::{Call, CommandSpec, Crib, ServerSpec};

use crate::load::{self, Concurrent, Load};

pub(crate) struct Library {
    crib: Crib,
}

impl Library {
    pub(crate) fn open(echo_server: &str) -> Result<Self> {
        let command = CommandSpec::new(echo_server).arg("--id").arg("s0");
        let server = ServerSpec::command("echo".parse()?, command);
        Ok(Self { crib: Crib::builder().server(server).build()? })
    }

    /// Makes `calls` calls of `echo`, one after the other.
    pub(crate) async fn sequential(&self, calls: u64) -> Result<()> {
        for number in 0..calls {
            let text = load::text(number);
            checked_call(&self.crib, "echo__echo", format!(r#"{{"text":"{text}"}}"#), &text).await?;
        }
        Ok(())
    }

    /// Makes `calls` calls of `echo` on a lease that is held, one after the other.
    pub(crate) async fn sequential_on_lease(&self, calls: u64) -> Result<()> {
        let lease = self.crib.lease(&"echo".parse()?).await?;
        for number in 0..calls {
            let expected = load::text(number);
            let call = lease.new_call("echo").raw_arguments(format!(r#"{{"text":"{expected}"}}"#));
            let outcome = lease.call(call).await?;
            let text = outcome.text();
            if text != expected {
                bail!("echo answered {text:?} instead of {expected:?}");
            }
        }
        Ok(())
    }

    pub(crate) async fn concurrent(&self, load: Load) -> Result<Concurrent> {
        let crib = self.crib.clone();
        let tool = if load.sleep_ms.is_some() { "echo__sleep" } else { "echo__echo" };
        load::run(load, move |number| {
            let crib = crib.clone();
            async move {
                let text = load::text(number);
                checked_call(&crib, tool, load.arguments(&text), &text).await
            }
        })
        .await
    }

    pub(crate) async fn close(&self) {
        self.crib.shutdown(Duration::from_secs(5)).await;
    }
}

/// Calls a tool and checks the text. Arguments are raw text, so that building them is not measured.
async fn checked_call(crib: &Crib, tool: &str, arguments: String, expected: &str) -> Result<()> {
    let outcome = crib.call(Call::tool(tool).raw_arguments(arguments)).await?;
    let text = outcome.text();
    if text != expected {
        bail!("{tool} answered {text:?} instead of {expected:?}");
    }
    Ok(())
}
