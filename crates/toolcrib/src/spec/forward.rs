//! `Forward`: what a remote server learns about the caller.

use crate::spec::template::TemplateText;

/// What a remote server learns about the caller. Anything else than [`Forward::Nothing`] needs a connection of its own for each
/// caller. The token with which a caller authenticates is never passed on.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub enum Forward {
    /// Nothing.
    #[default]
    Nothing,
    /// The caller's name, in a header of this name.
    Header(String),
    /// A token for the server, for which the caller's own token is exchanged (RFC 8693).
    TokenExchange(Box<TokenExchange>),
}

/// The token endpoint at which tokens of callers are exchanged.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TokenExchange {
    /// URL of the token endpoint.
    pub token_endpoint: String,
    /// Audience of the new token; without it, the URL of the server is sent as `resource`.
    pub audience: Option<String>,
    /// Id of the gateway as a client of the token endpoint.
    pub client_id: TemplateText,
    /// Its secret.
    pub client_secret: Option<TemplateText>,
    /// Scopes to ask for.
    pub scopes: Vec<String>,
}

impl TokenExchange {
    /// Creates an exchange at a token endpoint.
    pub fn new(token_endpoint: impl Into<String>, client_id: TemplateText) -> Self {
        Self {
            token_endpoint: token_endpoint.into(),
            audience: None,
            client_id,
            client_secret: None,
            scopes: Vec::new(),
        }
    }
}

impl Forward {
    /// Returns the settings of an exchange of tokens.
    pub(crate) fn token_exchange(&self) -> Option<&TokenExchange> {
        match self {
            Self::TokenExchange(exchange) => Some(exchange),
            Self::Nothing | Self::Header(_) => None,
        }
    }

    /// Returns every text that may contain references.
    pub(super) fn templates(&self) -> impl Iterator<Item = &TemplateText> {
        let exchange = self.token_exchange().into_iter();
        exchange.flat_map(|exchange| std::iter::once(&exchange.client_id).chain(&exchange.client_secret))
    }

    /// Passes every part to `add`, with references as written. The default has no parts, so that servers without settings keep
    /// their digest.
    pub(super) fn digest(&self, add: &mut impl FnMut(&str)) {
        match self {
            Self::Nothing => {}
            Self::Header(name) => {
                add("forward-header");
                add(name);
            }
            Self::TokenExchange(exchange) => {
                add("token-exchange");
                add(&exchange.token_endpoint);
                exchange.audience.iter().chain(&exchange.scopes).for_each(|text| add(text));
                self.templates().for_each(|text| add(text.source()));
            }
        }
    }
}
