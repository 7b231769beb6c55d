//! Instruction counts by valgrind, which do not depend on the load of the machine.
//!
//! Needs `valgrind` and `cargo install gungraun-runner --version 0.20.0`, then `cargo bench --bench instructions`.
#![expect(
    unused_qualifications,
    missing_docs,
    clippy::exit,
    clippy::disallowed_methods,
    reason = "gungraun generates the modules and `main` of its benchmarks"
)]

#[path = "support/echo.rs"]
mod echo;

use std::hint::black_box;

use bytes::Bytes;
use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use tokio::runtime::{Builder, Runtime};
use toolcrib::protocol::framing::FrameDecoder;
use toolcrib::protocol::jsonrpc::{RequestId, ResponsePayload, ServerMessage, encode_response};
use toolcrib::spec::{NamePattern, ToolsSpec};
use toolcrib::{Call, Crib};

/// A crib whose server is running, and its runtime.
struct RunningCrib {
    runtime: Runtime,
    crib: Crib,
}

const SMALL: usize = 20;
const LARGE: usize = 100_000;
const CALLS: usize = 10;

/// Fails the run above this number of instructions.
fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

// A reply from a server, decoded and encoded again for a client.
#[library_benchmark]
#[bench::small(args = (echo::reply_line(SMALL)), config = limit(6_000))]
#[bench::large(args = (echo::reply_line(LARGE)), config = limit(230_000))]
fn forward_reply(line: Bytes) -> Option<Vec<u8>> {
    let ServerMessage::Response { payload: ResponsePayload::Result(result), .. } =
        ServerMessage::parse(black_box(&line))
    else {
        return None;
    };
    let id = RequestId::parse(Bytes::from_static(b"1"))?;
    Some(black_box(encode_response(&id, &ResponsePayload::Result(result))))
}

fn batch() -> Vec<u8> {
    (0..100).map(|_| [&*echo::reply_line(SMALL), b"\n"].concat()).collect::<Vec<_>>().concat()
}

// A hundred lines decoded from one read.
#[library_benchmark]
#[bench::hundred(args = (batch()), config = limit(55_000))]
fn decode_lines(bytes: Vec<u8>) -> usize {
    let mut frames = FrameDecoder::new(32 << 20);
    frames.push(black_box(&bytes));
    std::iter::from_fn(|| frames.next_frame()).count()
}

fn echo_call() -> Call {
    Call::tool("s__echo").raw_arguments(r#"{"text":"hello"}"#)
}

#[expect(clippy::expect_used, reason = "a benchmark needs a runtime")]
fn start(build: impl FnOnce() -> Crib) -> RunningCrib {
    let runtime = Builder::new_current_thread().enable_all().build().expect("cannot build a runtime");
    let crib = runtime.block_on(async {
        let crib = build();
        drop(crib.call(echo_call()).await);
        crib
    });
    RunningCrib { runtime, crib }
}

fn running_crib(bytes: usize) -> RunningCrib {
    start(|| echo::crib(bytes))
}

fn caching_crib(bytes: usize) -> RunningCrib {
    let result = echo::result(bytes);
    let cacheable = [&result[..result.len() - 1], br#","ttlMs":3600000}"#].concat();
    let tools = ToolsSpec { cache: vec![NamePattern::any()], ..ToolsSpec::default() };
    start(|| echo::crib_with(cacheable.into(), tools))
}

/// Makes ten calls in sequence. This is not part of the benchmark function, because valgrind stops counting where a function
/// of that name is entered again, and an `async` block has the name of its function.
fn call_ten(running: &RunningCrib, call: impl Fn(usize) -> Call) -> usize {
    running.runtime.block_on(async {
        let mut answered = 0;
        for number in 0..CALLS {
            answered += usize::from(running.crib.call(call(number)).await.is_ok());
        }
        answered
    })
}

fn call_identical(running: &RunningCrib) -> usize {
    call_ten(running, |_| echo_call())
}

fn call_distinct(running: &RunningCrib) -> usize {
    call_ten(running, |number| {
        Call::tool("s__echo").raw_arguments(["{\"text\":\"", &"x".repeat(number), "\"}"].concat())
    })
}

// Ten calls through a crib, including the work of the server, or answered from the cache for less than a fifth of the cost of
// `ten_misses`. The crib is returned, so that its drop is not counted.
#[library_benchmark]
#[bench::small(args = (running_crib(SMALL)), config = limit(250_000))]
#[bench::large(args = (running_crib(LARGE)), config = limit(5_400_000))]
#[bench::cached(args = (caching_crib(SMALL)), config = limit(55_000))]
fn ten_calls(running: RunningCrib) -> (usize, RunningCrib) {
    (call_identical(&running), running)
}

// Ten cache misses whose answers are stored.
#[library_benchmark]
#[bench::small(args = (caching_crib(SMALL)), config = limit(375_000))]
fn ten_misses(running: RunningCrib) -> (usize, RunningCrib) {
    (call_distinct(&running), running)
}

library_benchmark_group!(
    name = instructions,
    benchmarks = [forward_reply, decode_lines, ten_calls, ten_misses]
);
main!(library_benchmark_groups = instructions);
