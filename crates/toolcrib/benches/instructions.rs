//! How many instructions the same work takes, counted by valgrind, so that a busy machine cannot blur it.
//!
//! Needs `valgrind` and `cargo install gungraun-runner --version 0.20.0`, then `cargo bench --bench instructions`.
#![expect(
    unused_qualifications,
    missing_docs,
    clippy::exit,
    clippy::disallowed_methods,
    reason = "gungraun writes the modules and the `main` of its benchmarks"
)]

#[path = "support/echo.rs"]
mod echo;

use std::hint::black_box;

use bytes::Bytes;
use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use tokio::runtime::{Builder, Runtime};
use toolcrib::spec::{Pattern, ToolsSpec};
use toolcrib::wire::frame::Frames;
use toolcrib::wire::message::{Answer, Id, ServerMessage, reply};
use toolcrib::{Call, Crib};

const SMALL: usize = 20;
const LARGE: usize = 100_000;
const CALLS: usize = 10;

/// More instructions than this fail the run: the library's share of a call must not grow unnoticed.
fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

// A reply as it comes from a server, read and written again for a client.
#[library_benchmark]
#[bench::small(args = (echo::reply_line(SMALL)), config = at_most(6_000))]
#[bench::large(args = (echo::reply_line(LARGE)), config = at_most(230_000))]
fn carry_a_reply(line: Bytes) -> Option<Vec<u8>> {
    let ServerMessage::Reply { answer: Answer::Result(result), .. } = ServerMessage::parse(black_box(&line))
    else {
        return None;
    };
    let id = Id::read(Bytes::from_static(b"1"))?;
    Some(black_box(reply(&id, &Answer::Result(result))))
}

fn batch() -> Vec<u8> {
    (0..100).map(|_| [&*echo::reply_line(SMALL), b"\n"].concat()).collect::<Vec<_>>().concat()
}

// A hundred lines cut from one read.
#[library_benchmark]
#[bench::hundred(args = (batch()), config = at_most(55_000))]
fn cut_lines(bytes: Vec<u8>) -> usize {
    let mut frames = Frames::new(32 << 20);
    frames.push(black_box(&bytes));
    std::iter::from_fn(|| frames.next_frame()).count()
}

fn hello() -> Call {
    Call::tool("s__echo").raw_arguments(r#"{"text":"hello"}"#)
}

#[expect(clippy::expect_used, reason = "a benchmark without a runtime is none")]
fn warmed(crib: impl FnOnce() -> Crib) -> (Runtime, Crib) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let crib = runtime.block_on(async {
        let crib = crib();
        drop(crib.call(hello()).await);
        crib
    });
    (runtime, crib)
}

fn warm(bytes: usize) -> (Runtime, Crib) {
    warmed(|| echo::crib(bytes))
}

fn knowing(bytes: usize) -> (Runtime, Crib) {
    let result = echo::result(bytes);
    let lasting = [&result[..result.len() - 1], br#","ttlMs":3600000}"#].concat();
    let tools = ToolsSpec { cache: vec![Pattern::any()], ..ToolsSpec::default() };
    warmed(|| echo::crib_of(lasting.into(), tools))
}

/// Ten calls, one after the other. Not a part of the benchmark's own function: valgrind stops counting where a function of
/// that name is entered a second time, and an `async` block has the name of the function around it.
fn call_ten((runtime, crib): &(Runtime, Crib), call: impl Fn(usize) -> Call) -> usize {
    runtime.block_on(async {
        let mut answered = 0;
        for number in 0..CALLS {
            answered += usize::from(crib.call(call(number)).await.is_ok());
        }
        answered
    })
}

fn call_alike(crib: &(Runtime, Crib)) -> usize {
    call_ten(crib, |_| hello())
}

fn call_anew(crib: &(Runtime, Crib)) -> usize {
    call_ten(crib, |number| {
        Call::tool("s__echo").raw_arguments(["{\"text\":\"", &"x".repeat(number), "\"}"].concat())
    })
}

// Ten calls through the whole crib, the server's own work included; or answered with what is known, for less than a
// fifth of what `ten_misses` cost. The crib is given back, so that its end is not counted.
#[library_benchmark]
#[bench::small(args = (warm(SMALL)), config = at_most(250_000))]
#[bench::large(args = (warm(LARGE)), config = at_most(5_400_000))]
#[bench::known(args = (knowing(SMALL)), config = at_most(55_000))]
fn ten_calls(crib: (Runtime, Crib)) -> (usize, (Runtime, Crib)) {
    (call_alike(&crib), crib)
}

// Ten calls that are looked for in vain, and whose answers are kept.
#[library_benchmark]
#[bench::small(args = (knowing(SMALL)), config = at_most(375_000))]
fn ten_misses(crib: (Runtime, Crib)) -> (usize, (Runtime, Crib)) {
    (call_anew(&crib), crib)
}

library_benchmark_group!(name = instructions, benchmarks = [carry_a_reply, cut_lines, ten_calls, ten_misses]);
main!(library_benchmark_groups = instructions);
