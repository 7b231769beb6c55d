//! `Talk`: what a session remembers of its client, over HTTP and on a pipe alike.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use toolcrib::event::News;
use toolcrib::wire::dialect::client::{self, SET_LEVEL, SUBSCRIBE, TASK_STATUS, UNSUBSCRIBE};
use toolcrib::wire::dialect::party::{Abilities, LogLevel};
use toolcrib::wire::message::{Answer, code, notification};
use toolcrib::wire::object::{Object, string};
use toolcrib::wire::revision::{Era, Revision};
use toolcrib::{Catalog, Client, Guest, Kind, Project, ServerId, SharingKey, Subscription};

use super::glance::Digests;
use super::told::{Asks, Line, Outlet};
use super::under_way::UnderWay;
use super::watcher::{Hears, Stir, changed_line, list_of, logged_line, relisted_lines, updated_lines};
use super::{Asker, Face, MOST_SUBSCRIPTIONS, Presence, View, Visit, refuse};

/// What a session remembers of its client.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) visit: Visit,
    pub(crate) revision: Revision,
    presence: Presence,
    abilities: Abilities,
    log: Mutex<Option<LogLevel>>,
    /// The lists as the client knows them.
    known: Mutex<Digests>,
    subscriptions: Mutex<Vec<Subscription>>,
    pub(crate) asks: Arc<Asks>,
    /// Where the client is asked while none of its requests runs.
    pub(crate) line: Arc<Line>,
    guest: Arc<Guest>,
    /// Requests under way, to be found again when the client takes one back.
    pub(crate) under_way: UnderWay,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Talk {
    /// A session with the client that says this about itself.
    pub(crate) fn new(face: &Face, visit: Visit, hello: Option<&Object>, project: Option<Project>) -> Self {
        let declared = hello.and_then(|hello| hello.get("capabilities"));
        let known = face.digests(&visit);
        let abilities = declared.map(Abilities::read).unwrap_or_default();
        let asks = Arc::<Asks>::default();
        let line = Arc::new(Line::to(asks.clone()));
        let guest = Guest::default().declaring(abilities.clone()).hearing(line.clone()).working_in(project);
        Self {
            visit,
            revision: client::agreed_revision(hello),
            presence: face.welcome(),
            abilities,
            log: Mutex::default(),
            known: Mutex::new(known),
            subscriptions: Mutex::default(),
            asks,
            line,
            guest: Arc::new(guest),
            under_way: UnderWay::default(),
        }
    }

    /// Who asks in this session; `hears` says whether there is a way to ask back.
    fn asker(&self, hears: bool) -> Asker {
        let client = Client {
            key: self.presence.key,
            era: Era::Session,
            abilities: if hears { self.abilities.clone() } else { Abilities::default() },
            log: *locked(&self.log),
        };
        let guest = Some(self.guest.clone());
        Asker { visit: self.visit.clone(), client, guest }
    }

    /// Answers one request of this session; with `out`, everything that comes before the answer goes there.
    pub(crate) async fn respond(
        &self,
        face: &Face,
        method: &str,
        params: Option<Object>,
        out: Option<&impl Outlet>,
    ) -> Answer {
        match method {
            SET_LEVEL => self.set_level(params.as_ref()),
            SUBSCRIBE => self.subscribe(face, params.as_ref()).await,
            UNSUBSCRIBE => self.unsubscribe(params.as_ref()),
            _ => match Kind::of_method(method) {
                Some(kind) => self.list(face, kind, &params.unwrap_or_default()).await,
                None => match out.filter(|_| Face::goes_out(&self.visit.view, Era::Session, method)) {
                    None => face.respond(self.asker(false), method, params, None).await,
                    Some(out) => {
                        let token = client::progress_token(params.as_ref());
                        let makes_task = params.as_ref().is_some_and(|params| params.get("task").is_some());
                        let ears = (token, &self.asks);
                        let answer = face.respond_aloud(self.asker(true), method, params, ears, out).await;
                        self.asks.learn(&answer, makes_task);
                        answer
                    }
                },
            },
        }
    }

    async fn list(&self, face: &Face, kind: Kind, params: &Object) -> Answer {
        let (answer, catalog) = face.list(&self.visit, Era::Session, kind, params).await;
        if let Some(catalog) = catalog {
            let place = list_of(kind);
            locked(&self.known)[place] = face.glance(&catalog).digests(&self.visit.view)[place];
        }
        answer
    }

    /// What a server says of something that goes on, if this client knows it; tasks by their public names.
    fn noted(&self, server: &ServerId, method: &str, name: &str, params: &Bytes) -> Option<Vec<u8>> {
        let task = method == TASK_STATUS && self.visit.view == View::All;
        let name = if task { Catalog::public_task(server, name) } else { name.to_owned() };
        let mut params = self.asks.knows(&name).then(|| Object::parse(params).ok()).flatten()?;
        if task {
            params.set("taskId", string(&name));
        }
        Some(notification(method, Some(&params.to_bytes())))
    }

    /// Whether an instance of a server works for this client.
    fn shares(&self, instance: &SharingKey) -> bool {
        instance.concerns(self.presence.key, &self.visit.caller, &self.guest)
    }

    fn set_level(&self, params: Option<&Object>) -> Answer {
        match params.and_then(|params| LogLevel::read(&params.string("level")?)) {
            Some(level) => {
                *locked(&self.log) = Some(level);
                Answer::Result(client::empty_result(Era::Session))
            }
            None => refuse(code::INVALID_PARAMS, "`params.level` must be a level of log"),
        }
    }

    async fn subscribe(&self, face: &Face, params: Option<&Object>) -> Answer {
        let Some(uri) = params.and_then(|params| params.string("uri")) else { return no_uri() };
        let done = Answer::Result(client::empty_result(Era::Session));
        let count = {
            let subscriptions = locked(&self.subscriptions);
            if subscriptions.iter().any(|known| known.uri() == uri) {
                return done;
            }
            subscriptions.len()
        };
        if count >= MOST_SUBSCRIPTIONS {
            return refuse(code::INVALID_PARAMS, "this session hears of as many resources as it may");
        }
        let wanted = self.visit.view.resource(&uri);
        let call = self.asker(true).call(SUBSCRIBE.into(), wanted, Object::default());
        match face.crib.subscribe_for(call).await {
            Ok(subscription) => {
                locked(&self.subscriptions).push(subscription);
                done
            }
            Err(error) => face.failed(&error),
        }
    }

    fn unsubscribe(&self, params: Option<&Object>) -> Answer {
        let Some(uri) = params.and_then(|params| params.string("uri")) else { return no_uri() };
        locked(&self.subscriptions).retain(|known| known.uri() != uri);
        Answer::Result(client::empty_result(Era::Session))
    }

    /// The client works elsewhere now.
    pub(crate) fn moved(&self, face: &Face) {
        face.crib.client_moved(self.presence.key, &self.guest);
    }

    /// Ends everything that is under way.
    pub(crate) fn end(&self) {
        self.under_way.cancel_all();
        locked(&self.subscriptions).clear();
    }
}

fn no_uri() -> Answer {
    refuse(code::INVALID_PARAMS, "`params.uri` must be the address of a resource")
}

impl Hears for Arc<Talk> {
    fn hear(&mut self, stir: &Stir) -> Vec<Vec<u8>> {
        match stir {
            Stir::Lists(now) => {
                let mut known = locked(&self.known);
                let changed = (0..now.len()).filter(|place| known[*place] != now[*place]);
                let lines = changed.map(|place| changed_line(place, None)).collect();
                *known = *now;
                lines
            }
            Stir::News(News::Updated { .. }) | Stir::Missed => {
                updated_lines(&locked(&self.subscriptions), stir, None)
            }
            Stir::News(News::Relisted { instance, lists, .. }) if self.shares(instance) => {
                relisted_lines(lists, [true; 3], None)
            }
            Stir::News(News::Relisted { .. }) => Vec::new(),
            Stir::News(News::Noted { server, method, name, params }) => {
                self.noted(server, method, name, params).into_iter().collect()
            }
            Stir::News(News::Logged { server, instance, params }) => {
                let level = LogLevel::of_message(params);
                // Only who asked for log gets what no call of its own led to.
                let wanted = locked(&self.log).is_some_and(|least| level >= least);
                let seen = self.shares(instance) && self.visit.sees(&self.presence.crib, server);
                (wanted && seen).then(|| logged_line(&self.visit.view, server, params)).into_iter().collect()
            }
        }
    }
}
