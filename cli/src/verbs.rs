//! Words that other systems have for what Muster does: which command of ours a user of kubectl, Slurm, PBS or docker means.

/// The words, and what to type instead.
const VERBS: [(&[&str], &str); 28] = [
    (
        &[
            "ps", "ls", "list", "jobs", "squeue", "qstat", "bjobs", "status",
        ],
        "jobs are listed by `muster get jobs` (-w stays and shows changes)",
    ),
    (
        &["sacct", "sreport", "bhist", "qacct", "accounting"],
        "jobs that are over, and what they have cost, are shown by `muster history` (--by owner sums them up)",
    ),
    (
        &["sshare", "sprio"],
        "who has used how much of late is shown by `muster get shares`, and who waits in which order by `muster queue`",
    ),
    (
        &["kill", "scancel", "qdel", "bkill", "terminate", "abort"],
        "a job is stopped by `muster cancel JOB`",
    ),
    (
        &["rm", "remove"],
        "a job that is over is forgotten by `muster delete JOB`; one that runs is stopped first by `muster cancel JOB`",
    ),
    (
        &["apply", "create", "sbatch", "qsub", "bsub"],
        "a job file, or a batch script with #SBATCH lines, is submitted by `muster submit -f FILE`, a script by `muster run SCRIPT`",
    ),
    (
        &[
            "srun",
            "salloc",
            "mpirun",
            "torchrun",
            "launch",
            "accelerate",
            "python",
            "python3",
        ],
        "a script is started by `muster run SCRIPT`, with torchrun's flags (--slurm in an allocation of Slurm)",
    ),
    (
        &["sinfo", "pbsnodes", "bhosts", "hosts", "node"],
        "nodes are listed by `muster nodes` (-o wide shows more)",
    ),
    (
        &["drain"],
        "`muster cordon NODE` gives a node no new work; its workers go on until their jobs end or move",
    ),
    (
        &["diag", "dcgmi", "burnin", "nccl-tests", "preflight"],
        "nodes, and the network between them, are checked by `muster check nodes`",
    ),
    (
        &["undrain"],
        "a node takes work again by `muster uncordon NODE`",
    ),
    (
        &["scontrol", "inspect", "show"],
        "everything about a job or node is shown by `muster describe JOB` or `muster describe node NODE`",
    ),
    (
        &["why", "diagnose", "debug"],
        "what happened to a job, and why, is told by `muster explain JOB`",
    ),
    (
        &["trace", "timeline", "profile", "perfetto"],
        "a job's timeline for Perfetto is written by `muster report JOB --trace`; as text it is told by `muster explain JOB`",
    ),
    (
        &["otlp", "otel", "opentelemetry", "spans", "jaeger", "tempo"],
        "a job's timeline as spans of OpenTelemetry is written by `muster report JOB --otlp`",
    ),
    (
        &["exec", "attach", "shell", "ssh", "sh", "cp", "port-forward"],
        "Muster opens no shell in a rank: `muster logs JOB --rank N` shows its output, `muster describe JOB` its node",
    ),
    (
        &[
            "alert",
            "alerts",
            "mail",
            "notification",
            "notifications",
            "webhook",
        ],
        "who is told of what happens is shown by `muster notify list`, and tried out by `muster notify test RECEIVER`",
    ),
    (
        &["stats", "usage"],
        "what nodes, jobs and ranks use is shown by `muster top nodes`, `muster top jobs` and `muster top ranks JOB`",
    ),
    (
        &[
            "hang",
            "hangs",
            "stuck",
            "pystack",
            "py-spy",
            "pstack",
            "backtrace",
        ],
        "where each rank of a job is, is shown by `muster stacks JOB`",
    ),
    (
        &["tail", "log", "output"],
        "output is followed by `muster logs JOB -f`",
    ),
    (&["watch"], "`muster get jobs -w` stays and shows changes"),
    (
        &["pause", "hold"],
        "a job is held back by `muster suspend JOB`",
    ),
    (
        &["unpause", "release", "continue"],
        "a suspended job goes on by `muster resume JOB`",
    ),
    (
        &["start", "restart", "requeue", "rerun"],
        "a suspended job goes on by `muster resume JOB`; one that is over is submitted again",
    ),
    (
        &["edit", "patch", "set", "update", "resize"],
        "the size of a running job is set by `muster scale JOB --nodes N`; for anything else, submit it anew",
    ),
    (
        &["up", "down"],
        "a cluster on this machine is started and ended by `muster local up` and `muster local down`",
    ),
    (
        &[
            "init",
            "join",
            "install",
            "serve",
            "server",
            "agent",
            "coordinator",
        ],
        "daemons have programs of their own: `muster-coordinator init` and `muster-agent join` (docs/cluster.md)",
    ),
    (
        &["lint"],
        "a job file is checked by `muster validate -f FILE`",
    ),
];

/// What to type instead of a command that there is not. `None`: no system is known that has it.
pub(crate) fn instead(verb: &str) -> Option<&'static str> {
    let found = VERBS.iter().find(|(verbs, _)| verbs.contains(&verb))?;
    Some(found.1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The first two words that are commands in a tip, as `muster get`.
    fn named(tip: &str) -> Vec<Vec<&str>> {
        let quoted = tip.split('`').skip(1).step_by(2);
        quoted
            .filter_map(|command| command.strip_prefix("muster "))
            .map(|words| {
                let plain = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
                words.split_whitespace().take_while(plain).collect()
            })
            .collect()
    }

    #[test]
    fn each_tip_names_a_command_that_there_is_and_no_word_is_ours() {
        let root = crate::command();
        let mut seen = BTreeSet::new();
        for (verbs, tip) in VERBS {
            for verb in verbs {
                assert!(root.find_subcommand(verb).is_none(), "{verb} is ours");
                assert!(seen.insert(*verb), "{verb} stands twice");
            }
            for words in named(tip) {
                let command = root.find_subcommand(words[0]);
                let command = command.unwrap_or_else(|| panic!("{tip}"));
                if command.has_subcommands()
                    && let Some(below) = words.get(1)
                {
                    assert!(command.find_subcommand(below).is_some(), "{tip}");
                }
            }
        }
    }

    #[test]
    fn what_nobody_has_gets_no_answer() {
        assert_eq!(instead("frobnicate"), None);
        assert!(instead("squeue").is_some_and(|tip| tip.contains("muster get jobs")));
    }
}
