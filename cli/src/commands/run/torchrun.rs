//! The flags of torchrun that `muster run` does not take, each with what Muster does instead.
//!
//! Source: torch/distributed/run.py of torch 2.4 to 2.15.

const RENDEZVOUS: &str = "Muster does the rendezvous itself: give --nnodes and leave out the --rdzv-*, --master-*, --local-addr and --node-rank flags";
const ALONE: &str =
    "--nnodes 1 is the default, and Muster does the rendezvous itself: leave it out";
const LOGS: &str =
    "Muster keeps the output of every rank: leave it out, and see `muster logs --help`";
const FILTERS: &str = "Muster keeps the output of every rank: leave it out, and show some of it with `muster logs --rank N`";
const WATCHES: &str = "Muster watches the ranks itself: leave it out";

/// What to tell a user of a flag that torchrun has and `muster run` does not. `flag` is a word of the
/// command line: torchrun takes `_` for `-`, and a value after `=`.
pub(crate) fn instead(flag: &str) -> Option<&'static str> {
    let written = flag.split('=').next()?;
    let name = match written.strip_prefix("--") {
        Some(long) => long.replace('_', "-"),
        None => written.to_owned(),
    };
    match name.as_str() {
        "standalone" => Some(ALONE),
        "node-rank" | "local-addr" => Some(RENDEZVOUS),
        _ if name.starts_with("rdzv") || name.starts_with("master-") => Some(RENDEZVOUS),
        "log-dir" | "redirects" | "-r" | "tee" | "-t" | "logs-specs" => Some(LOGS),
        "log-line-prefix-template" => Some(
            "`muster logs` puts the rank before each line: leave it out, and see `muster logs --help`",
        ),
        "local-ranks-filter" | "duplicate-stdout-filters" | "duplicate-stderr-filters" => {
            Some(FILTERS)
        }
        "signals-to-handle" => Some(
            "Muster stops ranks with SIGTERM: leave it out, and give --stop-grace-period for the time they have",
        ),
        "monitor-interval" => Some(WATCHES),
        "event-log-handler" => Some("Muster keeps events: leave it out, and see `muster events`"),
        "role" => {
            Some("all ranks of `muster run` have one role: leave it out; a job file may have more")
        }
        "start-method" => {
            Some("it only concerns functions, and this starts a script: leave it out")
        }
        "run-path" => Some("Muster runs the script by its path: leave it out"),
        "numa-binding" => {
            Some("Muster binds ranks to the CPUs near their GPU itself: leave it out")
        }
        "virtual-local-rank" => Some(
            "Muster cannot show each rank its GPU as the only one: leave it out, and let ranks use LOCAL_RANK",
        ),
        "print-completion" => Some("see `muster completion --help`"),
        _ => None,
    }
}

/// Whether this flag says nothing that matters here: how processes find each other, or how they are watched.
pub(crate) fn is_needless(flag: &str) -> bool {
    [RENDEZVOUS, ALONE, WATCHES]
        .iter()
        .any(|answer| instead(flag) == Some(answer))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// All flags of torchrun 2.15, in one spelling.
    const ALL: [&str; 36] = [
        "--nnodes",
        "--nproc-per-node",
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--rdzv-conf",
        "--standalone",
        "--max-restarts",
        "--monitor-interval",
        "--start-method",
        "--event-log-handler",
        "--role",
        "-m",
        "--module",
        "--no-python",
        "--run-path",
        "--log-dir",
        "-r",
        "--redirects",
        "-t",
        "--tee",
        "--log-line-prefix-template",
        "--local-ranks-filter",
        "--duplicate-stdout-filters",
        "--duplicate-stderr-filters",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--local-addr",
        "--logs-specs",
        "--numa-binding",
        "--signals-to-handle",
        "--shutdown-timeout",
        "--virtual-local-rank",
        "--print-completion",
        "--master_port=29500",
    ];

    #[test]
    fn each_flag_of_torchrun_is_taken_or_answered() {
        let cli = Cli::command();
        let run = cli.find_subcommand("run").unwrap();
        let takes = |flag: &str| {
            run.get_arguments()
                .any(|arg| match flag.strip_prefix("--") {
                    Some(name) => {
                        let aliases = arg.get_all_aliases().unwrap_or_default();
                        arg.get_long() == Some(name) || aliases.contains(&name)
                    }
                    None => arg.get_short() == flag.chars().nth(1),
                })
        };
        for flag in ALL {
            let underscored = flag.strip_prefix("--").map_or(flag.to_owned(), |name| {
                format!("--{}", name.replace('-', "_"))
            });
            for spelling in [flag, &underscored, &format!("{flag}=3")] {
                let bare = spelling.split('=').next().unwrap();
                assert!(
                    takes(bare) != instead(spelling).is_some(),
                    "{spelling} is taken, or answered, and not both"
                );
            }
        }
        for unknown in ["--nodez", "--t", "--r", "-x", "--masterful"] {
            assert_eq!(instead(unknown), None, "{unknown}");
        }
    }
}
