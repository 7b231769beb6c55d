//! Replaces secrets in imported entries by references. A value that looks like a secret is not copied into the config
//! unless requested. The original file is not changed.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::take;

use toolcrib::{Secret, TemplatePiece, TemplateText};

use super::draft::ImportDraft;
use super::references::to_variable_name;
use crate::secret_heuristics;

/// The secret store that imported secrets are moved to.
pub trait StoredSecrets: fmt::Debug {
    /// Returns the value of a stored secret; `None` if there is none or it cannot be read.
    fn find_stored(&self, name: &str) -> Option<Secret>;
}

/// Handling of secrets in imported entries.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum SecretExtraction<'a> {
    /// Copies them into the config.
    Keep,
    /// Replaces them by environment variables, which the user has to set.
    Env,
    /// Replaces them by references to a secret store, which the caller moves them to. Names of other secrets in the
    /// store are not used.
    Store(&'a dyn StoredSecrets),
}

/// Names that were assigned to secrets. Two different secrets never share one.
#[derive(Debug)]
pub(super) struct SecretNames<'a> {
    mode: SecretExtraction<'a>,
    values: BTreeMap<String, Secret>,
}

impl<'a> SecretNames<'a> {
    pub(super) fn new(mode: SecretExtraction<'a>) -> Self {
        Self { mode, values: BTreeMap::new() }
    }

    /// Returns a text with the secrets of this import in it, for comparison with other texts.
    pub(super) fn resolve(&self, text: &TemplateText) -> String {
        let assigned = |kind: &str, name: &str| match self.values.get(name) {
            Some(value) => value.expose().to_owned(),
            None => format!("${{{kind}:{name}}}"),
        };
        let is_stored = matches!(self.mode, SecretExtraction::Store(_));
        let resolve = |piece| match piece {
            TemplatePiece::Literal(text) => text.to_owned(),
            TemplatePiece::Env { name, default: None } if !is_stored => assigned("env", name),
            TemplatePiece::Secret(name) if is_stored => assigned("secret", name),
            other => format!("{other:?}"),
        };
        text.pieces().map(resolve).collect()
    }

    /// Assigns a name to a secret. Returns the reference and the name.
    fn assign_reference(&mut self, preferred_name: &str, server: &str, value: &Secret) -> (String, String) {
        let normalize = |name: &str| match self.mode {
            SecretExtraction::Store(_) => {
                to_variable_name(name).trim_start_matches('_').to_lowercase().replace('_', "-")
            }
            SecretExtraction::Keep | SecretExtraction::Env => to_variable_name(name),
        };
        let qualified = normalize(&format!("{server}_{preferred_name}"));
        let candidates = [normalize(preferred_name), qualified.clone()]
            .into_iter()
            .chain((2..).map(|n| normalize(&format!("{server}_{preferred_name}_{n}"))));
        let is_available = |name: &String| match (self.values.get(name), &self.mode) {
            (Some(assigned), _) => assigned == value,
            (None, SecretExtraction::Store(store)) => {
                store.find_stored(name).is_none_or(|stored| stored == *value)
            }
            (None, SecretExtraction::Keep | SecretExtraction::Env) => true,
        };
        let name =
            candidates.into_iter().filter(|name| !name.is_empty()).find(is_available).unwrap_or(qualified);
        self.values.insert(name.clone(), value.clone());
        let kind = if matches!(self.mode, SecretExtraction::Store(_)) { "secret" } else { "env" };
        (format!("${{{kind}:{name}}}"), name)
    }
}

/// Replaces the secrets of an entry by references and notes each. Returns the secrets by name.
pub(super) fn extract_secrets(
    draft: &mut ImportDraft,
    server: &str,
    names: &mut SecretNames<'_>,
) -> Vec<(String, Secret)> {
    let mut notes = Vec::new();
    let mut extracted = Vec::new();
    if matches!(names.mode, SecretExtraction::Keep) {
        return extracted;
    }
    let is_stored = matches!(names.mode, SecretExtraction::Store(_));
    let mut replace = |field: String, preferred_name: &str, value: &str| {
        let value = Secret::new(value);
        let (reference, name) = names.assign_reference(preferred_name, server, &value);
        notes.push(match is_stored {
            true => format!(
                "`{reference}` replaces the secret in `{field}`, which goes to the secret store; see `toolcrib secret ls`"
            ),
            false => {
                format!("`{reference}` replaces the secret in `{field}`; set `{name}` where toolcrib runs")
            }
        });
        extracted.push((name, value));
        reference
    };
    for (name, value) in &mut draft.env {
        if is_secret(name, value) {
            *value = replace(format!("env.{name}"), name, value);
        }
    }
    let qualify = |name: &str| format!("{server}_{name}");
    for (name, value) in &mut draft.headers {
        if is_secret(name, value) {
            let (scheme, secret) = value
                .rsplit_once(' ')
                .map_or(("", value.as_str()), |(_, token)| value.split_at(value.len() - token.len()));
            let preferred_name =
                if name.eq_ignore_ascii_case("authorization") { qualify("token") } else { qualify(name) };
            *value = format!("{scheme}{}", replace(format!("headers.{name}"), &preferred_name, secret));
        }
    }
    extract_from_argv(&mut draft.argv, server, &mut replace);
    if let Some(url) = &mut draft.url {
        *url = extract_from_url(url, server, &mut replace);
    }
    draft.notes.extend(notes);
    extracted
}

/// Variables and headers of a server that is declared by hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeclaredPairs {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// HTTP headers.
    pub headers: BTreeMap<String, String>,
}

impl DeclaredPairs {
    /// Replaces values that look like secrets by references to a secret store. Returns the secrets by name, which the caller
    /// stores, and a note for each.
    pub fn extract_secrets(
        &mut self,
        server: &str,
        store: &dyn StoredSecrets,
    ) -> (Vec<(String, Secret)>, Vec<String>) {
        let mut draft =
            ImportDraft { env: take(&mut self.env), headers: take(&mut self.headers), ..Default::default() };
        let mut names = SecretNames::new(SecretExtraction::Store(store));
        let secrets = extract_secrets(&mut draft, server, &mut names);
        self.env = draft.env;
        self.headers = draft.headers;
        (secrets, draft.notes)
    }
}

fn is_secret(name: &str, value: &str) -> bool {
    let looks_secret = secret_heuristics::is_secret_name(name) || secret_heuristics::is_secret_value(value);
    !value.is_empty() && !value.contains("${") && looks_secret
}

/// Replaces secrets in `--name=value`, in arguments after a flag such as `--api-key`, and in arguments that look like one.
fn extract_from_argv(
    argv: &mut [String],
    server: &str,
    replace: &mut impl FnMut(String, &str, &str) -> String,
) {
    for index in 1..argv.len() {
        let previous = argv[index - 1].clone();
        let argument = argv[index].clone();
        let follows_secret_flag = previous.starts_with('-')
            && secret_heuristics::is_secret_name(&previous)
            && !previous.contains('=');
        let field = format!("args[{}]", index - 1);
        let assignment = argument.split_once('=').filter(|(name, value)| is_secret(name, value));
        if let Some((name, value)) = assignment {
            let preferred_name = format!("{server}_{}", name.trim_start_matches('-'));
            argv[index] = format!("{name}={}", replace(field, &preferred_name, value));
        } else if !argument.starts_with('-')
            && !argument.contains("${")
            && (follows_secret_flag || secret_heuristics::is_secret_value(&argument))
        {
            let name = if follows_secret_flag { previous.trim_start_matches('-') } else { "secret" };
            argv[index] = replace(field, &format!("{server}_{name}"), &argument);
        }
    }
}

/// Replaces passwords, secret query values, and path segments that look like a key.
fn extract_from_url(
    url: &str,
    server: &str,
    replace: &mut impl FnMut(String, &str, &str) -> String,
) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let mut segments: Vec<String> = base.split('/').map(str::to_owned).collect();
    for (index, segment) in segments.iter_mut().enumerate().skip(2) {
        let credentials = segment
            .split_once('@')
            .filter(|_| index == 2)
            .and_then(|(user, host)| Some((user.split_once(':')?, host)));
        if let Some(((name, password), host)) =
            credentials.filter(|((_, password), _)| !password.contains("${"))
        {
            *segment = format!(
                "{name}:{}@{host}",
                replace("url".to_owned(), &format!("{server}_password"), password)
            );
        } else if index > 2 && !segment.contains("${") && secret_heuristics::is_secret_value(segment) {
            *segment = replace("url".to_owned(), &format!("{server}_key"), segment);
        }
    }
    let base = segments.join("/");
    let Some(query) = query else { return base };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, value)) if is_secret(name, value) => {
            format!("{name}={}", replace("url".to_owned(), &format!("{server}_{name}"), value))
        }
        _ => pair.to_owned(),
    });
    format!("{base}?{}", pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "sk-abcdefgh12345678";

    #[test]
    fn secrets_are_extracted_from_every_field() {
        let mut draft = ImportDraft {
            argv: ["npx", "x", "--api-key", SECRET, "--token=abc", SECRET, "--root", "/a"]
                .map(str::to_owned)
                .to_vec(),
            url: Some(format!("https://me:pw@host/v1/{SECRET}?api_key=abc&page=2")),
            ..ImportDraft::default()
        };
        draft
            .env
            .extend([("GITHUB_TOKEN".to_owned(), "abc".to_owned()), ("PAGER".to_owned(), "cat".to_owned())]);
        draft.env.insert("KEPT_TOKEN".to_owned(), "${env:KEPT_TOKEN}".to_owned());
        draft.headers.insert("Authorization".to_owned(), "Bearer abc".to_owned());
        draft.headers.insert("X-Api-Key".to_owned(), "abc".to_owned());
        extract_secrets(&mut draft, "a", &mut SecretNames::new(SecretExtraction::Env));
        assert_eq!(draft.env["GITHUB_TOKEN"], "${env:GITHUB_TOKEN}");
        assert_eq!((&*draft.env["PAGER"], &*draft.env["KEPT_TOKEN"]), ("cat", "${env:KEPT_TOKEN}"));
        assert_eq!(draft.headers["Authorization"], "Bearer ${env:A_TOKEN}");
        assert_eq!(draft.headers["X-Api-Key"], "${env:A_X_API_KEY}");
        let args = [
            "npx",
            "x",
            "--api-key",
            "${env:A_API_KEY}",
            "--token=${env:A_TOKEN}",
            "${env:A_SECRET}",
            "--root",
            "/a",
        ];
        assert_eq!(draft.argv, args);
        assert_eq!(
            draft.url.as_deref(),
            Some("https://me:${env:A_PASSWORD}@host/v1/${env:A_KEY}?api_key=${env:A_A_API_KEY}&page=2")
        );
        assert!(!format!("{draft:?}").contains(SECRET) && draft.notes.len() == 9, "{:#?}", draft.notes);
    }

    #[test]
    fn two_secrets_never_share_a_name() {
        let mut names = SecretNames::new(SecretExtraction::Env);
        let mut extract = |server: &str, value: &str| {
            let mut draft = ImportDraft::default();
            draft.env.insert("TOKEN".to_owned(), value.to_owned());
            extract_secrets(&mut draft, server, &mut names);
            draft.env["TOKEN"].clone()
        };
        assert_eq!(extract("a", "one"), "${env:TOKEN}");
        assert_eq!(extract("b", "one"), "${env:TOKEN}");
        assert_eq!(extract("c", "two"), "${env:C_TOKEN}");
    }
}
