//! `muster completion` and the pages of the manual

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::{Shell, generate};

use crate::{context::Context, fail::Failure};

/// Print a completion script for a shell.
///
/// Load it in the running shell, or put it where the shell looks for completions at its start.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # bash, now and for later shells
  source <(muster completion bash)
  muster completion bash > ~/.local/share/bash-completion/completions/muster

  # zsh: into a directory of $fpath
  muster completion zsh > \"${fpath[1]}/_muster\"

  # fish
  muster completion fish > ~/.config/fish/completions/muster.fish")]
pub(crate) struct Completion {
    #[arg(value_enum)]
    shell: Known,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Known {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn completion(cx: &Context, args: Completion) -> Result<(), Failure> {
    let shell = match args.shell {
        Known::Bash => Shell::Bash,
        Known::Zsh => Shell::Zsh,
        Known::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut crate::command(), "muster", &mut text);
    cx.print(&String::from_utf8_lossy(&text))
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Directory for the pages, one for each command
    dir: PathBuf,
}

/// Writes the pages of the manual, for packages.
pub(crate) fn man(args: Man) -> Result<(), Failure> {
    let dir = args.dir;
    clap_mangen::generate_to(crate::command(), &dir)
        .map_err(|error| Failure::request(format!("{}: {error}", dir.display())))
}
