//! `muster`, the command line: requests to a coordinator, and a whole cluster of real processes on
//! one machine.
//!
//! `args` is the command line, `commands` what each command does, `output` how values become text,
//! `jobfile` how a file becomes a job, `local` the cluster on this machine. This crate has no
//! rules: core checks job files, and the coordinator decides everything else.
#![forbid(unsafe_code)]

use std::{env, ffi::OsString, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};

mod args;
mod commands;
mod connect;
mod context;
mod contexts;
mod entry;
mod fail;
mod help;
pub mod jobfile;
mod kubectl;
mod local;
mod output;
mod selector;
mod shown;
mod slurm;
mod tips;
mod verbs;
mod web;

pub use fail::Failure;

/// Version and commit of this build.
pub(crate) const VERSION: &str = muster_runtime::version::version();

/// The whole command line, for tests and completions.
pub fn command() -> clap::Command {
    help::lay_out(args::Cli::command())
}

/// Runs one command, reports its failure on stderr, and returns the documented exit code.
pub fn main() -> ExitCode {
    let given: Vec<OsString> = env::args_os().collect();
    let (words, notes) = entry::in_our_words(given);
    match read(&words) {
        Ok(cli) => entry::run(cli, &notes),
        Err(error) => entry::refuse(error, &words),
    }
}

fn read(words: &[OsString]) -> Result<args::Cli, clap::Error> {
    let matches = command().try_get_matches_from(words)?;
    args::Cli::from_arg_matches(&matches)
}
