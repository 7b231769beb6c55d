//! `echo-http`: the same server over Streamable HTTP, answering plain JSON.
//!
//! It is the lower bound for HTTP gateways, and a server for gateways that aggregate HTTP servers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use clap::Parser;
use echo_server::{Action, Options, Server};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

#[derive(Parser)]
#[command(about = "A minimal MCP Streamable HTTP server")]
struct Cli {
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    options: Options,
    /// Number of servers: besides /mcp, /s0/mcp, /s1/mcp … each with its own id
    #[arg(long, default_value_t = 1)]
    servers: usize,
}

/// Number of the next session id. Sessions have no state.
static SESSIONS: AtomicU64 = AtomicU64::new(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let cli = Cli::parse();
    let mut servers = vec![("/mcp".to_owned(), Server::new(cli.options.clone()))];
    for number in 0..cli.servers {
        let options = Options { id: format!("s{number}"), ..cli.options.clone() };
        servers.push((format!("/s{number}/mcp"), Server::new(options)));
    }
    let servers = Arc::new(servers);
    let listener = tokio::net::TcpListener::bind(cli.listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let servers = servers.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(servers.clone(), request));
            let http = hyper::server::conn::http1::Builder::new();
            // A client that disconnects does not affect the others.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Servers = Arc<Vec<(String, Server)>>;

async fn serve(servers: Servers, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().trim_end_matches('/');
    let Some((_, server)) = servers.iter().find(|(served, _)| served == path) else {
        return Ok(empty(StatusCode::NOT_FOUND));
    };
    if request.method() != Method::POST {
        let ends_session = request.method() == Method::DELETE;
        return Ok(empty(if ends_session { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED }));
    }
    let Ok(body) = request.into_body().collect().await else {
        return Ok(empty(StatusCode::BAD_REQUEST));
    };
    let body = body.to_bytes();
    let mut out = Vec::new();
    match server.handle(&body, &mut out) {
        Action::Reply => {}
        Action::Silent => return Ok(empty(StatusCode::ACCEPTED)),
        Action::Later(delay, answer) => {
            tokio::time::sleep(delay).await;
            out = answer;
        }
        Action::Crash => std::process::exit(3),
    }
    let mut response = Response::builder().header("content-type", "application/json");
    if memchr::memmem::find(&body, b"\"initialize\"").is_some() {
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        response = response.header("mcp-session-id", format!("s{session}"));
    }
    Ok(response.body(Full::new(Bytes::from(out))).expect("valid response"))
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(Bytes::new())).expect("valid response")
}
