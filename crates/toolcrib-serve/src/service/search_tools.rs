//! Search mode: a client is listed three tools that find, describe and call the others, instead of all tools.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::protocol::era::adapt_response_for_client;
use toolcrib::protocol::json::object::{self, Object, to_json_string};
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::versions::Era;
use toolcrib::search::{MAX_QUERY_CHARS, split_summary};
use toolcrib::{Catalog, ListKind, Page, SearchHit, Selector, ServerId};

use super::initialize::{not_available_line, server_instructions};
use super::signature::{summary, text_line, tool_signature};
use super::{CatalogScope, EndpointScope, McpService, RequestContext};

/// The definitions of the three tools. They are a part of every conversation, so they are short, and they never change, so that
/// hosts can cache them.
pub(super) const SEARCH_TOOLS: [&str; 3] = [
    r#"{"name":"find_tools","description":"Finds tools by what they do, best first. Search for each step of a task; several queries can be given at once. Call what you find by its name, or with call_tool.","inputSchema":{"type":"object","properties":{"query":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"},"maxItems":8}]},"server":{"type":"string"},"limit":{"type":"integer","default":10}},"required":["query"]},"annotations":{"readOnlyHint":true}}"#,
    r#"{"name":"describe_tools","description":"Returns the full definitions of tools.","inputSchema":{"type":"object","properties":{"names":{"type":"array","items":{"type":"string"}}},"required":["names"]},"annotations":{"readOnlyHint":true}}"#,
    r#"{"name":"call_tool","description":"Calls a tool.","inputSchema":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name"]}}"#,
];

/// Returns the size of the definitions that a client is listed in search mode instead of all others.
pub fn search_list_bytes() -> usize {
    SEARCH_TOOLS.iter().map(|definition| definition.len()).sum()
}

/// Queries of one `find_tools`.
const MAX_QUERIES: usize = 8;
/// Hits of one `find_tools` if it does not say how many.
const DEFAULT_LIMIT: usize = 10;
/// Largest `limit` of `find_tools`.
const MAX_LIMIT: usize = 50;
/// Further matches that are counted.
const MAX_COUNTED: usize = 100;
/// Names of one `describe_tools`.
const MAX_NAMES: usize = 50;
/// Similar tools that are named for an unknown name.
const MAX_SUGGESTIONS: usize = 3;
/// Bytes of the text about a server in the instructions.
const MAX_SERVER_SUMMARY: usize = 60;
/// Bytes of instructions that name servers.
const MAX_SERVER_LINES: usize = 3000;

/// A tool of the gateway itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchTool {
    Find,
    Describe,
    Call,
}

impl SearchTool {
    /// Returns the tool with this name, as JSON.
    fn from_json(name: &[u8]) -> Option<Self> {
        match name {
            br#""find_tools""# => Some(Self::Find),
            br#""describe_tools""# => Some(Self::Describe),
            br#""call_tool""# => Some(Self::Call),
            _ => None,
        }
    }
}

/// An answer of a tool of the gateway, before it is encoded.
pub(super) struct ToolAnswer {
    /// The texts of its content blocks.
    texts: Vec<String>,
    structured: Option<Value>,
}

impl ToolAnswer {
    /// Creates an answer that is text only.
    pub(super) fn from_texts(texts: Vec<String>) -> Self {
        Self { texts, structured: None }
    }
}

/// The explanation of a mistake, for the model.
pub(super) struct Mistake(pub(super) String);

impl McpService {
    /// Returns whether a client is listed the search tools.
    pub(super) fn is_search(&self, scope: &EndpointScope) -> bool {
        if scope.view != CatalogScope::All {
            return false;
        }
        let settings = self.crib.expose_settings();
        let list_bytes = || self.crib.catalog_for(scope.caller()).list_json(ListKind::Tools, None).len();
        !settings.lists_all() && settings.is_search(scope.caller(), scope.client_name.as_deref(), list_bytes)
    }

    /// Returns the tool that a call in search mode names, if it is one of the gateway itself.
    pub(super) fn find_search_tool(&self, scope: &EndpointScope, params: &Object) -> Option<SearchTool> {
        let name = params.get("name")?;
        let tool = SearchTool::from_json(name)?;
        if self.is_search(scope) {
            return Some(tool);
        }
        // The list may have been longer when the client read it. A real tool comes first now.
        let settings = self.crib.expose_settings();
        let may_search = scope.view == CatalogScope::All
            && settings.is_search(scope.caller(), scope.client_name.as_deref(), || usize::MAX);
        (may_search && !self.has_tool(scope, name)).then_some(tool)
    }

    /// Returns whether a caller may call a tool of a server by this name, as JSON.
    fn has_tool(&self, scope: &EndpointScope, name: &Bytes) -> bool {
        let name = object::as_string(name).unwrap_or_default().into_owned();
        self.crib.callable_catalog_for(scope.caller()).find(&Selector::Tool(name)).is_ok()
    }

    /// Returns the tools that are listed in full in search mode.
    pub(super) fn always_listed(&self, catalog: &Catalog) -> Option<Catalog> {
        let settings = self.crib.expose_settings();
        let is_listed = |server: &ServerId, name: &str| settings.is_always_listed(server, name);
        (!settings.always_list.is_empty()).then(|| catalog.filtered(|_| true, is_listed))
    }

    /// Returns a page of the list in search mode: the three tools first, then those that are always listed.
    pub(super) fn search_page(
        &self,
        catalog: &Catalog,
        era: Era,
        cursor: Option<&str>,
    ) -> Result<Page, toolcrib::Error> {
        let listed = self.always_listed(catalog).unwrap_or_default();
        let mut page = listed.page(ListKind::Tools, None, era, cursor)?;
        if cursor.is_some() {
            return Ok(page);
        }
        page.insert_first(&SEARCH_TOOLS.join(","));
        Ok(page)
    }

    /// Answers a call of `find_tools` or `describe_tools`.
    pub(super) async fn answer_search_tool(
        &self,
        context: &RequestContext,
        tool: SearchTool,
        params: &Object,
    ) -> ResponsePayload {
        let answer = match (parse_arguments(params), tool) {
            (Ok(arguments), SearchTool::Describe) => self.describe_tools(context, &arguments).await,
            (Ok(arguments), _) => self.find_tools(context, &arguments).await,
            (Err(mistake), _) => Err(mistake),
        };
        encode_answer(answer, context.client.era)
    }

    /// Turns a call of `call_tool` into the call of the tool that it names, so that all that follows sees only that.
    ///
    /// # Errors
    /// Returns the response if the arguments are not those of `call_tool`.
    pub(super) fn unwrap_call(
        &self,
        context: &RequestContext,
        params: &mut Object,
    ) -> Result<(), ResponsePayload> {
        let unwrapped = parse_arguments(params).and_then(|arguments| {
            let call = parse_inner_call(&arguments)?;
            let is_own = SearchTool::from_json(&call.name).is_some();
            if is_own && !self.has_tool(&context.scope, &call.name) {
                let name = object::as_string(&call.name).unwrap_or_default();
                return Err(Mistake(format!("`call_tool` calls tools of servers; call `{name}` directly")));
            }
            Ok(call)
        });
        let call = unwrapped.map_err(|mistake| encode_answer(Err(mistake), context.client.era))?;
        params.set_unchecked("name", call.name);
        match call.arguments {
            Some(arguments) => params.set_unchecked("arguments", arguments),
            None => drop(params.remove("arguments")),
        }
        Ok(())
    }

    async fn find_tools(&self, context: &RequestContext, arguments: &Object) -> Result<ToolAnswer, Mistake> {
        let queries = parse_queries(arguments)?;
        let limit = parse_limit(arguments)?;
        let caller = context.scope.caller();
        let wait = self.first_wait(&context.scope);
        let catalog = self.crib.list_kind_for(ListKind::Tools, caller, context.client.era, wait).await;
        let server = match parse_text(arguments, "server")? {
            Some(name) => match name.parse().ok().filter(|server| self.crib.can_see(caller, server)) {
                Some(server) if self.crib.contains(&server) => Some(server),
                _ => return Err(Mistake(catalog.unknown_server_error(&name).to_string())),
            },
            None => None,
        };
        let mut found = Vec::new();
        for query in &queries {
            let wanted = limit + MAX_COUNTED;
            found.push(match &server {
                Some(server) => self.crib.search_server_for(caller, server, query, wanted).await,
                None => self.crib.search_for(caller, query, wanted).await,
            });
        }
        let hits = merge_hits(found);
        let missing = not_available_line(&self.crib.catalog_for(caller));
        Ok(render_hits(&hits, limit, missing.as_deref()))
    }

    async fn describe_tools(
        &self,
        context: &RequestContext,
        arguments: &Object,
    ) -> Result<ToolAnswer, Mistake> {
        let names = parse_texts(arguments, "names", MAX_NAMES)?;
        let era = context.client.era;
        let caller = context.scope.caller();
        let mut definitions: Vec<Bytes> = Vec::new();
        let mut servers: BTreeSet<ServerId> = BTreeSet::new();
        let mut problems: Vec<String> = Vec::new();
        for name in names {
            let found = self.crib.find_for_era(caller, &Selector::Tool(name.clone()), era).await;
            let catalog = self.crib.callable_catalog_for(caller);
            let definition = found.as_ref().ok().and_then(|target| catalog.tool_definition(target, era));
            match (found, definition) {
                (Ok(target), Some(definition)) => {
                    definitions.push(definition);
                    servers.insert(target.server);
                }
                (found, _) => {
                    let message =
                        found.map_or_else(|error| error.to_string(), |_| format!("Unknown tool: {name}"));
                    let near = self.crib.search_for(caller, &name, MAX_SUGGESTIONS).await;
                    problems.push(with_suggestions(message, &near));
                }
            }
        }
        if definitions.is_empty() {
            return Err(Mistake(problems.join("\n")));
        }
        let catalog = self.crib.callable_catalog_for(caller);
        let instructions = servers.iter().filter_map(|server| server_instructions(&catalog, server));
        let texts = definitions.iter().map(|definition| String::from_utf8_lossy(definition).into_owned());
        let text = texts.chain(problems).chain(instructions).collect::<Vec<_>>().join("\n");
        let parsed =
            definitions.iter().filter_map(|definition| serde_json::from_slice::<Value>(definition).ok());
        Ok(ToolAnswer { texts: vec![text], structured: Some(json!({"tools": parsed.collect::<Vec<_>>()})) })
    }
}

/// Returns instructions for clients in search mode: what the three tools are for, and which servers there are.
pub(super) fn search_instructions(catalog: &Arc<Catalog>) -> String {
    let mut text = "Tools are not listed in full: find them with find_tools, then call them by their name or with call_tool. Servers:".to_owned();
    let mut left_out = 0;
    for server in catalog.servers() {
        let line = match server_summary(catalog, server) {
            Some(summary) => format!("\n- {server}: {summary}"),
            None => format!("\n- {server}"),
        };
        match text.len() + line.len() <= MAX_SERVER_LINES {
            true => text.push_str(&line),
            false => left_out += 1,
        }
    }
    if left_out > 0 {
        text.push_str(&format!("\n- and {left_out} more"));
    }
    text
}

/// Returns the title of a server, or else the beginning of its instructions.
fn server_summary(catalog: &Catalog, server: &ServerId) -> Option<String> {
    let info = catalog.server_info(server).and_then(|info| Object::parse(info).ok()).unwrap_or_default();
    let title = info.get_string("title");
    let text = title.as_deref().or_else(|| catalog.server_instructions(server))?;
    let summary = summary(split_summary(text).0, MAX_SERVER_SUMMARY);
    (!summary.is_empty()).then_some(summary)
}

/// Adds the names of similar tools to an error.
fn with_suggestions(error: String, near: &[SearchHit]) -> String {
    let names: Vec<String> = near.iter().map(|hit| format!("`{}`", hit.tool.public_name)).collect();
    if names.is_empty() { error } else { format!("{error}; similar: {}", names.join(", ")) }
}

/// The tool that `call_tool` is to call, and its arguments, as JSON.
struct InnerCall {
    name: Bytes,
    arguments: Option<Bytes>,
}

fn parse_inner_call(arguments: &Object) -> Result<InnerCall, Mistake> {
    if let Some((unknown, _)) = arguments.iter().find(|(name, _)| !matches!(*name, "name" | "arguments")) {
        return Err(Mistake(format!(
            "`call_tool` has no argument `{unknown}`; put the arguments of the tool into `arguments`"
        )));
    }
    let name = arguments.get("name").filter(|name| object::as_string(name).is_some());
    let name = name.ok_or_else(|| Mistake("`name` must be the name of a tool".to_owned()))?.clone();
    let inner = arguments.get("arguments").filter(|raw| &***raw != b"null");
    match inner.and_then(|raw| raw.first()) {
        None | Some(b'{') => Ok(InnerCall { name, arguments: inner.cloned() }),
        Some(b'"') => {
            Err(Mistake("`arguments` must be an object, not a string that contains one".to_owned()))
        }
        Some(_) => Err(Mistake("`arguments` must be an object".to_owned())),
    }
}

pub(super) fn parse_arguments(params: &Object) -> Result<Object, Mistake> {
    match params.get("arguments").filter(|raw| &***raw != b"null") {
        Some(raw) => Object::parse(raw).map_err(|bad| Mistake(format!("`arguments`: {bad}"))),
        None => Ok(Object::default()),
    }
}

fn parse_queries(arguments: &Object) -> Result<Vec<String>, Mistake> {
    let queries = parse_texts(arguments, "query", MAX_QUERIES)?;
    for query in &queries {
        if query.trim().is_empty() {
            return Err(Mistake("`query` is empty: say in a few words what the tool should do".to_owned()));
        }
        let length = query.chars().count();
        if length > MAX_QUERY_CHARS {
            return Err(Mistake(format!(
                "`query` has {length} characters, at most {MAX_QUERY_CHARS} are allowed: say in a few words what the tool should do"
            )));
        }
    }
    Ok(queries)
}

/// Parses a string, or an array of one to `max` strings.
fn parse_texts(arguments: &Object, key: &str, max: usize) -> Result<Vec<String>, Mistake> {
    let expected = || Mistake(format!("`{key}` must be a string, or an array of 1 to {max} strings"));
    let raw = arguments.get(key).ok_or_else(expected)?;
    if let Some(text) = object::as_string(raw) {
        return Ok(vec![text.into_owned()]);
    }
    let texts: Vec<String> = serde_json::from_slice(raw).map_err(|_| expected())?;
    if texts.is_empty() || texts.len() > max { Err(expected()) } else { Ok(texts) }
}

fn parse_text(arguments: &Object, key: &str) -> Result<Option<String>, Mistake> {
    match arguments.get(key).filter(|raw| &***raw != b"null") {
        Some(raw) => match object::as_string(raw) {
            Some(text) => Ok(Some(text.into_owned())),
            None => Err(Mistake(format!("`{key}` must be a string"))),
        },
        None => Ok(None),
    }
}

fn parse_limit(arguments: &Object) -> Result<usize, Mistake> {
    let Some(raw) = arguments.get("limit").filter(|raw| &***raw != b"null") else { return Ok(DEFAULT_LIMIT) };
    let limit = serde_json::from_slice::<usize>(raw).ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| Mistake(format!("`limit` must be a whole number from 1 to {MAX_LIMIT}")))
}

/// Merges the hits of several queries: the best of each first, then the second best, each tool once.
fn merge_hits(found: Vec<Vec<SearchHit>>) -> Vec<SearchHit> {
    let mut seen = HashSet::new();
    let mut merged = Vec::new();
    let mut lists: Vec<_> = found.into_iter().map(Vec::into_iter).collect();
    loop {
        let next: Vec<SearchHit> = lists.iter_mut().filter_map(Iterator::next).collect();
        if next.is_empty() {
            return merged;
        }
        merged.extend(next.into_iter().filter(|hit| seen.insert(hit.tool.public_name.clone())));
    }
}

fn render_hits(hits: &[SearchHit], limit: usize, missing: Option<&str>) -> ToolAnswer {
    let shown = &hits[..hits.len().min(limit)];
    let mut tools = Vec::new();
    let mut text = String::new();
    for hit in shown {
        let signature = tool_signature(&hit.tool);
        let description = hit.tool.description().unwrap_or_default();
        text.push_str(&text_line(&signature, &description));
        text.push('\n');
        tools.push(json!({
            "name": &*hit.tool.public_name,
            "server": hit.tool.server.as_str(),
            "description": split_summary(&description).0.trim(),
            "signature": signature.full,
            "score": (f64::from(hit.score) * 1000.0).round() / 1000.0,
        }));
    }
    let more = hits.len() - shown.len();
    text.push_str(&match (shown.len(), more) {
        (0, _) => "No tool matches. Use other words, or fewer.".to_owned(),
        (_, 0) => "No more match.".to_owned(),
        (_, more) if more >= MAX_COUNTED => format!("{MAX_COUNTED} or more match less well."),
        (_, more) => format!("{more} more match less well."),
    });
    if let Some(missing) = missing {
        text.push('\n');
        text.push_str(missing);
    }
    ToolAnswer { texts: vec![text], structured: Some(json!({"tools": tools})) }
}

/// Encodes an answer as the result of a tool, for clients of an era.
pub(super) fn encode_answer(answer: Result<ToolAnswer, Mistake>, era: Era) -> ResponsePayload {
    let is_error = answer.is_err();
    let answer = answer.unwrap_or_else(|Mistake(text)| ToolAnswer::from_texts(vec![text]));
    let block = |text: &String| {
        let text = String::from_utf8_lossy(&to_json_string(text)).into_owned();
        format!(r#"{{"type":"text","text":{text}}}"#)
    };
    let blocks: Vec<String> = answer.texts.iter().map(block).collect();
    let mut result = format!(r#"{{"content":[{}]"#, blocks.join(","));
    if let Some(structured) = &answer.structured {
        result.push_str(&format!(r#","structuredContent":{structured}"#));
    }
    result.push_str(&format!(r#","isError":{is_error}}}"#));
    adapt_response_for_client(ResponsePayload::Result(result.into()), "tools/call", Era::Session, era, None)
}

#[cfg(test)]
mod tests;
