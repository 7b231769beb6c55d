//! Inverted index over the texts of tools, ranked with BM25F.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use rust_stemmers::{Algorithm, Stemmer};

use super::embedder::{Embedder, VectorIndex};
use super::fields::{SearchField, ServerText, for_each_field};
use super::words::{for_each_word, is_stop_word};

/// Characters of a query that are searched.
pub const MAX_QUERY_CHARS: usize = 4096;
/// Words of one text that are indexed.
const MAX_TEXT_WORDS: usize = 400;
/// Saturation of repeated words (`k1` of BM25).
const SATURATION: f32 = 1.2;
/// Influence of the length of a text (`b` of BM25).
const LENGTH_INFLUENCE: f32 = 0.5;
/// Weight of a stop word in a query; other words have 1.
const STOP_WORD_WEIGHT: f32 = 0.2;
/// Weight of a word of the index that begins like a word of the query, or the other way round.
const PREFIX_WEIGHT: f32 = 0.5;
/// Shortest beginning that is searched for words that the index does not have.
const MIN_PREFIX_BYTES: usize = 3;
/// Words that are tried for one that the index does not have.
const MAX_EXPANSIONS: usize = 64;
/// Part of the best score below which a tool is not a match: it shares only stop words or one of many words with the query.
const MIN_SHARE: f32 = 0.1;
/// Weight of the vectors in relation to the best match of words.
const VECTOR_WEIGHT: f32 = 0.5;

/// A tool as the index sees it.
#[derive(Debug, Clone, Copy)]
pub struct ToolText<'a> {
    /// Its server.
    pub server: &'a ServerText,
    /// Its public name, by which equal scores are ordered.
    pub public_name: &'a str,
    /// Its definition, as JSON.
    pub definition: &'a [u8],
}

impl ToolText<'_> {
    /// Returns the name and description, which an embedder gets.
    pub(super) fn text_to_embed(&self) -> String {
        let mut text = String::new();
        for_each_field(self, |field, part| {
            if matches!(
                field,
                SearchField::Name | SearchField::Title | SearchField::Summary | SearchField::Description
            ) {
                for_each_word(part, |word| {
                    text.push_str(word);
                    text.push(' ');
                });
            }
        });
        text
    }
}

/// The tools that a query can find, by word.
#[derive(Debug)]
pub struct SearchIndex {
    /// All words, sorted.
    terms: Vec<Term>,
    /// The occurrences of all words, in the order of `terms`.
    postings: Vec<Posting>,
    /// The position of each tool in the order that it was passed in. Tools are numbered by public name here.
    positions: Vec<u32>,
    vectors: Option<VectorIndex>,
}

/// A stemmed word.
#[derive(Debug)]
struct Term {
    text: Box<str>,
    /// The end of its postings; they begin where those of the term before it end.
    end: u32,
}

/// The occurrences of one word in one tool.
#[derive(Debug, Clone, Copy)]
struct Posting {
    tool: u32,
    /// The part of the score that does not depend on the query, in units of 1/65535.
    impact: u16,
    /// One bit per [`SearchField`].
    fields: u8,
}

/// A tool that matches a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Match {
    /// The position of the tool in the order that it was passed to [`SearchIndex::build`].
    pub position: usize,
    /// How well it matches; comparable only with other matches of the same query.
    pub score: f32,
    /// The fields that contain words of the query.
    pub fields: Vec<SearchField>,
}

/// A word of the index that a query asks for.
#[derive(Debug, Clone, Copy)]
struct QueryTerm {
    term: usize,
    /// Its weight in the query, multiplied by its rarity.
    weight: f32,
    /// Whether a tool that has only this word is a match.
    is_sufficient: bool,
}

impl SearchIndex {
    /// Builds the index of some tools. The order of results does not depend on the order of the tools.
    pub fn build(tools: &[ToolText<'_>], embedder: Option<Arc<dyn Embedder>>) -> Self {
        let mut order: Vec<usize> = (0..tools.len()).collect();
        order.sort_by_key(|position| (tools[*position].public_name, *position));
        let mut builder = IndexBuilder::default();
        for (tool, position) in order.iter().enumerate() {
            builder.add(to_u32(tool), &tools[*position]);
        }
        let vectors = embedder
            .map(|embedder| VectorIndex::build(embedder, order.iter().map(|position| &tools[*position])));
        let mut by_text: Vec<(String, Vec<Posting>)> = builder.into_terms();
        by_text.sort_by(|left, right| left.0.cmp(&right.0));
        let mut postings = Vec::with_capacity(by_text.iter().map(|(_, found)| found.len()).sum());
        let mut terms = Vec::with_capacity(by_text.len());
        for (text, found) in by_text {
            postings.extend(found);
            terms.push(Term { text: text.into(), end: to_u32(postings.len()) });
        }
        let positions = order.into_iter().map(to_u32).collect();
        Self { terms, postings, positions, vectors }
    }

    /// Returns the best matches of a query, best first, among the tools whose position `is_visible` accepts; it is asked once per
    /// tool. The other tools have no influence, as if they were not indexed. Equal scores are ordered by public name. Only the
    /// first [`MAX_QUERY_CHARS`] characters of the query are read.
    pub fn search(&self, query: &str, limit: usize, is_visible: impl Fn(usize) -> bool) -> Vec<Match> {
        let query = match query.char_indices().nth(MAX_QUERY_CHARS) {
            Some((end, _)) => &query[..end],
            None => query,
        };
        let visible = VisibleTools::new(self.positions.iter().map(|position| is_visible(*position as usize)));
        let query_terms = self.query_terms(query, &visible);
        let mut scores = vec![0.0_f32; self.positions.len()];
        for query_term in &query_terms {
            for posting in self.postings(query_term.term) {
                let score = &mut scores[posting.tool as usize];
                if visible.contains(posting.tool) && (*score > 0.0 || query_term.is_sufficient) {
                    *score += query_term.weight * f32::from(posting.impact);
                }
            }
        }
        if let Some(vectors) = &self.vectors {
            vectors.add_similarity(query, VECTOR_WEIGHT, &mut scores, |tool| visible.contains(to_u32(tool)));
        }
        let best = best_tools(&scores, limit);
        let to_match = |found: Candidate| Match {
            position: self.positions[found.tool as usize] as usize,
            score: found.score / f32::from(u16::MAX),
            fields: self.matched_fields(&query_terms, found.tool),
        };
        let least = best.first().map_or(0.0, |first| first.score * MIN_SHARE);
        best.into_iter().take_while(|found| found.score >= least).map(to_match).collect()
    }

    /// Returns the number of tools.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Returns whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Returns the memory that the index uses, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let texts: usize = self.terms.iter().map(|term| term.text.len()).sum();
        texts
            + size_of_val(&*self.terms)
            + size_of_val(&*self.postings)
            + size_of_val(&*self.positions)
            + self.vectors.as_ref().map_or(0, VectorIndex::memory_bytes)
    }

    /// Returns the words of visible tools that a query asks for. A repeated word counts for more, but not in proportion. Stop
    /// words come last, and are sufficient only if there are no others.
    fn query_terms(&self, query: &str, visible: &VisibleTools) -> Vec<QueryTerm> {
        let stemmer = Stemmer::create(Algorithm::English);
        let mut words: BTreeMap<String, QueryWord> = BTreeMap::new();
        for_each_word(query, |word| {
            let is_stop_word = is_stop_word(word);
            let found = words.entry(stemmer.stem(word).into_owned()).or_default();
            found.count += 1.0;
            found.is_stop_word |= is_stop_word;
        });
        let has_only_stop_words = words.values().all(|word| word.is_stop_word);
        let mut query_terms = Vec::new();
        for (stem, word) in words {
            let weight = word.count.sqrt() * if word.is_stop_word { STOP_WORD_WEIGHT } else { 1.0 };
            let is_sufficient = has_only_stop_words || !word.is_stop_word;
            let place = self.find_term(&stem);
            let known = place.ok().and_then(|term| self.rarity(term, visible).map(|rarity| (term, rarity)));
            match known {
                Some((term, rarity)) => {
                    query_terms.push(QueryTerm { term, weight: weight * rarity, is_sufficient });
                }
                None if is_sufficient => {
                    let place = place.unwrap_or_else(|place| place);
                    query_terms.extend(self.expand_prefix(&stem, place, weight, visible));
                }
                None => {}
            }
        }
        query_terms.sort_by_key(|query_term| !query_term.is_sufficient);
        query_terms
    }

    /// Returns the words of visible tools that begin like a word that none of them has, and those that it begins like. `place`
    /// is where the word is or would be.
    fn expand_prefix(&self, stem: &str, place: usize, weight: f32, visible: &VisibleTools) -> Vec<QueryTerm> {
        if stem.len() < MIN_PREFIX_BYTES {
            return Vec::new();
        }
        let longer = (place..self.terms.len()).take_while(|term| self.terms[*term].text.starts_with(stem));
        let shorter = (stem.len().div_ceil(2).max(MIN_PREFIX_BYTES + 1)..stem.len()).rev();
        let shorter = shorter.filter_map(|end| self.find_term(stem.get(..end)?).ok());
        let to_query_term = |term: usize| {
            let rarity = self.rarity(term, visible)?;
            Some(QueryTerm { term, weight: weight * PREFIX_WEIGHT * rarity, is_sufficient: true })
        };
        let mut found: Vec<QueryTerm> = longer.filter_map(to_query_term).take(MAX_EXPANSIONS).collect();
        found.extend(shorter.filter_map(to_query_term));
        // The alternatives share the weight, so that a short beginning does not outweigh the rest of the query.
        let share = 1.0 / (found.len() as f32).sqrt();
        found.iter_mut().for_each(|query_term| query_term.weight *= share);
        found
    }

    fn find_term(&self, stem: &str) -> Result<usize, usize> {
        self.terms.binary_search_by(|term| (*term.text).cmp(stem))
    }

    fn postings(&self, term: usize) -> &[Posting] {
        let start = term.checked_sub(1).map_or(0, |before| self.terms[before].end);
        &self.postings[start as usize..self.terms[term].end as usize]
    }

    /// Returns the weight of a word by the number of visible tools that have it (`idf` of BM25); `None` if none has it.
    fn rarity(&self, term: usize, visible: &VisibleTools) -> Option<f32> {
        let having = self.postings(term).iter().filter(|posting| visible.contains(posting.tool)).count();
        let tools = visible.count as f32;
        let others = tools - having as f32;
        (having > 0).then(|| (1.0 + (others + 0.5) / (having as f32 + 0.5)).ln())
    }

    fn matched_fields(&self, query_terms: &[QueryTerm], tool: u32) -> Vec<SearchField> {
        let mut bits = 0;
        for query_term in query_terms {
            let postings = self.postings(query_term.term);
            if let Ok(found) = postings.binary_search_by_key(&tool, |posting| posting.tool) {
                bits |= postings[found].fields;
            }
        }
        SearchField::ALL.into_iter().filter(|field| bits & field_bit(*field) != 0).collect()
    }
}

/// The tools that a search may find.
struct VisibleTools {
    is_visible: Vec<bool>,
    count: usize,
}

impl VisibleTools {
    fn new(is_visible: impl Iterator<Item = bool>) -> Self {
        let is_visible: Vec<bool> = is_visible.collect();
        let count = is_visible.iter().filter(|is_visible| **is_visible).count();
        Self { is_visible, count }
    }

    fn contains(&self, tool: u32) -> bool {
        self.is_visible[tool as usize]
    }
}

/// The occurrences of a word in a query.
#[derive(Debug, Default)]
struct QueryWord {
    count: f32,
    is_stop_word: bool,
}

/// A tool with its score. The greatest is the worst, which a heap returns first.
#[derive(Debug)]
struct Candidate {
    score: f32,
    tool: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.tool.cmp(&other.tool))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// Returns the tools with the best scores above zero, best first.
fn best_tools(scores: &[f32], limit: usize) -> Vec<Candidate> {
    let mut best: BinaryHeap<Candidate> = BinaryHeap::new();
    for (tool, score) in scores.iter().enumerate().filter(|(_, score)| **score > 0.0) {
        let candidate = Candidate { score: *score, tool: to_u32(tool) };
        let is_full = best.len() >= limit;
        if is_full && best.peek().is_none_or(|worst| candidate >= *worst) {
            continue;
        }
        if is_full {
            best.pop();
        }
        best.push(candidate);
    }
    best.into_sorted_vec()
}

/// Collects the words of tools.
#[derive(Default)]
struct IndexBuilder {
    /// The number of the stem of each word that was seen.
    stems: HashMap<String, u32>,
    terms: HashMap<String, u32>,
    postings: Vec<Vec<Posting>>,
}

/// The words of one field of a tool, by number of their stem.
type FieldWords = [Vec<u32>; SearchField::ALL.len()];

impl IndexBuilder {
    fn add(&mut self, tool: u32, text: &ToolText<'_>) {
        let stemmer = Stemmer::create(Algorithm::English);
        let mut words = FieldWords::default();
        for_each_field(text, |field, text| {
            let found = &mut words[field as usize];
            for_each_word(text, |word| {
                if found.len() < MAX_TEXT_WORDS {
                    found.push(self.term_of(&stemmer, word));
                }
            });
        });
        let mut occurrences: Vec<Occurrence> = Vec::new();
        for field in SearchField::ALL {
            let found = &words[field as usize];
            let facts = field.weight();
            let length = found.len() as f32 / facts.typical_words;
            let weight = facts.weight / (1.0 - LENGTH_INFLUENCE + LENGTH_INFLUENCE * length);
            occurrences.extend(found.iter().map(|term| Occurrence {
                term: *term,
                weight,
                fields: field_bit(field),
            }));
        }
        // The sort is stable, so that weights are always added in the same order.
        occurrences.sort_by_key(|occurrence| occurrence.term);
        for same_term in occurrences.chunk_by(|left, right| left.term == right.term) {
            let weight: f32 = same_term.iter().map(|occurrence| occurrence.weight).sum();
            let fields = same_term.iter().fold(0, |bits, occurrence| bits | occurrence.fields);
            let impact = (weight / (SATURATION + weight) * f32::from(u16::MAX)) as u16;
            self.postings[same_term[0].term as usize].push(Posting { tool, impact, fields });
        }
    }

    /// Returns the number of the stem of a word.
    fn term_of(&mut self, stemmer: &Stemmer, word: &str) -> u32 {
        if let Some(term) = self.stems.get(word) {
            return *term;
        }
        let stem = stemmer.stem(word).into_owned();
        let next = to_u32(self.postings.len());
        let term = *self.terms.entry(stem).or_insert(next);
        if term == next {
            self.postings.push(Vec::new());
        }
        self.stems.insert(word.to_owned(), term);
        term
    }

    fn into_terms(mut self) -> Vec<(String, Vec<Posting>)> {
        let postings = &mut self.postings;
        self.terms
            .into_iter()
            .map(|(text, term)| (text, std::mem::take(&mut postings[term as usize])))
            .collect()
    }
}

/// One occurrence of a word in a tool.
struct Occurrence {
    term: u32,
    weight: f32,
    fields: u8,
}

fn field_bit(field: SearchField) -> u8 {
    1 << field as u8
}

/// Numbers tools, words and occurrences. A catalog has far fewer than 2^32 of each.
fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
