//! Access control: policy, visible catalogs, approvals, pinned definitions and argument schemas.

pub mod approvals;
pub(crate) mod argument_schemas;
pub mod expose;
pub mod pins;
pub mod policy;
pub mod schema;
mod uri_forms;
pub(crate) mod visible_catalogs;
