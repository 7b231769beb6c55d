//! The contract of `Store`, against a real server with real time. `STORE_URL` names servers that run already, such as a cluster:
//!
//! ```sh
//! STORE_URL=valkey-cluster://127.0.0.1:7000,127.0.0.1:7001 cargo test -p toolcrib-valkey --test contract
//! ```

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use toolcrib::Caller;
use toolcrib::store::*;

#[path = "../../toolcrib/src/store/contract.rs"]
mod contract;

mod contract_stores {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::time::Duration;

    use test_support::store_server::StoreServer;
    use tokio::time::{resume, sleep};
    use toolcrib::store::{Store, StoreKey, StoreKind};
    use toolcrib_valkey::{StoreUrl, ValkeyOptions, ValkeyStore};

    thread_local! {
        /// The server of the test that runs on this thread; it ends with the thread.
        static SERVER: RefCell<Option<StoreServer>> = const { RefCell::new(None) };
    }

    /// The longest time that a test waits for.
    const MAX_ADVANCE: Duration = Duration::from_secs(5);

    /// Returns a connected store, or none if there is no server to test.
    #[track_caller]
    pub(super) fn stores() -> impl Future<Output = Vec<Arc<dyn Store>>> {
        let url = std::env::var("STORE_URL").ok().or_else(start_server);
        async move {
            resume();
            let Some(url) = url else { return Vec::new() };
            let url: StoreUrl = url.parse().unwrap();
            let mut options = ValkeyOptions::default();
            options.operation_timeout = Duration::from_secs(10);
            let test = std::thread::current().name().unwrap_or_default().replace("contract::", "");
            options.prefix = format!("{}:{test}", std::process::id());
            let store = ValkeyStore::connect(url, options).unwrap();
            // Connected, so that no notice is missed.
            store.get(StoreKey::new(StoreKind::Session, "")).wait().await.unwrap();
            vec![Arc::new(store) as Arc<dyn Store>]
        }
    }

    /// Starts a server for the calling test. Returns its URL.
    #[track_caller]
    fn start_server() -> Option<String> {
        let server = StoreServer::start(&[])?;
        let url = format!("valkey://{}", server.address());
        SERVER.set(Some(server));
        Some(url)
    }

    /// Lets time pass, on the server too: it counts whole milliseconds of a wall clock, which can be slower than the clock of the
    /// test while it is adjusted. The longest times of the contract are only there to be longer than the others.
    pub(super) async fn advance(time: Duration) {
        if time <= MAX_ADVANCE {
            sleep(time + Duration::from_millis(1) + time / 50).await;
        }
    }

    /// Returns whether a store measured the expected time, except for what passed between two operations.
    pub(super) fn is_equal_time(time: Duration, expected: Duration) -> bool {
        time <= expected && expected < time + Duration::from_millis(900)
    }
}
