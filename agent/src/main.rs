//! `muster-agent`: flags in, exit status out.

use std::process::ExitCode;

use clap::Parser;
use muster_agent::{
    config::{Config, Flags},
    daemon,
    in_session::Ready,
    join::Join,
    leave::Leave,
    prove::Prove,
};
use muster_rpc::peer;
use muster_runner::open_files;
use muster_runtime::telemetry;
use tracing::error;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("join") {
        return Join::parse().run();
    }
    if std::env::args().nth(1).as_deref() == Some("leave") {
        return Leave::parse().run();
    }
    if std::env::args().nth(1).as_deref() == Some("ready") {
        return Ready::parse().run();
    }
    if std::env::args().nth(1).as_deref() == Some("prove") {
        return Prove::parse().run();
    }
    let flags = Flags::parse();
    if let Err(e) = telemetry::start(flags.log_format, &flags.log_filter) {
        eprintln!("muster-agent: --log-filter: {e}");
        return ExitCode::from(2);
    }
    let (print_report, only_check) = (flags.print_report, flags.only_check);
    let allowed = if print_report {
        Ok(())
    } else {
        flags.check_user(peer::own_user())
    };
    let config = match allowed.and_then(|()| flags.check()) {
        Ok(config) => config,
        Err(e) => {
            eprintln!("muster-agent: {e}\nSee muster-agent --help.");
            return ExitCode::from(2);
        }
    };
    if only_check {
        return ExitCode::SUCCESS;
    }
    open_files::raise();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("muster-agent: start threads: {e}");
            return ExitCode::FAILURE;
        }
    };
    if print_report {
        return runtime.block_on(say_report(&config));
    }
    let ended = runtime.block_on(daemon::run(config));
    // A thread that hangs on a disk must not delay the end.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what the node would tell the coordinator, for people and for fixtures.
async fn say_report(config: &Config) -> ExitCode {
    let mut facts = daemon::facts(config);
    facts.first_look().await;
    let report =
        serde_json::to_string_pretty(&facts.report()).expect("plain values have a JSON form");
    println!("{report}");
    ExitCode::SUCCESS
}
