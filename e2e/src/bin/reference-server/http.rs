//! Streamable HTTP on a loopback port, at `/mcp`.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::server::{Era, Server};
use crate::shared::Shared;

type Mcp = StreamableHttpService<Server, LocalSessionManager>;
type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Listens until the process exits. Port 0 selects a free port; stdout tells which.
pub(crate) async fn serve(era: Era, port: u16, shared: Arc<Shared>) -> std::io::Result<()> {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(era != Era::Stateless)
        .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*"]);
    let make = move || Ok(Server::new(era, Arc::clone(&shared)));
    let mcp = Mcp::new(make, Arc::default(), config);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    writeln!(std::io::stdout(), "listening on http://{}/mcp", listener.local_addr()?)?;
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        let mcp = mcp.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(mcp.clone(), request));
            // Errors of one connection, such as a disconnect, do not affect the others.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(mcp: Mcp, request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.uri().path() == "/mcp" {
        return Ok(mcp.handle(request).await);
    }
    let mut answer = Answer::default();
    *answer.status_mut() = StatusCode::NOT_FOUND;
    Ok(answer)
}
