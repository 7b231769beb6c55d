//! The echo server without a transport: handles one JSON-RPC message and tells the program what to do next.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::message::{Arguments, Incoming, Params};
use crate::tools::{self, Listing, UNIT};
use crate::{KNOWN_VERSIONS, LATEST_WITH_INITIALIZE, NO_INITIALIZE, answer};

const INVALID_PARAMS: i32 = -32602;
const METHOD_NOT_FOUND: i32 = -32601;

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Number of tools to list, including the built-in ones
    #[arg(long, default_value_t = tools::BUILTIN_COUNT)]
    pub tools: usize,
    /// Tools per tools/list page; 0 for all on one page
    #[arg(long, default_value_t = 0)]
    pub page_size: usize,
    /// Id in `serverInfo` and in the answer of `whoami`
    #[arg(long, default_value = "echo")]
    pub id: String,
    /// Also serve the 2026-07-28 revision (`server/discover`, per-request `_meta`)
    #[arg(long)]
    pub modern: bool,
    /// Mark the results of `echo` as cacheable for an hour
    #[arg(long)]
    pub lasting: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { tools: tools::BUILTIN_COUNT, page_size: 0, id: "echo".into(), modern: false, lasting: false }
    }
}

/// The next step of the transport after a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// The answer was appended to the output.
    Reply,
    /// A notification or a response: no answer.
    Silent,
    /// Send these bytes after this time.
    Later(Duration, Vec<u8>),
    /// Exit without answering.
    Crash,
}

pub struct Server {
    options: Options,
    listing: Listing,
    /// `UNIT` as it is written inside a JSON string.
    unit: Vec<u8>,
}

impl Server {
    pub fn new(options: Options) -> Self {
        let listing = Listing::new(&options);
        Self { options, listing, unit: tools::escape(UNIT) }
    }

    /// Handles one JSON-RPC message, appending the answer (without a newline) to `out`.
    pub fn handle(&self, message: &[u8], out: &mut Vec<u8>) -> Action {
        let Ok(incoming) = serde_json::from_slice::<Incoming<'_>>(message) else {
            answer::error(out, "null", -32700, "parse error");
            return Action::Reply;
        };
        let Some(id) = incoming.id.map(RawValue::get) else { return Action::Silent };
        if incoming.method.is_empty() {
            return Action::Silent; // a response to a request that was never sent
        }
        let params: Params<'_> = match parse(incoming.params) {
            Ok(params) => params,
            Err(error) => return fail(out, id, INVALID_PARAMS, &error),
        };
        let speaks_modern = |version: &str| self.options.modern && version >= NO_INITIALIZE;
        let modern = params.meta.as_ref().is_some_and(|meta| speaks_modern(&meta.protocol_version));
        match &*incoming.method {
            "initialize" => self.initialize(id, &params, out),
            "server/discover" if self.options.modern => self.discover(id, out),
            "ping" => {
                answer::write(out, format_args!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
                Action::Reply
            }
            "tools/list" => self.list(id, &params, modern, out),
            "tools/call" => self.call(id, &params, modern, out),
            other => fail(out, id, METHOD_NOT_FOUND, &format!("method not found: {other}")),
        }
    }

    fn initialize(&self, id: &str, params: &Params<'_>, out: &mut Vec<u8>) -> Action {
        let requested = &*params.protocol_version;
        let known = requested < NO_INITIALIZE && KNOWN_VERSIONS.contains(&requested);
        let version = if known { requested } else { LATEST_WITH_INITIALIZE };
        let name = &self.options.id;
        let own_version = env!("CARGO_PKG_VERSION");
        answer::open_result(out, id, false);
        answer::write(out, format_args!(r#""protocolVersion":"{version}","#));
        answer::write(out, format_args!(r#""capabilities":{{"tools":{{"listChanged":false}}}},"#));
        answer::write(out, format_args!(r#""serverInfo":{{"name":"{name}","version":"{own_version}"}}}}}}"#));
        Action::Reply
    }

    fn discover(&self, id: &str, out: &mut Vec<u8>) -> Action {
        let versions = serde_json::to_string(KNOWN_VERSIONS).expect("strings encode");
        let name = &self.options.id;
        let own_version = env!("CARGO_PKG_VERSION");
        let info = format!(
            r#"{{"io.modelcontextprotocol/serverInfo":{{"name":"{name}","version":"{own_version}"}}}}"#
        );
        answer::open_result(out, id, true);
        answer::write(out, format_args!(r#""supportedVersions":{versions},"#));
        answer::write(out, format_args!(r#""capabilities":{{"tools":{{"listChanged":false}}}},"#));
        answer::write(out, format_args!(r#""ttlMs":0,"cacheScope":"private","_meta":{info}}}}}"#));
        Action::Reply
    }

    fn list(&self, id: &str, params: &Params<'_>, modern: bool, out: &mut Vec<u8>) -> Action {
        let pages = &self.listing.pages;
        let page = match params.cursor.as_deref().map(str::parse::<usize>) {
            None => 0,
            Some(Ok(page)) if page < pages.len() => page,
            Some(_) => return fail(out, id, INVALID_PARAMS, "unknown cursor"),
        };
        answer::open_result(out, id, modern);
        if modern {
            out.extend_from_slice(br#""ttlMs":0,"cacheScope":"private","#);
        }
        out.extend_from_slice(br#""tools":["#);
        out.extend_from_slice(pages[page].as_bytes());
        out.push(b']');
        if page + 1 < pages.len() {
            answer::write(out, format_args!(r#","nextCursor":"{}""#, page + 1));
        }
        out.extend_from_slice(b"}}");
        Action::Reply
    }

    fn call(&self, id: &str, params: &Params<'_>, modern: bool, out: &mut Vec<u8>) -> Action {
        let arguments: Arguments<'_> = match parse(params.arguments) {
            Ok(arguments) => arguments,
            Err(error) => return fail(out, id, INVALID_PARAMS, &error),
        };
        let (Some(text), Some(seed)) = (arguments.text(), arguments.seed()) else {
            return fail(out, id, INVALID_PARAMS, "text and seed must be strings");
        };
        match &*params.name {
            "blob" => {
                answer::open_text(out, id, modern);
                self.blob(seed, arguments.bytes, out);
                answer::close_text(out);
            }
            "sleep" => {
                let mut late = Vec::with_capacity(128 + text.len());
                answer::text(&mut late, id, modern, &[text]);
                return Action::Later(Duration::from_millis(arguments.milliseconds), late);
            }
            "whoami" => answer::text(out, id, modern, &[&self.options.id, ":", text]),
            "crash" => return Action::Crash,
            name if name == "echo" || self.listing.names.iter().any(|known| known == name) => {
                answer::text(out, id, modern, &[text]);
                if self.options.lasting {
                    answer::add_ttl(out);
                }
            }
            name => return fail(out, id, INVALID_PARAMS, &format!("unknown tool: {name}")),
        }
        Action::Reply
    }

    fn blob(&self, seed: &str, bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(seed.as_bytes());
        let mut rest = bytes.saturating_sub(seed.len());
        while rest >= UNIT.len() {
            out.extend_from_slice(&self.unit);
            rest -= UNIT.len();
        }
        out.extend_from_slice(&tools::escape(&UNIT[..rest]));
    }
}

fn parse<'a, T: Deserialize<'a> + Default>(raw: Option<&'a RawValue>) -> Result<T, String> {
    match raw {
        None => Ok(T::default()),
        Some(raw) => serde_json::from_str(raw.get()).map_err(|error| error.to_string()),
    }
}

fn fail(out: &mut Vec<u8>, id: &str, code: i32, message: &str) -> Action {
    answer::error(out, id, code, message);
    Action::Reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob_text;
    use serde_json::{Value, json};

    fn ask(server: &Server, message: Value) -> Value {
        let mut out = Vec::new();
        match server.handle(message.to_string().as_bytes(), &mut out) {
            Action::Reply => serde_json::from_slice(&out).expect("valid JSON"),
            Action::Later(_, late) => serde_json::from_slice(&late).expect("valid JSON"),
            other => panic!("no answer: {other:?}"),
        }
    }

    fn call(name: &str, arguments: Value) -> Value {
        json!({"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":name,"arguments":arguments}})
    }

    fn text(answer: &Value) -> &str {
        answer["result"]["content"][0]["text"].as_str().expect("a text block")
    }

    #[test]
    fn initialize_accepts_known_versions_only() {
        let server = Server::new(Options::default());
        for (requested, answered) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("1999-01-01", "2025-11-25"),
        ] {
            let params = json!({"protocolVersion":requested});
            let answer =
                ask(&server, json!({"jsonrpc":"2.0","id":"a","method":"initialize","params":params}));
            assert_eq!(answer["result"]["protocolVersion"], answered);
            assert_eq!(answer["id"], "a");
        }
    }

    #[test]
    fn echo_keeps_every_character() {
        let server = Server::new(Options::default());
        let unusual = "a\"b\\c\n\u{1F600}\u{0}é";
        assert_eq!(text(&ask(&server, call("echo", json!({"text":unusual})))), unusual);
    }

    #[test]
    fn echo_result_has_a_ttl_if_enabled() {
        for lasting in [true, false] {
            let server = Server::new(Options { lasting, ..Options::default() });
            let answer = ask(&server, call("echo", json!({"text":"x"})));
            assert_eq!((text(&answer), answer["result"]["ttlMs"].is_u64()), ("x", lasting));
        }
    }

    #[test]
    fn whoami_and_sleep_answer_their_text() {
        let server = Server::new(Options { id: "s4".into(), ..Options::default() });
        assert_eq!(text(&ask(&server, call("whoami", json!({"text":"x"})))), "s4:x");
        assert_eq!(text(&ask(&server, call("sleep", json!({"ms":1,"text":"x"})))), "x");
    }

    #[test]
    fn blob_has_the_requested_length() {
        let server = Server::new(Options::default());
        for bytes in [4, 63, 64, 65, 10_000] {
            let answer = ask(&server, call("blob", json!({"bytes":bytes,"seed":"w1-2"})));
            assert_eq!(text(&answer), blob_text("w1-2", bytes));
            assert_eq!(text(&answer).len(), bytes);
        }
    }

    #[test]
    fn pages_cover_every_tool_once() {
        let server = Server::new(Options { tools: 23, page_size: 10, ..Options::default() });
        let mut names = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let params = if cursor.is_null() { json!({}) } else { json!({"cursor":cursor}) };
            let answer = ask(&server, json!({"jsonrpc":"2.0","id":1,"method":"tools/list","params":params}));
            for tool in answer["result"]["tools"].as_array().expect("tools") {
                names.push(tool["name"].as_str().expect("a name").to_owned());
            }
            cursor = answer["result"]["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((count, names.len()), (23, 23));
    }

    #[test]
    fn discover_needs_the_modern_option() {
        let discover = json!({"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}});
        assert_eq!(ask(&Server::new(Options::default()), discover.clone())["error"]["code"], -32601);
        let modern = Server::new(Options { modern: true, ..Options::default() });
        let answer = ask(&modern, discover);
        assert_eq!(answer["result"]["resultType"], "complete");
        assert_eq!(answer["result"]["supportedVersions"], json!(KNOWN_VERSIONS));
    }

    #[test]
    fn notifications_get_no_answer_and_unknown_tools_an_error() {
        let server = Server::new(Options::default());
        let mut out = Vec::new();
        let notification = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(server.handle(notification, &mut out), Action::Silent);
        assert!(ask(&server, call("nope", json!({})))["error"].is_object());
        assert_eq!(server.handle(call("crash", json!({})).to_string().as_bytes(), &mut out), Action::Crash);
    }
}
