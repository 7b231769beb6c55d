//! Lists that a running server is asked for itself, page by page, on behalf of one client.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Crib;
use crate::call::Call;
use crate::catalog::has_page_items;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::Decision;
use crate::model::listing::ListedItem;
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::observer::ObservedCall;
use crate::protocol::era::adapt_tool_for_client;
use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::list_kind::ListKind;
use crate::protocol::member_names;
use crate::protocol::versions::Era;
use crate::registry::RegisteredServer;
use crate::spec::{Pinning, ServerId};

impl Crib {
    /// Asks a server for one page of a list, and returns its answer without what the caller may not see. `params` of the
    /// call are those of the list request; its selector names the server. The request is reported to observers, as a call is.
    ///
    /// Returns `None` if the server is not asked: if the instance of the client does not run, because a list starts no server;
    /// if limits apply to the caller, because a list counts towards none; or if the listing has items on this page, so that an
    /// empty page is due to the rules.
    ///
    /// # Errors
    /// Fails if the server is unknown or denied to the caller, if it does not answer, or if an observer refuses the request.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    pub async fn list_from_server(&self, kind: ListKind, call: Call) -> Result<Option<Outcome>, Error> {
        self.request_list(kind, call, None).await
    }

    /// Like [`Crib::list_from_server`], if the last known list may not be what the server would answer now: it runs and the list has
    /// expired or was announced as changed, or it announces no changes. A server that was never listed is started, and
    /// is waited for up to `wait`. The answer becomes the known list once its last page was read.
    ///
    /// # Errors
    /// As [`Crib::list_from_server`], and if the server cannot be started or is not up in time.
    ///
    /// # Cancel safety
    /// As [`Crib::list_from_server`].
    pub async fn list_if_uncertain(
        &self,
        kind: ListKind,
        call: Call,
        wait: Duration,
    ) -> Result<Option<Outcome>, Error> {
        self.request_list(kind, call, Some(wait)).await
    }

    async fn request_list(
        &self,
        kind: ListKind,
        mut call: Call,
        wait_if_uncertain: Option<Duration>,
    ) -> Result<Option<Outcome>, Error> {
        let Selector::OnServer(server, _) = call.selector.clone() else {
            return Err(Error::new(ErrorKind::Malformed, "the selector must name a server").mark_not_sent());
        };
        if !self.can_see(&call.caller, &server) {
            return Err(self.router().hidden_server_error(&call.caller, &server));
        }
        let entry = self.registered(&server)?;
        let inner = &*self.inner;
        inner.introduce_client(&mut call);
        let is_asked = match wait_if_uncertain {
            Some(_) => self.can_ask(&call) && entry.is_list_uncertain(kind, &call, Instant::now()),
            None => self.can_ask(&call) && is_page_unknown(kind, &entry, &call).await,
        };
        if !is_asked {
            return Ok(None);
        }
        let _in_flight = inner.in_flight.token();
        let mut observed = ObservedCall::new(Box::new(call), &inner.observers);
        let outcome = match observed.check_ready() {
            Err(error) => Err(error),
            Ok(()) => self.request_page(kind, &entry, &mut observed.call, wait_if_uncertain).await,
        };
        let outcome = outcome
            .map_err(|error| observed.name_call(inner.router.hide_stderr(error, &observed.call.caller)));
        observed.finish(&outcome);
        outcome.map(Some)
    }

    /// Returns whether servers may be asked for lists on behalf of a call.
    fn can_ask(&self, call: &Call) -> bool {
        let router = self.router();
        !router.visible_catalogs.has_exposure() && !router.limiter.has_limits_for(call)
    }

    /// Requests a page from a server, and removes what the caller may not see.
    async fn request_page(
        &self,
        kind: ListKind,
        entry: &RegisteredServer,
        call: &mut Call,
        wait: Option<Duration>,
    ) -> Result<Outcome, Error> {
        let server = &entry.spec().id;
        let method = kind.method();
        member_names::check_params(&call.params)
            .map_err(|lookalike| Error::new(ErrorKind::BadArguments, lookalike.to_string()))?;
        call.trace.record(|facts| {
            facts.target = Some(Target::new(server, method));
            facts.decision = Decision::Allowed;
        });
        let router = self.router();
        let lease = router.registry.lease(server, call);
        let mut lease = match wait {
            Some(wait) => {
                let (caller, era) = (&call.caller, call.client.era);
                router.within_first_wait(entry, caller, era, wait, lease).await?
            }
            None => lease.await?,
        };
        let began = Instant::now();
        let outcome = lease.send(call, method, began).await?;
        let connection = lease.connection().clone();
        drop(lease);
        let ResponsePayload::Result(page) = &outcome.answer else { return Ok(outcome) };
        let cursor = call.params.get_string("cursor");
        if let Some(pages) = connection.add_client_page(kind, cursor.as_deref(), page.clone(), began).await {
            entry.record_list(&connection, kind, &pages).await;
            self.router().services.listing_changes.wait_until_applied().await;
        }
        let visible = self.visible_page(kind, entry, call, page).map_err(|reason| {
            let message = format!("`{server}` sent a bad response to `{method}`: {reason}");
            Error::new(ErrorKind::BadReply, message).with_server(server)
        })?;
        Ok(match visible {
            Some(page) => Outcome { answer: ResponsePayload::Result(page), ..outcome },
            None => outcome,
        })
    }

    /// Returns a page without what the caller may not see, for clients of its era; `None` if nothing changes.
    fn visible_page(
        &self,
        kind: ListKind,
        entry: &RegisteredServer,
        call: &Call,
        page: &Bytes,
    ) -> Result<Option<Bytes>, String> {
        let mut members = Object::parse(page).map_err(|bad| bad.to_string())?;
        member_names::check_page(&members).map_err(|lookalike| lookalike.to_string())?;
        let raw = members.get(kind.list_member()).ok_or_else(|| format!("no `{}`", kind.list_member()))?;
        let sent = object::parse_array(raw).map_err(|bad| bad.to_string())?;
        let spec = entry.spec();
        let mut items: Vec<ListedItem> = sent
            .iter()
            .filter(|definition| definition.len() <= spec.limits.definition)
            .filter_map(|definition| ListedItem::parse(kind, definition.clone()))
            .collect();
        let services = &self.router().services;
        let pins = services.pins.for_server(spec);
        if let Some(pins) = pins.filter(|_| spec.pin == Pinning::Strict) {
            items.retain(|item| pins.check_item(kind, item).is_none());
        }
        let has_rules = self.remove_denied(call, &spec.id, &mut items);
        let definitions: Vec<Bytes> =
            items.iter().map(|item| adapt_definition(kind, &item.definition, call.client.era)).collect();
        if definitions == sent && !has_rules {
            return Ok(None);
        }
        members.set_unchecked(kind.list_member(), [b"[", &*definitions.join(&b","[..]), b"]"].concat());
        if has_rules && members.get("cacheScope").is_some() {
            // Every caller may get a different list.
            members.set_unchecked("cacheScope", Bytes::from_static(b"\"private\""));
        }
        Ok(Some(members.to_bytes()))
    }

    /// Removes what the rules deny to the caller, and returns whether there are rules.
    fn remove_denied(&self, call: &Call, server: &ServerId, items: &mut Vec<ListedItem>) -> bool {
        match self.router().visible_catalogs.policy_for(&call.caller) {
            Ok(None) => false,
            Ok(Some(policy)) => {
                items.retain(|item| policy.authorize(&call.caller, server, Some(&item.name)).is_ok());
                true
            }
            Err(_) => {
                items.clear();
                true
            }
        }
    }
}

/// Returns whether a server that can be asked knows a page that the last known listing does not have.
async fn is_page_unknown(kind: ListKind, entry: &RegisteredServer, call: &Call) -> bool {
    let cursor = call.params.get_string("cursor");
    let is_known = entry.listing().is_some_and(|listing| has_page_items(&listing, kind, cursor.as_deref()));
    !is_known && entry.is_listable(call).await
}

fn adapt_definition(kind: ListKind, definition: &Bytes, era: Era) -> Bytes {
    let adapted = (kind == ListKind::Tools).then(|| adapt_tool_for_client(definition, era)).flatten();
    adapted.unwrap_or_else(|| definition.clone())
}
