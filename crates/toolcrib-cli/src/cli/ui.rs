//! Arguments of `ui`. Doc comments are help texts.

use clap::Args;

/// Arguments of `ui`.
#[derive(Debug, Args)]
pub(crate) struct UiArgs {
    /// Print the link and do not open a browser
    #[arg(long)]
    pub(crate) no_browser: bool,
}
