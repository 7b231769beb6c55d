//! The reference MCP server: every fixture that the official conformance suite calls, on the official Rust SDK.
//!
//! `reference-server [--era dual|session|stateless] (--stdio | --http PORT)`. It conforms in full when it is asked
//! directly, so whatever fails with toolcrib in front of it is toolcrib's. See `scripts/conformance`.

#![expect(
    deprecated,
    reason = "sampling, roots and logging are deprecated, and conformance is about them too"
)]

mod caller;
mod chatter;
mod content;
mod http;
mod prompts;
mod questions;
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

/// How clients reach the server.
enum Way {
    Stdio,
    Http(u16),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ended = read(&words).and_then(|(era, way)| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(serve(era, way))
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "reference-server: {why}");
            ExitCode::FAILURE
        }
    }
}

fn read(words: &[String]) -> Result<(Era, Way), String> {
    let (mut era, mut way) = (Era::Dual, None);
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match (word, words.len()) {
            ("--stdio", _) => way = Some(Way::Stdio),
            ("--era", 1..) => era = words.next().unwrap_or_default().parse()?,
            ("--http", 1..) => {
                let port = words.next().unwrap_or_default();
                way = Some(Way::Http(port.parse().map_err(|_| format!("`{port}` is not a port"))?));
            }
            _ => return Err(format!("`{word}` makes no sense here")),
        }
    }
    Ok((era, way.ok_or("`--stdio` or `--http PORT` is missing")?))
}

async fn serve(era: Era, way: Way) -> Result<(), String> {
    let shared = std::sync::Arc::new(Shared::new());
    match way {
        Way::Http(port) => http::serve(era, port, shared).await.map_err(|error| error.to_string()),
        Way::Stdio => {
            let server = Server::new(era, shared);
            let running = server.serve(rmcp::transport::stdio()).await.map_err(|error| error.to_string())?;
            running.waiting().await.map(|_| ()).map_err(|error| error.to_string())
        }
    }
}
