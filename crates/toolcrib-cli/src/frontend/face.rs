//! The crib as an MCP server: the requests that every frontend and both eras answer alike.

use bytes::Bytes;
use tokio::sync::mpsc;
use toolcrib::wire::dialect::client::{self, DISCOVER, PING, PROGRESS};
use toolcrib::wire::dialect::{self, meta};
use toolcrib::wire::message::{Answer, code, error_object, notification};
use toolcrib::wire::object::{Object, as_string};
use toolcrib::wire::revision::Era;
use toolcrib::{Call, Caller, Crib, Error, Kind, ServerId, Told};

/// What a client sees of the crib.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum View {
    /// Everything, under public names.
    All,
    /// One server, under its own names.
    One(ServerId),
}

impl View {
    /// The tools in this view as a JSON array.
    pub(crate) fn tools(&self, catalog: &toolcrib::Catalog) -> Bytes {
        match self {
            Self::All => catalog.rendered(Kind::Tools, None),
            Self::One(server) => catalog.rendered(Kind::Tools, Some(server)),
        }
    }
}

/// Whether a method means anything here.
pub(crate) fn knows(method: &str, era: Era) -> bool {
    matches!(
        (method, era),
        ("tools/call" | "tools/list", _) | (DISCOVER, Era::Stateless) | (PING, Era::Session)
    )
}

/// Answers one request. Dropping the future cancels it.
pub(crate) async fn respond(
    crib: &Crib,
    view: &View,
    era: Era,
    method: &str,
    params: Option<Object>,
    progress: Option<mpsc::Sender<Told>>,
) -> Answer {
    match (method, era) {
        ("tools/call", _) => call(crib, view, era, params.unwrap_or_default(), progress).await,
        ("tools/list", _) => list(crib, view, era, params.as_ref()).await,
        (DISCOVER, Era::Stateless) => Answer::Result(client::discover_result()),
        (PING, Era::Session) => Answer::Result(Bytes::from_static(b"{}")),
        _ => refuse(code::METHOD_NOT_FOUND, &format!("no method `{method}` here")),
    }
}

async fn list(crib: &Crib, view: &View, era: Era, params: Option<&Object>) -> Answer {
    if params.and_then(|params| params.get("cursor")).is_some_and(|cursor| &**cursor != b"null") {
        return refuse(code::INVALID_PARAMS, "this cursor was not given out here");
    }
    let catalog = match view {
        View::All => crib.list().await,
        View::One(server) => match crib.list_of(server).await {
            Ok(catalog) => catalog,
            Err(error) => return failed(&error),
        },
    };
    Answer::Result(client::tools_result(&view.tools(&catalog), era))
}

async fn call(
    crib: &Crib,
    view: &View,
    era: Era,
    params: Object,
    progress: Option<mpsc::Sender<Told>>,
) -> Answer {
    let Some(name) = params.string("name").map(std::borrow::Cow::into_owned) else {
        return refuse(code::INVALID_PARAMS, "`params.name` must be the name of a tool");
    };
    if params
        .get("arguments")
        .is_some_and(|arguments| arguments.first() != Some(&b'{') && &**arguments != b"null")
    {
        return refuse(code::INVALID_PARAMS, "`params.arguments` must be an object");
    }
    let call = match view {
        View::All => Call::tool(name),
        View::One(server) => Call::on(server.clone(), name),
    };
    let mut call = call.params(params).by(Caller::local());
    if let Some(sink) = progress {
        call = call.listen(sink);
    }
    match crib.call(call).await {
        Ok(outcome) => dialect::to_client(outcome.answer, "tools/call", outcome.era, era),
        Err(error) => failed(&error),
    }
}

/// A failure as the client sees it.
fn failed(error: &Error) -> Answer {
    Answer::Error(error_object(error.kind().facts().code, &error.to_string(), Some(&error.data())))
}

pub(crate) fn refuse(code: i32, why: &str) -> Answer {
    Answer::Error(error_object(code, why, None))
}

/// The token under which a client wants to hear of progress, as JSON.
pub(crate) fn progress_token(params: Option<&Object>) -> Option<Bytes> {
    let meta = Object::parse(params?.get("_meta")?).ok()?;
    let token = meta.get(meta::PROGRESS)?;
    let good = as_string(token).is_some()
        || token.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-');
    good.then(|| token.clone())
}

/// What a client is told, as a message; progress goes under the client's own token.
pub(crate) fn told_line(told: Told, token: &Bytes) -> Vec<u8> {
    match told {
        Told::Progress(mut progress) => {
            progress.set(meta::PROGRESS, token.clone());
            notification(PROGRESS, Some(&progress.to_bytes()))
        }
        Told::Log(params) => notification(client::LOG, Some(&params)),
        Told::Asked(_) => Vec::new(),
    }
}
