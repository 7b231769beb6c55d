//! The reference MCP server: every fixture that the official conformance suite calls, on the official Rust SDK.
//!
//! `reference-server [--era dual|session|stateless] (--stdio | --http PORT)`. It conforms in full without toolcrib, so a
//! check that fails with toolcrib in front of it is a bug in toolcrib. See `scripts/conformance`.

#![expect(
    deprecated,
    reason = "sampling, roots and logging are deprecated, and the conformance suite tests them"
)]

mod caller;
mod content;
mod http;
mod input_requests;
mod notifications;
mod prompts;
mod resources;
mod server;
mod shared;
mod tasks;
mod tools;

use std::io::Write as _;
use std::process::ExitCode;

use rmcp::ServiceExt as _;

use server::{Era, Server};
use shared::Shared;

/// The transport that the server listens on.
enum Transport {
    Stdio,
    Http(u16),
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = parse(&args).and_then(|(era, transport)| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(serve(era, transport))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "reference-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<(Era, Transport), String> {
    let mut era = Era::Dual;
    let mut transport = None;
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        match (arg, args.len()) {
            ("--stdio", _) => transport = Some(Transport::Stdio),
            ("--era", 1..) => era = args.next().unwrap_or_default().parse()?,
            ("--http", 1..) => {
                let port = args.next().unwrap_or_default();
                transport =
                    Some(Transport::Http(port.parse().map_err(|_| format!("`{port}` is not a port"))?));
            }
            _ => return Err(format!("unexpected argument `{arg}`")),
        }
    }
    Ok((era, transport.ok_or("`--stdio` or `--http PORT` is missing")?))
}

async fn serve(era: Era, transport: Transport) -> Result<(), String> {
    let shared = std::sync::Arc::new(Shared::new());
    match transport {
        Transport::Http(port) => http::serve(era, port, shared).await.map_err(|error| error.to_string()),
        Transport::Stdio => {
            let server = Server::new(era, shared);
            let running = server.serve(rmcp::transport::stdio()).await.map_err(|error| error.to_string())?;
            running.waiting().await.map(|_| ()).map_err(|error| error.to_string())
        }
    }
}
