//! JSON as bytes: scanning, objects with raw members, canonical form.

pub(crate) mod canonical;
pub mod object;
pub(crate) mod scan;
