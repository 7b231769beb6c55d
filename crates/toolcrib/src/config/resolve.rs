//! `Draft`: every layer, read and laid over the farther ones. With the facts it becomes a [`Config`]; nothing is read or
//! found out for that, so the same layers and facts always come to the same.

use std::path::{Path, PathBuf};

use super::declared::{self, Setting};
use super::facts::{Facts, Wanted};
use super::layer::{Layer, Rank};
use super::node::{self, Table};
use super::page::Page;
use super::{Concern, Config, Problem, hosts, merge, root, scope};
use crate::spec::ServerId;

/// What a project may not decide: who comes in, and what the whole gateway may take; nor what is recorded, nor anything of
/// the rules for everyone but what they forbid.
const NOT_FOR_PROJECTS: [&str; 4] = ["callers", "limits", "listen", "secrets"];

/// Every layer, read, before it is known where we are.
pub struct Draft {
    /// The file that stands for all of them in messages.
    file: PathBuf,
    files: Vec<PathBuf>,
    page: Page,
    root: Table,
    /// Of files as such.
    problems: Vec<Problem>,
    broken: bool,
}

/// The text of a file, and how near it is.
struct Text {
    rank: Rank,
    file: PathBuf,
    text: String,
}

impl Draft {
    /// Reads every layer, the farthest first. What cannot be read is a problem like any other.
    pub fn read(layers: &[Layer]) -> Self {
        let (mut texts, mut problems, mut broken) = (Vec::new(), Vec::new(), false);
        for layer in layers {
            match layer.read() {
                Ok(Some((text, warned))) => {
                    texts.push(Text { rank: layer.rank, file: layer.path.clone(), text });
                    problems.extend(warned);
                }
                Ok(None) => {}
                Err(problem) => {
                    problems.push(problem);
                    broken = true;
                }
            }
        }
        let stands_for_all = layers.iter().rev().find(|layer| layer.rank != Rank::Project);
        let file = stands_for_all.or(layers.last()).map(|layer| layer.path.clone()).unwrap_or_default();
        let draft = Self::of(file, &texts);
        let mut all = problems;
        all.extend(draft.problems);
        Self { problems: all, broken: broken || draft.broken, ..draft }
    }

    /// Reads the text of one file. Relative paths in it are below the folder of `path`.
    pub fn parse(path: &Path, text: &str) -> Self {
        Self::of(path.to_owned(), &[Text { rank: Rank::Alone, file: path.to_owned(), text: text.to_owned() }])
    }

    /// Reads texts as if they were the files of these ranks, the farthest first.
    pub fn of_texts(texts: &[(Rank, &Path, &str)]) -> Self {
        let own = |(rank, file, text): &(Rank, &Path, &str)| Text {
            rank: *rank,
            file: (*file).to_owned(),
            text: (*text).to_owned(),
        };
        let file = texts.last().map(|(_, file, _)| (*file).to_owned()).unwrap_or_default();
        Self::of(file, &texts.iter().map(own).collect::<Vec<_>>())
    }

    fn of(file: PathBuf, texts: &[Text]) -> Self {
        let plain = |text: &str| text.strip_prefix('\u{feff}').map_or(text.len(), str::len);
        let bare = |layer: &'_ Text| layer.text.len() - plain(&layer.text);
        let mut page = Page::new(texts.iter().map(|layer| (&*layer.file, &layer.text[bare(layer)..])));
        let (mut root, mut broken) = (Table::default(), false);
        for (index, layer) in texts.iter().enumerate() {
            match node::read(&layer.text[bare(layer)..], page.start(index), page.json) {
                Ok(mut table) => {
                    if layer.rank == Rank::Project {
                        forbid(&mut page, &mut table);
                    }
                    root = if page.json { table } else { merge::over(root, table) };
                }
                Err(mistakes) => {
                    broken = true;
                    for mistake in mistakes {
                        page.report(mistake.at, &Concern::Whole, mistake.message, mistake.hint);
                    }
                }
            }
        }
        let files = texts.iter().map(|layer| layer.file.clone()).collect();
        Self { file, files, page, root, problems: Vec::new(), broken }
    }

    /// Which facts have to be known.
    pub fn wanted(&self) -> Wanted {
        let (mut wanted, mut page) = (Wanted::default(), self.page.clone());
        for scope in scope::read(&mut page, &self.root) {
            scope.ask(&mut wanted);
        }
        hosts::ask(&hosts::read(&mut page, &self.root), &self.root, &mut wanted);
        wanted
    }

    /// What it all comes to, here and now.
    pub fn resolve(&self, facts: &Facts) -> Config {
        let mut page = self.page.clone();
        let only_broken = self.broken && self.files.len() < 2;
        let sections =
            if only_broken { root::Sections::default() } else { root::read(&mut page, &self.root, facts) };
        let mut problems = self.problems.clone();
        problems.extend(page.problems());
        Config {
            file: self.file.clone(),
            files: self.files.clone(),
            roster: sections.roster,
            listen: sections.listen,
            limits: sections.limits,
            capacity: sections.capacity,
            policy: sections.policy,
            quota: sections.quota,
            callers: sections.callers,
            audit: sections.audit,
            secrets: sections.secrets,
            origins: sections.origins,
            declared: sections.declared,
            scopes: sections.scopes,
            tags: sections.tags,
            problems,
        }
    }

    /// Everything that is said of one server, and by whom.
    pub fn settings(&self, server: &ServerId) -> Vec<Setting> {
        declared::settings(&self.page, &self.root, server.as_str())
    }
}

/// Takes out of a project's file what is not for it to decide.
fn forbid(page: &mut Page, table: &mut Table) {
    let mut forbidden = Vec::new();
    table.0.retain(|entry| {
        let kept = !NOT_FOR_PROJECTS.contains(&entry.key.as_str()) && !entry.key.starts_with("audit");
        if !kept {
            forbidden.push((entry.at, entry.key.clone()));
        }
        kept
    });
    for policy in table.0.iter_mut().filter(|entry| entry.key == "policy") {
        if let node::Value::Table(rules) = &mut policy.value.value {
            rules.0.retain(|entry| {
                let kept = matches!(entry.key.trim_start_matches('+'), "deny" | "ask");
                if !kept {
                    forbidden.push((entry.at, format!("policy.{}", entry.key)));
                }
                kept
            });
        }
    }
    for (at, key) in forbidden {
        let message = format!("a project cannot decide `{key}`");
        page.report(at, &Concern::Whole, message, "write it into your own config".to_owned());
    }
}
