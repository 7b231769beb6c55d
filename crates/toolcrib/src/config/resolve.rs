//! `LayeredConfig`: all layers, read and merged. Together with facts it resolves to a [`Config`], deterministically and
//! without I/O.

use std::path::{Path, PathBuf};

use super::declared::{self, DeclaredServer, DeclaredValue};
use super::facts::{HostFacts, RequiredFacts};
use super::layer::{Layer, LayerKind};
use super::node::{self, ConfigTable};
use super::source_map::{SourceMap, sanitize};
use super::{Config, ConfigChange, Problem, ProblemScope, card, changes, hosts, merge, project, root, scope};
use crate::spec::{Roster, ServerId};

/// All layers, read and merged, before the facts about this machine are known.
pub struct LayeredConfig {
    /// File that stands for all layers in messages.
    file: PathBuf,
    files: Vec<PathBuf>,
    source: SourceMap,
    root: ConfigTable,
    /// Problems of files as a whole.
    file_problems: Vec<Problem>,
    /// True if a file could not be read or parsed.
    is_broken: bool,
}

/// The text of a config file and its place in the order of layers.
#[derive(Debug, Clone, Copy)]
pub struct LayerText<'a> {
    /// Place in the order of layers.
    pub kind: LayerKind,
    /// Path of the file.
    pub path: &'a Path,
    /// Contents of the file.
    pub text: &'a str,
}

/// The servers that a config yields on one machine, and why.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Resolved {
    /// The servers that are on, and those disabled with `enabled = false`.
    pub roster: Roster,
    /// Every problem, in the order of the sources.
    pub problems: Vec<Problem>,
    /// Every declared server, sorted by name, with the reason why it is on or off.
    pub reasons: Vec<DeclaredServer>,
}

/// Resolves config texts, the farthest first, for a machine with these facts. Reads no file, variable or clock, so that
/// the same texts and facts always give the same servers; change the facts to ask what would be on elsewhere.
/// [`LayeredConfig::resolve`] returns the whole config.
///
/// ```
/// use std::path::Path;
/// use toolcrib::config::{HostFacts, LayerKind, LayerText, resolve};
///
/// let text = r#"
///     [scopes.office]
///     match = { network = { cidr = "10.1.0.0/16" } }
///     tags = ["office"]
///     [servers.tickets]
///     command = "tickets-server"
///     when = ["office"]
/// "#;
/// let source = LayerText { kind: LayerKind::User, path: Path::new("/home/ada/config.toml"), text };
/// let mut facts = HostFacts::default();
/// facts.assume("host=laptop,network=10.1.0.0/16")?;
/// let resolved = resolve(&[source], &facts);
/// assert!(resolved.problems.is_empty() && resolved.roster.servers().count() == 1);
/// assert!(resolved.reasons[0].active, "{}", resolved.reasons[0].reason);
/// # Ok::<(), toolcrib::config::InvalidFact>(())
/// ```
pub fn resolve(sources: &[LayerText<'_>], facts: &HostFacts) -> Resolved {
    let config = LayeredConfig::from_texts(sources).resolve(facts);
    Resolved { roster: config.roster, problems: config.problems, reasons: config.declared }
}

impl LayeredConfig {
    /// Reads all layers, the farthest first. A file that cannot be read is a problem like any other.
    pub fn read(layers: &[Layer]) -> Self {
        let mut texts = Vec::new();
        let mut problems = Vec::new();
        let mut is_broken = false;
        for layer in layers {
            match layer.read() {
                Ok(Some(file)) => {
                    texts.push((layer, file.text));
                    problems.extend(file.problem);
                }
                Ok(None) => {}
                Err(problem) => {
                    problems.push(problem);
                    is_broken = true;
                }
            }
        }
        let main = layers.iter().rev().find(|layer| layer.kind != LayerKind::Project).or(layers.last());
        let file = main.map(|layer| layer.path.clone()).unwrap_or_default();
        let texts: Vec<LayerText<'_>> = texts
            .iter()
            .map(|(layer, text)| LayerText { kind: layer.kind, path: &layer.path, text })
            .collect();
        let mut config = Self::merge(file, &texts);
        config.file_problems = problems;
        config.is_broken |= is_broken;
        config
    }

    /// Parses the text of one file. Relative paths in it are resolved against the folder of `path`.
    pub fn parse(path: &Path, text: &str) -> Self {
        Self::from_texts(&[LayerText { kind: LayerKind::Standalone, path, text }])
    }

    /// Parses texts as if they were read from files, the farthest first.
    pub fn from_texts(texts: &[LayerText<'_>]) -> Self {
        let file = texts.last().map(|layer| layer.path.to_owned()).unwrap_or_default();
        Self::merge(file, texts)
    }

    fn merge(file: PathBuf, layers: &[LayerText<'_>]) -> Self {
        let layers: Vec<LayerText<'_>> =
            layers.iter().map(|layer| LayerText { text: strip_bom(layer.text), ..*layer }).collect();
        let mut source = SourceMap::new(&layers);
        let mut root = ConfigTable::default();
        let mut is_broken = false;
        for (index, layer) in layers.iter().enumerate() {
            match node::parse(layer.text, source.start(index), source.json) {
                Ok(mut table) => {
                    if layer.kind == LayerKind::Project {
                        project::remove_forbidden(&mut source, &root, &mut table);
                        project::withhold_credentials(&mut root, &mut table);
                    }
                    root = if source.json { table } else { merge::overlay(root, table) };
                }
                Err(errors) => {
                    is_broken = true;
                    for error in errors {
                        source.report(error.offset, &ProblemScope::WholeConfig, error.message, error.hint);
                    }
                }
            }
        }
        let files = layers.iter().map(|layer| layer.path.to_owned()).collect();
        Self { file, files, source, root, file_problems: Vec::new(), is_broken }
    }

    /// Returns the facts that [`LayeredConfig::resolve`] needs.
    pub fn required_facts(&self) -> RequiredFacts {
        let mut required = RequiredFacts::default();
        let mut source = self.source.clone();
        for scope in scope::read(&mut source, &self.root) {
            scope.add_required_facts(&mut required);
        }
        let hosts = hosts::read(&mut source, &self.root);
        hosts::add_required_facts(&hosts, &self.root, &mut required);
        card::add_required_facts(&source, &self.root, &mut required);
        required
    }

    fn invalid_tag_problem(&self, tag: &str) -> Problem {
        Problem {
            file: self.file.clone(),
            position: None,
            scope: ProblemScope::WholeConfig,
            message: sanitize(format!("`{tag}` in `{}` is not a tag", scope::TAGS_VARIABLE)),
            hint: Some(scope::TAG_HINT.to_owned()),
        }
    }

    /// Resolves the config for a machine with these facts.
    pub fn resolve(&self, facts: &HostFacts) -> Config {
        let mut source = self.source.clone();
        let is_unreadable = self.is_broken && self.files.len() < 2;
        let sections = match is_unreadable {
            true => root::ConfigSections::default(),
            false => root::read(&mut source, &self.root, facts),
        };
        let mut problems = self.file_problems.clone();
        problems.extend(facts.invalid_tags.iter().map(|tag| self.invalid_tag_problem(tag)));
        problems.extend(source.into_problems());
        Config {
            file: self.file.clone(),
            files: self.files.clone(),
            roster: sections.roster,
            listen: sections.listen,
            auto_start: sections.auto_start,
            limits: sections.limits,
            capacity: sections.capacity,
            policy: sections.policy,
            expose: sections.expose,
            usage_limits: sections.usage_limits,
            callers: sections.callers,
            issuers: sections.issuers,
            issued_callers: sections.issued_callers,
            groups: sections.groups,
            audit: sections.audit,
            metrics: sections.metrics,
            history: sections.history,
            store: sections.store,
            registry: sections.registry,
            secrets: sections.secrets,
            origins: sections.origins,
            declared: sections.declared,
            scopes: sections.scopes,
            tags: sections.tags,
            problems,
        }
    }

    /// Returns every value that applies to a server, with its origin.
    pub fn server_values(&self, server: &ServerId) -> Vec<DeclaredValue> {
        declared::server_values(&self.source, &self.root, server.as_str())
    }

    /// Returns every value that differs from another config, sorted by key. Possible secrets are hidden, except new values
    /// that are written in `shown`, a file that is being reviewed.
    ///
    /// ```
    /// use std::path::Path;
    /// use toolcrib::config::{LayerKind, LayerText, LayeredConfig};
    ///
    /// let file = Path::new("/home/me/app/.toolcrib.toml");
    /// let text = "[servers.lint]\ncommand = 'npx'\nenv = { NODE_OPTIONS = '--require ./x.js' }\n";
    /// let project = LayerText { kind: LayerKind::Project, path: file, text };
    /// let changes = LayeredConfig::from_texts(&[project]).changes_since(&LayeredConfig::from_texts(&[]), file);
    /// let keys: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
    /// assert_eq!(keys, ["servers.lint.command", "servers.lint.env.NODE_OPTIONS"]);
    /// assert_eq!(changes[1].after, Some("--require ./x.js".into()));
    /// ```
    pub fn changes_since(&self, before: &Self, shown: &Path) -> Vec<ConfigChange> {
        let before = changes::ConfigState { source: &before.source, root: &before.root };
        changes::compare(&before, &changes::ConfigState { source: &self.source, root: &self.root }, shown)
    }
}

/// Removes a byte order mark.
fn strip_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}
