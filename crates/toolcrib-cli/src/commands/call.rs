//! `toolcrib call`: one tool, called from the command line.

mod arguments;

use std::io::Read as _;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;
use toolcrib::schema::Schema;
use toolcrib::wire::message::{Answer, code};
use toolcrib::wire::object::{self, Object};
use toolcrib::{Caller, Crib, ErrorKind, Outcome, Wanted, spelling};

use self::arguments::Arguments;
use crate::cli::Call;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::frontend::admin::approvals::call_json;
use crate::offer;
use crate::output::{Asker, Output};
use crate::percent;
use crate::place::Place;

/// Calls the tool through the running gateway, or with a crib of its own.
pub(crate) async fn run(args: &Call, place: &Place, out: &mut Output) -> Result<Exit> {
    let request = Asked::read(args)?;
    let answered = match Client::find(place).await? {
        Some(client) => super::until_interrupted(request.through_if_allowed(&client, out.asker())).await?,
        None => {
            let asker = out.asker();
            let work = async |crib| request.standing_alone_if_allowed(&crib, asker).await;
            super::alone(place, out, super::Waits::ForAll, work)
                .await?
                .map(|answer| answer.map_err(|failure| advised(failure, place)))
        }
    };
    match answered {
        Some(answer) => show(&answer?, out),
        None => {
            out.say("interrupted; the call was cancelled")?;
            Ok(Exit::Interrupted)
        }
    }
}

/// What the command line asks for.
struct Asked {
    server: Option<String>,
    tool: String,
    arguments: Arguments,
    timeout: Option<Duration>,
    unchecked: bool,
}

impl Asked {
    fn read(args: &Call) -> Result<Self> {
        let (server, tool, pairs) = match args.words.as_slice() {
            [server, tool, pairs @ ..] if !tool.contains('=') => (Some(server.clone()), tool.clone(), pairs),
            [tool, pairs @ ..] => (None, tool.clone(), pairs),
            [] => return Err(Failure::usage("which tool?").hint("toolcrib tools").into()),
        };
        let object = match args.args.as_deref() {
            Some("-") => {
                let mut text = Vec::new();
                std::io::stdin().read_to_end(&mut text)?;
                Some(Bytes::from(text))
            }
            Some(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
            None => None,
        };
        let (timeout, unchecked) = (args.timeout, args.unchecked);
        Ok(Self { server, tool, arguments: Arguments::read(pairs, object)?, timeout, unchecked })
    }

    /// Ended after the time that the command line allows.
    async fn limited(&self, work: impl Future<Output = Result<Answer, Failure>>) -> Result<Answer, Failure> {
        let Some(limit) = self.timeout else { return work.await };
        timeout(limit, work).await.unwrap_or_else(|_| {
            let message = format!(
                "`{}` did not answer within {}; the call was cancelled",
                self.tool,
                spelling::time(limit)
            );
            Err(Failure::new(Exit::TimedOut, "timed_out", message).hint("give it more time with `--timeout`"))
        })
    }

    /// Once more if a person must say yes, and the one at the command line does.
    async fn through_if_allowed(&self, client: &Client, asker: Asker) -> Result<Answer, Failure> {
        let answered = self.limited(self.through(client)).await;
        let Some(id) = held_back(&answered) else { return answered };
        let open = client.get("/api/v1/calls").await?;
        let call = open["calls"].as_array().into_iter().flatten().find(|call| call["id"] == id.as_str());
        if !call.is_some_and(|call| allows(asker, call)) {
            return answered;
        }
        client.post(&format!("/api/v1/calls/{id}/approve")).await?;
        self.limited(self.through(client)).await
    }

    /// The same without a gateway.
    async fn standing_alone_if_allowed(&self, crib: &Crib, asker: Asker) -> Result<Answer, Failure> {
        let answered = self.limited(self.standing_alone(crib)).await;
        let Some(id) = held_back(&answered) else { return answered };
        let call = crib.open_calls().into_iter().find(|call| call.id == id);
        if !call.is_some_and(|call| allows(asker, &call_json(&call))) {
            let hint = "make the call at a terminal, or through a gateway";
            return answered.map_err(|failure| failure.hint(hint));
        }
        crib.decide(&id, true)?;
        self.limited(self.standing_alone(crib)).await
    }

    async fn through(&self, client: &Client) -> Result<Answer, Failure> {
        let definition = match self.arguments.want_types() || !self.unchecked {
            true => client.get(&self.tool_path()).await?["tools"][0]["definition"].clone(),
            false => Value::Null,
        };
        let mut params = Object::default();
        params.set("name", object::string(&self.tool));
        params.set("arguments", self.fitting(definition)?);
        let path = match &self.server {
            Some(server) => {
                client.get(&super::server_path(server)).await?;
                format!("/mcp/s/{}", percent::encode(server))
            }
            None => "/mcp".to_owned(),
        };
        let answer = client.ask(&path, "tools/call", params).await?;
        match refusal(&answer).filter(|_| self.server.is_some()) {
            Some(refusal) => {
                Err(meant(refusal, client.get(&self.tool_path()).await.unwrap_or_default()["near"].as_str()))
            }
            None => Ok(answer),
        }
    }

    /// The arguments, of the types that the tool wants. Those that do not fit are not sent.
    fn fitting(&self, definition: Value) -> Result<Bytes, Failure> {
        let wanted = Schema::of(&definition.to_string().into()).filter(|_| !self.unchecked);
        let arguments = self.arguments.typed(schema(definition).as_ref())?;
        let Some(Err(misfits)) = wanted.map(|wanted| wanted.check(&arguments)) else { return Ok(arguments) };
        let misfits: Vec<String> = misfits.iter().map(ToString::to_string).collect();
        let kind = ErrorKind::BadArguments;
        let message = format!("the arguments do not fit `{}`: {}", self.tool, misfits.join("; "));
        let hint = format!("toolcrib tools {} --json", self.tool);
        Err(Failure::new(Exit::of(kind), kind.facts().name, message).hint(hint))
    }

    fn tool_path(&self) -> String {
        let name = percent::encode(&self.tool);
        match &self.server {
            Some(server) => format!("/api/v1/tools?name={name}&server={}", percent::encode(server)),
            None => format!("/api/v1/tools?name={name}"),
        }
    }

    async fn standing_alone(&self, crib: &Crib) -> Result<Answer, Failure> {
        let wanted = match &self.server {
            None => Wanted::Named(self.tool.clone()),
            Some(server) => match server.parse() {
                Ok(server) => Wanted::On(server, self.tool.clone()),
                Err(_) => return Err(crib.catalog_for(&Caller::local()).unknown_server(server).into()),
            },
        };
        let found = offer::look_up(crib, &Caller::local(), &wanted).await;
        let definition = found.and_then(|tool| serde_json::from_slice(&tool.definition).ok());
        let arguments = self.fitting(definition.unwrap_or_default())?;
        let call = match wanted.clone() {
            Wanted::On(server, tool) => toolcrib::Call::on(server, tool),
            _ => toolcrib::Call::tool(&self.tool),
        };
        let call = call.raw_arguments(arguments);
        let call = self.timeout.into_iter().fold(call, toolcrib::Call::timeout);
        let Outcome { answer, .. } = crib.call(call).await?;
        match refusal(&answer) {
            Some(refusal) => Err(meant(refusal, crib.catalog_for(&Caller::local()).near(&wanted))),
            None => Ok(answer),
        }
    }
}

/// The name of a call that needs a person's yes.
fn held_back(answered: &Result<Answer, Failure>) -> Option<String> {
    match answered {
        Ok(Answer::Error(error)) => {
            let error: Value = serde_json::from_slice(error).ok()?;
            Some(error["data"]["approval"].as_str()?.to_owned())
        }
        Ok(Answer::Result(_)) => None,
        Err(failure) => Some(failure.data["approval"].as_str()?.to_owned()),
    }
}

/// Somebody who cannot be asked says nothing.
fn allows(asker: Asker, call: &Value) -> bool {
    asker.says_yes(&format!("{}; allow it?", super::approve::question(call))).unwrap_or(false)
}

/// The server's own word that a tool does not exist or that its arguments are wrong; the protocol has one code for both.
fn refusal(answer: &Answer) -> Option<Failure> {
    let Answer::Error(error) = answer else { return None };
    let error: Value = serde_json::from_slice(error).ok()?;
    (error["code"] == code::INVALID_PARAMS).then(|| Failure::from_wire(&error))
}

/// A refusal with the name that was probably meant, if there is one and nothing else is advised.
fn meant(mut refusal: Failure, near: Option<&str>) -> Failure {
    refusal.hint = refusal.hint.or_else(|| near.map(|near| format!("did you mean `{near}`?")));
    refusal
}

fn advised(mut failure: Failure, place: &Place) -> Failure {
    let server = failure.data["server"].as_str();
    failure.hint = failure.hint.map(|hint| super::advice_alone(&hint, server, place));
    failure
}

fn schema(mut definition: Value) -> Option<Value> {
    Some(definition["inputSchema"].take()).filter(Value::is_object)
}

fn show(answer: &Answer, out: &mut Output) -> Result<Exit> {
    let result = match answer {
        Answer::Result(result) => result,
        Answer::Error(error) => {
            return Err(Failure::from_wire(&serde_json::from_slice(error).unwrap_or_default()).into());
        }
    };
    let failed = says_error(result);
    match (out.json, failed) {
        (true, _) => out.raw(result)?,
        (false, false) => content(result, |line| out.line(line))?,
        (false, true) => content(result, |line| out.always(line))?,
    }
    if failed && out.json {
        out.failure(&Failure::new(Exit::ToolError, "tool_error", "the tool said error"))?;
    }
    Ok(if failed { Exit::ToolError } else { Exit::Fine })
}

fn says_error(result: &Bytes) -> bool {
    Object::parse(result).is_ok_and(|result| result.get("isError").is_some_and(|raw| &**raw == b"true"))
}

/// Text as text, everything else as the JSON it is; the structured form only if there is no text.
fn content(result: &Bytes, mut line: impl FnMut(&str) -> std::io::Result<()>) -> std::io::Result<()> {
    let result = Object::parse(result).unwrap_or_default();
    let blocks = result.get("content").and_then(|blocks| object::elements(blocks).ok()).unwrap_or_default();
    let mut texts = 0;
    for block in blocks {
        let object = Object::parse(&block).unwrap_or_default();
        match (object.string("type").as_deref(), object.string("text")) {
            (Some("text"), Some(text)) => {
                texts += 1;
                line(&text)?;
            }
            _ => line(&String::from_utf8_lossy(&block))?,
        }
    }
    match result.get("structuredContent") {
        Some(structured) if texts == 0 => line(&String::from_utf8_lossy(structured)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(words: &[&str]) -> Asked {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        Asked::read(&Call { words, args: None, unchecked: false, timeout: None }).unwrap()
    }

    #[test]
    fn a_second_word_without_an_equals_sign_is_the_tool() {
        let named = asked(&["git__log", "n=1"]);
        assert_eq!((named.server, named.tool.as_str()), (None, "git__log"));
        let on = asked(&["git", "log", "n=1"]);
        assert_eq!((on.server.as_deref(), on.tool.as_str()), (Some("git"), "log"));
    }

    #[test]
    fn structured_content_is_shown_when_there_is_no_text() {
        let shown = |result: Value| {
            let mut lines = Vec::new();
            let keep = |line: &str| {
                lines.push(line.to_owned());
                Ok(())
            };
            content(&Bytes::from(result.to_string()), keep).unwrap();
            lines
        };
        let text = json!({"type": "text", "text": "a"});
        let image = json!({"type": "image", "data": "x"});
        assert_eq!(shown(json!({"content": [text], "structuredContent": {"a": 1}})), ["a"]);
        assert_eq!(shown(json!({"content": [], "structuredContent": {"a": 1}})), [r#"{"a":1}"#]);
        assert_eq!(shown(json!({"content": [image]})), [r#"{"data":"x","type":"image"}"#]);
    }

    #[test]
    fn a_result_of_any_depth_is_shown_and_its_error_seen() {
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let text = r#"{"type":"text","text":"boom"}"#;
        let result =
            Bytes::from(format!(r#"{{"isError":true,"content":[{text}],"structuredContent":{deep}}}"#));
        let mut lines = Vec::new();
        let keep = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        content(&result, keep).unwrap();
        assert!(says_error(&result));
        assert_eq!(lines, ["boom"]);
    }
}
