//! A panic in a function or trait of the embedder fails at most the call that it belongs to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::json;
use toolcrib::model::event::CallRecord;
use toolcrib::{
    Call, CallUpdate, Caller, Catalog, Crib, CribBuilder, Error, ErrorKind, Exposure, GuardVerdict, Observer,
    ServerState, UpdateSink,
};

use crate::fake::FakeServer;
use crate::support::{SECOND, kind, names, on, spec, status};

fn builder() -> CribBuilder {
    Crib::builder().server(spec("git", &FakeServer::new()))
}

#[tokio::test(start_paused = true)]
async fn log_function_that_panics_does_not_stop_the_server() {
    let crib = builder().log(|_| panic!("on purpose")).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    crib.call(on("git", "die")).await.unwrap_err();
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(status(&crib, "git").state, ServerState::Ready);
    crib.shutdown(SECOND).await;
}

/// An observer that panics in the method it is set to.
#[derive(Default)]
struct PanickingObserver {
    in_is_enabled: AtomicBool,
    in_check_ready: AtomicBool,
    in_wants_arguments: AtomicBool,
    in_call_ended: AtomicBool,
    in_close: AtomicBool,
}

fn panic_if(condition: &AtomicBool) {
    assert!(!condition.load(SeqCst), "on purpose");
}

impl Observer for PanickingObserver {
    fn is_enabled(&self) -> bool {
        panic_if(&self.in_is_enabled);
        true
    }

    fn check_ready(&self) -> Result<(), Error> {
        panic_if(&self.in_check_ready);
        Ok(())
    }

    fn wants_arguments(&self) -> bool {
        panic_if(&self.in_wants_arguments);
        true
    }

    fn call_ended(&self, _: &CallRecord) {
        panic_if(&self.in_call_ended);
    }

    fn close(&self) {
        panic_if(&self.in_close);
    }
}

#[tokio::test(start_paused = true)]
async fn observer_that_panics_does_not_fail_calls() {
    let observer = Arc::new(PanickingObserver::default());
    let crib = builder().observer(observer.clone()).build().unwrap();
    for flag in [&observer.in_is_enabled, &observer.in_wants_arguments, &observer.in_call_ended] {
        flag.store(true, SeqCst);
        crib.call(on("git", "echo")).await.unwrap();
        // A cancelled call is reported while it is dropped.
        assert!(tokio::time::timeout(SECOND, crib.call(on("git", "hang"))).await.is_err());
        flag.store(false, SeqCst);
    }
    // An observer that cannot say that it is ready is not ready.
    observer.in_check_ready.store(true, SeqCst);
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Unrecorded);
    observer.in_close.store(true, SeqCst);
    crib.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn guard_that_panics_denies() {
    let crib = builder()
        .guard(|_, _, name| match name {
            Some("hold") => panic!("on purpose"),
            _ => GuardVerdict::Allow,
        })
        .build()
        .unwrap();
    assert_eq!(kind(crib.call(on("git", "hold")).await), ErrorKind::Denied);
    crib.call(on("git", "echo")).await.unwrap();
    assert!(!names(&crib.list().await).contains(&"git__hold".to_owned()));
}

#[derive(Debug)]
struct PanickingSink;

impl UpdateSink for PanickingSink {
    fn deliver(&self, _: CallUpdate) -> bool {
        panic!("on purpose");
    }
}

#[tokio::test(start_paused = true)]
async fn update_sink_that_panics_loses_only_its_updates() {
    let crib = builder().build().unwrap();
    let mut call = on("git", "progress").arguments(&json!({"steps": 3, "every": 10}));
    let (sender, _receiver) = tokio::sync::mpsc::channel(1);
    call = call.updates(sender).update_sink(Arc::new(PanickingSink));
    crib.call(call).await.unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    assert_eq!(status(&crib, "git").generation, 1, "the connection survived");
}

#[tokio::test(start_paused = true)]
async fn fallback_that_panics_fails_its_call() {
    let crib = builder()
        .fallback(|call| {
            assert!(call.name != "now", "on purpose");
            async { panic!("on purpose") }
        })
        .build()
        .unwrap();
    for name in ["now", "later"] {
        let error = crib.call(Call::tool(name)).await.unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
    crib.call(on("git", "echo")).await.unwrap();
}

#[derive(Debug)]
struct PanickingExposure;

impl Exposure for PanickingExposure {
    fn listed(&self, _: &Caller, _: &Arc<Catalog>) -> Arc<Catalog> {
        panic!("on purpose");
    }
}

#[tokio::test(start_paused = true)]
async fn exposure_that_panics_lists_nothing() {
    let crib = builder().exposure(Arc::new(PanickingExposure)).build().unwrap();
    assert!(crib.list().await.tools().is_empty());
    crib.call(on("git", "echo")).await.unwrap();
}
