//! Tokens that a hostile server repeats reach no error, status or record.

use std::sync::{Arc, Mutex};

use toolcrib::{CallRecord, Crib, Observer};

use super::authorization_server::{AuthorizationServer, Echo};
use super::{Machine, echo, id};

/// Collects the text of all call records.
#[derive(Debug, Clone, Default)]
struct Records(Arc<Mutex<String>>);

impl Observer for Records {
    fn call_ended(&self, record: &CallRecord) {
        self.0.lock().unwrap().push_str(&format!("{record:?}"));
    }
}

/// Returns everything that a person may see after a failed call.
async fn shown(crib: &Crib, records: &Records) -> String {
    let outcome = echo(crib).await;
    let answer = match &outcome {
        Ok(outcome) => outcome.to_value().to_string(),
        Err(error) => format!("{error} {error:?} {}", error.hint()),
    };
    let status = format!("{:?}", crib.server_status(&id()));
    format!("{answer} {status} {} {:?}", records.0.lock().unwrap(), crib.login(&id()))
}

#[tokio::test]
async fn repeated_tokens_are_never_shown() {
    for kind in [Echo::TokenError, Echo::RpcError, Echo::Body, Echo::Scope] {
        let server = AuthorizationServer::start().await;
        let machine = Machine::new();
        machine.log_in(&server.url()).await;
        let records = Records::default();
        let crib = machine.builder(&server.url()).observer(Arc::new(records.clone())).build().unwrap();
        echo(&crib).await.unwrap();
        if kind == Echo::TokenError {
            server.expire();
            server.issued.lock().unwrap().is_ended = true;
        } else {
            // A token that was issued to this connection, not one that it was started with.
            server.expire();
            echo(&crib).await.unwrap();
        }
        server.issued.lock().unwrap().echo = kind;
        for _ in 0..2 {
            let text = shown(&crib, &records).await;
            assert!(!text.contains("access-") && !text.contains("refresh-"), "{kind:?}: {text}");
            assert!(kind != Echo::RpcError || text.contains("[secret]"), "{kind:?}: {text}");
        }
    }
}
