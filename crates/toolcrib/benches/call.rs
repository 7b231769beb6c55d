//! The duration of one call through a crib to an in-process server.

#[path = "support/echo.rs"]
#[expect(dead_code, reason = "other benchmarks use the rest")]
mod echo;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::{Builder, Runtime};
use toolcrib::{Call, Crib};

#[expect(clippy::expect_used, reason = "a benchmark needs a runtime")]
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("cannot build a runtime")
}

/// Returns a crib with a running server, and its runtime.
fn warm(bytes: usize) -> (Runtime, Crib) {
    let runtime = runtime();
    let crib = runtime.block_on(async {
        let crib = echo::crib(bytes);
        drop(crib.call(Call::tool("s__echo")).await);
        crib
    });
    (runtime, crib)
}

fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("call");
    for (name, bytes) in [("small", 20), ("100 KB", 100_000)] {
        let (runtime, crib) = warm(bytes);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(name, |bencher| {
            bencher
                .to_async(&runtime)
                .iter(|| crib.call(Call::tool("s__echo").raw_arguments(r#"{"text":"hello"}"#)));
        });
    }
    group.finish();
}

criterion_group!(benches, calls);
criterion_main!(benches);
