//! The flags of the programs that start torch's ranks: torchrun, its older names, and deepspeed.
//!
//! A table for each program says what a flag means here. Sources: torch/distributed/run.py and
//! launch.py of torch 2.4 to 2.15, torchelastic/distributed/launch.py 0.2.2, and
//! deepspeed/launcher/runner.py 0.17. argparse takes `_` for `-` and `--flag=value` for
//! `--flag value`; so do we. It also takes the beginning of a flag's name, which is refused here.

use crate::spelling::nearest;

/// What a flag means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Ranks on each node.
    Procs,
    /// Nodes: `N` or `MIN:MAX`.
    Nodes,
    /// Failures that the launcher survives by itself.
    Restarts,
    /// Seconds from SIGTERM to SIGKILL, if the launcher itself is told to end.
    Grace,
    /// The script is the name of a module.
    Module,
    /// The script is a program of its own.
    NoPython,
    /// A world of one node.
    Standalone,
    /// Whether the script gets `--local-rank`.
    LocalRank(bool),
    /// Muster does it, with this reason.
    Note(&'static str),
    Warn(&'static str),
    Refuse(&'static str),
}

/// Whether a value follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    Value,
}

pub(crate) type Flags = &'static [(&'static str, Takes, Use)];

const MEETS: &str = "is not needed: Muster brings the nodes together";
const RANKS: &str = "is not needed: Muster numbers the nodes and names the address";
const LOGS: &str = "is not needed: Muster keeps the output of every rank (muster logs)";
const WATCHES: &str = "is not needed: Muster watches the ranks";

/// `torchrun` and `python -m torch.distributed.run`.
pub(crate) const TORCHRUN: Flags = &[
    ("nnodes", Takes::Value, Use::Nodes),
    ("nproc-per-node", Takes::Value, Use::Procs),
    ("max-restarts", Takes::Value, Use::Restarts),
    ("m", Takes::Nothing, Use::Module),
    ("module", Takes::Nothing, Use::Module),
    ("no-python", Takes::Nothing, Use::NoPython),
    ("standalone", Takes::Nothing, Use::Standalone),
    ("rdzv-backend", Takes::Value, Use::Note(MEETS)),
    ("rdzv-endpoint", Takes::Value, Use::Note(MEETS)),
    ("rdzv-id", Takes::Value, Use::Note(MEETS)),
    ("rdzv-conf", Takes::Value, Use::Note(MEETS)),
    ("node-rank", Takes::Value, Use::Note(RANKS)),
    ("master-addr", Takes::Value, Use::Note(RANKS)),
    ("master-port", Takes::Value, Use::Note(RANKS)),
    ("local-addr", Takes::Value, Use::Note(RANKS)),
    (
        "role",
        Takes::Value,
        Use::Note("has no effect: all ranks have one role"),
    ),
    ("log-dir", Takes::Value, Use::Note(LOGS)),
    ("r", Takes::Value, Use::Note(LOGS)),
    ("redirects", Takes::Value, Use::Note(LOGS)),
    ("t", Takes::Value, Use::Note(LOGS)),
    ("tee", Takes::Value, Use::Note(LOGS)),
    ("log-line-prefix-template", Takes::Value, Use::Note(LOGS)),
    ("local-ranks-filter", Takes::Value, Use::Note(LOGS)),
    ("duplicate-stdout-filters", Takes::Value, Use::Note(LOGS)),
    ("duplicate-stderr-filters", Takes::Value, Use::Note(LOGS)),
    (
        "logs-specs",
        Takes::Value,
        Use::Warn("has no effect: Muster keeps the output of every rank (muster logs)"),
    ),
    ("monitor-interval", Takes::Value, Use::Note(WATCHES)),
    (
        "start-method",
        Takes::Value,
        Use::Note("has no effect: it only concerns functions, not scripts"),
    ),
    (
        "event-log-handler",
        Takes::Value,
        Use::Note("has no effect: see muster events"),
    ),
    // Since torch 2.12; 30 if neither it nor TORCH_ELASTIC_SHUTDOWN_TIMEOUT says more.
    ("shutdown-timeout", Takes::Value, Use::Grace),
    (
        "signals-to-handle",
        Takes::Value,
        Use::Note("has no effect: Muster stops ranks with SIGTERM, then SIGKILL"),
    ),
    (
        "run-path",
        Takes::Nothing,
        Use::Note("is not needed: the script is started as it is"),
    ),
    ("use-env", Takes::Nothing, Use::LocalRank(false)),
    (
        "numa-binding",
        Takes::Value,
        Use::Note("is not needed: Muster binds ranks to the CPUs near their GPU"),
    ),
    (
        "virtual-local-rank",
        Takes::Nothing,
        Use::Refuse("would show each rank one GPU as its only one, which Muster cannot do"),
    ),
];

/// `deepspeed`. Its ranks read torchrun's variables.
pub(crate) const DEEPSPEED: Flags = &[
    ("num-gpus", Takes::Value, Use::Procs),
    ("num-nodes", Takes::Value, Use::Nodes),
    ("module", Takes::Nothing, Use::Module),
    ("no-python", Takes::Nothing, Use::NoPython),
    ("no-local-rank", Takes::Nothing, Use::LocalRank(false)),
    ("h", Takes::Value, Use::Note(MEETS)),
    ("hostfile", Takes::Value, Use::Note(MEETS)),
    (
        "i",
        Takes::Value,
        Use::Warn("has no effect: Muster chooses nodes and GPUs"),
    ),
    (
        "include",
        Takes::Value,
        Use::Warn("has no effect: Muster chooses nodes and GPUs"),
    ),
    (
        "e",
        Takes::Value,
        Use::Warn("has no effect: Muster chooses nodes and GPUs"),
    ),
    (
        "exclude",
        Takes::Value,
        Use::Warn("has no effect: Muster chooses nodes and GPUs"),
    ),
    ("master-port", Takes::Value, Use::Note(RANKS)),
    ("master-addr", Takes::Value, Use::Note(RANKS)),
    ("node-rank", Takes::Value, Use::Note(RANKS)),
    ("launcher", Takes::Value, Use::Note(MEETS)),
    ("launcher-args", Takes::Value, Use::Note(MEETS)),
    ("no-ssh", Takes::Nothing, Use::Note(MEETS)),
    ("no-ssh-check", Takes::Nothing, Use::Note(MEETS)),
    ("ssh-port", Takes::Value, Use::Note(MEETS)),
    ("force-multi", Takes::Nothing, Use::Note(MEETS)),
    ("save-pid", Takes::Nothing, Use::Note(WATCHES)),
    ("enable-each-rank-log", Takes::Value, Use::Note(LOGS)),
    (
        "bind-cores-to-rank",
        Takes::Nothing,
        Use::Note("is not needed: Muster binds ranks to the CPUs near their GPU"),
    ),
    (
        "autotuning",
        Takes::Value,
        Use::Refuse("would start many jobs of its own, which Muster cannot do"),
    ),
    (
        "elastic-training",
        Takes::Nothing,
        Use::Refuse("would let DeepSpeed resize the job; give minReplicas and maxReplicas instead"),
    ),
];

/// The flag that a word is: its entry, and the value that the word itself has.
pub(crate) enum Word<'w> {
    Flag(&'static (&'static str, Takes, Use), Option<&'w str>),
    Unknown,
    /// The script.
    NoFlag,
}

pub(crate) fn look(word: &str, flags: Flags) -> Word<'_> {
    let (bare, long) = match (word.strip_prefix("--"), word.strip_prefix('-')) {
        (Some(bare), _) => (bare, true),
        (None, Some(bare)) if !bare.is_empty() => (bare, false),
        _ => return Word::NoFlag,
    };
    let (name, value) = match bare.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (bare, None),
    };
    let name = match long {
        true => name.replace('_', "-"),
        // deepspeed has a short -H.
        false => name.to_ascii_lowercase(),
    };
    let found = flags
        .iter()
        .find(|(known, ..)| *known == name && (known.len() > 1) == long);
    found.map_or(Word::Unknown, |entry| Word::Flag(entry, value))
}

/// What to say of a word that is none of these flags.
pub(crate) fn unknown(word: &str, program: &str, flags: Flags) -> String {
    match meant(word, flags) {
        Some((meant, ..)) => format!("{word} is no flag of {program}; did you mean --{meant}?"),
        None => format!("{word} is no flag of {program} that Muster knows"),
    }
}

/// The flag that a misspelt one probably is.
pub(crate) fn meant(word: &str, flags: Flags) -> Option<&'static (&'static str, Takes, Use)> {
    let bare = word.trim_start_matches('-');
    let name = bare.split('=').next().unwrap_or_default().replace('_', "-");
    let names: Vec<&str> = flags.iter().map(|(name, ..)| *name).collect();
    let meant = nearest(&name, &names)?;
    flags.iter().find(|(name, ..)| *name == meant)
}
