//! `PolicyTest`: whether a caller may use a tool, and the rules and limits that apply. Nothing is called or started.

use serde_json::{Value, json};
use toolcrib::access::policy::PolicyVerdict;
use toolcrib::catalog::public_name::SEPARATOR;
use toolcrib::config::Config;
use toolcrib::limits::{LimitOwner, UsageLimit};
use toolcrib::util::format::closest_match;
use toolcrib::{Caller, ServerId};

use crate::cli::PolicyTestArgs;
use crate::command_error::CommandError;

/// A caller and a tool of a config, found by their names.
pub(crate) struct PolicyQuestion {
    caller: Caller,
    pub(crate) server: ServerId,
    /// The server's own name of the tool.
    pub(crate) tool: String,
}

/// The decision about one tool, with the rules and limits that apply.
pub(crate) struct PolicyTest<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) server: &'a ServerId,
    pub(crate) tool: &'a str,
    pub(crate) verdicts: Vec<PolicyVerdict<'a>>,
    pub(crate) limits: Vec<ApplicableLimit<'a>>,
    pub(crate) server_visible: bool,
    /// Whether the server has the tool; `None` if it was never listed.
    pub(crate) tool_exists: Option<bool>,
}

/// A usage limit of the caller that covers the tool.
pub(crate) struct ApplicableLimit<'a> {
    pub(crate) owner: LimitOwner<'a>,
    pub(crate) limit: &'a UsageLimit,
}

impl PolicyQuestion {
    /// Finds the caller, its groups and profile, and the tool, which is named as `SERVER.TOOL` or by its public name.
    ///
    /// # Errors
    /// If one of them is not declared.
    pub(crate) fn new(config: &Config, args: &PolicyTestArgs) -> Result<Self, CommandError> {
        let caller = find_caller(config, args)?;
        let (server, tool) = parse_tool(config, &args.tool)?;
        Ok(Self { caller, server, tool })
    }

    /// Decides the question by a config; `tool_exists` says whether the server has the tool, if that is known.
    pub(crate) fn decide<'a>(&'a self, config: &'a Config, tool_exists: Option<bool>) -> PolicyTest<'a> {
        PolicyTest { tool_exists, ..PolicyTest::new(config, &self.caller, &self.server, &self.tool) }
    }
}

impl<'a> PolicyTest<'a> {
    fn new(config: &'a Config, caller: &'a Caller, server: &'a ServerId, tool: &'a str) -> Self {
        let limits = config
            .usage_limits
            .limits_for(caller)
            .filter(|(_, limit)| limit.pattern().matches(server, tool))
            .map(|(owner, limit)| ApplicableLimit { owner, limit })
            .collect();
        Self {
            caller,
            server,
            tool,
            verdicts: config.policy.verdicts(caller, server, Some(tool)).collect(),
            limits,
            server_visible: config.policy.can_see(caller, server),
            tool_exists: None,
        }
    }

    fn denial(&self) -> Option<&PolicyVerdict<'a>> {
        self.verdicts.iter().find(|verdict| verdict.is_denial())
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.denial().is_none()
    }

    pub(crate) fn needs_approval(&self) -> bool {
        let mut verdicts = self.verdicts.iter();
        self.is_allowed() && verdicts.any(|verdict| matches!(verdict, PolicyVerdict::NeedsApproval(..)))
    }

    pub(crate) fn to_json(&self) -> Value {
        let origin = self.denial().and_then(PolicyVerdict::origin);
        json!({
            "caller": self.caller.as_str(),
            "profile": self.caller.profile(),
            "groups": self.caller.groups(),
            "server": self.server.as_str(),
            "tool": self.tool,
            "allowed": self.is_allowed(),
            "asks": self.needs_approval(),
            "server_visible": self.server_visible,
            "tool_exists": self.tool_exists,
            "rule": self.denial().map(ToString::to_string),
            "file": origin.map(|origin| origin.file.display().to_string()),
            "line": origin.map(|origin| origin.line),
            "rules": self.verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
            "limits": self.limits.iter().map(ApplicableLimit::to_json).collect::<Vec<_>>(),
        })
    }
}

impl ApplicableLimit<'_> {
    fn to_json(&self) -> Value {
        let Self { owner, limit } = self;
        json!({
            "limit": limit.config_key(*owner),
            "calls": limit.kind().calls(),
            "per": limit.kind().period().as_secs_f64(),
            "file": limit.origin().map(|origin| origin.file.display().to_string()),
            "line": limit.origin().map(|origin| origin.line),
        })
    }
}

fn verdict_json(verdict: &PolicyVerdict<'_>) -> Value {
    json!({
        "rule": verdict.to_string(),
        "denies": verdict.is_denial(),
        "file": verdict.origin().map(|origin| origin.file.display().to_string()),
        "line": verdict.origin().map(|origin| origin.line),
    })
}

/// The profile and the groups that the config gives to a caller.
#[derive(Default)]
struct DeclaredRights<'a> {
    profile: Option<&'a str>,
    groups: &'a [String],
}

fn find_caller(config: &Config, args: &PolicyTestArgs) -> Result<Caller, CommandError> {
    let name = args.caller.as_str();
    if let Some(agent) = name.strip_prefix("agent:").filter(|agent| agent.parse::<ServerId>().is_ok()) {
        let profile = args.profile.as_deref();
        let profile = profile.map(|profile| find_profile(config, profile)).transpose()?;
        return Ok(config.policy.local_caller(Some(agent), profile));
    }
    let declared = find_rights(config, name)?;
    let profile = args.profile.as_deref();
    if let (Some(own), Some(other)) = (declared.profile, profile)
        && own != other
    {
        return Err(CommandError::usage(format!("caller `{name}` always has the profile `{own}`")));
    }
    for group in &args.groups {
        find_group(config, group)?;
    }
    let groups = declared.groups.iter().chain(&args.groups).cloned();
    let profile = declared.profile.or(profile).map(|profile| find_profile(config, profile)).transpose()?;
    Ok(profile.into_iter().fold(Caller::with_groups(name, groups), Caller::with_profile))
}

/// Returns what the config says about a caller, which may be any caller of a declared issuer.
fn find_rights<'a>(config: &'a Config, name: &str) -> Result<DeclaredRights<'a>, CommandError> {
    let local = Caller::local();
    if let Some(caller) = config.callers.iter().find(|caller| caller.name == name) {
        return Ok(DeclaredRights { profile: caller.profile.as_deref(), groups: &caller.groups });
    }
    if let Some(caller) = config.issued_callers.iter().find(|caller| caller.name == name) {
        return Ok(DeclaredRights { profile: caller.profile.as_deref(), groups: &caller.groups });
    }
    let is_issued = |(issuer, subject): (&str, &str)| {
        !subject.is_empty() && config.issuers.iter().any(|spec| spec.name == issuer)
    };
    if name == local.as_str() || name.split_once(':').is_some_and(is_issued) {
        return Ok(DeclaredRights::default());
    }
    let issued = config.issued_callers.iter().map(|caller| caller.name.as_str());
    let names = config.callers.iter().map(|caller| caller.name.as_str()).chain(issued);
    let error = CommandError::usage(format!("no caller is called `{name}`"));
    Err(match closest_match(name, names.chain([local.as_str()])) {
        Some(similar) => error.hint(format!("did you mean `{similar}`?")),
        None => error.hint("declare `[callers.NAME]`, or use `ISSUER:SUBJECT`, `agent:NAME` or `local`"),
    })
}

fn find_group(config: &Config, name: &str) -> Result<(), CommandError> {
    let names = || config.groups.iter().map(|group| group.name.as_str());
    if names().any(|other| other == name) {
        return Ok(());
    }
    let error = CommandError::usage(format!("no group is called `{name}`"));
    Err(match closest_match(name, names()) {
        Some(similar) => error.hint(format!("did you mean `{similar}`?")),
        None => error.hint(format!("declare `[groups.{name}]`")),
    })
}

/// Returns the name if such a profile is declared.
pub(crate) fn find_profile<'a>(config: &Config, name: &'a str) -> Result<&'a str, CommandError> {
    let names = || config.policy.profiles.keys().map(String::as_str);
    if names().any(|other| other == name) {
        return Ok(name);
    }
    let error = CommandError::usage(format!("no profile is called `{name}`"));
    Err(match closest_match(name, names()) {
        Some(similar) => error.hint(format!("did you mean `{similar}`?")),
        None => error.hint(format!("declare `[profiles.{name}]`")),
    })
}

/// Parses `SERVER.TOOL` or a public name into the server and its own name of the tool.
fn parse_tool(config: &Config, text: &str) -> Result<(ServerId, String), CommandError> {
    let declared_server = |(server, name): (&str, &str)| {
        let server: ServerId = server.parse().ok().filter(|server| config.origins.contains_key(server))?;
        (!name.is_empty()).then(|| (server, name.to_owned()))
    };
    if let Some(own_name) = text.split_once('.').and_then(declared_server) {
        return Ok(own_name);
    }
    let Some((server, public_name)) = text.split_once(SEPARATOR).and_then(declared_server) else {
        let message = format!("`{text}` does not name a tool of a declared server");
        return Err(
            CommandError::usage(message).hint("write `SERVER.TOOL`, with the server's own name of the tool")
        );
    };
    let renames = config.roster.get(&server).map(|spec| &spec.tools.rename);
    let renamed = renames.and_then(|renames| renames.iter().find(|(_, new)| **new == public_name));
    let own_name = renamed.map(|(own_name, _)| own_name.clone());
    Ok((server, own_name.unwrap_or(public_name)))
}
