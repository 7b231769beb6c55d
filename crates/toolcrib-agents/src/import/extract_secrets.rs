//! Replaces secrets in imported entries by references. A value that looks like a secret is not copied into the config
//! unless requested. The original file is not changed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::mem::take;

use toolcrib::{Secret, TemplatePiece, TemplateText};

use super::draft::ImportDraft;
use super::references::to_variable_name;
use crate::agents::AgentPaths;
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
    /// Variables of the environment, for comparison with values.
    variables: Option<&'a AgentPaths>,
    /// Secrets that were looked up in the store.
    stored: RefCell<BTreeMap<String, Option<Secret>>>,
}

impl<'a> SecretNames<'a> {
    pub(super) fn new(mode: SecretExtraction<'a>) -> Self {
        Self { mode, values: BTreeMap::new(), variables: None, stored: RefCell::default() }
    }

    /// Compares variables by their values in an environment.
    pub(super) fn with_variables(self, variables: &'a AgentPaths) -> Self {
        Self { variables: Some(variables), ..self }
    }

    /// Returns a text with secrets and variables replaced by their values, as far as they are known, for comparison with
    /// other texts.
    pub(super) fn resolve(&self, text: &TemplateText) -> String {
        let resolve = |piece: TemplatePiece<'_>| {
            let value = match piece {
                TemplatePiece::Literal(text) => Some(text.to_owned()),
                TemplatePiece::Env { name, default } => {
                    self.variable_value(name).or_else(|| default.map(str::to_owned))
                }
                TemplatePiece::Secret(name) => self.secret_value(name),
                _ => None,
            };
            value.unwrap_or_else(|| format!("{piece:?}"))
        };
        text.pieces().map(resolve).collect()
    }

    fn variable_value(&self, name: &str) -> Option<String> {
        if let Some(value) = self.values.get(name).filter(|_| matches!(self.mode, SecretExtraction::Env)) {
            return Some(value.expose().to_owned());
        }
        Some(self.variables?.variable(name)?.to_str()?.to_owned())
    }

    fn secret_value(&self, name: &str) -> Option<String> {
        let SecretExtraction::Store(store) = self.mode else { return None };
        let value = self.values.get(name).cloned().or_else(|| {
            let mut stored = self.stored.borrow_mut();
            stored.entry(name.to_owned()).or_insert_with(|| store.find_stored(name)).clone()
        });
        value.map(|value| value.expose().to_owned())
    }

    /// Returns the reference to the secret in a variable of a server, whose value is not known.
    pub(super) fn variable_reference(&self, server: &str, variable: &str) -> String {
        self.reference(&self.name_for_variable(server, variable))
    }

    /// Returns the name that is preferred for the secret in a variable. Servers share a stored secret by the name of their
    /// variable only if it says whose secret it is.
    fn name_for_variable(&self, server: &str, variable: &str) -> String {
        match self.mode {
            SecretExtraction::Store(_) if secret_heuristics::is_generic_name(variable) => {
                format!("{server}_{variable}")
            }
            _ => variable.to_owned(),
        }
    }

    /// Returns the reference to a secret whose value is not known.
    pub(super) fn reference(&self, name: &str) -> String {
        match self.mode {
            SecretExtraction::Env => format!("${{env:{}}}", to_variable_name(name)),
            SecretExtraction::Store(_) | SecretExtraction::Keep => {
                format!("${{secret:{}}}", to_secret_name(name))
            }
        }
    }

    /// Assigns a name to a secret. Returns the reference and the name.
    fn assign_reference(&mut self, preferred_name: &str, server: &str, value: &Secret) -> (String, String) {
        let normalize = |name: &str| match self.mode {
            SecretExtraction::Store(_) => to_secret_name(name),
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

/// Converts a name to the form of a stored secret.
fn to_secret_name(name: &str) -> String {
    to_variable_name(name).trim_start_matches('_').to_lowercase().replace('_', "-")
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
    let env_names: Vec<String> =
        draft.env.keys().map(|variable| names.name_for_variable(server, variable)).collect();
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
    for ((name, value), preferred_name) in draft.env.iter_mut().zip(&env_names) {
        let field = format!("env.{name}");
        if is_secret(name, value) || secret_heuristics::is_connection_string(value) {
            *value = replace(field, preferred_name, value);
        } else {
            extract_url_password(value, field, server, &mut replace);
        }
    }
    let qualify = |name: &str| format!("{server}_{name}");
    for (name, value) in &mut draft.headers {
        if is_secret(name, value) {
            let (scheme, secret) = split_auth_scheme(value);
            let preferred_name = qualify(header_secret_name(name));
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

/// Splits a header's value into its scheme with the space after it, if there is one, and the secret.
fn split_auth_scheme(value: &str) -> (&str, &str) {
    value.split_at(value.rfind(' ').map_or(0, |space| space + 1))
}

/// Returns the name of the secret in a header.
fn header_secret_name(header: &str) -> &str {
    if header.eq_ignore_ascii_case("authorization") { "token" } else { header }
}

/// Replaces the password of a URL in a text.
fn extract_url_password(
    text: &mut String,
    field: String,
    server: &str,
    replace: &mut impl FnMut(String, &str, &str) -> String,
) {
    if let Some(range) = secret_heuristics::find_url_password(text) {
        let reference = replace(field, &format!("{server}_password"), &text[range.clone()]);
        text.replace_range(range, &reference);
    }
}

/// Splits an argument of the form `NAME: VALUE` that is a header with a secret.
fn secret_header(argument: &str) -> Option<(&str, &str)> {
    let (name, value) = argument.split_once(':')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let value = value.trim_start();
    (is_name && !value.starts_with("//") && is_secret(name, value)).then_some((name, value))
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
        let is_header = previous == "-H" || previous.starts_with("--header");
        if let Some((name, value)) = secret_header(&argument).filter(|_| is_header || assignment.is_none()) {
            let (scheme, secret) = split_auth_scheme(value);
            let start = &argument[..argument.len() - value.len()];
            let reference = replace(field, &format!("{server}_{}", header_secret_name(name)), secret);
            argv[index] = format!("{start}{scheme}{reference}");
        } else if let Some((name, value)) = assignment {
            let preferred_name = format!("{server}_{}", name.trim_start_matches('-'));
            argv[index] = format!("{name}={}", replace(field, &preferred_name, value));
        } else if !argument.starts_with('-')
            && !argument.contains("${")
            && (follows_secret_flag
                || secret_heuristics::is_secret_value(&argument)
                || secret_heuristics::is_connection_string(&argument))
        {
            let name = if follows_secret_flag { previous.trim_start_matches('-') } else { "secret" };
            argv[index] = replace(field, &format!("{server}_{name}"), &argument);
        } else {
            extract_url_password(&mut argv[index], field, server, replace);
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
    fn secrets_inside_arguments_and_variables_are_extracted() {
        let argv = [
            "x",
            "--header",
            "Authorization: Bearer abc",
            "-H",
            "X-Api-Key:abc",
            "postgres://me:pw@db/x",
            "--dsn=mysql://me:pw@db",
            "host=db password=pw",
            "--header",
            "Accept: text/html",
        ];
        let mut draft = ImportDraft { argv: argv.map(str::to_owned).to_vec(), ..ImportDraft::default() };
        draft.env.insert("DATABASE_URL".to_owned(), "postgres://me:pw@db/x".to_owned());
        draft.env.insert("DB".to_owned(), "Server=db;Pwd=pw".to_owned());
        extract_secrets(&mut draft, "a", &mut SecretNames::new(SecretExtraction::Env));
        assert_eq!(
            draft.argv[1..],
            [
                "--header",
                "Authorization: Bearer ${env:A_TOKEN}",
                "-H",
                "X-Api-Key:${env:A_X_API_KEY}",
                "postgres://me:${env:A_PASSWORD}@db/x",
                "--dsn=mysql://me:${env:A_PASSWORD}@db",
                "${env:A_SECRET}",
                "--header",
                "Accept: text/html",
            ]
        );
        assert_eq!(draft.env["DATABASE_URL"], "postgres://me:${env:A_PASSWORD}@db/x");
        assert_eq!(draft.env["DB"], "${env:DB}");
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

    #[derive(Debug)]
    struct EmptyStore;

    impl StoredSecrets for EmptyStore {
        fn find_stored(&self, _: &str) -> Option<Secret> {
            None
        }
    }

    #[test]
    fn generic_variable_is_stored_under_the_name_of_its_server() {
        let mut names = SecretNames::new(SecretExtraction::Store(&EmptyStore));
        let mut draft = ImportDraft::default();
        draft
            .env
            .extend(["TOKEN", "API_KEY", "GITHUB_TOKEN"].map(|name| (name.to_owned(), "one".to_owned())));
        extract_secrets(&mut draft, "db", &mut names);
        assert_eq!(draft.env["TOKEN"], "${secret:db-token}");
        assert_eq!(draft.env["API_KEY"], "${secret:db-api-key}");
        assert_eq!(draft.env["GITHUB_TOKEN"], "${secret:github-token}");
        assert_eq!(names.variable_reference("gh", "TOKEN"), "${secret:gh-token}");
        assert_eq!(names.variable_reference("gh", "GITHUB_TOKEN"), "${secret:github-token}");
    }
}
