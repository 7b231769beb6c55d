//! Servers from a `server.json`, the format of the MCP registry: packages of npm, PyPI and container registries, and
//! remote servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolcrib::util::encoding;

use super::ServerKey;
use crate::cli::servers::TransportArg;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;

/// Largest document of a registry, in bytes.
const MAX_DOCUMENT: usize = 1 << 20;
/// Time limit for the answer of a registry.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest depth of a document whose keys are read in both spellings.
const MAX_DEPTH: usize = 16;

/// A server of the registry.
#[derive(Debug)]
pub(super) struct RegistryServer {
    document: Value,
}

/// The values on the command line, and the name under which the server is declared.
#[derive(Debug)]
pub(super) struct RegistryChoice<'a> {
    pub(super) server: &'a str,
    pub(super) values: BTreeMap<String, String>,
    pub(super) transport: Option<TransportArg>,
}

impl RegistryServer {
    /// Reads a file.
    pub(super) fn read(file: &Path) -> Result<Self, CommandError> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| CommandError::usage(format!("cannot read `{}`: {error}", file.display())))?;
        Self::parse(&text).map_err(|reason| CommandError::usage(format!("`{}`: {reason}", file.display())))
    }

    /// Asks a registry for the latest version of a server.
    pub(super) async fn fetch(registry: &str, name: &str) -> Result<Self, CommandError> {
        let url = format!("{registry}/v0.1/servers/{}/versions/latest", encoding::percent_encode(name));
        let failed = |reason: String| {
            let message = format!("cannot get `{name}` from the registry ({url}): {reason}");
            CommandError::new(ExitStatus::Unreachable, "registry", message)
        };
        let text = toolcrib::fetch_json(&url, MAX_DOCUMENT, FETCH_TIMEOUT).await.map_err(failed)?;
        Self::parse(&String::from_utf8_lossy(&text)).map_err(failed)
    }

    /// Parses a document: the server itself, or the answer of a registry that contains it.
    fn parse(text: &str) -> Result<Self, String> {
        let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut document = with_camel_case_keys(document, 0);
        if document["server"].is_object() {
            document = document["server"].take();
        }
        if !document["name"].is_string() {
            return Err("it is not a `server.json`: `name` is missing".to_owned());
        }
        Ok(Self { document })
    }

    /// Returns a name for the server: the last part of its name in the registry.
    pub(super) fn short_name(&self) -> String {
        let name = self.document["name"].as_str().unwrap_or_default();
        let last = name.rsplit('/').next().unwrap_or_default().to_lowercase();
        let clean: String =
            last.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect();
        let parts: Vec<&str> = clean.split('-').filter(|part| !part.is_empty()).collect();
        parts.join("-").chars().take(32).collect::<String>().trim_end_matches('-').to_owned()
    }

    /// Returns the keys of the server's table: those of its first package that can be started here, else of its first remote.
    pub(super) fn server_keys(&self, choice: &RegistryChoice<'_>) -> Result<Vec<ServerKey>, CommandError> {
        let wants_remote = matches!(choice.transport, Some(TransportArg::Http | TransportArg::Sse));
        let wants_package = choice.transport == Some(TransportArg::Stdio);
        let list = |name: &str| self.document[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let package = list("packages").iter().find(|package| is_startable(package));
        let remote = list("remotes").iter().find(|remote| is_wanted_remote(remote, choice.transport));
        let mut inputs = Inputs { choice, missing: Vec::new(), refused: Vec::new() };
        let keys = match (package.filter(|_| !wants_remote), remote.filter(|_| !wants_package)) {
            (Some(package), _) => package_keys(package, &mut inputs)?,
            (None, Some(remote)) => remote_keys(remote, &mut inputs),
            (None, None) => return Err(self.nothing_usable()),
        };
        inputs.finish()?;
        Ok(keys)
    }

    fn nothing_usable(&self) -> CommandError {
        let packages = self.document["packages"].as_array().into_iter().flatten();
        let types: Vec<&str> = packages.filter_map(|package| package["registryType"].as_str()).collect();
        let found = if types.is_empty() { "no package".to_owned() } else { types.join(", ") };
        CommandError::usage(format!("the server has no package or URL that can be used here ({found})"))
            .hint("npm, pypi and oci packages on stdio, and remotes with streamable-http or sse can be used")
    }
}

/// Returns whether a package is started by a command and speaks on stdio.
fn is_startable(package: &Value) -> bool {
    let transport = package["transport"]["type"].as_str().unwrap_or("stdio");
    transport == "stdio" && matches!(registry_type(package), "npm" | "pypi" | "oci")
}

fn registry_type(package: &Value) -> &str {
    let name = package["registryType"].as_str().or(package["registryName"].as_str()).unwrap_or_default();
    if name == "docker" { "oci" } else { name }
}

fn is_wanted_remote(remote: &Value, transport: Option<TransportArg>) -> bool {
    let kind = remote["type"].as_str().or(remote["transportType"].as_str());
    match kind {
        Some("sse") => matches!(transport, None | Some(TransportArg::Sse)),
        Some("streamable-http" | "http" | "streamable") => {
            matches!(transport, None | Some(TransportArg::Http))
        }
        _ => false,
    }
}

fn package_keys(package: &Value, inputs: &mut Inputs<'_>) -> Result<Vec<ServerKey>, CommandError> {
    let identifier = package["identifier"].as_str().or(package["name"].as_str()).unwrap_or_default();
    let version = package["version"].as_str().filter(|version| !version.is_empty() && *version != "latest");
    let variables = inputs.named_values(&package["environmentVariables"]);
    let runtime_args = inputs.argument_words(&package["runtimeArguments"]);
    let runner = find_runner(package)?;
    let mut args = Vec::new();
    let package_name = match registry_type(package) {
        "npm" => {
            if runner == "npx" && !runtime_args.iter().any(|arg| arg == "-y" || arg == "--yes") {
                args.push("-y".to_owned());
            }
            version.map_or(identifier.to_owned(), |version| format!("{identifier}@{version}"))
        }
        "pypi" => version.map_or(identifier.to_owned(), |version| format!("{identifier}=={version}")),
        _ => {
            args.extend(["run", "-i", "--rm"].map(str::to_owned));
            // The program in the container gets the variables from the environment of `docker`.
            args.extend(variables.keys().flat_map(|name| ["-e".to_owned(), name.clone()]));
            image_name(package, identifier, version)
        }
    };
    args.extend(runtime_args);
    args.push(inputs.document_text(&package_name));
    args.extend(inputs.argument_words(&package["packageArguments"]));
    let mut keys = vec![ServerKey::new("command", json!(runner)), ServerKey::new("args", json!(args))];
    if !variables.is_empty() {
        keys.push(ServerKey::new("env", variables.into()));
    }
    Ok(keys)
}

/// Returns the program that runs a package. A document chooses only among known ones.
fn find_runner(package: &Value) -> Result<&str, CommandError> {
    let known: &[&str] = match registry_type(package) {
        "npm" => &["npx", "bunx", "pnpx"],
        "pypi" => &["uvx", "pipx"],
        _ => &["docker", "podman", "nerdctl"],
    };
    match package["runtimeHint"].as_str() {
        None => Ok(known[0]),
        Some(hint) if known.contains(&hint) => Ok(hint),
        Some(hint) => {
            let message = format!("the server asks to be run with `{hint}`, which is not a known runner");
            let hint = format!(
                "known for this package: {}; or use `toolcrib add NAME -- COMMAND`",
                known.join(", ")
            );
            Err(CommandError::usage(message).hint(hint))
        }
    }
}

/// Returns the full name of a container image.
fn image_name(package: &Value, identifier: &str, version: Option<&str>) -> String {
    let base = package["registryBaseUrl"].as_str().unwrap_or_default();
    let host = base.trim_start_matches("https://").trim_end_matches('/');
    let first = identifier.split('/').next().unwrap_or_default();
    let has_host = first.contains('.') || first.contains(':');
    let prefix =
        if host.is_empty() || host == "docker.io" || has_host { String::new() } else { format!("{host}/") };
    let last = identifier.rsplit('/').next().unwrap_or_default();
    let suffix = match version {
        Some(version) if !last.contains(':') && !last.contains('@') => format!(":{version}"),
        _ => String::new(),
    };
    format!("{prefix}{identifier}{suffix}")
}

fn remote_keys(remote: &Value, inputs: &mut Inputs<'_>) -> Vec<ServerKey> {
    let url = inputs.fill_in(remote["url"].as_str().unwrap_or_default(), &remote["variables"]);
    let url = inputs.checked(url);
    let headers = inputs.named_values(&remote["headers"]);
    let mut keys = vec![ServerKey::new("url", json!(url))];
    if remote["type"].as_str().or(remote["transportType"].as_str()) == Some("sse") {
        keys.push(ServerKey::new("type", json!("sse")));
    }
    if !headers.is_empty() {
        keys.push(ServerKey::new("headers", headers.into()));
    }
    keys
}

/// Values for what the server needs: from the command line, from the document, or as references to secrets.
struct Inputs<'a> {
    choice: &'a RegistryChoice<'a>,
    /// Names and descriptions of required values that are not given.
    missing: Vec<String>,
    /// Texts of the document that would be read as references to variables, files or secrets of this computer.
    refused: Vec<String>,
}

/// One value of the server.
struct InputValue {
    text: String,
    /// Number of references that the command line or this program put into the text.
    references: usize,
}

impl InputValue {
    fn trusted(text: String) -> Self {
        Self { references: count_references(&text), text }
    }
}

fn count_references(text: &str) -> usize {
    text.matches("${").count()
}

impl Inputs<'_> {
    /// Returns the values of variables or headers, by name.
    fn named_values(&mut self, list: &Value) -> Map<String, Value> {
        let mut values = Map::new();
        for input in list.as_array().into_iter().flatten() {
            let Some(name) = input["name"].as_str() else { continue };
            if let Some(value) = self.value(name, input) {
                values.insert(self.document_text(name), json!(self.checked(value)));
            }
        }
        values
    }

    /// Returns a text of the document. It must not have references.
    fn document_text(&mut self, text: &str) -> String {
        self.checked(InputValue { text: text.to_owned(), references: 0 })
    }

    /// Returns the text of a value. References in it must come from the command line or from this program.
    fn checked(&mut self, value: InputValue) -> String {
        if count_references(&value.text) > value.references {
            self.refused.push(format!("`{}`", value.text));
        }
        value.text
    }

    /// Returns the words of arguments, in order.
    fn argument_words(&mut self, list: &Value) -> Vec<String> {
        let mut words = Vec::new();
        for argument in list.as_array().into_iter().flatten() {
            let flag = argument["name"].as_str().filter(|_| argument["type"] == "named");
            let has_value = ["value", "default", "valueHint", "variables"]
                .iter()
                .any(|key| argument.get(key).is_some_and(|value| !value.is_null()));
            let Some(flag) = flag else {
                let name = argument["valueHint"].as_str().or(argument["name"].as_str()).unwrap_or("argument");
                if let Some(value) = self.value(name, argument) {
                    words.push(self.checked(value));
                }
                continue;
            };
            if !has_value {
                words.push(self.document_text(flag));
            } else if let Some(value) = self.value(flag.trim_start_matches('-'), argument) {
                words.extend([self.document_text(flag), self.checked(value)]);
            }
        }
        words
    }

    /// Returns one value. A secret that is not given is a reference; other required values are reported as missing.
    fn value(&mut self, name: &str, input: &Value) -> Option<InputValue> {
        if let Some(given) = self.choice.values.get(name) {
            return Some(InputValue::trusted(given.clone()));
        }
        let text = |key: &str| input[key].as_str().map(str::to_owned);
        if let Some(value) = text("value") {
            return Some(self.fill_in(&value, &input["variables"]));
        }
        if input["isSecret"] == true {
            let is_needed = input["isRequired"] == true;
            return is_needed.then(|| InputValue::trusted(self.secret_reference(name)));
        }
        if let Some(default) = text("default") {
            return Some(InputValue { text: default, references: 0 });
        }
        if input["isRequired"] == true {
            let description = text("description").unwrap_or_default();
            self.missing.push(format!("{name} ({})", description.trim_end_matches('.')).replace(" ()", ""));
        }
        None
    }

    /// Replaces `{name}` by the values of these variables. Values are not searched for other names.
    fn fill_in(&mut self, template: &str, variables: &Value) -> InputValue {
        let mut filled = InputValue { text: String::new(), references: 0 };
        let mut rest = template;
        while let Some(start) = rest.find('{') {
            let (before, from_brace) = rest.split_at(start);
            filled.text += before;
            let name = from_brace[1..].split('}').next().unwrap_or_default();
            let value = variables.get(name).and_then(|input| self.value(name, input));
            match value {
                Some(value) if from_brace.len() > name.len() + 1 => {
                    filled.text += &value.text;
                    filled.references += value.references;
                    rest = &from_brace[name.len() + 2..];
                }
                _ => {
                    filled.text.push('{');
                    rest = &from_brace[1..];
                }
            }
        }
        filled.text += rest;
        filled
    }

    fn secret_reference(&self, name: &str) -> String {
        let clean = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '-' };
        let name: String = name.chars().map(clean).collect();
        format!("${{secret:{}-{}}}", self.choice.server, name.trim_matches('-'))
    }

    fn finish(self) -> Result<(), CommandError> {
        if !self.refused.is_empty() {
            let message = format!(
                "the document has references (`${{…}}`), which only your own values may have: {}",
                self.refused.join(", ")
            );
            return Err(CommandError::usage(message)
                .hint("give the value with `-e NAME=VALUE`, or use `toolcrib add NAME -- COMMAND`"));
        }
        let Some(first) = self.missing.first() else { return Ok(()) };
        let message = format!("the server needs values: {}", self.missing.join(", "));
        let key = first.split(' ').next().unwrap_or_default();
        Err(CommandError::usage(message).hint(format!("add `-e {key}=VALUE` for each")))
    }
}

/// Returns the document with the keys of today's format. Older documents have `snake_case` keys. Names that the server chose,
/// below `variables`, stay.
fn with_camel_case_keys(value: Value, depth: usize) -> Value {
    match value {
        Value::Object(members) if depth < MAX_DEPTH => {
            let member = |(key, value): (String, Value)| {
                let value = match (key.as_str(), value) {
                    ("variables", Value::Object(inner)) => inner
                        .into_iter()
                        .map(|(name, input)| (name, with_camel_case_keys(input, depth + 2)))
                        .collect::<Map<String, Value>>()
                        .into(),
                    (_, value) => with_camel_case_keys(value, depth + 1),
                };
                (to_camel_case(&key), value)
            };
            members.into_iter().map(member).collect::<Map<String, Value>>().into()
        }
        Value::Array(items) if depth < MAX_DEPTH => {
            items.into_iter().map(|item| with_camel_case_keys(item, depth + 1)).collect()
        }
        other => other,
    }
}

fn to_camel_case(key: &str) -> String {
    let mut camel = String::with_capacity(key.len());
    let mut is_start = false;
    for char in key.chars() {
        match char {
            '_' if !camel.is_empty() => is_start = true,
            char if is_start => {
                camel.extend(char.to_uppercase());
                is_start = false;
            }
            char => camel.push(char),
        }
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(
        document: &Value,
        given: &[(&str, &str)],
        transport: Option<TransportArg>,
    ) -> Result<Value, String> {
        let values = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let choice = RegistryChoice { server: "files", values, transport };
        let server = RegistryServer::parse(&document.to_string())?;
        let keys = server.server_keys(&choice).map_err(|error| error.message)?;
        Ok(keys.into_iter().map(|key| (key.name.to_owned(), key.value)).collect::<Map<_, _>>().into())
    }

    fn document(package: &Value) -> Value {
        json!({"name": "io.github.example/My_Files", "version": "1.0.0", "packages": [package]})
    }

    #[test]
    fn npm_package_gets_arguments_variables_and_secrets() {
        let document = document(&json!({
            "registryType": "npm", "identifier": "@x/files", "version": "1.2.3", "transport": {"type": "stdio"},
            "packageArguments": [
                {"type": "positional", "value": "serve"},
                {"type": "named", "name": "--root", "valueHint": "root", "isRequired": true, "description": "The folder."},
                {"type": "named", "name": "--log", "value": "{level}", "variables": {"level": {"default": "info"}}},
                {"type": "named", "name": "--readonly"},
                {"type": "positional", "valueHint": "extra"},
            ],
            "environmentVariables": [
                {"name": "API_KEY", "isSecret": true, "isRequired": true},
                {"name": "TRACE", "isSecret": true},
                {"name": "MODE", "default": "fast"},
            ],
        }));
        assert_eq!(keys(&document, &[], None).unwrap_err(), "the server needs values: root (The folder)");
        assert_eq!(
            keys(&document, &[("root", "/srv")], None).unwrap(),
            json!({
                "command": "npx",
                "args": ["-y", "@x/files@1.2.3", "serve", "--root", "/srv", "--log", "info", "--readonly"],
                "env": {"API_KEY": "${secret:files-api-key}", "MODE": "fast"},
            })
        );
        let server = RegistryServer::parse(&document.to_string()).unwrap();
        assert_eq!(server.short_name(), "my-files");
    }

    #[test]
    fn pypi_and_container_packages_have_their_commands() {
        let pypi = document(&json!({"registry_type": "pypi", "identifier": "files", "version": "0.5"}));
        assert_eq!(keys(&pypi, &[], None).unwrap(), json!({"command": "uvx", "args": ["files==0.5"]}));
        let oci = document(&json!({
            "registryType": "oci", "registryBaseUrl": "https://ghcr.io", "identifier": "x/files", "version": "2",
            "runtime_arguments": [{"type": "named", "name": "--mount", "value": "src={dir}", "variables": {"dir": {"is_required": true}}}],
            "environment_variables": [{"name": "A", "value": "1"}],
        }));
        let args = json!(["run", "-i", "--rm", "-e", "A", "--mount", "src=/d", "ghcr.io/x/files:2"]);
        assert_eq!(
            keys(&oci, &[("dir", "/d")], None).unwrap(),
            json!({"command": "docker", "args": args, "env": {"A": "1"}})
        );
    }

    #[test]
    fn document_cannot_have_references_or_choose_any_program() {
        let npm = |member: &str, value: Value| {
            let mut package = json!({"registryType": "npm", "identifier": "files"});
            package[member] = value;
            document(&package)
        };
        let reference = "${env:AWS_SECRET_ACCESS_KEY}";
        let split = json!({"a": {"default": "$"}, "b": {"default": "{env:X}"}});
        let before_given = json!({"given": {"isRequired": true}});
        for document in [
            npm("identifier", json!(reference)),
            npm("version", json!(reference)),
            npm("environmentVariables", json!([{"name": "A", "value": reference}])),
            npm("environmentVariables", json!([{"name": "A", "default": reference}])),
            npm("environmentVariables", json!([{"name": reference, "value": "x"}])),
            npm("environmentVariables", json!([{"name": "A", "value": "{a}{b}", "variables": split}])),
            npm(
                "environmentVariables",
                json!([{"name": "A", "value": "{given}{env:X}", "variables": before_given}]),
            ),
            npm("packageArguments", json!([{"type": "named", "name": reference}])),
            npm("packageArguments", json!([{"type": "positional", "value": reference}])),
            npm("runtimeArguments", json!([{"type": "named", "name": "-x", "default": reference}])),
            json!({"name": "x", "remotes": [{"type": "sse", "url": format!("https://x/{reference}")}]}),
            json!({"name": "x", "remotes": [{"type": "sse", "url": "https://x", "headers": [{"name": "A", "value": reference}]}]}),
        ] {
            let refused = keys(&document, &[("given", "$")], None).unwrap_err();
            assert!(refused.contains("only your own values may have"), "{document}: {refused}");
        }
        let given = npm(
            "environmentVariables",
            json!([{"name": "A", "value": "<{given}>", "variables": before_given}]),
        );
        let env = keys(&given, &[("given", reference)], None).unwrap()["env"].take();
        assert_eq!(env, json!({"A": format!("<{reference}>")}));
        assert!(keys(&npm("runtimeHint", json!("sh")), &[], None).unwrap_err().contains("`sh`"));
        assert_eq!(keys(&npm("runtimeHint", json!("bunx")), &[], None).unwrap()["command"], "bunx");
    }

    #[test]
    fn remote_has_url_and_headers() {
        let document = json!({"server": {"name": "com.example/docs", "remotes": [
            {"type": "sse", "url": "https://{tenant}.example.com/sse", "variables": {"tenant": {"default": "www"}}},
            {"type": "streamable-http", "url": "https://example.com/mcp", "headers": [
                {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isSecret": true, "isRequired": true}}}]},
        ]}});
        assert_eq!(
            keys(&document, &[], None).unwrap(),
            json!({"url": "https://www.example.com/sse", "type": "sse"})
        );
        assert_eq!(
            keys(&document, &[], Some(TransportArg::Http)).unwrap(),
            json!({"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${secret:files-token}"}})
        );
        assert!(keys(&document, &[], Some(TransportArg::Stdio)).unwrap_err().contains("no package or URL"));
        assert!(keys(&json!({"packages": []}), &[], None).unwrap_err().contains("not a `server.json`"));
    }
}
