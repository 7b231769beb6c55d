//! Throughput of decoding and encoding messages.

#[path = "support/echo.rs"]
#[expect(dead_code, reason = "other benchmarks use the rest")]
mod echo;

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use toolcrib::protocol::framing::FrameDecoder;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{
    ClientMessage, RequestId, ResponsePayload, ServerMessage, encode_response,
};

/// Returns many small replies and a few large ones, as they arrive through a pipe.
fn stream() -> Vec<u8> {
    let sizes = [20, 40, 80, 20, 20_000, 20, 200, 2000];
    let lines = sizes.iter().cycle().take(400).map(|bytes| [&*echo::reply_line(*bytes), b"\n"].concat());
    lines.collect::<Vec<_>>().concat()
}

fn frames(criterion: &mut Criterion) {
    let stream = stream();
    let mut group = criterion.benchmark_group("frames");
    group.throughput(Throughput::Bytes(stream.len() as u64));
    group.bench_function("decode", |bencher| {
        bencher.iter(|| {
            let mut frames = FrameDecoder::new(32 << 20);
            let mut count = 0;
            for chunk in stream.chunks(8 << 10) {
                frames.push(chunk);
                count += std::iter::from_fn(|| frames.next_frame()).count();
            }
            count
        });
    });
    group.finish();
}

fn messages(criterion: &mut Criterion) {
    let call = Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"git__log","arguments":{"n":5}}}"#,
    );
    let params =
        Bytes::from_static(br#"{"name":"git__log","arguments":{"n":5},"_meta":{"progressToken":1}}"#);
    let mut group = criterion.benchmark_group("messages");
    group.bench_function("client request", |bencher| bencher.iter(|| ClientMessage::parse(black_box(&call))));
    group.bench_function("parameters", |bencher| bencher.iter(|| Object::parse(black_box(&params))));
    for (name, bytes) in [("small reply", 20), ("100 KB reply", 100_000)] {
        let line = echo::reply_line(bytes);
        group.throughput(Throughput::Bytes(line.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| ServerMessage::parse(black_box(&line))));
    }
    let id = RequestId::parse(Bytes::from_static(b"\"abc\""));
    let answer = ResponsePayload::Result(echo::result(20));
    group.bench_function("encode answer", |bencher| {
        bencher.iter(|| id.as_ref().map(|id| encode_response(id, &answer)));
    });
    group.finish();
}

criterion_group!(benches, frames, messages);
criterion_main!(benches);
