//! Arguments of `policy`. Doc comments are help texts.

use clap::{Args, Subcommand};

/// Arguments of `policy`.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

/// The commands of `policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Test whether a caller may use a tool, prompt or resource, and show the rule that decides
    ///
    /// Examples:
    ///   toolcrib policy test --tool git.push
    ///   toolcrib policy test --caller ci --tool git.push
    #[command(verbatim_doc_comment)]
    Test(PolicyTestArgs),
}

/// Arguments of `policy test`.
#[derive(Debug, Args)]
pub(crate) struct PolicyTestArgs {
    /// The caller: a name under `[callers]`, `ISSUER:SUBJECT`, or `local`
    #[arg(long, visible_alias = "as", value_name = "NAME", default_value = "local")]
    pub(crate) caller: String,
    /// Groups that the caller is in besides those of the config: names under `[groups]`
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) groups: Vec<String>,
    /// The profile of the caller: a name under `[profiles]`
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// The tool as `SERVER.TOOL`, with the server's own name of the tool
    #[arg(long, value_name = "TOOL")]
    pub(crate) tool: String,
}
