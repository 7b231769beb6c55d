//! The list of tools, and the filler text of the `blob` tool.
//!
//! Descriptions and schemas of the filler tools have an ordinary length, so that a list of many tools has an
//! ordinary size.

use crate::server::Options;

/// Name, description and schema properties of the tools that every server has.
const BUILTIN: &[(&str, &str, &str)] = &[
    ("echo", "Returns its text unchanged.", r#""text":{"type":"string","description":"Text to return"}"#),
    (
        "blob",
        "Returns `bytes` bytes of text that begin with `seed`.",
        r#""bytes":{"type":"integer","minimum":0},"seed":{"type":"string"}"#,
    ),
    (
        "sleep",
        "Answers after `ms` milliseconds with its text, without blocking other calls.",
        r#""ms":{"type":"integer","minimum":0},"text":{"type":"string"}"#,
    ),
    ("whoami", "Returns this server's id, a colon and the text.", r#""text":{"type":"string"}"#),
    ("crash", "Exits the process without answering.", ""),
];

/// The default number of tools.
pub(crate) const BUILTIN_COUNT: usize = BUILTIN.len();

const FILLER_PROPERTIES: &str = concat!(
    r#""text":{"type":"string","description":"Text to return"},"#,
    r#""limit":{"type":"integer","description":"Largest number of results to return","#,
    r#""minimum":1,"maximum":1000,"default":50},"#,
    r#""verbose":{"type":"boolean","description":"Whether to explain the answer"}"#,
);

/// The tools, encoded once for `tools/list`.
pub(crate) struct Listing {
    /// Encoded tool objects, comma separated, one string per page.
    pub(crate) pages: Vec<String>,
    pub(crate) names: Vec<String>,
}

impl Listing {
    pub(crate) fn new(options: &Options) -> Self {
        let mut names = Vec::new();
        let mut tools = Vec::new();
        for (name, description, properties) in BUILTIN.iter().take(options.tools) {
            names.push((*name).to_owned());
            tools.push(tool(name, description, properties));
        }
        for number in tools.len()..options.tools {
            let name = format!("tool_{number:04}");
            tools.push(tool(&name, &filler_description(number, &options.id), FILLER_PROPERTIES));
            names.push(name);
        }
        let per_page = if options.page_size == 0 { tools.len().max(1) } else { options.page_size };
        let mut pages: Vec<String> = tools.chunks(per_page).map(|page| page.join(",")).collect();
        if pages.is_empty() {
            pages.push(String::new());
        }
        Self { pages, names }
    }
}

fn filler_description(number: usize, id: &str) -> String {
    format!(
        "Filler tool number {number} of server {id}. It answers like `echo`, and carries a description and a \
         schema of ordinary length so that a list of many tools has an ordinary size."
    )
}

fn tool(name: &str, description: &str, properties: &str) -> String {
    let schema = format!(r#"{{"type":"object","properties":{{{properties}}}}}"#);
    format!(r#"{{"name":"{name}","description":"{description}","inputSchema":{schema}}}"#)
}

/// One period of the filler text: 63 printable bytes and a newline.
pub(crate) const UNIT: &[u8; 64] = b"The quick brown fox jumps over the lazy dog, 0123456789 times.,\n";

/// Returns the decoded text that `blob` answers with: `seed` followed by filler, `bytes` long.
pub fn blob_text(seed: &str, bytes: usize) -> String {
    let mut out = String::with_capacity(bytes.max(seed.len()));
    out.push_str(seed);
    let unit = std::str::from_utf8(UNIT).expect("ascii");
    while out.len() + UNIT.len() <= bytes {
        out.push_str(unit);
    }
    let rest = bytes.saturating_sub(out.len());
    out.push_str(&unit[..rest]);
    out
}

/// Returns `text` as it is written inside a JSON string.
pub(crate) fn escape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 8);
    for &byte in text {
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => out.push(byte),
        }
    }
    out
}
