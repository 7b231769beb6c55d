//! Export by OTLP over HTTP.
//!
//! The messages are written by hand: the `opentelemetry` crates would add 18 crates, and `prost` with the generated messages
//! five, for two requests whose fields are fixed.

mod exporter;
mod messages;
mod protobuf;
mod settings;

pub(crate) use self::exporter::OtlpExporter;
pub(crate) use self::settings::{OtlpSettings, OtlpVariables};
