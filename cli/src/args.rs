//! The command line as clap sees it: the global flags and the list of commands. The flags of each
//! command are in its own file.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_core::period;

use crate::{commands, kubectl, local, slurm};

/// Run elastic, fault-tolerant distributed training.
///
/// Muster runs torchrun jobs over many nodes, keeps them training when workers or nodes die, grows
/// and shrinks them, and says why anything happened. This is its command line; it talks to a
/// coordinator.
#[derive(Debug, Parser)]
#[command(name = "muster", version = crate::VERSION, after_help = HELP, max_term_width = 120, infer_subcommands = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const HELP: &str = "\
EXAMPLES:
  # Three nodes on this machine, to try things out
  muster local up --nodes 3

  # Submit a job and watch it
  muster submit -f examples/digits/job.yaml
  muster get jobs -w

  # Why is it slow, stopped, smaller?
  muster explain digits

EXIT CODES:
  0    success
  1    the request failed
  2    the command line or a job file is wrong
  3    the job that was waited for failed
  4    time ran out
  5    the coordinator cannot be reached, or does not know us
  6    the job that was waited for was cancelled
  7    a job that was planned would wait
  8    a node or network that was checked is bad or slow
  130  interrupted";

const GLOBAL: &str = "Global options";

#[derive(Debug, Clone, Args)]
pub(crate) struct Globals {
    /// Coordinator to talk to [default: that of the current context, else the local cluster if one is
    /// up, else http://127.0.0.1:7070]
    #[arg(long, global = true, env = "MUSTER_SERVER", value_name = "URL", hide_env_values = true, help_heading = GLOBAL)]
    pub(crate) server: Option<String>,

    /// Context to use, of those that `muster config get-contexts` lists [default: the current one]
    #[arg(long, global = true, env = "MUSTER_CONTEXT", value_name = "NAME", conflicts_with = "server", hide_env_values = true, help_heading = GLOBAL)]
    pub(crate) context: Option<String>,

    /// Directory of the local cluster [default: ~/.local/state/muster/local]
    #[arg(long, global = true, env = "MUSTER_LOCAL_DIR", value_name = "DIR", hide_env_values = true, help_heading = GLOBAL)]
    pub(crate) dir: Option<PathBuf>,

    /// Namespace of the job [default: default]
    #[arg(short, long, global = true, env = "MUSTER_NAMESPACE", hide_env_values = true, help_heading = GLOBAL)]
    pub(crate) namespace: Option<String>,

    /// Format of the output; wide has more columns, name prints only job/NAME
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", help_heading = GLOBAL)]
    pub(crate) output: Option<Format>,

    /// Show the values of jobs' environment variables; they are hidden otherwise, because they may
    /// be secrets
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) show_env: bool,

    /// Print tables without their heads
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) no_headers: bool,

    /// Print only data and errors
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) quiet: bool,

    /// How long one request may take; 0 means no limit
    #[arg(long, global = true, default_value = "30s", value_parser = period::parse, value_name = "PERIOD", help_heading = GLOBAL)]
    pub(crate) request_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
    // Only the kind and the name, as `job/digits`.
    Name,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Submit(commands::submit::Submit),
    Run(Box<commands::run::Run>),
    Get(commands::get::Get),
    Describe(commands::describe::Describe),
    Explain(commands::explain::Explain),
    Report(commands::report::Report),
    Logs(commands::logs::Logs),
    Signal(commands::signal::Signal),
    Stacks(commands::stacks::Stacks),
    Scale(commands::scale::Scale),
    Suspend(commands::suspend::Suspend),
    Resume(commands::suspend::Resume),
    Cancel(commands::cancel::Cancel),
    Delete(commands::delete::Delete),
    Wait(commands::wait::Wait),
    Nodes(commands::get::Nodes),
    Cordon(commands::cordon::Cordon),
    Uncordon(commands::cordon::Uncordon),
    Check(commands::check::Check),
    Top(commands::top::Top),
    Topology(commands::topology::Topology),
    Login(commands::login::Login),
    #[command(name = "whoami")]
    WhoAmI(commands::access::WhoAmI),
    Auth(commands::access::Auth),
    Config(commands::config::Config),
    Events(commands::get::Events),
    Web(commands::web::Web),
    History(commands::history::History),
    Notify(commands::notify::Notify),
    Plan(commands::plan::PlanArgs),
    Queue(commands::queue::Queue),
    Validate(commands::validate::Validate),
    Convert(commands::convert::Convert),
    Replay(commands::replay::Replay),
    Local(local::Local),
    Slurm(slurm::Slurm),
    Completion(commands::completion::Completion),
    Version(commands::version::Version),
    /// Not for people: leaves the terminal's session and executes the given program
    #[command(name = local::DETACH, hide = true)]
    Detach(local::Detach),
    /// Not for people: executes the given program, which ends with its starter
    #[command(name = kubectl::BOUND, hide = true)]
    Bound(kubectl::Bound),
    /// For packages: writes the pages of the manual into a directory
    #[command(hide = true)]
    Man(commands::completion::Man),
}
