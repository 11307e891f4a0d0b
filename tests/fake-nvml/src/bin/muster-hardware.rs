//! `muster-hardware`: makes fake machines, and breaks them.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use muster_fake_nvml::{fault, machine, shapes};

/// A fake GPU machine in a directory: a libnvidia-ml.so, a sysfs and a kernel log, for programs
/// that look at them.
#[derive(Debug, Parser)]
#[command(name = "muster-hardware", after_help = fault::FAULTS)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios
    List,
    /// Make the machine SCENARIO in DIR: a name of the list, with faults it has from the start, as
    /// 8xh100,gpu3:lost
    Make {
        scenario: String,
        dir: PathBuf,
        /// Makes serial numbers differ
        #[arg(long, default_value = "node")]
        seed: String,
    },
    /// Break the machine in DIR, or mend it
    Inject {
        dir: PathBuf,
        target: String,
        fault: String,
    },
}

fn main() -> anyhow::Result<()> {
    match Flags::parse().command {
        Command::List => {
            shapes::all()
                .iter()
                .for_each(|shape| println!("{:<12} {}", shape.name, shape.about));
            Ok(())
        }
        Command::Make {
            scenario,
            dir,
            seed,
        } => machine::make(&dir, &scenario, &seed, Some(&machine::built_library()?)),
        Command::Inject { dir, target, fault } => fault::inject(&dir, &target, &fault),
    }
}
