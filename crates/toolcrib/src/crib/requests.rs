//! Requests of the local caller other than tool calls: resources, prompts and completions.

use serde_json::Value;

use super::Crib;
use crate::call::Call;
use crate::model::error::{Error, ErrorKind};
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;

impl Crib {
    /// Reads a resource by its public URI, for the local caller. For another caller or a time limit, pass
    /// [`Call::read_resource`] to [`Crib::call`].
    ///
    /// # Errors
    /// Fails if no server answered; see [`ErrorKind`].
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn read_resource(&self, uri: &str) -> Result<Outcome, Error> {
        self.call(Call::read_resource(uri)).await
    }

    /// Gets a prompt by its public name, or by its bare name if only one server has it, for the local caller. The values of
    /// `arguments` are strings. For another caller or a time limit, pass [`Call::get_prompt`] to [`Crib::call`].
    ///
    /// # Errors
    /// Fails if no server answered; see [`ErrorKind`].
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn get_prompt(&self, name: &str, arguments: &Value) -> Result<Outcome, Error> {
        self.call(Call::get_prompt(name).arguments(arguments)).await
    }

    /// Completes the value of an argument of [`Selector::Prompt`], or of a variable of the template in
    /// [`Selector::Resource`], for the local caller.
    ///
    /// # Errors
    /// Fails if the selector is neither a prompt nor a resource template, or if no server answered; see [`ErrorKind`].
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn complete(&self, of: &Selector, argument: &str, value: &str) -> Result<Outcome, Error> {
        let call = match of {
            Selector::Prompt(name) => Call::complete_prompt(name, argument, value),
            Selector::Resource(template) => Call::complete_resource(template, argument, value),
            _ => {
                let message = "only prompts and resource templates have completions";
                return Err(Error::new(ErrorKind::Malformed, message).mark_not_sent());
            }
        };
        self.call(call).await
    }
}
