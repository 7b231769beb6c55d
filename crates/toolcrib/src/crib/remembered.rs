//! Facts about a server from the files of an earlier run. Nothing is started, and nothing is written.

use std::path::Path;
use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::LISTINGS_FOLDER;
use crate::access::pins::PinStore;
use crate::model::pin_status::ToolPinStatus;
use crate::spec::ServerSpec;
use crate::store::MemoryStore;
use crate::supervisor::listing_store::ListingStore;

/// Returns the transport that a server turned out to have when it was last listed, if that is not the declared one.
pub fn remembered_transport(spec: &ServerSpec, state_dir: &Path) -> Option<&'static str> {
    ListingStore::new(spec, Some(&state_dir.join(LISTINGS_FOLDER))).load()?.known.transport()
}

/// Returns the tools that a server had when it was last listed, by its own names; `None` if it was never listed.
pub fn remembered_tools(spec: &ServerSpec, state_dir: &Path) -> Option<Vec<String>> {
    let saved = ListingStore::new(spec, Some(&state_dir.join(LISTINGS_FOLDER))).load()?;
    Some(saved.known.listing.tools.iter().map(|tool| tool.name.to_string()).collect())
}

/// Returns the bytes of the definitions of the tools that a server had when it was last listed, as far as `is_listed` accepts
/// their own names.
pub fn remembered_tools_size(spec: &ServerSpec, state_dir: &Path, is_listed: impl Fn(&str) -> bool) -> usize {
    let saved = ListingStore::new(spec, Some(&state_dir.join(LISTINGS_FOLDER))).load();
    let tools = saved.iter().flat_map(|saved| saved.known.listing.tools.iter());
    tools.filter(|tool| is_listed(&tool.name)).map(|tool| tool.definition.len()).sum()
}

/// Returns what a server offered when it was last listed and that differs from what was approved.
pub fn remembered_unapproved(spec: &ServerSpec, state_dir: &Path, pins_dir: &Path) -> Vec<ToolPinStatus> {
    let saved = ListingStore::new(spec, Some(&state_dir.join(LISTINGS_FOLDER))).load();
    let store = Arc::new(MemoryStore::default().with_pins_dir(pins_dir));
    let pins = PinStore::new(store, Some(pins_dir.to_owned()), TaskTracker::new()).for_server(spec);
    match (saved, pins) {
        (Some(saved), Some(pins)) => {
            pins.check_changed_listing(&saved.known.listing, true);
            pins.unapproved_items()
        }
        _ => Vec::new(),
    }
}
