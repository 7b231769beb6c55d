//! Specs. What is missing has its default value, so that a name and an endpoint are enough.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error as _;
use serde::ser::{Error as _, SerializeMap as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{optional_seconds, seconds, serialize_as, serialize_as_text};
use crate::protocol::versions::{Era, Revision};
use crate::spec::auth::{AuthSpec, Grant, IdentityProvider};
use crate::spec::template::{TemplatePiece, TemplateText};
use crate::spec::{
    BackoffSpec, BreakerSpec, CommandSpec, Endpoint, EraChoice, Forward, HttpSpec, KeepAlive, Lifecycle,
    MemoryLimits, NamePattern, Pinning, Restarts, ServerCard, ServerId, ServerLimits, ServerSpec, Sharing,
    StartPolicy, TokenExchange, ToolsSpec, TransportKind, Trust,
};

serialize_as! {
    ServerSpec => ServerSpecForm,
    Endpoint => EndpointForm,
    CommandSpec => CommandSpecForm,
    HttpSpec => HttpSpecForm,
    TransportKind => TransportKindForm,
    AuthSpec => AuthSpecForm,
    Grant => GrantForm,
    IdentityProvider => IdentityProviderForm,
    Forward => ForwardForm,
    TokenExchange => TokenExchangeForm,
    Lifecycle => LifecycleForm,
    StartPolicy => StartPolicyForm,
    Restarts => RestartsForm,
    BackoffSpec => BackoffSpecForm,
    BreakerSpec => BreakerSpecForm,
    MemoryLimits => MemoryLimitsForm,
    ServerLimits => ServerLimitsForm,
    ToolsSpec => ToolsSpecForm,
    Trust => TrustForm,
    Pinning => PinningForm,
    Sharing => SharingForm,
}

serialize_as_text! {
    ServerId => |id| id.clone(),
    NamePattern => |pattern| pattern.to_string(),
    EraChoice => |era| era_name(*era),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ServerSpec", deny_unknown_fields)]
struct ServerSpecForm {
    id: ServerId,
    #[serde(default = "enabled")]
    enabled: bool,
    endpoint: Endpoint,
    #[serde(default = "auto_era")]
    era: EraChoice,
    #[serde(default)]
    lifecycle: Lifecycle,
    #[serde(default)]
    limits: ServerLimits,
    #[serde(default)]
    tools: ToolsSpec,
    #[serde(default)]
    trust: Trust,
    #[serde(default)]
    pin: Pinning,
    #[serde(default)]
    sharing: Sharing,
    #[serde(default)]
    card: Option<ServerCard>,
}

/// The JSON form that [`ServerCard::from_json`] reads.
#[derive(Serialize)]
struct ServerCardForm<'a> {
    title: Option<&'a str>,
    description: Option<&'a str>,
    tags: &'a [String],
    tools: Vec<&'a RawValue>,
}

impl Serialize for ServerCard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let definitions = self.tools.iter().map(|tool| serde_json::from_slice(&tool.definition));
        let form = ServerCardForm {
            title: self.title.as_deref(),
            description: self.description.as_deref(),
            tags: &self.tags,
            tools: definitions.collect::<Result<_, _>>().map_err(S::Error::custom)?,
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ServerCard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let card = serde_json::Value::deserialize(deserializer)?;
        Self::from_json(card.to_string().as_bytes()).map_err(D::Error::custom)
    }
}

const fn enabled() -> bool {
    true
}

const fn auto_era() -> EraChoice {
    EraChoice::Auto
}

/// A server in this process has no JSON form: serializing it fails.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Endpoint", rename_all = "kebab-case")]
enum EndpointForm {
    Command(CommandSpec),
    Http(HttpSpec),
    #[serde(skip)]
    InProcess(crate::spec::InProcessServer),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CommandSpec", deny_unknown_fields)]
struct CommandSpecForm {
    program: TemplateText,
    #[serde(default)]
    args: Vec<TemplateText>,
    #[serde(default)]
    env: BTreeMap<String, TemplateText>,
    #[serde(default)]
    inherit_env: Vec<String>,
    #[serde(default)]
    cwd: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "HttpSpec", deny_unknown_fields)]
struct HttpSpecForm {
    url: TemplateText,
    #[serde(default)]
    headers: BTreeMap<String, TemplateText>,
    #[serde(default)]
    transport: TransportKind,
    #[serde(default)]
    auth: Box<AuthSpec>,
    #[serde(default, skip_serializing_if = "is_nothing")]
    forward: Forward,
}

fn is_nothing(forward: &Forward) -> bool {
    *forward == Forward::Nothing
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Forward", rename_all = "kebab-case")]
enum ForwardForm {
    Nothing,
    Header(String),
    TokenExchange(Box<TokenExchange>),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TokenExchange", deny_unknown_fields)]
struct TokenExchangeForm {
    token_endpoint: String,
    audience: Option<String>,
    client_id: TemplateText,
    client_secret: Option<TemplateText>,
    scopes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "AuthSpec", default = "AuthSpec::default", deny_unknown_fields)]
struct AuthSpecForm {
    grant: Grant,
    client_id: Option<TemplateText>,
    client_secret: Option<TemplateText>,
    private_key: Option<TemplateText>,
    client_metadata_url: Option<String>,
    scopes: Vec<String>,
    command: Vec<TemplateText>,
    identity_provider: Option<IdentityProvider>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Grant", rename_all = "kebab-case")]
enum GrantForm {
    AuthorizationCode,
    ClientCredentials,
    EnterpriseManaged,
    Command,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "IdentityProvider", deny_unknown_fields)]
struct IdentityProviderForm {
    token_endpoint: String,
    client_id: TemplateText,
    id_token: TemplateText,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TransportKind", rename_all = "kebab-case")]
enum TransportKindForm {
    Auto,
    Streamable,
    Sse,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Lifecycle", default = "Lifecycle::default", deny_unknown_fields)]
struct LifecycleForm {
    start: StartPolicy,
    keep_alive: KeepAlive,
    #[serde(with = "seconds")]
    start_timeout: Duration,
    #[serde(with = "seconds")]
    list_ttl: Duration,
    restarts: Restarts,
    backoff: BackoffSpec,
    breaker: BreakerSpec,
    memory: MemoryLimits,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "StartPolicy", rename_all = "kebab-case")]
enum StartPolicyForm {
    OnDemand,
    AtBoot,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Restarts", deny_unknown_fields)]
struct RestartsForm {
    at_most: u32,
    #[serde(with = "seconds")]
    within: Duration,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "BackoffSpec", deny_unknown_fields)]
struct BackoffSpecForm {
    #[serde(with = "seconds")]
    first: Duration,
    #[serde(with = "seconds")]
    most: Duration,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "BreakerSpec", deny_unknown_fields)]
struct BreakerSpecForm {
    failures: NonZeroU32,
    #[serde(with = "seconds")]
    cool_off: Duration,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "MemoryLimits", default = "MemoryLimits::default", deny_unknown_fields)]
struct MemoryLimitsForm {
    soft: Option<u64>,
    hard: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ServerLimits", default = "ServerLimits::default", deny_unknown_fields)]
struct ServerLimitsForm {
    #[serde(with = "seconds")]
    call_timeout: Duration,
    #[serde(with = "seconds")]
    call_timeout_max: Duration,
    #[serde(with = "optional_seconds")]
    gateway_call_timeout_max: Option<Duration>,
    in_flight: NonZeroUsize,
    message: usize,
    tools: usize,
    definition: usize,
    instances: NonZeroUsize,
    cache_entries: usize,
    #[serde(with = "seconds")]
    cache_ttl_max: Duration,
    result_tokens: Option<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ToolsSpec", default = "ToolsSpec::default", deny_unknown_fields)]
struct ToolsSpecForm {
    idempotent: Vec<NamePattern>,
    cache: Vec<NamePattern>,
    #[serde(with = "pattern_seconds")]
    call_timeout: Vec<(NamePattern, Duration)>,
    result_tokens: Vec<(NamePattern, usize)>,
    rename: BTreeMap<String, String>,
    check_arguments: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Trust", rename_all = "kebab-case")]
enum TrustForm {
    Normal,
    Trusted,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Pinning", rename_all = "kebab-case")]
enum PinningForm {
    Mark,
    Strict,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Sharing", rename_all = "kebab-case")]
enum SharingForm {
    Auto,
    Shared,
    One,
    PerClient,
    PerProject,
    PerCaller,
}

/// Patterns and times in seconds, in their order.
mod pattern_seconds {
    use super::{Deserialize as _, Deserializer, Duration, NamePattern, Serializer};

    pub(super) fn serialize<S: Serializer>(
        limits: &[(NamePattern, Duration)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(limits.iter().map(|(pattern, limit)| (pattern, limit.as_secs_f64())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(NamePattern, Duration)>, D::Error> {
        let mut limits = Vec::new();
        for (pattern, seconds) in Vec::<(NamePattern, f64)>::deserialize(deserializer)? {
            let limit = Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)?;
            limits.push((pattern, limit));
        }
        Ok(limits)
    }
}

fn era_name(era: EraChoice) -> &'static str {
    match era {
        EraChoice::Auto => "auto",
        EraChoice::Era(era) => era.as_str(),
        EraChoice::Revision(revision) => revision.as_str(),
    }
}

impl<'de> Deserialize<'de> for EraChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let eras = [Self::Auto, Self::Era(Era::Session), Self::Era(Era::Stateless)];
        let all = eras.into_iter().chain(Revision::ALL.map(Self::Revision));
        let mut named = all.filter(|era| era_name(*era) == name);
        named.next().ok_or_else(|| D::Error::custom(format!("`{name}` is not an era or a protocol revision")))
    }
}

impl<'de> Deserialize<'de> for ServerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for NamePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom("a pattern must not be empty"))
    }
}

/// Seconds, or `"forever"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum KeepAliveForm {
    Seconds(f64),
    Word(String),
}

impl Serialize for KeepAlive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::For(duration) => serializer.serialize_f64(duration.as_secs_f64()),
            Self::Forever => serializer.serialize_str("forever"),
        }
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match KeepAliveForm::deserialize(deserializer)? {
            KeepAliveForm::Seconds(seconds) => {
                Duration::try_from_secs_f64(seconds).map(Self::For).map_err(D::Error::custom)
            }
            KeepAliveForm::Word(word) if word == "forever" => Ok(Self::Forever),
            KeepAliveForm::Word(word) => {
                Err(D::Error::custom(format!("`{word}` is not a number of seconds")))
            }
        }
    }
}

/// A text with references, or a text in which `${` has no meaning.
#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateForm {
    References(String),
    Literal { literal: String },
}

/// A text with its references. `{"literal": …}` is a text that contains `${` and is not a reference. Paths of files are
/// absolute.
impl Serialize for TemplateText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        for piece in self.pieces() {
            let written = match piece {
                TemplatePiece::Literal(literal) if literal.contains("${") => {
                    let mut map = serializer.serialize_map(Some(1))?;
                    map.serialize_entry("literal", literal)?;
                    return map.end();
                }
                TemplatePiece::Literal(literal) => write!(text, "{literal}"),
                TemplatePiece::Env { name, default: None } => write!(text, "${{env:{name}}}"),
                TemplatePiece::Env { name, default: Some(default) } => {
                    write!(text, "${{env:{name}:-{default}}}")
                }
                TemplatePiece::File(path) => write!(text, "${{file:{}}}", path.display()),
                TemplatePiece::Secret(name) => write!(text, "${{secret:{name}}}"),
            };
            written.map_err(serde::ser::Error::custom)?;
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for TemplateText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match TemplateForm::deserialize(deserializer)? {
            TemplateForm::Literal { literal } => Ok(Self::literal(literal)),
            TemplateForm::References(text) => Self::parse(&text, Path::new("/")).map_err(D::Error::custom),
        }
    }
}
