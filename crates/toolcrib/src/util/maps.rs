//! Building of maps.

/// Collects entries into a map by inserting them one by one; a later entry replaces an earlier one.
///
/// `collect` sorts the entries of a `BTreeMap` first, and that sort, 6 KB, is compiled for each iterator. The maps that are
/// built here are small or already in order.
pub fn collect_map<M: Default + Extend<E>, E>(entries: impl IntoIterator<Item = E>) -> M {
    let mut map = M::default();
    map.extend(entries);
    map
}
