//! `growth-load`: checks that work on input of a peer grows in proportion to its size.
//!
//! Each path is measured with an input of one, two and four times a size. Four times the input may cost up to
//! [`MAX_RATIO`] times as much: work that grows with the square costs 16 times as much. Prints one line per path and exits
//! with 1 if one grows faster.

use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tempfile::TempDir;
use toolcrib::catalog::uri_template::UriTemplate;
use toolcrib::protocol::framing::FrameDecoder;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::member_names::check_params;
use toolcrib::protocol::sse::SseDecoder;
use toolcrib::{Caller, Crib, Policy, Rules, ServerId, ServerSpec, Toolbox};

/// Linear work costs 4 times as much, sorting 5 times, and allocation adds noise.
const MAX_RATIO: f64 = 8.0;
/// Runs of each size; the fastest counts.
const RUNS: usize = 5;

/// Work on an input of a given size, and the size to begin with.
struct GrowthPath {
    name: &'static str,
    size: usize,
    run: fn(usize) -> Duration,
}

const PATHS: [GrowthPath; 11] = [
    GrowthPath { name: "members of params", size: 20_000, run: params_with_many_members },
    GrowthPath { name: "nested arrays", size: 200_000, run: nested_arrays },
    GrowthPath { name: "escapes in a string", size: 200_000, run: escaped_string },
    GrowthPath { name: "URI encoded many times, with a rule", size: 1_000, run: nested_percent_encoding },
    GrowthPath { name: "URI with many segments, with a rule", size: 1_000, run: dotted_uri },
    GrowthPath { name: "URI template", size: 500, run: uri_template },
    GrowthPath { name: "line in small pieces", size: 500_000, run: line_in_pieces },
    GrowthPath { name: "event in small pieces", size: 500_000, run: event_in_pieces },
    GrowthPath { name: "many small events", size: 50_000, run: many_events },
    GrowthPath { name: "list of tools", size: 500, run: list_of_tools },
    GrowthPath { name: "list of changed tools", size: 500, run: list_of_changed_tools },
];

fn main() -> ExitCode {
    let mut exit = ExitCode::SUCCESS;
    for GrowthPath { name, size, run } in PATHS {
        let [one, two, four] = [1, 2, 4].map(|factor| fastest(run, size * factor));
        let ratio = four.as_secs_f64() / one.as_secs_f64();
        println!("{name:40} {one:>9.1?} {two:>9.1?} {four:>9.1?}  x {ratio:.1}");
        if ratio > MAX_RATIO {
            eprintln!("{name}: four times the input costs {ratio:.1} times as much, more than {MAX_RATIO}");
            exit = ExitCode::FAILURE;
        }
    }
    exit
}

fn fastest(run: fn(usize) -> Duration, size: usize) -> Duration {
    let fastest = (0..RUNS).map(|_| run(size)).min();
    fastest.unwrap_or_default().max(Duration::from_micros(1))
}

/// Returns the CPU time of `work`.
fn measure<T>(work: impl FnOnce() -> T) -> Duration {
    let start = stats::own_cpu_time();
    std::hint::black_box(work());
    stats::own_cpu_time() - start
}

fn params_with_many_members(size: usize) -> Duration {
    let members: Vec<String> = (0..size).map(|n| format!("\"member{n}\":{n}")).collect();
    let params = Bytes::from(format!("{{{}}}", members.join(",")));
    measure(|| Object::parse(&params).map(|params| check_params(&params).is_ok()))
}

fn nested_arrays(size: usize) -> Duration {
    let params = Bytes::from(format!("{{\"a\":{}{}}}", "[".repeat(size), "]".repeat(size)));
    measure(|| Object::parse(&params).is_ok())
}

fn escaped_string(size: usize) -> Duration {
    let params = Bytes::from(format!("{{\"name\":\"{}\"}}", "\\u0041".repeat(size)));
    measure(|| Object::parse(&params).map(|params| params.get_string("name").map(|name| name.len())))
}

/// Decides a thousand times about a URI.
fn authorize(uri: &str) -> Duration {
    let rule = "a.file:///secret/*".parse().expect("a rule");
    let server: ServerId = "a".parse().expect("a server");
    let policy = Policy::for_everyone(Rules::default().denying([rule]));
    let caller = Caller::local();
    measure(|| (0..1000).filter(|_| policy.authorize(&caller, &server, Some(uri)).is_ok()).count())
}

fn nested_percent_encoding(size: usize) -> Duration {
    authorize(&format!("file:///%{}41", "25".repeat(size)))
}

fn dotted_uri(size: usize) -> Duration {
    authorize(&format!("file:///{}x", "a/../".repeat(size / 5)))
}

fn uri_template(size: usize) -> Duration {
    let template = UriTemplate::parse("x:{a}{b}{c}{+d}{e*}").expect("a template");
    let uri = format!("x:{}", "a,".repeat(size));
    measure(|| (0..100).filter(|_| template.matches(&uri)).count())
}

fn line_in_pieces(size: usize) -> Duration {
    let piece = [b'x'; 64];
    measure(|| {
        let mut decoder = FrameDecoder::new(usize::MAX - 1);
        for _ in 0..size / piece.len() {
            decoder.push(&piece);
            assert!(decoder.next_frame().is_none());
        }
        decoder.push(b"\n");
        decoder.next_frame()
    })
}

fn event_in_pieces(size: usize) -> Duration {
    let piece = [b'x'; 64];
    measure(|| {
        let mut decoder = SseDecoder::new(usize::MAX - 1);
        decoder.push(b"data: ");
        for _ in 0..size / piece.len() {
            decoder.push(&piece);
            assert!(matches!(decoder.next_event(), Ok(None)));
        }
        decoder.push(b"\n\n");
        decoder.next_event().map(|event| event.is_some())
    })
}

fn many_events(size: usize) -> Duration {
    let events = "data: x\n\n".repeat(size);
    measure(|| {
        let mut decoder = SseDecoder::new(1 << 20);
        decoder.push(events.as_bytes());
        let mut count = 0;
        while matches!(decoder.next_event(), Ok(Some(_))) {
            count += 1;
        }
        assert_eq!(count, size);
    })
}

/// Lists a server with `size` tools, whose descriptions end with `version`, and returns the time of it.
fn list(state: &TempDir, size: usize, version: u32) -> Duration {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let tools = (0..size).fold(Toolbox::new(), |tools, n| {
        tools.tool(&format!("tool{n}"), &format!("version {version}"), &schema, |_| async { Ok(String::new()) })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    measure(|| {
        runtime.block_on(async {
            let spec = ServerSpec::in_process("many".parse().expect("a name"), tools);
            let crib = Crib::builder().server(spec).state_dir(state.path()).build().expect("a crib");
            crib.discover().await;
            assert_eq!(crib.catalog().tools().len(), size);
            crib.shutdown(Duration::from_secs(10)).await;
        });
    })
}

fn list_of_tools(size: usize) -> Duration {
    list(&TempDir::new().expect("a folder"), size, 1)
}

fn list_of_changed_tools(size: usize) -> Duration {
    let state = TempDir::new().expect("a folder");
    list(&state, size, 1);
    list(&state, size, 2)
}
