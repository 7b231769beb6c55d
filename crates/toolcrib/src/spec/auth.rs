//! `AuthSpec`: how the tokens of a remote server are obtained.

use crate::spec::template::TemplateText;

/// How the tokens of a remote server are obtained. The default is a login by a person, once the server asks for it.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct AuthSpec {
    /// How a token is obtained.
    pub grant: Grant,
    /// Id of a client that is registered with the authorization server.
    pub client_id: Option<TemplateText>,
    /// Its secret.
    pub client_secret: Option<TemplateText>,
    /// Its private key, as a PEM file with a P-256 key in PKCS8; signs requests instead of a secret.
    pub private_key: Option<TemplateText>,
    /// URL of a client metadata document, used as client id where the authorization server accepts it.
    pub client_metadata_url: Option<String>,
    /// Scopes to ask for; those of the server if empty.
    pub scopes: Vec<String>,
    /// Program that prints a token, with its arguments.
    pub command: Vec<TemplateText>,
    /// The identity provider of an organization, for [`Grant::EnterpriseManaged`].
    pub identity_provider: Option<IdentityProvider>,
}

/// How a token is obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Grant {
    /// A person logs in.
    #[default]
    AuthorizationCode,
    /// The client has a secret or a key of its own.
    ClientCredentials,
    /// The token of an organization's identity provider is exchanged (ID-JAG).
    EnterpriseManaged,
    /// A program prints the token.
    Command,
}

impl Grant {
    /// Returns the name in the config.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuthorizationCode => "authorization-code",
            Self::ClientCredentials => "client-credentials",
            Self::EnterpriseManaged => "enterprise-managed",
            Self::Command => "command",
        }
    }
}

/// The identity provider of an organization.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct IdentityProvider {
    /// URL of its token endpoint.
    pub token_endpoint: String,
    /// Id of this client at the identity provider.
    pub client_id: TemplateText,
    /// ID token of the person.
    pub id_token: TemplateText,
}

impl IdentityProvider {
    /// Creates an identity provider.
    pub fn new(token_endpoint: impl Into<String>, client_id: TemplateText, id_token: TemplateText) -> Self {
        Self { token_endpoint: token_endpoint.into(), client_id, id_token }
    }
}

impl AuthSpec {
    /// Returns every text that may contain references.
    pub(super) fn templates(&self) -> impl Iterator<Item = &TemplateText> {
        let client = [&self.client_id, &self.client_secret, &self.private_key].into_iter().flatten();
        let provider = self.identity_provider.iter();
        client
            .chain(&self.command)
            .chain(provider.flat_map(|provider| [&provider.client_id, &provider.id_token]))
    }

    /// Passes every part to `add`, with references as written. The default has no parts, so that servers without settings keep
    /// their digest.
    pub(super) fn digest(&self, add: &mut impl FnMut(&str)) {
        if *self == Self::default() {
            return;
        }
        add(self.grant.as_str());
        self.templates().for_each(|text| add(text.source()));
        self.scopes.iter().chain(&self.client_metadata_url).for_each(|text| add(text));
        self.identity_provider.iter().for_each(|provider| add(&provider.token_endpoint));
    }
}
