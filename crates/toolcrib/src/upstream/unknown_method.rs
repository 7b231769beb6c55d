//! The answer of a server to methods that it does not know.

use bytes::Bytes;
use tokio::sync::OnceCell;

use super::Connection;
use crate::model::outcome::Outcome;
use crate::protocol::json::object::{Object, to_json_string};
use crate::protocol::jsonrpc::ResponsePayload;

/// A method that no server has.
const UNKNOWN_METHOD: &str = "toolcrib/unknown-method";

/// The error of a server for [`UNKNOWN_METHOD`]; none if it answered otherwise. Empty until it was asked.
pub(super) type UnknownMethodError = OnceCell<Option<Bytes>>;

impl Connection {
    /// Returns the server's answer to a method that it does not know. The method is not sent: the server is asked once for a
    /// method that no server has, and its error is used for every unknown method. Returns `None` if it has no such error.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request, and the server is asked again the next time.
    pub(crate) async fn answer_unknown_method(&self, method: &str) -> Option<Outcome> {
        let ask = || async {
            match self.request(UNKNOWN_METHOD, Object::default()).await {
                Ok(ResponsePayload::Error(error)) => Some(error),
                Ok(ResponsePayload::Result(_)) | Err(_) => None,
            }
        };
        let error = self.unknown_method_error.get_or_init(ask).await.as_ref()?;
        Some(self.to_outcome(ResponsePayload::Error(rename_method(error, method))))
    }
}

/// Replaces the name of the unknown method in an error. Servers repeat it in the message or as data.
fn rename_method(error: &Bytes, method: &str) -> Bytes {
    let quoted = to_json_string(method);
    let name = &quoted[1..quoted.len() - 1];
    let mut renamed = Vec::with_capacity(error.len() + name.len());
    let mut rest = &error[..];
    while let Some(at) = memchr::memmem::find(rest, UNKNOWN_METHOD.as_bytes()) {
        renamed.extend_from_slice(&rest[..at]);
        renamed.extend_from_slice(name.as_ref());
        rest = &rest[at + UNKNOWN_METHOD.len()..];
    }
    renamed.extend_from_slice(rest);
    renamed.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_method_of_the_client() {
        let error =
            r#"{"code":-32601,"message":"No toolcrib/unknown-method","data":"toolcrib/unknown-method"}"#;
        assert_eq!(
            rename_method(&Bytes::from_static(error.as_bytes()), "a\"/b"),
            r#"{"code":-32601,"message":"No a\"/b","data":"a\"/b"}"#
        );
        let error =
            Bytes::from_static(br#"{"code":-32602,"message":"Invalid request parameters","data":""}"#);
        assert_eq!(rename_method(&error, "x"), error);
    }
}
