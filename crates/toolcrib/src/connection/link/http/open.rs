//! `Remote`: a spec with every reference resolved, ready to be asked.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use hyper::Uri;
use hyper::header::{
    ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::Shared;
use super::dial::{self, Dialer, HttpClient};
use super::tools::Tools;
use super::trouble::Plaint;
use super::{Carrier, Route};
use crate::secret::Purse;
use crate::spec::{self, HttpSpec, Transport};
use crate::text::{Piece, Text};

/// A remote server that has not been spoken to yet.
pub(in crate::connection) struct Remote {
    client: HttpClient,
    address: Uri,
    headers: HeaderMap,
    transport: Transport,
    limit: usize,
    over: CancellationToken,
}

impl Remote {
    /// Resolves references; says what is missing without repeating what may be a secret.
    pub(in crate::connection) async fn new(
        http: &HttpSpec,
        purse: &Purse,
        limit: usize,
        tasks: &TaskTracker,
    ) -> Result<Self, String> {
        stays_in_its_place(&http.url, purse)?;
        let url = http.url.expand(|name| purse.get(name)).map_err(|missing| missing.to_string())?;
        let address = spec::address(&url).map_err(|why| format!("its `url` cannot be used: {why}"))?;
        let mut headers = headers(http, purse)?;
        let dialer = {
            let address = address.clone();
            let made = tasks.spawn_blocking(move || Dialer::new(&address)).await;
            made.map_err(|error| error.to_string())??
        };
        if let Some(value) = dialer.proxy_authorization(&address) {
            headers.insert(PROXY_AUTHORIZATION, value);
        }
        let over = CancellationToken::new();
        let client = dial::client(dialer, tasks.clone(), over.clone());
        Ok(Self { client, address, headers, transport: http.transport, limit, over })
    }

    pub(super) fn carrier(self, shared: Arc<Shared>) -> Carrier {
        let Self { client, address, headers, transport, limit, over } = self;
        let plaint = Plaint::new(shared.server.clone(), &address, shared.mask.clone());
        Carrier {
            shared,
            client,
            address,
            headers,
            transport,
            limit,
            plaint,
            route: Mutex::new(Route::Alone),
            renewing: tokio::sync::Mutex::default(),
            hearing: Mutex::default(),
            wishes: Mutex::default(),
            tools: Tools::default(),
            settled: AtomicBool::new(false),
            probe: OnceLock::new(),
            gone: OnceLock::new(),
            over,
        }
    }
}

/// A secret before the path must not end the name of the host: the rest of it would be looked up as one.
fn stays_in_its_place(url: &Text, purse: &Purse) -> Result<(), String> {
    let mut before = String::new();
    for piece in url.pieces() {
        match piece {
            Piece::Literal(text) => before.push_str(text),
            Piece::Secret(name) => {
                let in_host =
                    before.split_once("://").is_none_or(|(_, host)| !host.contains(['/', '?', '#']));
                let breaks =
                    purse.get(name).is_ok_and(|value| value.expose().contains(['/', '?', '#', '@', '\\']));
                if in_host && breaks {
                    return Err(format!(
                        "its `url` cannot be used: `${{secret:{name}}}` holds what no host can"
                    ));
                }
            }
            Piece::Env { .. } | Piece::File(_) => {}
        }
    }
    Ok(())
}

fn headers(http: &HttpSpec, purse: &Purse) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let agent = concat!("toolcrib/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    for (name, value) in &http.headers {
        let value = value.expand(|name| purse.get(name)).map_err(|missing| missing.to_string())?;
        let mut value = HeaderValue::from_str(value.trim())
            .map_err(|_| format!("the value of its header `{name}` holds what no header can"))?;
        value.set_sensitive(true);
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("`{}` cannot be a header", name.escape_default()))?;
        headers.insert(name, value);
    }
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(headers)
}
