//! `Caller`: who made a request, what it can do, and how to ask it something in its own era.

use std::future::{Future as _, poll_fn};
use std::task::Poll;

use rmcp::model::{
    ClientCapabilities, InputRequest, InputRequests, InputRequiredResult, InputResponses, LoggingLevel,
    ProtocolVersion, ServerRequest,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};

use crate::shared::Shared;

/// What came of a question.
pub(crate) enum Answer {
    /// Every question was answered.
    Given(InputResponses),
    /// The stateless era: the client has to come again with the answers.
    Wanted(InputRequiredResult),
}

pub(crate) struct Caller<'a> {
    pub(crate) context: &'a RequestContext<RoleServer>,
    pub(crate) shared: &'a Shared,
    level: LoggingLevel,
    answers: InputResponses,
    state: Option<String>,
}

pub(crate) fn is_stateless(context: &RequestContext<RoleServer>) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

impl<'a> Caller<'a> {
    pub(crate) fn new(
        context: &'a RequestContext<RoleServer>,
        shared: &'a Shared,
        level: LoggingLevel,
    ) -> Self {
        Self { context, shared, level, answers: InputResponses::new(), state: None }
    }

    /// The caller comes with answers to what it was asked before.
    pub(crate) fn retrying(mut self, answers: Option<InputResponses>, state: Option<String>) -> Self {
        self.answers = answers.unwrap_or_default();
        self.state = state;
        self
    }

    pub(crate) fn can(&self) -> ClientCapabilities {
        self.context.client_capabilities().unwrap_or_default()
    }

    /// The least severe message that the caller wants to see, if any.
    pub(crate) fn log_level(&self) -> Option<LoggingLevel> {
        if is_stateless(self.context) { self.context.meta.log_level() } else { Some(self.level) }
    }

    /// What the seal on the request's state covers.
    pub(crate) fn state(&self) -> Result<Option<&str>, ErrorData> {
        let Some(sealed) = &self.state else { return Ok(None) };
        let open = self.shared.open(sealed);
        open.map(Some).ok_or_else(|| ErrorData::invalid_params("requestState was tampered with", None))
    }

    /// Asks `questions`: a session is asked at once, a stateless client is told to come back with answers, and
    /// with `state` if there is one.
    pub(crate) async fn ask(
        &self,
        questions: InputRequests,
        state: Option<&str>,
    ) -> Result<Answer, ErrorData> {
        let can = self.can();
        questions.values().try_for_each(|question| allowed(question, &can))?;
        if is_stateless(self.context) {
            self.compare(questions, state)
        } else {
            self.ask_now(questions).await
        }
    }

    fn compare(&self, questions: InputRequests, state: Option<&str>) -> Result<Answer, ErrorData> {
        self.state()?;
        let answered = |key: &String| self.answers.get(key).is_some_and(serde_json::Value::is_object);
        if questions.keys().all(answered) {
            return Ok(Answer::Given(self.answers.clone()));
        }
        let sealed = state.map(|state| self.shared.seal(state));
        Ok(Answer::Wanted(InputRequiredResult::new(Some(questions), sealed)))
    }

    async fn ask_now(&self, questions: InputRequests) -> Result<Answer, ErrorData> {
        // All at the same time, like those of the other era.
        let asked = questions.into_iter().map(async |(key, question)| {
            let request = match question {
                InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
                InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
                InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
                _ => return Err(ErrorData::internal_error("a question of an unknown kind", None)),
            };
            let answer = self.context.peer.send_request(request).await;
            let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            let answer = serde_json::to_value(answer);
            Ok((key, answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?))
        });
        let mut waiting: Vec<_> = asked.map(Box::pin).collect();
        let mut answers = InputResponses::new();
        poll_fn(|context| {
            let mut at = 0;
            while let Some(asked) = waiting.get_mut(at) {
                match asked.as_mut().poll(context) {
                    Poll::Pending => at += 1,
                    Poll::Ready(answer) => {
                        let (key, answer) = answer?;
                        answers.insert(key, answer);
                        drop(waiting.swap_remove(at));
                    }
                }
            }
            if waiting.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await?;
        Ok(Answer::Given(answers))
    }
}

/// Only what a client said it can do may be asked of it.
fn allowed(question: &InputRequest, can: &ClientCapabilities) -> Result<(), ErrorData> {
    let capabilities = ClientCapabilities::builder();
    let missing = match question {
        InputRequest::CreateMessage(_) if can.sampling.is_none() => capabilities.enable_sampling().build(),
        InputRequest::Elicitation(_) if can.elicitation.is_none() => {
            capabilities.enable_elicitation().build()
        }
        InputRequest::ListRoots(_) if can.roots.is_none() => capabilities.enable_roots().build(),
        _ => return Ok(()),
    };
    Err(ErrorData::missing_required_client_capability(missing))
}
