//! Makes distinguishable calls and checks their answers.
//!
//! Every call carries a unique tag and its answer is compared in full, so a mixed-up answer counts as a mismatch.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use echo_server::blob_text;

use crate::cli::{Kind, Load, Match};

/// One tool to call, and the expected prefix of its answers.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) tool: String,
    pub(crate) template: Option<String>,
    pub(crate) answer_prefix: String,
}

impl Route {
    pub(crate) fn new(tool: String, template: Option<String>) -> Self {
        Self { tool, template, answer_prefix: String::new() }
    }
}

/// The calls of one run, handed out to workers one by one.
pub(crate) struct Work {
    load: Load,
    routes: Vec<Route>,
    filler: String,
    /// `filler` as it is written inside a JSON string.
    filler_encoded: String,
    next: AtomicU64,
    limit: u64,
    deadline: Option<Instant>,
}

/// One call to make, and what its answer is checked against.
pub(crate) struct Task<'a> {
    pub(crate) route: &'a Route,
    pub(crate) tag: String,
    pub(crate) arguments: String,
}

const TAG_LEN: usize = 14;

impl Work {
    pub(crate) fn new(load: &Load, routes: Vec<Route>, limit: u64) -> Self {
        let filler = blob_text("", load.size.saturating_sub(TAG_LEN));
        let encoded = serde_json::to_string(&filler).expect("a string encodes");
        Self {
            load: load.clone(),
            routes,
            filler,
            filler_encoded: encoded[1..encoded.len() - 1].to_owned(),
            next: AtomicU64::new(0),
            limit,
            deadline: load.max_seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds)),
        }
    }

    /// Returns the next call; `None` when all are handed out or the time is up.
    pub(crate) fn take(&self) -> Option<Task<'_>> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.limit {
            return None;
        }
        let route = &self.routes[number as usize % self.routes.len()];
        let tag = tag(number);
        let arguments = self.arguments(&tag);
        Some(Task { route, tag, arguments })
    }

    fn arguments(&self, tag: &str) -> String {
        let load = &self.load;
        let filler = &self.filler_encoded;
        match load.kind {
            Kind::Blob => format!(r#"{{"bytes":{},"seed":"{tag}"}}"#, load.size.max(TAG_LEN)),
            Kind::Sleep => format!(r#"{{"ms":{},"text":"{tag}{filler}"}}"#, load.sleep_ms),
            Kind::Echo | Kind::Whoami => format!(r#"{{"text":"{tag}{filler}"}}"#),
        }
    }

    pub(crate) fn is_correct(&self, task: &Task<'_>, text: &str) -> bool {
        match self.load.matching {
            Match::Contains => text.contains(&task.tag) && text.len() >= self.load.size,
            Match::Exact => {
                let rest = text.strip_prefix(&*task.route.answer_prefix);
                rest.and_then(|rest| rest.strip_prefix(&*task.tag)) == Some(&*self.filler)
            }
        }
    }
}

/// Returns a unique tag of `TAG_LEN` bytes. It starts at another number in every process, so that a response cache of a
/// gateway has no effect between runs.
fn tag(number: u64) -> String {
    static START: LazyLock<u64> =
        LazyLock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64);
    format!("call-{:08x}:", START.wrapping_add(number) & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Mode};
    use clap::Parser;

    fn load(options: &[&str]) -> Load {
        let args = ["mcp-load", "call"].iter().chain(options);
        match Cli::parse_from(args).mode {
            Mode::Call(options) => options.load,
            _ => unreachable!("the mode is call"),
        }
    }

    fn work(options: &[&str], limit: u64) -> Work {
        Work::new(&load(options), vec![Route::new("echo".into(), None)], limit)
    }

    #[test]
    fn work_hands_out_the_requested_number_of_distinct_calls() {
        let work = work(&[], 3);
        let tags: Vec<String> = std::iter::from_fn(|| work.take()).map(|task| task.tag).collect();
        assert_eq!(tags.len(), 3);
        assert!(tags[0] != tags[1] && tags[1] != tags[2]);
        assert!(tags.iter().all(|tag| tag.len() == TAG_LEN));
    }

    #[test]
    fn only_the_whole_text_of_the_same_call_is_correct() {
        let work = work(&["--size", "100"], 2);
        let first = work.take().expect("a call");
        let second = work.take().expect("a call");
        let sent: serde_json::Value = serde_json::from_str(&first.arguments).expect("valid JSON");
        let text = sent["text"].as_str().expect("a text");
        assert_eq!(text.len(), 100);
        assert!(work.is_correct(&first, text));
        assert!(!work.is_correct(&second, text));
        assert!(!work.is_correct(&first, &text[..99]));
    }

    #[test]
    fn wrapped_answers_are_correct_only_with_match_contains() {
        let exact = work(&["--size", "20"], 1);
        let task = exact.take().expect("a call");
        let wrapped = format!("answer: {}{}", task.tag, exact.filler);
        assert!(!exact.is_correct(&task, &wrapped));
        let contains = work(&["--size", "20", "--match", "contains"], 1);
        assert!(contains.is_correct(&task, &wrapped));
    }
}
