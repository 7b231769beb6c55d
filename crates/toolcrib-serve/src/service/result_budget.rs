//! Result budgets: the text of a result that is larger than `result_tokens` of the client, the tool or its server is stored, and the client is sent its
//! beginning, its size and shape, and a link. `resources/read` and the tool `read_result` return any part of it.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use toolcrib::access::expose::{BYTES_PER_TOKEN, estimate_tokens};
use toolcrib::protocol::era::adapt_response_for_client;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::protocol::jsonrpc::{ResponsePayload, code};
use toolcrib::protocol::versions::Era;
use toolcrib::{Caller, Crib, Page, Selector, ServerId};

use super::result_parts::{PartSelector, count_lines, describe_json, text_page};
use super::search_tools::{Mistake, ToolAnswer, encode_answer, parse_arguments};
use super::stored_results::StoredResult;
use super::{CatalogScope, EndpointScope, McpService, RequestContext, reject};

/// The definition of the tool that reads stored results.
pub(super) const READ_RESULT: &str = r#"{"name":"read_result","description":"Reads a part of a large result by its id: a page, lines, lines that contain a text, or a JSON value.","inputSchema":{"type":"object","properties":{"id":{"type":"string"},"uri":{"type":"string"},"page":{"type":"integer"},"lines":{"type":"string","description":"For example 1-200"},"search":{"type":"string"},"pointer":{"type":"string","description":"JSON pointer, for example /items/0"}}},"annotations":{"readOnlyHint":true}}"#;

/// Beginning of the URIs of stored results.
const URI_PREFIX: &str = "toolcrib://_results/";
/// Bytes of a shortened result that are not its beginning: size, shape, how to read the rest, and the link.
const MAX_EXPLANATION: usize = 1200;
/// Clients that do not pass results to a model: the commands of the program.
const CLIENTS_WITHOUT_BUDGET: [&str; 1] = ["toolcrib-cli"];

impl McpService {
    /// Returns what a budget of the result depends on, if it may have one. At the endpoint of one server nothing is changed.
    pub(super) fn budgeted_call(
        &self,
        scope: &EndpointScope,
        method: &str,
        selector: &Selector,
    ) -> Option<Box<BudgetedCall>> {
        if !self.crib.limits_results() {
            return None;
        }
        let client_tokens = self.client_result_tokens(scope);
        let is_command =
            scope.client_name.as_deref().is_some_and(|name| CLIENTS_WITHOUT_BUDGET.contains(&name));
        let has_budget = scope.view == CatalogScope::All
            && matches!(method, "tools/call" | "tasks/result")
            && !is_command
            && client_tokens != Some(0);
        let caller = scope.caller().clone();
        // Boxed, because it is a part of the future of every call.
        has_budget.then(|| Box::new(BudgetedCall { caller, selector: selector.clone(), client_tokens }))
    }

    /// Returns the tokens of a result that the config sets for a client program; zero for no limit.
    fn client_result_tokens(&self, scope: &EndpointScope) -> Option<usize> {
        self.crib.expose_settings().result_tokens.get(scope.client_name.as_deref()?).copied()
    }

    /// Stores the text of a result that exceeds its budget, and returns what the client is sent instead. A result with other
    /// content, or that cannot be stored, is returned unchanged.
    pub(super) async fn fit_answer(
        &self,
        call: &BudgetedCall,
        server: &ServerId,
        answer: ResponsePayload,
    ) -> ResponsePayload {
        self.stored_results.remove_expired(Instant::now());
        let ResponsePayload::Result(result) = answer else { return answer };
        let max_bytes = call.tokens(&self.crib, server).map(|tokens| tokens.saturating_mul(BYTES_PER_TOKEN));
        let Some(max_bytes) = max_bytes.filter(|max_bytes| result.len() > *max_bytes) else {
            return ResponsePayload::Result(result);
        };
        let raw = result.clone();
        let owner = server.clone();
        // A large result takes milliseconds to parse.
        let parsed = spawn_blocking(move || LargeResult::parse(&raw, owner, max_bytes)).await;
        let Some(large) = parsed.ok().flatten() else { return ResponsePayload::Result(result) };
        let LargeResult { result: mut shortened, stored, summary } = large;
        match self.stored_results.insert(&call.caller, stored, Instant::now()) {
            Some(id) => {
                shortened.set_unchecked("content", summary.to_content(&id));
                ResponsePayload::Result(shortened.to_bytes())
            }
            None => ResponsePayload::Result(result),
        }
    }

    /// Returns whether a client is listed `read_result`: it has a budget of its own, or may see a server that has one.
    pub(super) fn lists_read_result(&self, scope: &EndpointScope) -> bool {
        if scope.view != CatalogScope::All || !self.crib.limits_results() {
            return false;
        }
        match self.client_result_tokens(scope) {
            Some(tokens) => tokens > 0,
            None => self.crib.limits_results_for(scope.caller()),
        }
    }

    /// Adds the definition of `read_result` to the first page of a list.
    pub(super) fn add_read_result(page: &mut Page) {
        page.insert_first(READ_RESULT);
    }

    /// Returns what a request asks of a stored result; `None` for any other request.
    pub(super) fn find_stored_request(
        &self,
        scope: &EndpointScope,
        method: &str,
        params: &Object,
    ) -> Option<StoredResultRequest> {
        match method {
            "tools/call" => {
                let is_read_result = params.get("name").is_some_and(|name| &**name == br#""read_result""#);
                (is_read_result && self.lists_read_result(scope)).then_some(StoredResultRequest::Tool)
            }
            "resources/read" if scope.view == CatalogScope::All => {
                let uri = params.get_string("uri").filter(|uri| uri.starts_with(URI_PREFIX))?;
                Some(StoredResultRequest::Resource(uri.into_owned()))
            }
            _ => None,
        }
    }

    /// Answers a request for a stored result.
    pub(super) async fn answer_stored_result(
        &self,
        context: &RequestContext,
        requested: StoredResultRequest,
        params: &Object,
    ) -> ResponsePayload {
        let caller = context.scope.caller();
        let era = context.client.era;
        match requested {
            StoredResultRequest::Tool => encode_answer(self.read_result(caller, params).await, era),
            StoredResultRequest::Resource(uri) => self.read_result_resource(caller, uri, era).await,
        }
    }

    /// Answers a call of `read_result`: the selected part, or one page of it if it exceeds the budget.
    async fn read_result(&self, caller: &Caller, params: &Object) -> Result<ToolAnswer, Mistake> {
        let arguments = parse_arguments(params)?;
        let ReadRequest { id, selector } = ReadRequest::from_arguments(&arguments).map_err(Mistake)?;
        let stored = self.find_stored(caller, &id).ok_or_else(|| Mistake(unknown_result(&id)))?;
        let read = spawn_blocking(move || read_page(&stored, &selector)).await;
        let text = read.map_err(|error| Mistake(error.to_string()))?.map_err(Mistake)?;
        Ok(ToolAnswer::from_texts(text))
    }

    /// Answers `resources/read`: the selected part, or the texts of all content blocks.
    async fn read_result_resource(&self, caller: &Caller, uri: String, era: Era) -> ResponsePayload {
        let rest = uri.strip_prefix(URI_PREFIX).unwrap_or_default();
        let (id, query) = rest.split_once('?').unwrap_or((rest, ""));
        let Some(stored) = self.find_stored(caller, id) else {
            let code = if era == Era::Session { code::RESOURCE_NOT_FOUND } else { code::INVALID_PARAMS };
            return reject(code, &unknown_result(id));
        };
        let selector = match PartSelector::from_query(query) {
            Ok(selector) => selector,
            Err(mistake) => return reject(code::INVALID_PARAMS, &mistake),
        };
        match spawn_blocking(move || encode_contents(&stored, &selector, &uri)).await {
            Ok(Ok(result)) => {
                let result = ResponsePayload::Result(result.into());
                adapt_response_for_client(result, "resources/read", Era::Session, era, None)
            }
            Ok(Err(mistake)) => reject(code::INVALID_PARAMS, &mistake),
            Err(error) => reject(code::INTERNAL_ERROR, &error.to_string()),
        }
    }

    /// Returns a stored result of a caller that still sees its server.
    fn find_stored(&self, caller: &Caller, id: &str) -> Option<Arc<StoredResult>> {
        let stored = self.stored_results.find(caller, id, Instant::now())?;
        self.crib.can_see(caller, &stored.server).then_some(stored)
    }
}

/// A request for a result that was too large for its client.
pub(super) enum StoredResultRequest {
    /// A call of `read_result`.
    Tool,
    /// `resources/read` with this URI.
    Resource(String),
}

/// A call whose result may have a budget.
pub(super) struct BudgetedCall {
    caller: Caller,
    selector: Selector,
    /// The budget of the client program, which comes before those of the tool and its server.
    client_tokens: Option<usize>,
}

impl BudgetedCall {
    /// Returns the tokens of the result that the client is sent, if they are limited.
    fn tokens(&self, crib: &Crib, server: &ServerId) -> Option<usize> {
        if self.client_tokens.is_some() {
            return self.client_tokens;
        }
        let target = match &self.selector {
            Selector::Tool(_) => crib.callable_catalog_for(&self.caller).find(&self.selector).ok(),
            _ => None,
        };
        let tool = target.filter(|target| target.server == *server).map(|target| target.name);
        crib.result_tokens(server, tool.as_deref())
    }
}

fn unknown_result(id: &str) -> String {
    let id: String = id.chars().take(40).collect();
    format!("Resource not found: {URI_PREFIX}{id}: results are kept for an hour; call the tool again")
}

/// A result that exceeds its budget.
struct LargeResult {
    result: Object,
    stored: StoredResult,
    summary: ResultSummary,
}

/// What a client is sent of a stored result.
struct ResultSummary {
    server: ServerId,
    /// The first page of its text.
    head: String,
    size: usize,
    /// Its size and shape, in words.
    description: String,
}

impl LargeResult {
    /// Parses a result; `None` if it has other content than text, or the text fits.
    fn parse(result: &Bytes, server: ServerId, max_bytes: usize) -> Option<Self> {
        let result = Object::parse(result).ok()?;
        let content = result.get("content").filter(|content| content.len() > max_bytes)?;
        if result.get("structuredContent").is_some() {
            return None;
        }
        let blocks = object::parse_array(content).ok()?;
        let texts: Option<Vec<String>> = blocks.iter().map(block_text).collect();
        let page_bytes = max_bytes.saturating_sub(MAX_EXPLANATION).max(1);
        let stored = StoredResult { server, blocks: texts?, page_bytes };
        let summary = ResultSummary::new(&stored, estimate_tokens(content.len()))?;
        Some(Self { result, stored, summary })
    }
}

impl ResultSummary {
    fn new(stored: &StoredResult, tokens: usize) -> Option<Self> {
        let text = joined_text(stored);
        let first = text_page(&text, 1, stored.page_bytes)?;
        let json = describe_json(&Bytes::copy_from_slice(text.trim().as_bytes()));
        let size = stored.size();
        let description = format!(
            "The result has {size} bytes in {} lines, about {tokens} tokens and {} pages.{}",
            count_lines(&text),
            first.count,
            json.map(|json| format!(" It is {json}.")).unwrap_or_default(),
        );
        Some(Self { server: stored.server.clone(), head: first.text.to_owned(), size, description })
    }

    /// Returns the content of the result that the client is sent.
    fn to_content(&self, id: &str) -> String {
        let Self { server, head, size, description } = self;
        let explanation = format!(
            "[Only page 1 is shown. {description} Read more with read_result: {{\"id\": \"{id}\", \"page\": 2}}; instead of a page it takes lines, search or pointer. It expires after an hour.]"
        );
        let link = json!({"type": "resource_link", "uri": format!("{URI_PREFIX}{id}"),
            "name": format!("result of {server}"), "mimeType": "text/plain", "size": size});
        json!([{"type": "text", "text": head}, {"type": "text", "text": explanation}, link]).to_string()
    }
}

/// Returns the text of a content block; `None` if it is of another type.
fn block_text(block: &Bytes) -> Option<String> {
    let block = Object::parse(block).ok()?;
    let is_text = block.get_string("type").is_some_and(|kind| kind == "text");
    Some(block.get_string("text").filter(|_| is_text)?.into_owned())
}

/// Returns the texts of all content blocks, joined by line breaks.
fn joined_text(stored: &StoredResult) -> Cow<'_, str> {
    match &*stored.blocks {
        [text] => Cow::Borrowed(text),
        texts => Cow::Owned(texts.join("\n")),
    }
}

/// Returns the selected part of a result, or the texts of all content blocks if nothing is selected.
fn read_texts<'a>(stored: &'a StoredResult, selector: &PartSelector) -> Result<Vec<Cow<'a, str>>, String> {
    if *selector == PartSelector::default() {
        return Ok(stored.blocks.iter().map(|text| Cow::Borrowed(text.as_str())).collect());
    }
    let text = joined_text(stored);
    if selector.page.is_none()
        && let Cow::Borrowed(text) = text
    {
        return Ok(vec![selector.select(text)?]);
    }
    let part = selector.select(&text)?.into_owned();
    let Some(number) = selector.page else { return Ok(vec![part.into()]) };
    let page = text_page(&part, number, stored.page_bytes).ok_or_else(|| missing_page(&part, stored))?;
    Ok(vec![page.text.to_owned().into()])
}

/// Returns the selected part as the result of `resources/read`.
fn encode_contents(stored: &StoredResult, selector: &PartSelector, uri: &str) -> Result<String, String> {
    let texts = read_texts(stored, selector)?;
    let contents: Vec<Value> =
        texts.iter().map(|text| json!({"uri": uri, "mimeType": "text/plain", "text": text})).collect();
    Ok(json!({"contents": contents}).to_string())
}

/// Returns one page of the selected part, and which page it is if there are several.
fn read_page(stored: &StoredResult, selector: &PartSelector) -> Result<Vec<String>, String> {
    let text = joined_text(stored);
    let part = selector.select(&text)?;
    let number = selector.page.unwrap_or(1);
    let page = text_page(&part, number, stored.page_bytes).ok_or_else(|| missing_page(&part, stored))?;
    let mut texts = vec![page.text.to_owned()];
    if number < page.count {
        let next = number + 1;
        texts.push(format!(
            "[Page {number} of {}; repeat the call with \"page\": {next} for more.]",
            page.count
        ));
    } else if page.count > 1 {
        texts.push(format!("[Page {number} of {}, the last one.]", page.count));
    }
    Ok(texts)
}

fn missing_page(part: &str, stored: &StoredResult) -> String {
    let count = text_page(part, 1, stored.page_bytes).map_or(0, |page| page.count);
    format!("there is no such page: the text has {count}")
}

/// The arguments of `read_result`.
struct ReadRequest {
    id: String,
    selector: PartSelector,
}

impl ReadRequest {
    /// Parses the arguments. The result may be named by its id or its URI; a query of the URI counts as arguments.
    fn from_arguments(arguments: &Object) -> Result<Self, String> {
        let mut selector = PartSelector::default();
        let mut named = None;
        for (key, raw) in arguments.iter().filter(|(_, raw)| &***raw != b"null") {
            let text = match object::as_string(raw) {
                Some(text) => text.into_owned(),
                None => String::from_utf8_lossy(raw).into_owned(),
            };
            match key {
                "id" | "uri" => named = Some(text),
                key => selector.set(key, text)?,
            }
        }
        let named = named.ok_or("`id` must be the id of a stored result")?;
        let id = named.strip_prefix(URI_PREFIX).unwrap_or(&named);
        let (id, query) = id.split_once('?').unwrap_or((id, ""));
        if !query.is_empty() && selector == PartSelector::default() {
            selector = PartSelector::from_query(query)?;
        }
        Ok(Self { id: id.to_owned(), selector })
    }
}

/// Returns the id of the stored result that a request reads.
pub(super) fn named_result(method: &str, params: &Object) -> Option<String> {
    match method {
        "resources/read" => {
            let uri = params.get_string("uri")?;
            let rest = uri.strip_prefix(URI_PREFIX)?;
            Some(rest.split_once('?').map_or(rest, |(id, _)| id).to_owned())
        }
        "tools/call" if params.get("name").is_some_and(|name| &**name == br#""read_result""#) => {
            let arguments = parse_arguments(params).ok()?;
            ReadRequest::from_arguments(&arguments).ok().map(|request| request.id)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
