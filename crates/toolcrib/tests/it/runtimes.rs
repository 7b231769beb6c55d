//! Building a crib in an unsuitable runtime is an error with its reason.

use tokio::runtime::Builder;
use toolcrib::Crib;

#[test]
fn build_without_runtime_is_an_error() {
    let error = Crib::builder().build().unwrap_err().to_string();
    assert!(error.contains("no tokio runtime"), "{error}");
}

#[test]
fn build_in_runtime_without_time_is_an_error() {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let error = runtime.block_on(async { Crib::builder().build() }).unwrap_err().to_string();
    assert!(error.contains("time") && error.contains("enable_all"), "{error}");
}

#[test]
fn build_in_runtime_without_io_is_an_error() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let error = runtime.block_on(async { Crib::builder().build() }).unwrap_err().to_string();
    assert!(error.contains("I/O") && error.contains("enable_all"), "{error}");
}

#[test]
fn build_with_own_shim_needs_run_shim() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let own = std::env::current_exe().unwrap();
    for program in ["/proc/self/exe".into(), own] {
        let error =
            runtime.block_on(async { Crib::builder().shim(program).build() }).unwrap_err().to_string();
        assert!(error.contains("run_shim"), "{error}");
    }
    runtime.block_on(async { Crib::builder().shim("/bin/true").build() }).unwrap();
}
