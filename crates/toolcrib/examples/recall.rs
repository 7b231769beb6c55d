//! Measures how often the tool search finds the right tool, and what it costs. `scripts/recall` runs it.
//!
//! Each argument is a set, or a folder of sets. A set is a folder with `tools.jsonl` (`{"id", "server", "name", "description", "schema"}`) and `queries.jsonl`
//! (`{"id", "query", "gold": [[ID, …], …]}`). A group of `gold` is found if one of its ids is among the first k results.
//! `--vectors FILE` adds word vectors in the text format of GloVe: a word and its values per line.

#![expect(clippy::print_stdout, reason = "the figures are the output of this example")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rust_stemmers::{Algorithm, Stemmer};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::Value;
use toolcrib::Embedder;
use toolcrib::search::{SearchIndex, ServerText, ToolText};

/// Results per query.
const LIMIT: usize = 10;
/// Samples of the bootstrap.
const SAMPLES: usize = 1000;

#[derive(Deserialize)]
struct ToolLine {
    id: String,
    #[serde(default)]
    server: String,
    name: String,
    description: Option<String>,
    schema: Option<Value>,
}

#[derive(Deserialize)]
struct QueryLine {
    query: String,
    gold: Vec<Vec<String>>,
}

/// A folder of tools and queries.
struct Set {
    name: String,
    tools: Vec<ToolLine>,
    definitions: Vec<String>,
    servers: Vec<ServerText>,
    queries: Vec<QueryLine>,
}

/// The figures of one query: recall@1, recall@5, recall@10 and reciprocal rank.
type Figures = [f64; 4];

/// Returns the positions of the best tools for a query.
type Ranker<'a> = Box<dyn Fn(&str) -> Vec<usize> + 'a>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut folders = Vec::new();
    let mut vectors = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--vectors" => vectors = Some(args.next().ok_or("--vectors needs a file")?),
            _ => folders.push(arg),
        }
    }
    if folders.is_empty() {
        return Err("usage: recall [--vectors FILE] DIR…".into());
    }
    let vectors = vectors.map(|file| WordVectors::read(Path::new(&file))).transpose()?;
    let vectors = vectors.map(|vectors| Arc::new(vectors) as Arc<dyn Embedder>);
    let mut sets = Vec::new();
    for folder in &folders {
        for set in find_sets(Path::new(folder))? {
            sets.push(Set::read(&set)?);
        }
    }
    print_quality(&sets, vectors.as_ref());
    print_cost(&sets);
    Ok(())
}

/// Returns the folder if it is a set, else the sets in it, by name.
fn find_sets(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let is_set = |folder: &Path| folder.join("tools.jsonl").exists();
    if is_set(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut sets = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    sets.retain(|folder| is_set(folder));
    sets.sort();
    match sets.is_empty() {
        true => {
            Err(format!("{}: there is no `tools.jsonl`, also not in its folders", folder.display()).into())
        }
        false => Ok(sets),
    }
}

impl Set {
    fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let tools: Vec<ToolLine> = read_lines(&folder.join("tools.jsonl"))?;
        let queries: Vec<QueryLine> = read_lines(&folder.join("queries.jsonl"))?;
        let definition = |tool: &ToolLine| {
            let schema = tool.schema.clone().unwrap_or_default();
            serde_json::json!({"name": tool.name, "description": tool.description, "inputSchema": schema})
                .to_string()
        };
        let server = |tool: &ToolLine| ServerText { name: tool.server.clone(), about: String::new() };
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        let definitions = tools.iter().map(definition).collect();
        let servers = tools.iter().map(server).collect();
        Ok(Self { name, definitions, servers, tools, queries })
    }

    fn texts(&self) -> Vec<ToolText<'_>> {
        let text = |index: usize| ToolText {
            server: &self.servers[index],
            public_name: &self.tools[index].name,
            definition: self.definitions[index].as_bytes(),
        };
        (0..self.tools.len()).map(text).collect()
    }

    fn measure(&self, rank: &Ranker<'_>) -> Vec<Figures> {
        let figures = |query: &QueryLine| {
            let found: Vec<&str> =
                rank(&query.query).into_iter().map(|position| self.tools[position].id.as_str()).collect();
            let rank_of =
                |group: &Vec<String>| found.iter().position(|id| group.iter().any(|gold| gold == id));
            let ranks: Vec<Option<usize>> = query.gold.iter().map(rank_of).collect();
            let recall = |limit: usize| {
                ranks.iter().flatten().filter(|rank| **rank < limit).count() as f64 / ranks.len() as f64
            };
            let first = ranks.iter().flatten().min().map_or(0.0, |rank| 1.0 / (*rank as f64 + 1.0));
            [recall(1), recall(5), recall(LIMIT), first]
        };
        self.queries.iter().map(figures).collect()
    }
}

fn read_lines<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<Vec<T>, Box<dyn Error>> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parse = |line: &str| {
        serde_json::from_str(line).map_err(|error| format!("{}: {error}", file.display()).into())
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(parse).collect()
}

fn print_quality(sets: &[Set], vectors: Option<&Arc<dyn Embedder>>) {
    println!("| ranker | set | recall@1 | recall@5 | recall@10 | MRR |\n|---|---|---|---|---|---|");
    for name in ["substring", "plain BM25", "BM25F", "toolcrib", "toolcrib with vectors"] {
        if name == "toolcrib with vectors" && vectors.is_none() {
            println!("| {name} | – | none are shipped; `--vectors FILE` measures some | | | |");
            continue;
        }
        let mut measured = Vec::new();
        for set in sets {
            let figures = set.measure(&ranker(name, set, vectors));
            print_row(
                name,
                &format!("{} ({} tools, {} queries)", set.name, set.tools.len(), figures.len()),
                &[&figures],
            );
            measured.push(figures);
        }
        let all: Vec<&Vec<Figures>> = measured.iter().collect();
        print_row(name, "mean over sets", &all);
    }
}

fn ranker<'a>(name: &str, set: &'a Set, vectors: Option<&Arc<dyn Embedder>>) -> Ranker<'a> {
    match name {
        "substring" => Box::new(|query| substring(set, query)),
        "plain BM25" => {
            let index = PlainIndex::build(set);
            Box::new(move |query| index.search(query))
        }
        "BM25F" => {
            let index = FieldIndex::build(set);
            Box::new(move |query| index.search(query))
        }
        _ => {
            let embedder = vectors.filter(|_| name != "toolcrib").cloned();
            let index = SearchIndex::build(&set.texts(), embedder);
            Box::new(move |query| {
                index.search(query, LIMIT, |_| true).into_iter().map(|found| found.position).collect()
            })
        }
    }
}

/// Prints the means of some sets with 95 % intervals, which are found by drawing the queries of each set again.
fn print_row(ranker: &str, label: &str, sets: &[&Vec<Figures>]) {
    let mut random = Random(1);
    let mean = |figures: &[Figures], column: usize| {
        figures.iter().map(|figures| figures[column]).sum::<f64>() / figures.len() as f64
    };
    let cells: Vec<String> = (0..4)
        .map(|column| {
            let value = sets.iter().map(|set| mean(set, column)).sum::<f64>() / sets.len() as f64;
            let mut samples: Vec<f64> = (0..SAMPLES)
                .map(|_| {
                    let drawn = sets.iter().map(|set| {
                        (0..set.len()).map(|_| set[random.below(set.len())][column]).sum::<f64>()
                            / set.len() as f64
                    });
                    drawn.sum::<f64>() / sets.len() as f64
                })
                .collect();
            samples.sort_by(f64::total_cmp);
            format!("{value:.3} [{:.3}, {:.3}]", samples[SAMPLES / 40], samples[SAMPLES - 1 - SAMPLES / 40])
        })
        .collect();
    println!("| {ranker} | {label} | {} |", cells.join(" | "));
}

/// A small generator of numbers, so that every run prints the same intervals.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Finds tools that contain the query or most of its words, as a filter over names and descriptions does.
fn substring(set: &Set, query: &str) -> Vec<usize> {
    let query = query.to_lowercase();
    let words: HashSet<&str> = query.split_whitespace().collect();
    let score = |tool: &ToolLine| {
        let text =
            format!("{} {}", tool.name, tool.description.as_deref().unwrap_or_default()).to_lowercase();
        words.iter().filter(|word| text.contains(**word)).count() + 1000 * usize::from(text.contains(&query))
    };
    let scores: Vec<f64> = set.tools.iter().map(|tool| score(tool) as f64).collect();
    best(&scores)
}

/// BM25 over names and descriptions as written, split at whitespace and punctuation.
struct PlainIndex {
    postings: HashMap<String, Vec<(usize, f64)>>,
    lengths: Vec<f64>,
}

impl PlainIndex {
    fn build(set: &Set) -> Self {
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        let mut lengths = Vec::new();
        for (position, tool) in set.tools.iter().enumerate() {
            let text = format!("{} {}", tool.name, tool.description.as_deref().unwrap_or_default());
            let mut counts: BTreeMap<String, f64> = BTreeMap::new();
            plain_words(&text).for_each(|word| *counts.entry(word).or_default() += 1.0);
            lengths.push(counts.values().sum());
            counts
                .into_iter()
                .for_each(|(word, count)| postings.entry(word).or_default().push((position, count)));
        }
        Self { postings, lengths }
    }

    fn search(&self, query: &str) -> Vec<usize> {
        let tools = self.lengths.len() as f64;
        let average = self.lengths.iter().sum::<f64>() / tools;
        let mut scores = vec![0.0; self.lengths.len()];
        for word in plain_words(query) {
            let Some(found) = self.postings.get(&word) else { continue };
            let having = found.len() as f64;
            let rarity = (1.0 + (tools - having + 0.5) / (having + 0.5)).ln();
            for (position, count) in found {
                let length = 0.25 + 0.75 * self.lengths[*position] / average;
                scores[*position] += rarity * count * 2.2 / (count + 1.2 * length);
            }
        }
        best(&scores)
    }
}

/// BM25F as in textbooks: words are split at case and punctuation and stemmed, and the name counts twice. No prefixes, no
/// stop words, no cut-off.
struct FieldIndex {
    /// By word, the tools that have it with its weighted number of occurrences.
    postings: HashMap<String, Vec<(usize, f64)>>,
    tools: usize,
}

impl FieldIndex {
    /// The fields of a tool, each with its weight.
    fn fields(tool: &ToolLine) -> [(String, f64); 4] {
        let mut arguments = String::new();
        collect_texts(tool.schema.as_ref().unwrap_or(&Value::Null), &mut arguments);
        let description = tool.description.clone().unwrap_or_default();
        [(tool.name.clone(), 2.0), (tool.server.clone(), 1.0), (description, 1.0), (arguments, 0.5)]
    }

    fn build(set: &Set) -> Self {
        let tools = set.tools.len();
        let words: Vec<[(Vec<String>, f64); 4]> = set
            .tools
            .iter()
            .map(|tool| Self::fields(tool).map(|(text, weight)| (stemmed_words(&text), weight)))
            .collect();
        let mean_length = |field: usize| {
            words.iter().map(|fields| fields[field].0.len()).sum::<usize>() as f64 / tools as f64
        };
        let means: Vec<f64> = (0..4).map(mean_length).collect();
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        for (position, fields) in words.iter().enumerate() {
            let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
            for ((words, weight), mean) in fields.iter().zip(&means) {
                let length = 0.25 + 0.75 * words.len() as f64 / mean.max(1.0);
                words.iter().for_each(|word| *counts.entry(word).or_default() += weight / length);
            }
            for (word, count) in counts {
                postings.entry(word.to_owned()).or_default().push((position, count));
            }
        }
        Self { postings, tools }
    }

    fn search(&self, query: &str) -> Vec<usize> {
        let mut scores = vec![0.0; self.tools];
        for word in stemmed_words(query) {
            let Some(found) = self.postings.get(&word) else { continue };
            let having = found.len() as f64;
            let rarity = (1.0 + (self.tools as f64 - having + 0.5) / (having + 0.5)).ln();
            for (position, count) in found {
                scores[*position] += rarity * count / (count + 1.2);
            }
        }
        best(&scores)
    }
}

/// Collects the names and descriptions of arguments.
fn collect_texts(schema: &Value, texts: &mut String) {
    for (key, value) in schema.as_object().into_iter().flatten() {
        match value {
            Value::String(text) if key == "description" => {
                texts.push_str(text);
                texts.push(' ');
            }
            Value::Object(properties) if key == "properties" => {
                for (name, property) in properties {
                    texts.push_str(name);
                    texts.push(' ');
                    collect_texts(property, texts);
                }
            }
            value => collect_texts(value, texts),
        }
    }
}

/// Splits a text at punctuation and changes of case, and stems its words.
fn stemmed_words(text: &str) -> Vec<String> {
    let stemmer = Stemmer::create(Algorithm::English);
    let mut split = String::new();
    let mut last_is_lower = false;
    for letter in text.chars() {
        if last_is_lower && letter.is_uppercase() {
            split.push(' ');
        }
        last_is_lower = letter.is_lowercase();
        split.push(if letter.is_alphanumeric() { letter } else { ' ' });
    }
    split.split_whitespace().map(|word| stemmer.stem(&word.to_lowercase()).into_owned()).collect()
}

fn plain_words(text: &str) -> impl Iterator<Item = String> {
    let separators = |letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '-';
    text.split(separators).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

fn best(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|position| scores[*position] > 0.0).collect();
    order.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]).then(left.cmp(right)));
    order.truncate(LIMIT);
    order
}

/// Word vectors; a text has the mean of its words, where rare words count for more.
#[derive(Debug)]
struct WordVectors {
    words: HashMap<String, WordVector>,
}

#[derive(Debug)]
struct WordVector {
    values: Vec<f32>,
    /// Weight of the word: words that come first in the file are frequent.
    weight: f32,
}

impl WordVectors {
    fn read(file: &Path) -> Result<Self, Box<dyn Error>> {
        let mut words = HashMap::new();
        for (rank, line) in fs::read_to_string(file)?.lines().enumerate() {
            let mut parts = line.split(' ');
            let word = parts.next().unwrap_or_default().to_owned();
            let values = parts.map(str::parse).collect::<Result<Vec<f32>, _>>()?;
            // The frequency of a word is about one in ten times its rank.
            let frequency = 0.1 / (rank as f32 + 1.0);
            words.insert(word, WordVector { values, weight: 1e-3 / (1e-3 + frequency) });
        }
        Ok(Self { words })
    }
}

impl Embedder for WordVectors {
    fn embed(&self, text: &str) -> Option<Vec<f32>> {
        let mut sum: Vec<f32> = Vec::new();
        for word in text.split(|letter: char| !letter.is_alphanumeric()) {
            if let Some(vector) = self.words.get(&word.to_lowercase()) {
                sum.resize(vector.values.len(), 0.0);
                sum.iter_mut().zip(&vector.values).for_each(|(sum, value)| *sum += value * vector.weight);
            }
        }
        (!sum.is_empty()).then_some(sum)
    }
}

/// Returns the processor time of this thread, which does not depend on the load of the machine.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Prints the processor time and memory of the index, with the tools of all sets repeated up to 1,000 and 10,000.
fn print_cost(sets: &[Set]) {
    println!(
        "\n| tools | index, per tool | memory, per tool | query, median | query, 99 % |\n|---|---|---|---|---|"
    );
    let texts: Vec<ToolText<'_>> = sets.iter().flat_map(Set::texts).collect();
    let queries: Vec<&str> =
        sets.iter().flat_map(|set| &set.queries).map(|query| query.query.as_str()).collect();
    for count in [1000, 10_000] {
        let tools: Vec<ToolText<'_>> = texts.iter().cycle().take(count).copied().collect();
        let index = SearchIndex::build(&tools, None);
        let timed_build = |_| {
            let started = cpu_time();
            assert_eq!(SearchIndex::build(&tools, None).len(), count);
            cpu_time().saturating_sub(started)
        };
        let build = (0..5).map(timed_build).min().unwrap_or_default();
        let timed = |query: &&str| {
            let started = cpu_time();
            let found = index.search(query, LIMIT, |_| true);
            assert!(found.len() <= LIMIT);
            cpu_time().saturating_sub(started)
        };
        let mut times: Vec<_> = queries.iter().cycle().take(1000).map(timed).collect();
        times.sort();
        println!(
            "| {count} | {:.1} µs | {} B | {:.1} µs | {:.1} µs |",
            build.as_secs_f64() * 1e6 / count as f64,
            index.memory_bytes() / count,
            times[times.len() / 2].as_secs_f64() * 1e6,
            times[times.len() * 99 / 100].as_secs_f64() * 1e6,
        );
    }
}
