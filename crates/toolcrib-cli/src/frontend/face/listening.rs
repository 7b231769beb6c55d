//! What a stateless client hears on a stream that it opened, over HTTP and on a pipe alike.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;
use toolcrib::Subscription;
use toolcrib::event::News;
use toolcrib::wire::dialect::client::{ACKNOWLEDGED, SUBSCRIBE};
use toolcrib::wire::dialect::meta;
use toolcrib::wire::message::{Answer, Id, code, notification};
use toolcrib::wire::object::{Object, as_string, elements};

use super::glance::Digests;
use super::watcher::{Hears, Stir, changed_line, relisted_lines, tagged, updated_lines};
use super::{Asker, Face, MOST_SUBSCRIPTIONS, refuse};

/// The lists that a stream may tell of: what clients call them, and the capability behind each.
const LISTS: [(&str, &str); 3] =
    [("toolsListChanged", "tools"), ("promptsListChanged", "prompts"), ("resourcesListChanged", "resources")];

/// A stream that tells what its client asked for.
pub(crate) struct Listener {
    stream: Id,
    lists: [bool; 3],
    known: Digests,
    subscriptions: Vec<Subscription>,
}

impl Face {
    /// Reads what a client wants to hear of, and takes of it what can be told here.
    pub(crate) async fn listen(
        &self,
        asker: &Asker,
        stream: &Id,
        params: Option<&Object>,
    ) -> Result<Listener, Answer> {
        let Some(Ok(wanted)) = params.and_then(|params| params.get("notifications")).map(Object::parse)
        else {
            return Err(refuse(code::INVALID_PARAMS, "`params.notifications` must be an object"));
        };
        let visit = &asker.visit;
        let offered = self.offers(visit).await;
        let known = self.digests(visit);
        let is_wanted = |(member, capability): (&str, &str)| {
            wanted.get(member).is_some_and(|raw| &**raw == b"true") && offered[capability].is_object()
        };
        let lists = LISTS.map(is_wanted);
        let uris = match wanted.get("resourceSubscriptions").filter(|_| subscribable(&offered)) {
            None => Vec::new(),
            Some(raw) => elements(raw)
                .map_err(|bad| refuse(code::INVALID_PARAMS, &format!("`resourceSubscriptions`: {bad}")))?,
        };
        let uris = uris.iter().filter_map(|raw| as_string(raw)).take(MOST_SUBSCRIPTIONS);
        let call = |uri: Cow<'_, str>| {
            asker.clone().call(SUBSCRIBE.into(), visit.view.resource(&uri), Object::default())
        };
        let subscriptions = self.crib.subscribe_all(uris.map(call)).await;
        Ok(Listener { stream: stream.clone(), lists, known, subscriptions })
    }
}

fn subscribable(offered: &Value) -> bool {
    offered["resources"]["subscribe"] == true
}

impl Listener {
    /// The first message: what will be told.
    pub(crate) fn first(&self) -> Vec<u8> {
        let mut taken = serde_json::Map::new();
        for ((member, _), _) in LISTS.iter().zip(self.lists).filter(|(_, taken)| *taken) {
            taken.insert((*member).to_owned(), true.into());
        }
        if !self.subscriptions.is_empty() {
            let uris: Vec<&str> = self.subscriptions.iter().map(Subscription::uri).collect();
            taken.insert("resourceSubscriptions".to_owned(), uris.into());
        }
        let taken = Bytes::from(Value::Object(taken).to_string());
        notification(ACKNOWLEDGED, Some(&tagged(&self.stream, [("notifications", taken)])))
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.lists == [false; 3] && self.subscriptions.is_empty()
    }

    /// The last message: the answer to the request that opened the stream.
    pub(crate) fn last(&self) -> Answer {
        ended(&self.stream)
    }
}

/// The answer to the request that opened a stream, once it has ended.
pub(crate) fn ended(stream: &Id) -> Answer {
    let stream = String::from_utf8_lossy(stream.raw());
    let key = meta::SUBSCRIPTION;
    let result = format!(r#"{{"resultType":"complete","_meta":{{"{key}":{stream}}}}}"#);
    Answer::Result(result.into())
}

impl Hears for Listener {
    fn hear(&mut self, stir: &Stir) -> Vec<Vec<u8>> {
        match stir {
            Stir::Lists(now) => {
                let changed = (0..now.len()).filter(|at| self.lists[*at] && self.known[*at] != now[*at]);
                let lines = changed.map(|at| changed_line(at, Some(&self.stream))).collect();
                self.known = *now;
                lines
            }
            Stir::News(News::Relisted { lists, .. }) => relisted_lines(lists, self.lists, Some(&self.stream)),
            Stir::News(News::Logged { .. } | News::Noted { .. }) => Vec::new(),
            Stir::News(News::Updated { .. }) | Stir::Missed => {
                updated_lines(&self.subscriptions, stir, Some(&self.stream))
            }
        }
    }
}
