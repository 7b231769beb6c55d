//! `ServerCard`: a description of a server that is known before the server has been started.

use std::fmt;

use bytes::Bytes;
use serde_json::Value;

/// Description of a server, written by a person or published by the server. It is shown until the server itself says
/// more; its tools are listed until the server has been listed.
///
/// ```
/// use serde_json::json;
/// use toolcrib::{CommandSpec, Crib, ServerCard, ServerSpec, ServerState};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let card = ServerCard::new()
///     .title("Tickets")
///     .tag("office")
///     .tool(&json!({"name": "find", "description": "Finds tickets"}))?;
/// let tickets = ServerSpec::command("tickets".parse()?, CommandSpec::new("tickets-server")).card(card);
/// let crib = Crib::builder().server(tickets).build()?;
/// assert_eq!(&*crib.list().await.tools()[0].public_name, "tickets__find");
/// let status = &crib.status()[0];
/// assert_eq!(status.title().as_deref(), Some("Tickets"));
/// assert_eq!(status.state, ServerState::Asleep, "listed without being started");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCard {
    /// Name for people.
    pub title: Option<String>,
    /// Purpose of the server, in a sentence or two.
    pub description: Option<String>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Its tools.
    pub tools: Vec<CardTool>,
}

/// A tool in a [`ServerCard`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardTool {
    /// Server's own name of the tool.
    pub name: String,
    /// Definition as in `tools/list`: a JSON object with this name and an `inputSchema`.
    pub definition: Bytes,
}

/// A reason why a card cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidCard(String);

impl fmt::Display for InvalidCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidCard {}

impl ServerCard {
    /// Creates an empty card.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the description.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Adds a tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Adds a tool from its definition in `tools/list`.
    ///
    /// # Errors
    /// Fails if the definition is not an object with a `name`, or the card already has a tool with that name.
    pub fn tool(mut self, definition: &Value) -> Result<Self, InvalidCard> {
        let tool = CardTool::new(definition)?;
        if self.tools.iter().any(|other| other.name == tool.name) {
            return Err(InvalidCard(format!("the tool `{}` is defined twice", tool.name)));
        }
        self.tools.push(tool);
        Ok(self)
    }

    /// Reads a card from JSON: an object with `title`, `description`, `tags` and `tools`, all optional. Other members are
    /// ignored.
    ///
    /// # Errors
    /// Fails if the text is not a JSON object, or one of these members has another type.
    pub fn from_json(text: &[u8]) -> Result<Self, InvalidCard> {
        let card: Value = serde_json::from_slice(text)
            .map_err(|error| InvalidCard(format!("the card is not valid JSON: {error}")))?;
        let Value::Object(members) = card else {
            return Err(InvalidCard("the card is not a JSON object".to_owned()));
        };
        let text_member = |name: &str| match members.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(InvalidCard(format!("`{name}` is not a string"))),
        };
        let list_member = |name: &str| match members.get(name) {
            None | Some(Value::Null) => Ok(&[][..]),
            Some(Value::Array(elements)) => Ok(elements.as_slice()),
            Some(_) => Err(InvalidCard(format!("`{name}` is not an array"))),
        };
        let mut card = Self {
            title: text_member("title")?,
            description: text_member("description")?,
            ..Self::default()
        };
        for tag in list_member("tags")? {
            let tag = tag.as_str().ok_or_else(|| InvalidCard("a tag is not a string".to_owned()))?;
            card.tags.push(tag.to_owned());
        }
        for definition in list_member("tools")? {
            card = card.tool(definition)?;
        }
        Ok(card)
    }

    /// Returns this card with the title and the description of `other` where it has none.
    pub(crate) fn or_texts_of(&self, other: &Self) -> Self {
        Self {
            title: self.title.clone().or_else(|| other.title.clone()),
            description: self.description.clone().or_else(|| other.description.clone()),
            ..self.clone()
        }
    }
}

impl CardTool {
    fn new(definition: &Value) -> Result<Self, InvalidCard> {
        let name = definition["name"].as_str().filter(|name| !name.is_empty());
        let Some(name) = name else {
            return Err(InvalidCard("a tool is not an object with a `name`".to_owned()));
        };
        let mut complete = definition.clone();
        match &complete["inputSchema"] {
            Value::Object(_) => {}
            Value::Null => complete["inputSchema"] = serde_json::json!({"type": "object"}),
            _ => return Err(InvalidCard(format!("the `inputSchema` of `{name}` is not an object"))),
        }
        Ok(Self { name: name.to_owned(), definition: complete.to_string().into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn card_reads_known_members_and_ignores_others() {
        let text = json!({
            "$schema": "https://example.org/card.json",
            "name": "org.example/search",
            "title": "Search",
            "description": "Finds things",
            "tags": ["web"],
            "tools": [{"name": "find", "description": "Finds"}],
        });
        let card = ServerCard::from_json(text.to_string().as_bytes()).unwrap();
        assert_eq!(card.title.as_deref(), Some("Search"));
        assert_eq!(card.tags, ["web"]);
        let definition: Value = serde_json::from_slice(&card.tools[0].definition).unwrap();
        assert_eq!(definition["inputSchema"], json!({"type": "object"}));
    }

    #[test]
    fn card_with_wrong_types_is_refused_with_the_member() {
        for (text, message) in [
            ("{", "the card is not valid JSON"),
            ("[]", "the card is not a JSON object"),
            (r#"{"title": 1}"#, "`title` is not a string"),
            (r#"{"tags": "x"}"#, "`tags` is not an array"),
            (r#"{"tags": [1]}"#, "a tag is not a string"),
            (r#"{"tools": [{}]}"#, "a tool is not an object with a `name`"),
            (r#"{"tools": [{"name": "a", "inputSchema": 1}]}"#, "the `inputSchema` of `a` is not an object"),
            (r#"{"tools": [{"name": "a"}, {"name": "a"}]}"#, "the tool `a` is defined twice"),
        ] {
            let error = ServerCard::from_json(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
