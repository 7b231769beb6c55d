//! The text of `tools` on a terminal: tools by server, one tool, and what tools cost.

use serde_json::{Value, json};
use toolcrib::access::expose::estimate_tokens;
use toolcrib::search::{ToolArgument, tool_arguments};

use super::schema_text;
use crate::output::{truncate_line, wrap_words};
use crate::report::tools::ToolReport;
use crate::visible_text::escape_invisible;

/// Columns that a name may take in a list.
const MAX_NAME_COLUMNS: usize = 48;
/// Columns that a type may take in the list of arguments.
const MAX_TYPE_COLUMNS: usize = 32;

/// The tokens that the definitions of one server cost.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerCost {
    pub(super) server: String,
    pub(super) tools: usize,
    pub(super) bytes: usize,
}

impl ServerCost {
    pub(super) fn tokens(&self) -> usize {
        estimate_tokens(self.bytes)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({"server": self.server, "tools": self.tools, "bytes": self.bytes, "tokens": self.tokens()})
    }
}

/// Returns what the tools of each server cost, the most expensive server first.
pub(super) fn costs(tools: &[ToolReport]) -> Vec<ServerCost> {
    let mut costs: Vec<ServerCost> = Vec::new();
    for tool in tools {
        let bytes = tool.definition_bytes();
        match costs.iter_mut().find(|cost| cost.server == tool.server) {
            Some(cost) => {
                cost.tools += 1;
                cost.bytes += bytes;
            }
            None => costs.push(ServerCost { server: tool.server.clone(), tools: 1, bytes }),
        }
    }
    // The sort is stable: servers that cost the same stay in the order of the list.
    costs.sort_by_key(|cost| std::cmp::Reverse(cost.bytes));
    costs
}

/// Returns the first line of the description, after the mark of a changed tool.
pub(super) fn summary(tool: &ToolReport) -> String {
    let description = tool.description.as_deref().unwrap_or_default();
    let summary = description.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let change = tool.change.as_ref().map_or_else(String::new, |change| format!("[{change}] "));
    change + &summary.replace('\t', " ")
}

/// Returns the tools below the names of their servers, in lines of at most `width` columns.
pub(super) fn grouped(tools: &[ToolReport], width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for group in tools.chunk_by(|first, second| first.server == second.server) {
        let noun = if group.len() == 1 { "tool" } else { "tools" };
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(truncate_line(&format!("{} ({} {noun})", group[0].server, group.len()), width));
        // The server's own names: the heading has the server, and `call SERVER.TOOL` takes both.
        let rows = aligned(group, width.saturating_sub(2), |tool| &tool.tool);
        lines.extend(rows.into_iter().map(|row| format!("  {row}")));
    }
    lines
}

/// Returns one line per tool: its public name and its summary.
pub(super) fn ungrouped(tools: &[ToolReport], width: usize) -> Vec<String> {
    aligned(tools, width, |tool| &tool.name)
}

fn aligned(tools: &[ToolReport], width: usize, name: fn(&ToolReport) -> &String) -> Vec<String> {
    let longest = tools.iter().map(|tool| name(tool).chars().count()).max().unwrap_or(0);
    let column = longest.min(MAX_NAME_COLUMNS);
    let line = |tool: &ToolReport| {
        let line = format!("{:<column$}  {}", name(tool), summary(tool));
        truncate_line(line.trim_end(), width)
    };
    tools.iter().map(line).collect()
}

/// Returns the description of one tool: signature, arguments, annotations, cost and an example call.
pub(super) fn tool_page(tool: &ToolReport, width: usize) -> Vec<String> {
    let schema = &tool.definition["inputSchema"];
    let change = tool.change.as_ref().map_or_else(String::new, |change| format!(" [{change}]"));
    let mut lines = vec![format!("{}{change}", tool.name)];
    let signature = schema_text::signature(&tool.tool, schema);
    lines.extend(indented(wrap_words(&signature, width.saturating_sub(4)), 2));
    let description = tool.description.as_deref().unwrap_or_default().trim();
    if !description.is_empty() {
        lines.push(String::new());
        for line in description.lines() {
            lines.extend(indented(wrapped_keeping_indent(line, width.saturating_sub(2)), 2));
        }
    }
    lines.extend(argument_lines(schema, width));
    lines.push(String::new());
    let annotations = annotation_words(&tool.definition["annotations"]);
    if !annotations.is_empty() {
        lines.push(format!("Annotations: {}", annotations.join(", ")));
    }
    lines.push(format!("Cost: {} tokens", estimate_tokens(tool.definition_bytes())));
    lines.push("Example:".to_owned());
    lines.push(format!("  {}", example(tool)));
    lines
}

/// Returns an example call. The text is not wrapped, so that it can be copied.
pub(super) fn example(tool: &ToolReport) -> String {
    let mut words = vec!["toolcrib".to_owned(), "call".to_owned(), tool.name.clone()];
    words.extend(schema_text::example_words(&tool.definition));
    escape_invisible(&words.join(" ")).into_owned()
}

fn indented(lines: Vec<String>, columns: usize) -> impl Iterator<Item = String> {
    lines.into_iter().map(move |line| format!("{:columns$}{line}", "").trim_end().to_owned())
}

/// Wraps one line of a description. Lists and code in it keep their indentation.
fn wrapped_keeping_indent(line: &str, width: usize) -> Vec<String> {
    let indent = line.len() - line.trim_start().len();
    let wrapped = wrap_words(line, width.saturating_sub(indent));
    if wrapped.is_empty() { vec![String::new()] } else { indented(wrapped, indent).collect() }
}

fn argument_lines(schema: &Value, width: usize) -> Vec<String> {
    let arguments = tool_arguments(schema);
    if arguments.is_empty() {
        return vec![String::new(), "Arguments: none".to_owned()];
    }
    let columns = |texts: &dyn Fn(&ToolArgument) -> usize| arguments.iter().map(texts).max().unwrap_or(0);
    let name_columns = columns(&|argument| argument.name.chars().count()).min(MAX_NAME_COLUMNS);
    let type_columns = columns(&|argument| argument.type_name.chars().count()).min(MAX_TYPE_COLUMNS);
    let mut lines = vec![String::new(), "Arguments:".to_owned()];
    for argument in &arguments {
        let need = if argument.is_required { "required" } else { "optional" };
        let head =
            format!("  {:<name_columns$}  {:<type_columns$}  {need}", argument.name, argument.type_name);
        let head = escape_invisible(&head).into_owned();
        let description = schema_text::describe(&schema["properties"][&argument.name]);
        let rest = width.saturating_sub(head.chars().count() + 2);
        if rest >= 20 {
            let texts = wrap_words(&description, rest);
            let column = head.chars().count() + 2;
            let mut texts = texts.into_iter();
            lines.push(format!("{head}  {}", texts.next().unwrap_or_default()).trim_end().to_owned());
            lines.extend(indented(texts.collect(), column));
        } else {
            lines.push(head);
            lines.extend(indented(wrap_words(&description, width.saturating_sub(6)), 6));
        }
    }
    lines
}

/// Returns the annotations of a tool in words.
fn annotation_words(annotations: &Value) -> Vec<&'static str> {
    let words = [
        ("readOnlyHint", "read-only", "not read-only"),
        ("destructiveHint", "destructive", "not destructive"),
        ("idempotentHint", "idempotent", "not idempotent"),
        ("openWorldHint", "uses the outside world", "uses nothing outside"),
    ];
    let word = |(member, yes, no): (&str, &'static str, &'static str)| {
        annotations[member].as_bool().map(|is_set| if is_set { yes } else { no })
    };
    words.into_iter().filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(server: &str, name: &str, description: &str) -> ToolReport {
        ToolReport {
            name: format!("{server}__{name}"),
            server: server.to_owned(),
            tool: name.to_owned(),
            description: Some(description.to_owned()),
            definition: json!({"name": name, "inputSchema": {"type": "object"}}),
            ..ToolReport::default()
        }
    }

    #[test]
    fn tools_are_grouped_aligned_and_truncated() {
        let tools = [
            tool("git", "log", "\n  Shows the commits of a branch.\nMore."),
            tool("git", "show_one", "Shows one commit."),
            tool("time", "now", ""),
        ];
        assert_eq!(
            grouped(&tools, 40),
            [
                "git (2 tools)",
                "  log       Shows the commits of a bran…",
                "  show_one  Shows one commit.",
                "",
                "time (1 tool)",
                "  now",
            ]
        );
        let changed = ToolReport { change: Some("changed".to_owned()), ..tools[1].clone() };
        assert_eq!(summary(&changed), "[changed] Shows one commit.");
    }

    #[test]
    fn costs_are_summed_by_server() {
        let tools = [tool("time", "now", ""), tool("git", "log", ""), tool("git", "show", "")];
        let costs = costs(&tools);
        assert_eq!(costs[0].server, "git");
        assert_eq!(costs[0].tools, 2);
        let bytes = tools[0].definition.to_string().len() + "time__".len();
        assert_eq!((costs[1].bytes, costs[1].tokens()), (bytes, bytes.div_ceil(4)));
    }

    #[test]
    fn tool_page_has_arguments_annotations_cost_and_example() {
        let definition = json!({
            "name": "log",
            "inputSchema": {"type": "object", "required": ["path"], "properties": {
                "path": {"type": "string", "description": "The repository"}, "count": {"type": "integer"}}},
            "annotations": {"readOnlyHint": true},
        });
        let page = tool_page(&ToolReport { definition, ..tool("git", "log", "Shows commits.") }, 80);
        assert_eq!(
            page,
            [
                "git__log",
                "  log(path: string, count?: integer)",
                "",
                "  Shows commits.",
                "",
                "Arguments:",
                "  path   string   required  The repository",
                "  count  integer  optional",
                "",
                "Annotations: read-only",
                "Cost: 52 tokens",
                "Example:",
                "  toolcrib call git__log path=text",
            ]
        );
    }
}
