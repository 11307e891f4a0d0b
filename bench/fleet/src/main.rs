//! Measures the coordinator under a large fleet: one real coordinator process, and the real
//! sessions of thousands of agents over loopback.
//!
//! `muster-fleetbench --coordinator PROGRAM --agents 10000 --members 1000` prints one JSON
//! document. All agents live in this process and share the machine with the coordinator, so its
//! processor time is measured besides the wall clock. No worker runs anywhere: a simulated node
//! obeys at once and reports what an agent would.
//!
//! | file | owns |
//! |---|---|
//! | `coordinator` | the real process: start and kill |
//! | `taken` | memory and processor time of a process |
//! | `node` | one simulated node, and what it has seen when |
//! | `fleet` | all of them, and waiting for what they see |
//! | `identities` | a certificate for every node, for a coordinator that speaks TLS |
//! | `flood` | strangers who open connections and say nothing |
//! | `scrape` | what a scrape of `/metrics` costs |
//! | `pages` | what the pages of `muster web` cost |
//! | `readers` | how long they take for many readers at once, and what that costs |
//! | `http` | one request of either |
//! | `course` | what is measured, in order |
//! | `turns` | what the coordinator counts of its turns |
//! | `figures` | medians, percentiles, the document |
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use muster_core::exit::Exit;
use rustix::process::{Resource, getrlimit, setrlimit};

mod coordinator;
mod course;
mod figures;
mod fleet;
mod flood;
mod http;
mod identities;
mod node;
mod pages;
mod readers;
mod scrape;
mod taken;
mod turns;

/// Measure a coordinator with many agents.
#[derive(Debug, Parser)]
#[command(name = "muster-fleetbench", max_term_width = 110)]
struct Options {
    /// The coordinator's program
    #[arg(long, value_name = "PATH")]
    coordinator: PathBuf,
    /// An empty directory for its state and its log
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Agents connected
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    agents: usize,
    /// GPUs of every node, with all that is reported of them
    #[arg(long, value_name = "N", default_value_t = 8)]
    gpus: u32,
    /// Nodes of the one job
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    members: usize,
    /// Times one member's worker dies
    #[arg(long, value_name = "N", default_value_t = 100)]
    exits: usize,
    /// The worker ends with this exit code; without, it is killed (SIGKILL)
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(i32).range(1..=255))]
    exit_code: Option<i32>,
    /// Seconds during which nothing happens but heartbeats, before there is a job and again while
    /// it runs
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    rest: u64,
    /// Seconds during which every member reports progress five times a second
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    progress: u64,
    /// Kills and restarts of the coordinator
    #[arg(long, value_name = "N", default_value_t = 1)]
    restarts: usize,
    /// Speak TLS, with a certificate for every agent
    #[arg(long)]
    tls: bool,
    /// Connections that strangers keep open beside the agents, each without a word
    #[arg(long, value_name = "N", default_value_t = 0)]
    strangers: usize,
    /// Scrapes of /metrics, after --jobs small jobs have started
    #[arg(long, value_name = "N", default_value_t = 0)]
    scrapes: usize,
    /// The program whose pages (`muster web`) are read as often as --scrapes says
    #[arg(
        long,
        value_name = "PATH",
        requires = "scrapes",
        conflicts_with = "tls"
    )]
    muster: Option<PathBuf>,
    /// Readers at once, each of whom looks at one page again every two seconds
    #[arg(long, value_name = "N", default_value_t = 0, requires = "muster")]
    readers: usize,
    /// Seconds for which they look
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        requires = "readers"
    )]
    reading: u64,
    /// Jobs of one node each, beside the large one, for the scrapes
    #[arg(long, value_name = "N", default_value_t = 1_000, requires = "scrapes")]
    jobs: usize,
    /// More flags for the coordinator, as --flag=--coalesce=0ms
    #[arg(long = "flag", value_name = "FLAG", allow_hyphen_values = true)]
    flags: Vec<String>,
}

impl Options {
    fn death(&self) -> Exit {
        self.exit_code.map_or(Exit::Signal(9), Exit::Code)
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    // Every agent and every stranger needs a socket. The usual soft limit is 1,024. Only root may
    // raise the hard one.
    let mut files = getrlimit(Resource::Nofile);
    let wanted = (options.agents + options.strangers + options.readers + 1_000) as u64;
    files.maximum = files.maximum.map(|maximum| maximum.max(wanted));
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).context("room for all connections (ulimit -Hn)")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let document = runtime.block_on(course::run(&options))?;
    println!("{}", serde_json::to_string_pretty(&document)?);
    // Thousands of sessions need no orderly end.
    runtime.shutdown_background();
    Ok(())
}
