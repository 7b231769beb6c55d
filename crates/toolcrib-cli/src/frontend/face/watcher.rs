//! `Watcher`: waits for whatever clients may want to hear of, and the messages that tell it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use toolcrib::event::News;
use toolcrib::wire::dialect::client::{
    LOG, PROMPTS_CHANGED, RESOURCE_UPDATED, RESOURCES_CHANGED, TOOLS_CHANGED,
};
use toolcrib::wire::dialect::meta;
use toolcrib::wire::message::{Id, notification};
use toolcrib::wire::object::{Object, string};
use toolcrib::{Catalog, Kind, ServerId, Subscription};

use super::glance::Digests;
use super::{Face, View, Visit};

/// Something that clients may want to hear of.
#[derive(Debug)]
pub(crate) enum Stir {
    /// The lists as they are now.
    Lists(Digests),
    /// A server said something.
    News(News),
    /// Servers said more than could be kept: anything may be another one now.
    Missed,
}

/// Somebody who hears what happens and knows what its client wants of it.
pub(crate) trait Hears: Send {
    /// The messages to the client.
    fn hear(&mut self, stir: &Stir) -> Vec<Vec<u8>>;
}

/// Waits on behalf of one client.
pub(crate) struct Watcher {
    face: Arc<Face>,
    visit: Visit,
    catalog: watch::Receiver<Arc<Catalog>>,
    news: broadcast::Receiver<News>,
}

impl Watcher {
    /// One that tells first how things are now.
    pub(crate) fn new(face: Arc<Face>, visit: Visit) -> Self {
        let mut catalog = face.crib.watch_catalog();
        catalog.mark_changed();
        let news = face.crib.news();
        Self { face, visit, catalog, news }
    }

    /// The next thing that happens; `None` when nothing will any more.
    pub(crate) async fn next(&mut self) -> Option<Stir> {
        loop {
            let news = tokio::select! {
                biased;
                changed = self.catalog.changed() => {
                    changed.ok()?;
                    return Some(Stir::Lists(self.face.digests(&self.visit)));
                }
                news = self.news.recv() => news,
            };
            return match news {
                Ok(News::Relisted { server, .. }) if !self.visit.sees(&self.face.crib, &server) => continue,
                Ok(news) => Some(Stir::News(news)),
                Err(RecvError::Lagged(_)) => Some(Stir::Missed),
                Err(RecvError::Closed) => None,
            };
        }
    }

    /// The next messages for whoever `hears`; `None` when there will be none any more.
    pub(crate) async fn next_messages(&mut self, hears: &mut impl Hears) -> Option<Vec<Vec<u8>>> {
        loop {
            let messages = hears.hear(&self.next().await?);
            if !messages.is_empty() {
                return Some(messages);
            }
        }
    }
}

/// `{"_meta":{…}}` for messages on a stream that somebody opened with this request.
fn tag(stream: &Id) -> Object {
    let mut meta = Object::default();
    meta.set(meta::SUBSCRIPTION, stream.raw().to_vec());
    let mut params = Object::default();
    params.set("_meta", meta.to_bytes());
    params
}

/// Parameters with the tag of the stream they are told on.
pub(crate) fn tagged(stream: &Id, members: impl IntoIterator<Item = (&'static str, Bytes)>) -> Bytes {
    let mut params = tag(stream);
    members.into_iter().for_each(|(key, value)| params.set(key, value));
    params.to_bytes()
}

/// Tells that one of the lists is another one now.
pub(crate) fn changed_line(place: usize, stream: Option<&Id>) -> Vec<u8> {
    let method = [TOOLS_CHANGED, PROMPTS_CHANGED, RESOURCES_CHANGED][place];
    notification(method, stream.map(|stream| tagged(stream, [])).as_deref())
}

/// Tells that these lists are others now, as far as they are `wanted`.
pub(crate) fn relisted_lines(lists: &[Kind], wanted: [bool; 3], stream: Option<&Id>) -> Vec<Vec<u8>> {
    let places = 0..wanted.len();
    let told = places.filter(|place| wanted[*place] && lists.iter().any(|kind| list_of(*kind) == *place));
    told.map(|place| changed_line(place, stream)).collect()
}

/// Which of the lists that clients hear of a list is.
pub(crate) fn list_of(kind: Kind) -> usize {
    match kind {
        Kind::Tools => 0,
        Kind::Prompts => 1,
        Kind::Resources | Kind::Templates => 2,
    }
}

/// Tells of the resources that have another content now, or may have.
pub(crate) fn updated_lines(
    subscriptions: &[Subscription],
    stir: &Stir,
    stream: Option<&Id>,
) -> Vec<Vec<u8>> {
    let concerned = subscriptions.iter().filter(|subscription| match stir {
        Stir::News(news) => subscription.concerns(news),
        Stir::Missed => true,
        Stir::Lists(_) => false,
    });
    concerned.map(|subscription| updated_line(subscription.uri(), stream)).collect()
}

/// Tells that a resource has another content now.
fn updated_line(uri: &str, stream: Option<&Id>) -> Vec<u8> {
    let uri = string(uri);
    let params = match stream {
        Some(stream) => tagged(stream, [("uri", uri)]),
        None => {
            let mut params = Object::default();
            params.set("uri", uri);
            params.to_bytes()
        }
    };
    notification(RESOURCE_UPDATED, Some(&params))
}

/// Tells a line of log; where there are several servers, it says whose it is.
pub(crate) fn logged_line(view: &View, server: &ServerId, params: &Bytes) -> Vec<u8> {
    match Object::parse(params) {
        Ok(mut params) if *view == View::All => {
            let logger = match params.string("logger") {
                Some(logger) => format!("{server}/{logger}"),
                None => server.to_string(),
            };
            params.set("logger", string(&logger));
            notification(LOG, Some(&params.to_bytes()))
        }
        _ => notification(LOG, Some(params)),
    }
}

#[cfg(test)]
mod tests {
    use toolcrib::Crib;

    use super::*;

    #[tokio::test]
    async fn whoever_is_behind_hears_that_something_was_missed() {
        let face = Arc::new(Face::new(Crib::builder().build().unwrap()));
        let (says, news) = broadcast::channel(2);
        let mut watcher = Watcher { news, ..Watcher::new(face, Visit::local()) };
        for uri in ["a:1", "a:2", "a:3"] {
            let (server, instance) = ("git".parse().unwrap(), toolcrib::SharingKey::Shared);
            says.send(News::Updated { server, instance, uri: uri.into() }).unwrap();
        }
        assert!(matches!(watcher.next().await, Some(Stir::Lists(_))));
        assert!(matches!(watcher.next().await, Some(Stir::Missed)));
        assert!(
            matches!(watcher.next().await, Some(Stir::News(News::Updated { uri, .. })) if &*uri == "a:2")
        );
    }
}
