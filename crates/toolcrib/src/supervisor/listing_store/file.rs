//! The file of a listing.

use bytes::Bytes;

use super::*;
use crate::model::listing::{ListFailure, ListedItem};
use crate::protocol::json::object::{self, Object};
use crate::protocol::list_kind::ListKind;
use crate::util::files::{self, FileMode, ReplaceOptions};

/// The member for the eras that the server speaks.
const ERAS: &str = "eras";

/// The member for the first request that the server was seen to send during a call.
const ASKS: &str = "asks";

/// The member for what was listed to clients with certain capabilities.
const BY_CAPABILITIES: &str = "byCapabilities";

impl ListingStore {
    /// Reads the file. A file from before prompts and resources were listed counts as missing.
    pub(crate) fn load(&self) -> Option<SavedListing> {
        let text = Bytes::from(std::fs::read(self.file.as_ref()?).ok()?);
        let members = Object::parse(&text).ok()?;
        let known = &members;
        let unknown = known.get("unknown").and_then(|raw| object::parse_array(raw).ok()).unwrap_or_default();
        let is_unknown = |kind: ListKind| {
            unknown.iter().any(|raw| object::as_string(raw).is_some_and(|list| list == kind.list_member()))
        };
        let listing = Listing {
            unknown: ListKind::ALL
                .map(|kind| is_unknown(kind).then(|| Arc::new(ListFailure::from_disk(kind)))),
            server_info: known.get("serverInfo").cloned(),
            capabilities: known.get("capabilities")?.clone(),
            instructions: known.get_string("instructions").map(std::borrow::Cow::into_owned),
            ..read_lists(known)?
        };
        let revision: Revision = known.get_string("revision")?.parse().ok()?;
        let eras = known.get(ERAS).and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        let spoken = SpokenEras::default().with(revision.era(), true);
        let eras = [Era::Session, Era::Stateless].into_iter().fold(spoken, |spoken, era| {
            match eras.get(era.as_str()).map(|raw| &**raw) {
                Some(b"true") => spoken.with(era, true),
                Some(b"false") => spoken.with(era, false),
                _ => spoken,
            }
        });
        let known = KnownListing {
            revision,
            is_legacy_sse: known.get_string("transport").as_deref() == Some(SSE),
            listing: Arc::new(listing),
        };
        let by_capabilities = members.get(BY_CAPABILITIES).and_then(|raw| object::parse_array(raw).ok());
        let lists = by_capabilities.iter().flatten().filter_map(|raw| {
            let object = Object::parse(raw).ok()?;
            let bits = object::as_integer(object.get("capabilities")?)?;
            let of_client = read_lists(&object).map(|lists| {
                let mut of_client = Listing::clone(&known.listing);
                ListKind::ALL.into_iter().for_each(|kind| of_client.copy_list(kind, &lists));
                Arc::new(of_client)
            });
            Some((u8::try_from(bits).ok()?, of_client))
        });
        let by_capabilities = lists.collect();
        let asks = members.get_string(ASKS);
        let asks = QUESTIONS.into_iter().find(|method| asks.as_deref() == Some(*method));
        Some(SavedListing { known, eras, asks, by_capabilities })
    }

    /// Writes a listing to disk. Readers never see an incomplete one. A listing without known tools is not written: the
    /// server counts as never listed for the next gateway.
    pub(crate) fn save(&self, known: &KnownListing) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if known.listing.unknown_list(ListKind::Tools).is_some() {
            return Ok(());
        }
        let folder = file.parent().unwrap_or(Path::new("."));
        files::create_private_folder(folder)?;
        let mut text = Object::default();
        text.set_unchecked("revision", object::to_json_string(known.revision.as_str()));
        if let Some(info) = &known.listing.server_info {
            text.set_unchecked("serverInfo", info.clone());
        }
        if known.is_legacy_sse {
            text.set_unchecked("transport", object::to_json_string(SSE));
        }
        let exited_in = self.lock().exited_in;
        let eras = self.eras();
        let mut spoken = Object::default();
        for era in [Era::Session, Era::Stateless].into_iter().filter(|era| exited_in != Some(*era)) {
            if let Some(speaks) = eras.speaks(era) {
                spoken.set_unchecked(era.as_str(), if speaks { "true" } else { "false" });
            }
        }
        text.set_unchecked(ERAS, spoken.to_bytes());
        if let Some(method) = self.asks() {
            text.set_unchecked(ASKS, object::to_json_string(method));
        }
        text.set_unchecked("capabilities", known.listing.capabilities.clone());
        if let Some(instructions) = &known.listing.instructions {
            text.set_unchecked("instructions", object::to_json_string(instructions));
        }
        let is_unknown = |kind: &ListKind| known.listing.unknown_list(*kind).is_some();
        let unknown: Vec<&str> =
            ListKind::ALL.iter().filter(|kind| is_unknown(kind)).map(|kind| kind.list_member()).collect();
        if !unknown.is_empty() {
            text.set_unchecked("unknown", serde_json::json!(unknown).to_string());
        }
        write_lists(&mut text, &known.listing);
        let by_capabilities = self.lock().by_capabilities.clone();
        let lists = by_capabilities.into_iter().map(|(bits, listing)| {
            let mut lists = Object::default();
            lists.set_unchecked("capabilities", bits.to_string());
            listing.iter().for_each(|listing| write_lists(&mut lists, listing));
            lists.to_bytes()
        });
        let lists: Vec<_> = lists.collect();
        if !lists.is_empty() {
            text.set_unchecked(BY_CAPABILITIES, [b"[", &*lists.join(&b","[..]), b"]"].concat());
        }
        let options = ReplaceOptions { mode: FileMode::Private, sync: false };
        files::replace_file(file, &text.to_bytes(), options)
    }
}

fn read_lists(object: &Object) -> Option<Listing> {
    let list = |kind: ListKind| {
        let parsed = ListedItem::parse_all(kind, object.get(kind.list_member())?, usize::MAX).ok()?;
        Some(parsed.items)
    };
    Some(Listing {
        tools: list(ListKind::Tools)?,
        prompts: list(ListKind::Prompts)?,
        resources: list(ListKind::Resources)?,
        templates: list(ListKind::Templates)?,
        ..Listing::default()
    })
}

fn write_lists(object: &mut Object, listing: &Listing) {
    for kind in ListKind::ALL {
        let items: Vec<&[u8]> = listing.items(kind).iter().map(|item| &*item.definition).collect();
        object.set_unchecked(kind.list_member(), [b"[", &*items.join(&b","[..]), b"]"].concat());
    }
}
