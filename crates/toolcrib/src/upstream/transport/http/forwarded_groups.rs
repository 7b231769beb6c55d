//! The header with the groups of the caller.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::model::caller::Caller;
use crate::secrets::KnownCallers;
use crate::util::encoding::encode_header;

/// Adds the groups of a caller to every request, as they were when it authenticated last.
#[derive(Debug)]
pub(super) struct ForwardedGroups {
    header: HeaderName,
    caller: Caller,
    known_callers: KnownCallers,
}

impl ForwardedGroups {
    /// Creates the header for groups beside the header with the caller's name.
    pub(super) fn new(
        name_header: &HeaderName,
        caller: &Caller,
        known_callers: &KnownCallers,
    ) -> Result<Self, String> {
        let header = HeaderName::from_bytes(format!("{name_header}-groups").as_bytes());
        let header = header.map_err(|error| error.to_string())?;
        Ok(Self { header, caller: caller.clone(), known_callers: known_callers.clone() })
    }

    /// Sets the header, unless the caller is in no group.
    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        let known = self.known_callers.find(&self.caller);
        let groups = known.as_ref().unwrap_or(&self.caller).groups();
        let groups: Vec<String> = groups.iter().map(|group| encode_header(group)).collect();
        if let Ok(value) = HeaderValue::from_str(&groups.join(","))
            && !groups.is_empty()
        {
            headers.insert(self.header.clone(), value);
        }
    }
}
