//! Questions of servers (elicitation), asked at the terminal.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolcrib::access::schema::Schema;
use toolcrib::protocol::era::capabilities::{CREATE_MESSAGE, ELICIT};
use toolcrib::protocol::era::input::{self, InputRequest, RequiredInput};
use toolcrib::protocol::era::meta;
use toolcrib::protocol::json::object::Object;
use toolcrib::{Client, ClientCapabilities, Era, ResponsePayload};

use super::call::arguments;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Prompter;
use crate::visible_text::escape_invisible;

/// Number of times that a server may ask within one request.
const MAX_ROUNDS: usize = 32;

/// The capabilities of a command at a terminal.
const CAPABILITIES: &str = r#"{"elicitation":{"form":{},"url":{}}}"#;

/// Returns the capabilities to declare to servers: questions can be asked only at a terminal.
pub(super) fn capabilities(prompter: Prompter) -> &'static str {
    if prompter.is_interactive() { CAPABILITIES } else { "{}" }
}

/// Returns the client that servers see, for requests without a gateway.
pub(super) fn client(prompter: Prompter) -> Client {
    let mut client = Client::without_capabilities();
    if prompter.is_interactive() {
        client.era = Era::Stateless;
        client.capabilities = ClientCapabilities::parse(&Bytes::from_static(CAPABILITIES.as_bytes()));
    }
    client
}

/// Adds a hint to the error of a server that could not ask something.
pub(super) fn with_question_hint(mut error: CommandError) -> CommandError {
    let rpc = &error.data["rpc"];
    let required = &rpc["data"]["requiredCapabilities"];
    let message = rpc["message"].as_str().unwrap_or_default();
    let needs = |capability: &str, method: &str| {
        required.get(capability).is_some() || message.contains(&format!("does not support `{method}`"))
    };
    if needs("elicitation", ELICIT) {
        error.hint = Some("run the command in a terminal, where the server can ask".to_owned());
    } else if needs("sampling", CREATE_MESSAGE) {
        error.hint = Some("the tool needs a model: use it in an agent that supports sampling".to_owned());
    }
    // The message of the protocol does not name it.
    let missing: Vec<&str> =
        required.as_object().into_iter().flat_map(|required| required.keys()).map(String::as_str).collect();
    if !missing.is_empty() && !missing.iter().all(|capability| message.contains(capability)) {
        error.message = format!("{}: {}", error.message, missing.join(", "));
    }
    error
}

/// Sends a request, and repeats it with the answers of the person as long as the server asks for input. `server` is the name
/// of the server in the config, if it is known.
pub(super) async fn send_with_answers(
    prompter: Prompter,
    server: Option<&str>,
    mut params: Object,
    send: impl AsyncFn(Object) -> Result<ResponsePayload, CommandError>,
) -> Result<ResponsePayload, CommandError> {
    for _ in 0..MAX_ROUNDS {
        let response = send(params.clone()).await?;
        let ResponsePayload::Result(result) = &response else { return Ok(response) };
        let needed = input::parse_required_input(result).map_err(|error| CommandError::unexpected(&error))?;
        let Some(RequiredInput { requests, state }) = needed else { return Ok(response) };
        let answers = answer_all(prompter, QuestionSource::find(result, server), requests).await?;
        params.set_unchecked(input::INPUT_RESPONSES, answers);
        match state {
            Some(state) => params.set_unchecked(input::REQUEST_STATE, state),
            None => drop(params.remove(input::REQUEST_STATE)),
        }
    }
    let message = format!("the server asked for input more than {MAX_ROUNDS} times");
    Err(CommandError::new(ExitStatus::ToolError, "server_error", message))
}

/// The sender of questions.
#[derive(Debug, Clone)]
enum QuestionSource {
    /// toolcrib itself, for an approval.
    Toolcrib,
    /// A server, by its name in the config.
    Server(String),
    /// A server whose name in the config is not known here, by the name that it says it has.
    Unnamed(Option<String>),
}

impl QuestionSource {
    /// Finds who asks in a result. `server` is the name of the called server in the config, if it is known.
    fn find(result: &Bytes, server: Option<&str>) -> Self {
        if input::is_own_question(result) {
            return Self::Toolcrib;
        }
        if let Some(server) = server {
            return Self::Server(server.to_owned());
        }
        let result: Value = serde_json::from_slice(result).unwrap_or_default();
        Self::Unnamed(result["_meta"][meta::SERVER_INFO]["name"].as_str().map(str::to_owned))
    }

    /// Returns the start of a question.
    fn intro(&self) -> String {
        match self {
            Self::Toolcrib => "toolcrib asks for your approval".to_owned(),
            Self::Server(server) => format!("server `{}` asks", escape_invisible(server)),
            Self::Unnamed(Some(name)) => {
                format!("a server that calls itself `{}` asks", escape_invisible(name))
            }
            Self::Unnamed(None) => "a server asks".to_owned(),
        }
    }
}

/// Asks the person every question. Runs on a blocking thread, so that signals are noticed meanwhile.
async fn answer_all(
    prompter: Prompter,
    source: QuestionSource,
    requests: Vec<InputRequest>,
) -> Result<Bytes, CommandError> {
    let answers = tokio::task::spawn_blocking(move || {
        let mut answers = Map::new();
        for request in requests {
            let answer = answer_request(prompter, &source, &request)?;
            answers.insert(request.key, answer);
        }
        Ok(Value::Object(answers).to_string().into())
    });
    answers.await.map_err(|error| CommandError::unexpected(&error))?
}

fn answer_request(
    prompter: Prompter,
    source: &QuestionSource,
    request: &InputRequest,
) -> Result<Value, CommandError> {
    if request.method != ELICIT {
        let message = format!("the server sent `{}`, which a command cannot answer", request.method);
        let hint = "use this tool in an agent that supports it";
        return Err(CommandError::new(ExitStatus::ToolError, "server_error", message).hint(hint));
    }
    let params = request.params.as_ref().and_then(|raw| serde_json::from_slice(raw).ok());
    let question = Question { source, params: params.unwrap_or_default() };
    let mut ask = |text: &str| prompter.ask_line(text);
    question.ask(&mut ask).map_err(|error| CommandError::unexpected(&error))
}

/// Reads a line after a text was shown; `None` if the input ended.
type AskLine<'a> = &'a mut dyn FnMut(&str) -> std::io::Result<Option<String>>;

/// An elicitation.
struct Question<'a> {
    source: &'a QuestionSource,
    params: Value,
}

impl Question<'_> {
    /// Asks the person. Returns the result of the elicitation.
    fn ask(&self, ask: AskLine<'_>) -> std::io::Result<Value> {
        let message = self.params["message"].as_str().unwrap_or("input is needed");
        let message = format!("{}: {message}", self.source.intro());
        if self.params["mode"] == "url" {
            return self.ask_for_visit(&message, ask);
        }
        let schema = &self.params["requestedSchema"];
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        if properties.is_empty() {
            let answer = ask(&format!("{message} [y/N] "))?;
            return Ok(json!({"action": action(answer.as_deref().is_some_and(is_yes)), "content": {}}));
        }
        let mut content = Map::new();
        let mut intro = format!("{message}\nCtrl-D declines.\n");
        for (name, member) in &properties {
            let field = Field::new(name, member, schema);
            match field.ask(&intro, ask)? {
                FieldAnswer::Value(value) => drop(content.insert(name.clone(), value)),
                FieldAnswer::Omitted => {}
                FieldAnswer::Declined => return Ok(json!({"action": "decline"})),
            }
            intro.clear();
        }
        Ok(json!({"action": "accept", "content": content}))
    }

    /// Shows a URL. It is never opened by this program.
    fn ask_for_visit(&self, message: &str, ask: AskLine<'_>) -> std::io::Result<Value> {
        let url = escape_invisible(self.params["url"].as_str().unwrap_or_default()).into_owned();
        let text = format!(
            "{message}\nThe server asks you to open this address in a browser. Open it only if you expect it:\n  {url}\nContinue? [y/N] "
        );
        let answer = ask(&text)?;
        Ok(json!({"action": action(answer.as_deref().is_some_and(is_yes))}))
    }
}

fn action(is_accepted: bool) -> &'static str {
    if is_accepted { "accept" } else { "decline" }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// One field of a form.
struct Field<'a> {
    name: &'a str,
    member: &'a Value,
    root: &'a Value,
    is_required: bool,
    choices: Vec<Choice<'a>>,
}

/// One value of an enumeration.
struct Choice<'a> {
    value: &'a Value,
    title: Option<&'a str>,
}

/// What the person typed for a field.
enum FieldAnswer {
    Value(Value),
    Omitted,
    Declined,
}

impl<'a> Field<'a> {
    fn new(name: &'a str, member: &'a Value, root: &'a Value) -> Self {
        let required = root["required"].as_array().into_iter().flatten();
        let is_required = required.clone().any(|required| required == name);
        Self { name, member, root, is_required, choices: choices(member) }
    }

    fn is_multiple(&self) -> bool {
        self.member["type"] == "array"
    }

    /// Asks until the answer fits the schema of the field.
    fn ask(&self, intro: &str, ask: AskLine<'_>) -> std::io::Result<FieldAnswer> {
        let mut intro = intro.to_owned();
        loop {
            let Some(text) = ask(&format!("{intro}{}", self.prompt()))? else {
                return Ok(FieldAnswer::Declined);
            };
            let default = self.member.get("default").filter(|value| !value.is_null());
            let parsed = match (text.trim().is_empty(), default) {
                (true, Some(default)) => return Ok(FieldAnswer::Value(default.clone())),
                (true, None) if !self.is_required => return Ok(FieldAnswer::Omitted),
                (true, None) => Err("a value is required".to_owned()),
                _ => self.parse(text.trim()),
            };
            match parsed {
                Ok(value) => return Ok(FieldAnswer::Value(value)),
                Err(reason) => intro = format!("  {}\n", escape_invisible(&reason)),
            }
        }
    }

    fn prompt(&self) -> String {
        let mut prompt = String::new();
        for (index, choice) in self.choices.iter().enumerate() {
            let title =
                choice.title.map_or_else(String::new, |title| format!(" ({})", escape_invisible(title)));
            prompt += &format!("  {}. {}{title}\n", index + 1, escape_invisible(&display(choice.value)));
        }
        let label = self.member["title"].as_str().unwrap_or(self.name);
        prompt += &escape_invisible(label);
        if let Some(description) = self.member["description"].as_str() {
            prompt += &format!(" - {}", escape_invisible(description));
        }
        let kind = match (self.choices.is_empty(), self.is_multiple()) {
            (false, true) => "numbers or values, separated by commas",
            (false, false) => "number or value",
            (true, _) => &escape_invisible(self.member["type"].as_str().unwrap_or("text")),
        };
        let need = if self.is_required { "" } else { ", optional" };
        prompt += &format!(" ({kind}{need})");
        if let Some(default) = self.member.get("default").filter(|value| !value.is_null()) {
            prompt += &format!(" [{}]", escape_invisible(&display(default)));
        }
        prompt + ": "
    }

    /// Returns the value of a field, or why the text is not one.
    fn parse(&self, text: &str) -> Result<Value, String> {
        let value = if self.is_multiple() {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| self.parse_choice(item)).collect::<Result<_, _>>()?)
        } else if self.choices.is_empty() {
            let text = match (self.member["type"].as_str(), text.to_lowercase().as_str()) {
                (Some("boolean"), "y" | "yes") => "true",
                (Some("boolean"), "n" | "no") => "false",
                _ => text,
            };
            let json = arguments::convert_text(self.name, text, self.member, self.root)
                .map_err(|error| error.message)?;
            serde_json::from_str(&json).map_err(|error| error.to_string())?
        } else {
            self.parse_choice(text)?
        };
        self.check(&value)?;
        Ok(value)
    }

    fn parse_choice(&self, text: &str) -> Result<Value, String> {
        if self.choices.is_empty() {
            return Ok(json!(text));
        }
        let by_value = self.choices.iter().find(|choice| display(choice.value) == text);
        let by_number = || self.choices.get(text.parse::<usize>().ok()?.checked_sub(1)?);
        let found = by_value.or_else(by_number);
        found.map(|choice| choice.value.clone()).ok_or_else(|| format!("`{text}` is not one of the values"))
    }

    /// Checks a value against the schema of the field.
    fn check(&self, value: &Value) -> Result<(), String> {
        let schema = json!({"inputSchema": {"type": "object", "properties": {self.name: self.member}}});
        let Some(schema) = Schema::from_definition(&schema.to_string().into()) else { return Ok(()) };
        schema
            .check(json!({self.name: value}).to_string().as_bytes())
            .map_err(|violations| violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }
}

/// Returns the values of an enumeration, in all spellings of the specification.
fn choices(member: &Value) -> Vec<Choice<'_>> {
    let source = if member["type"] == "array" { &member["items"] } else { member };
    let titled = source["oneOf"].as_array().or(source["anyOf"].as_array());
    if let Some(choices) = titled {
        let choice = |choice: &'_ Value| choice.get("const").is_some();
        let all = choices.iter().filter(|&value| choice(value));
        return all.map(|value| Choice { value: &value["const"], title: value["title"].as_str() }).collect();
    }
    let values = source["enum"].as_array().into_iter().flatten().enumerate();
    values.map(|(index, value)| Choice { value, title: source["enumNames"][index].as_str() }).collect()
}

/// Returns a value as a person writes it.
fn display(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with these lines; returns the result and everything that was shown.
    fn answer(params: Value, lines: &[&str]) -> (Value, String) {
        let mut lines = lines.iter();
        let mut shown = String::new();
        let mut ask = |text: &str| {
            shown += text;
            shown.push('\n');
            Ok(lines.next().map(|&line| line.to_owned()))
        };
        let result =
            Question { source: &QuestionSource::Server("forms".to_owned()), params }.ask(&mut ask).unwrap();
        (result, shown)
    }

    #[test]
    fn form_fields_get_types_choices_and_defaults() {
        let params = json!({"message": "Who?", "requestedSchema": {"type": "object", "required": ["a_name", "d_color", "g_team"], "properties": {
            "a_name": {"type": "string", "description": "full name", "minLength": 2},
            "b_age": {"type": "integer", "minimum": 0, "default": 30},
            "c_ok": {"type": "boolean"},
            "d_color": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
            "e_tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
            "f_note": {"type": "string"},
            "g_team": {"type": "string"},
        }}});
        let (result, shown) =
            answer(params, &["A", "Ada", "-1", "", "yes", "3", "2", "1, y", "", " ", "blue"]);
        let content = json!({
            "a_name": "Ada", "b_age": 30, "c_ok": true, "d_color": "g", "e_tags": ["x", "y"], "g_team": "blue",
        });
        assert_eq!(result, json!({"action": "accept", "content": content}), "{shown}");
        assert!(
            shown.starts_with("server `forms` asks: Who?\nCtrl-D declines.\na_name - full name (string): "),
            "{shown}"
        );
        assert!(shown.contains("b_age (integer, optional) [30]: "), "{shown}");
        assert!(shown.contains("  2. g (Green)\n"), "{shown}");
        assert!(shown.contains("`3` is not one of the values"), "{shown}");
    }

    #[test]
    fn server_that_calls_itself_toolcrib_does_not_ask_as_toolcrib() {
        let result = json!({"_meta": {meta::SERVER_INFO: {"name": "toolcrib"}}}).to_string().into();
        assert_eq!(QuestionSource::find(&result, Some("evil")).intro(), "server `evil` asks");
        assert_eq!(QuestionSource::find(&result, None).intro(), "a server that calls itself `toolcrib` asks");
        let own = input::input_required_result(&[], None, input::Questioner::Toolcrib);
        assert_eq!(QuestionSource::find(&own, Some("git")).intro(), "toolcrib asks for your approval");
    }

    #[test]
    fn server_cannot_forge_lines_of_the_form() {
        let member =
            json!({"title": "t\nx", "type": "string", "oneOf": [{"const": "a\nx", "title": "b\nx"}]});
        let other = json!({"type": "string\nx", "minLength": 2});
        let params = json!({"message": "?", "requestedSchema": {"properties": {"m": member, "o\nx": other}}});
        let (_, shown) = answer(params, &["", "1"]);
        assert!(shown.contains(r"1. a\u{a}x (b\u{a}x)") && !shown.contains("\nx"), "{shown}");
    }

    #[test]
    fn end_of_input_declines() {
        let form = json!({"message": "?", "requestedSchema": {"properties": {"a": {"type": "string"}}}});
        assert_eq!(answer(form, &[]).0, json!({"action": "decline"}));
        let confirm = json!({"message": "Allow?", "requestedSchema": {"type": "object", "properties": {}}});
        assert_eq!(answer(confirm.clone(), &["n"]).0["action"], "decline");
        assert_eq!(answer(confirm, &["y"]).0, json!({"action": "accept", "content": {}}));
    }

    #[test]
    fn url_is_shown_and_confirmed() {
        let params = json!({"mode": "url", "message": "Log in", "url": "https://example.com/\u{202e}x", "elicitationId": "1"});
        let (result, shown) = answer(params, &["yes"]);
        assert_eq!(result, json!({"action": "accept"}));
        assert!(shown.contains(r"https://example.com/\u{202e}x"), "{shown}");
    }

    #[test]
    fn refused_questions_have_a_hint() {
        let hint = |rpc: Value| with_question_hint(CommandError::server_error(&rpc)).hint;
        let missing =
            json!({"code": -32021, "message": "Missing", "data": {"requiredCapabilities": {"sampling": {}}}});
        assert!(hint(missing).unwrap().contains("sampling"));
        let refused = json!({"code": -32603, "message": "the client does not support `elicitation/create`"});
        assert!(hint(refused).unwrap().contains("terminal"));
        assert_eq!(hint(json!({"code": -32603, "message": "other"})), None);
    }

    #[tokio::test]
    async fn only_elicitations_are_answered() {
        let request =
            InputRequest { key: "k".to_owned(), method: "sampling/createMessage".to_owned(), params: None };
        let error =
            answer_all(Prompter::none(), QuestionSource::Unnamed(None), vec![request]).await.unwrap_err();
        assert!(error.message.contains("sampling/createMessage"), "{error}");
    }
}
