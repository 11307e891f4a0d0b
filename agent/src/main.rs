//! `muster-agent`: flags in, exit status out.

use std::process::ExitCode;

use clap::Parser;
use muster_agent::{config::Flags, daemon};
use muster_runtime::telemetry;
use tracing::error;

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Err(e) = telemetry::start(flags.log_format, &flags.log_filter) {
        eprintln!("muster-agent: --log-filter: {e}");
        return ExitCode::from(2);
    }
    let config = match flags.check() {
        Ok(config) => config,
        Err(e) => {
            eprintln!("muster-agent: {e}\nSee muster-agent --help.");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("muster-agent: start threads: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(daemon::run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}
