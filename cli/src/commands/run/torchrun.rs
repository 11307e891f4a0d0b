//! The flags of torchrun that have no meaning for `muster run`. They are taken and left out, with a word.
//!
//! Source: torch/distributed/run.py of torch 2.4 to 2.15.

use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;

const RENDEZVOUS: &str = "Muster does the rendezvous itself";
/// torchrun is started on each machine, with another number.
const NODE_RANK: &str = "node-rank";
const LOGS: &str = "Muster keeps the output of every rank (`muster logs`)";

/// Flags of torchrun without a value. All others have one.
const BARE: [&str; 8] = [
    "standalone",
    "module",
    "m",
    "no-python",
    "run-path",
    "virtual-local-rank",
    "print-completion",
    "use-env",
];

/// Why a flag of torchrun has no meaning here. `None`: `muster run` takes it, or torchrun has no such flag.
/// `flag` is a word of the command line: torchrun takes `_` for `-`, and a value after `=`.
pub(crate) fn needless(flag: &str) -> Option<&'static str> {
    // Short flags are no long ones: -r is not --r.
    let name = match flag.strip_prefix("--") {
        Some(_) => flag_name(flag),
        None => flag.split('=').next()?.to_owned(),
    };
    Some(match name.as_str() {
        "standalone" | "node-rank" | "local-addr" => RENDEZVOUS,
        _ if name.starts_with("rdzv") || name.starts_with("master-") => RENDEZVOUS,
        "log-dir" | "redirects" | "-r" | "tee" | "-t" | "logs-specs" => LOGS,
        "log-line-prefix-template" => LOGS,
        "local-ranks-filter" | "duplicate-stdout-filters" | "duplicate-stderr-filters" => LOGS,
        "signals-to-handle" => {
            "Muster stops ranks with SIGTERM (--stop-grace-period is the time they have)"
        }
        "monitor-interval" => "Muster watches the ranks itself",
        "event-log-handler" => "Muster keeps events (`muster events`)",
        "role" => "all ranks have one role (a job file may have more)",
        "start-method" => "it concerns functions, and this starts a script",
        "run-path" => "Muster runs the script by its path",
        "numa-binding" => "Muster binds ranks to the CPUs near their GPU",
        "virtual-local-rank" => "ranks see all GPUs of their group, and take theirs by LOCAL_RANK",
        "print-completion" => "completions come from `muster completion`",
        _ => return None,
    })
}

/// The command line without one of torchrun's flags, and what was taken out. `flag`: as the parser named
/// it, without a value that is joined to it.
pub(crate) fn without(words: &[String], flag: &str) -> Option<(Vec<String>, String)> {
    let at = words.iter().position(|word| {
        let is_short = flag.len() == 2 && word.starts_with(flag);
        is_short || word.split('=').next() == Some(flag)
    })?;
    let end = words.len().min(at + 1 + usize::from(has_value(&words[at])));
    let value = words[at]
        .split_once('=')
        .map_or(words[end - 1].as_str(), |(_, value)| value);
    if flag_name(flag) == NODE_RANK && value != "0" {
        return None; // on each machine but the first the same line would submit the job again
    }
    let rest = [&words[..at], &words[end..]].concat();
    Some((rest, words[at..end].join(" ")))
}

/// What to tell of a flag that would make one job of each machine's command line.
pub(crate) fn once_only(flag: &str) -> Option<&'static str> {
    (flag_name(flag) == NODE_RANK).then_some(
        "Muster starts the ranks of all nodes: give the command once, on one machine, with --nnodes and without --node-rank",
    )
}

/// The flag's name in our spelling, without dashes before it and a value after it.
pub(super) fn flag_name(word: &str) -> String {
    let name = word.split('=').next().unwrap_or(word);
    name.trim_start_matches('-').replace('_', "-")
}

/// Whether the next word is this flag's value. A flag of ours may stand among those of torchrun.
pub(super) fn has_value(word: &str) -> bool {
    let is_short = !word.starts_with("--");
    let has_own = word.contains('=') || is_short && word.len() > 2;
    !has_own && !BARE.contains(&flag_name(word).as_str()) && !is_bare_of_ours(word)
}

fn is_bare_of_ours(word: &str) -> bool {
    let root = Cli::command();
    let run = root.get_subcommands().find(|it| it.get_name() == "run");
    let ours = run.into_iter().flat_map(Command::get_arguments);
    let name = flag_name(word);
    let is_it = |arg: &&Arg| match word.strip_prefix("--") {
        Some(_) => arg.get_long() == Some(&name),
        None => arg.get_short() == word.chars().nth(1),
    };
    let found = ours.chain(root.get_arguments()).find(is_it);
    found.is_some_and(|arg| {
        let needs_none = arg.get_num_args().is_some_and(|it| it.min_values() == 0);
        needs_none || !arg.get_action().takes_values()
    })
}

/// What to tell of flags that were left out: one sentence for all. Each is what was taken out, and why.
pub(crate) fn told(left_out: &[(String, &'static str)]) -> String {
    let flags: Vec<&str> = left_out.iter().map(|(flag, _)| flag.as_str()).collect();
    let mut reasons: Vec<&str> = Vec::new();
    for (_, why) in left_out {
        if !reasons.contains(why) {
            reasons.push(why);
        }
    }
    format!("left out: {}: {}", flags.join(", "), reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn each_flag_of_torchrun_is_taken_or_left_out() {
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
                    takes(bare) != needless(spelling).is_some(),
                    "{spelling} is taken, or has no meaning, and not both"
                );
            }
        }
        for unknown in ["--nodez", "--t", "--r", "-x", "--masterful"] {
            assert_eq!(needless(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_flag_is_taken_out_with_its_value() {
        for (line, flag, rest, out) in [
            ("run --tee 3 t.py", "--tee", "run t.py", "--tee 3"),
            ("run --tee=3 t.py", "--tee", "run t.py", "--tee=3"),
            ("run -t3 t.py", "-t", "run t.py", "-t3"),
            ("run -t 3 t.py", "-t", "run t.py", "-t 3"),
            (
                "run --standalone t.py",
                "--standalone",
                "run t.py",
                "--standalone",
            ),
            (
                "run --rdzv_id 1 -m t",
                "--rdzv_id",
                "run -m t",
                "--rdzv_id 1",
            ),
            ("run --tee", "--tee", "run", "--tee"),
            (
                "run --node-rank 0 t.py",
                "--node-rank",
                "run t.py",
                "--node-rank 0",
            ),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let (left, taken) = without(&words, flag).unwrap();
            assert_eq!(
                (left.join(" ").as_str(), taken.as_str()),
                (rest, out),
                "{line}"
            );
        }
        for other in ["run --node_rank 1 t.py", "run --node-rank=3 t.py"] {
            let words: Vec<String> = other.split(' ').map(str::to_owned).collect();
            let flag = words[1].split('=').next().unwrap();
            assert_eq!(without(&words, flag), None, "{other}");
            assert!(once_only(flag).is_some());
        }
    }
}
