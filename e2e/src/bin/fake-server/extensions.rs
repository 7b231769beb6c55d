//! Extensions: announced capabilities, their methods, and a tool with a page.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Request, Server};
use crate::{script, tools};

/// The extension that serves skills.
const SKILLS: &str = "io.modelcontextprotocol/skills";

/// The media type of a page.
const PAGE_TYPE: &str = "text/html;profile=mcp-app";

/// Adds the announced capabilities to the fixed ones.
pub(crate) fn add_capabilities(script: &script::Script, result: &mut Value) {
    for (name, value) in script.capabilities.as_object().into_iter().flatten() {
        result["capabilities"][name] = value.clone();
    }
}

/// Returns the definitions of the tools that exist only with the flags of this module.
pub(crate) fn definitions(server: &Server) -> Vec<Value> {
    let definition = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    let mut all = Vec::new();
    if server.script.capabilities.is_object() {
        all.extend(["tell_client", "notifications"].map(definition));
    }
    if let Some(page) = &server.script.page {
        let mut show = definition("show");
        show["_meta"] = json!({"ui": {"resourceUri": page}, "ui/resourceUri": page});
        all.push(show);
    }
    if server.state().client_capabilities["extensions"].is_object() {
        all.push(definition("for_extended_clients"));
    }
    all
}

/// Runs a tool of this module; `false` if there is none with this name.
pub(crate) fn run(server: &Server, request: &Request, name: &str) -> bool {
    match name {
        "tell_client" => tell_client(server, request),
        "notifications" => {
            let received = json!(server.state().notifications).to_string();
            tools::answer_text(server, request, &received);
        }
        "show" => {
            let Some(page) = &server.script.page else { return false };
            let mut result = tools::text_result(server, "shown");
            result["_meta"] = json!({"ui": {"resourceUri": page}});
            if let Some(content) = result["content"].as_array_mut() {
                content.push(json!({"type": "resource_link", "uri": page, "name": "page"}));
                content.push(json!({"type": "resource", "resource": {"uri": page, "text": "embedded"}}));
            }
            server.answer(&request.id, &result);
        }
        "for_extended_clients" => tools::answer_text(server, request, name),
        _ => return false,
    }
    true
}

/// Sends a notification to the client: before the answer, any number of times, or late, when the call has ended.
fn tell_client(server: &Server, request: &Request) {
    let arguments = &request.params["arguments"];
    let method = arguments["method"].as_str().unwrap_or_default();
    let params = json!({"message": arguments["message"]});
    if arguments["late"] == true {
        tools::answer_text(server, request, "told");
        std::thread::sleep(Duration::from_millis(200));
        return server.notify(method, &params);
    }
    for _ in 0..arguments["times"].as_u64().unwrap_or(1) {
        server.notify(method, &params);
    }
    tools::answer_text(server, request, "told");
}

/// Returns the page as a listed resource, if it is listed.
pub(crate) fn listed_page(server: &Server) -> Option<Value> {
    let page = server.script.page.as_ref().filter(|_| server.script.list_page)?;
    Some(json!({"uri": page, "name": "page", "mimeType": PAGE_TYPE}))
}

/// Returns the content of a page.
pub(crate) fn read_page(server: &Server, uri: &str) -> Option<Value> {
    server.script.page.as_ref().filter(|page| **page == uri)?;
    let text = format!("page of {}", server.script.name);
    Some(json!({"contents": [{"uri": uri, "mimeType": PAGE_TYPE, "text": text}]}))
}

/// Answers a method of an extension; `None` if the server has no extensions.
pub(crate) fn answer(server: &Server, method: &str, params: &Value) -> Option<Value> {
    let capabilities = server.script.capabilities.as_object()?;
    let name = &server.script.name;
    let skill = json!({
        "uri": "skill://hello/SKILL.md",
        "frontmatter": {"name": "hello", "description": format!("Skill of {name}")},
        "resources": [{"uri": "skill://hello/SKILL.md", "digest": "sha256:0", "size": 1}],
    });
    let has_skills = capabilities.get("extensions").is_some_and(|keys| keys[SKILLS].is_object());
    let mut result = match method {
        "skills/list" if has_skills => json!({"skills": [skill]}),
        "skills/get" if has_skills => json!({"skill": skill}),
        "resources/directory/read" if has_skills => {
            json!({"resources": [{"uri": "skill://hello/SKILL.md", "name": "SKILL.md"}]})
        }
        _ if has_skills => return None,
        _ => json!({"server": name, "method": method, "message": params["message"]}),
    };
    if server.script.era.is_stateless() {
        result["resultType"] = "complete".into();
        result["ttlMs"] = 0.into();
        result["cacheScope"] = "private".into();
    }
    Some(result)
}
