//! The prompts and the completion of their arguments.

use std::sync::atomic::Ordering;

use rmcp::ErrorData;
use rmcp::model::{
    CompleteResult, CompletionInfo, ContentBlock, GetPromptResponse, GetPromptResult, InputRequests,
    JsonObject, Prompt, PromptArgument, PromptMessage, Role,
};

use crate::caller::{Answer, Caller};
use crate::content::{PNG, embedded, string_argument, text};
use crate::input_requests::form;
use crate::shared::Shared;

/// Every prompt: its name, its description and its arguments, all required.
const PROMPTS: [(&str, &str, &[&str]); 6] = [
    ("test_simple_prompt", "One message", &[]),
    ("test_prompt_with_arguments", "A message that repeats its arguments", &["arg1", "arg2"]),
    ("test_prompt_with_embedded_resource", "A resource and what to do with it", &["resourceUri"]),
    ("test_prompt_with_image", "An image and what to do with it", &[]),
    ("test_input_required_result_prompt", "A message made of an answer", &[]),
    ("test_extra_prompt", "Added by `test_trigger_prompt_change`, removed by the next call", &[]),
];

pub(crate) fn list(shared: &Shared) -> Vec<Prompt> {
    let has_extra = shared.extra_prompt.load(Ordering::Relaxed);
    let prompts = PROMPTS.iter().filter(|(name, ..)| has_extra || *name != "test_extra_prompt");
    let prompt = |(name, description, arguments): &(&str, &str, &[&str])| {
        let argument = |name: &&str| PromptArgument::new(*name).with_required(true);
        let arguments = (!arguments.is_empty()).then(|| arguments.iter().map(argument).collect());
        Prompt::new(*name, Some(*description), arguments)
    };
    prompts.map(prompt).collect()
}

pub(crate) async fn get(
    name: &str,
    arguments: &JsonObject,
    caller: &Caller<'_>,
) -> Result<GetPromptResponse, ErrorData> {
    let content = match name {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let first = string_argument(arguments, "arg1");
            let second = string_argument(arguments, "arg2");
            vec![text(format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let uri = string_argument(arguments, "resourceUri");
            let resource = embedded(uri, "text/plain", "Embedded resource content for testing.");
            vec![resource, text("Please process the embedded resource above.")]
        }
        "test_prompt_with_image" => {
            vec![ContentBlock::image(PNG, "image/png"), text("Please analyze the image above.")]
        }
        "test_input_required_result_prompt" => {
            let request = form("What context should the prompt use?", "context", "string")?;
            let requests = InputRequests::from([("user_context".to_owned(), request)]);
            match caller.ask(requests, None).await? {
                Answer::InputRequired(result) => return Ok(result.into()),
                Answer::Answered(answers) => vec![text(format!("{answers:?}"))],
            }
        }
        "test_extra_prompt" => vec![text("here for now")],
        _ => return Err(ErrorData::invalid_params(format!("Unknown prompt: {name}"), None)),
    };
    let messages = content.into_iter().map(|content| PromptMessage::new(Role::User, content));
    Ok(GetPromptResult::new(messages.collect()).into())
}

pub(crate) fn complete(prefix: &str) -> Result<CompleteResult, ErrorData> {
    let words = ["paris", "park", "party", "test-value"].into_iter().filter(|word| word.starts_with(prefix));
    let values = CompletionInfo::with_all_values(words.map(str::to_owned).collect());
    values.map(CompleteResult::new).map_err(|error| ErrorData::internal_error(error, None))
}
