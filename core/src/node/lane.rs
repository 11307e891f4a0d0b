//! Chooses the lane of a worker group on this node and gives the reason. [`super::proven`] says
//! which interpreters are proven.

use serde::{Deserialize, Serialize};

pub use super::interpreter::Interpreter;
use super::{
    proven::{Version, standing},
    torchrun,
};
use crate::{run::Assignment, spec::Launch};

/// How the workers of one run are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lane {
    #[default]
    Cold,
    Parked,
    Fork,
    Direct,
    Exec,
}

impl Lane {
    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Cold => "cold",
            Lane::Parked => "parked",
            Lane::Fork => "fork",
            Lane::Direct => "direct",
            Lane::Exec => "exec",
        }
    }

    /// Whether torchrun is between the runner and the ranks.
    pub fn runs_torchrun(self) -> bool {
        matches!(self, Lane::Cold | Lane::Parked)
    }

    /// Whether a launcher is kept for its runs.
    pub fn has_launcher(self) -> bool {
        matches!(self, Lane::Parked | Lane::Fork | Lane::Direct)
    }

    /// The lane of a run whose launcher has failed. Whoever asks for torchrun gets it.
    pub fn without_launcher(self) -> Self {
        match self {
            Lane::Cold | Lane::Parked => Lane::Cold,
            Lane::Fork | Lane::Direct | Lane::Exec => Lane::Exec,
        }
    }
}

/// The lane of a proven interpreter for `auto`. `direct` is slower after a job's first failure,
/// because its first generation is not forked.
const FASTEST: Lane = Lane::Fork;

/// The oldest Python that the launcher supports: it uses `socket.recv_fds` and an absolute
/// `__file__`.
const LAUNCHER_PYTHON: (u32, u32) = (3, 9);

/// Variables by which torchrun is asked for something that it does itself, beside its ranks: a
/// server that ends ranks whose timer has run out, and one that answers whether it is alive.
const ASK_TORCHRUN: [&str; 2] = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
];

/// The lane of this assignment on an interpreter, and the reason for the user. `shared`: its member
/// shares the node with others.
pub fn of(assignment: &Assignment, shared: bool, interpreter: &Interpreter) -> (Lane, String) {
    let framework = assignment.framework;
    if !framework.is_torch() {
        let why = format!("framework {} is started without torchrun", framework.name());
        return (Lane::Direct, why);
    }
    if shared {
        // torchrun would give its ranks one environment.
        let why = "members that share a node are started without torchrun".to_owned();
        return (Lane::Direct, why);
    }
    let set = |name: &&&str| {
        assignment.env.contains_key(**name) || assignment.env_files.contains_key(**name)
    };
    if let Some(name) = ASK_TORCHRUN.iter().find(set)
        && assignment.launch == Launch::Auto
    {
        return (
            Lane::Cold,
            format!("the job sets {name}, which only torchrun obeys"),
        );
    }
    let python = torchrun::ranks(assignment).is_some();
    choose(assignment.launch, python, interpreter)
}

/// Whether this run's torchrun must bring a TCPStore of its own.
pub fn brings_store(assignment: &Assignment, lane: Lane, interpreter: &Interpreter) -> bool {
    lane.runs_torchrun() && torchrun::alone(assignment, interpreter.torch)
}

/// The lane for a request. `python`: the workers are a Python script or module.
fn choose(asked: Launch, python: bool, interpreter: &Interpreter) -> (Lane, String) {
    let Interpreter {
        build,
        implementation,
        python: version,
        system,
        ..
    } = interpreter;
    let shown = format!(
        "torch {} on {system} {implementation} {}.{}",
        Version::of(build),
        version.0,
        version.1
    );
    let wanted = match asked {
        Launch::Cold => Lane::Cold,
        Launch::Parked => Lane::Parked,
        Launch::Direct => Lane::Direct,
        Launch::Exec => Lane::Exec,
        Launch::Fork => Lane::Fork,
        Launch::Auto => FASTEST,
    };
    let cannot_wait = match (python, wanted.has_launcher()) {
        // It is executed, and nothing waits for it.
        (false, _) if wanted == Lane::Direct => None,
        (false, true) => {
            Some("only Python scripts and modules can be started from a launcher".to_owned())
        }
        (true, true)
            if implementation != "cpython" || system != "linux" || *version < LAUNCHER_PYTHON =>
        {
            Some(format!("the launcher does not run with {shown}"))
        }
        _ => None,
    };
    let known = standing(interpreter);
    match cannot_wait {
        Some(why) => (wanted.without_launcher(), why),
        None if asked != Launch::Auto => (wanted, "asked for".into()),
        None if known.is_proven() => (
            wanted,
            format!("the fastest lane that is proven for {shown}{known}"),
        ),
        None => (
            Lane::Exec,
            format!("no faster lane is proven for {shown}{known}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn here() -> Interpreter {
        Interpreter {
            torch: (2, 15),
            build: "2.15.0+cpu".into(),
            implementation: "cpython".into(),
            python: (3, 11),
            system: "linux".into(),
            trial: None,
        }
    }

    #[test]
    fn auto_takes_only_what_is_proven() {
        let here = here();
        let chosen = |lane, why: &str| (lane, why.to_owned());
        assert_eq!(
            choose(Launch::Auto, true, &here),
            chosen(
                Lane::Fork,
                "the fastest lane that is proven for torch 2.15 on linux cpython 3.11"
            )
        );
        let newer = Interpreter {
            torch: (2, 16),
            build: "2.16.0a0+5228986.nv26.02".into(),
            ..here
        };
        assert_eq!(
            choose(Launch::Auto, true, &newer),
            chosen(
                Lane::Exec,
                "no faster lane is proven for torch 2.16.0a0+5228986.nv26.02 on linux cpython 3.11"
            )
        );
        assert_eq!(
            choose(Launch::Fork, true, &newer),
            chosen(Lane::Fork, "asked for"),
            "whoever asks gets it"
        );
    }

    /// Without Python, and on an interpreter with which the launcher does not run.
    #[test]
    fn where_nothing_can_be_forked_the_ranks_are_executed_unless_torchrun_is_asked_for() {
        let other = Interpreter {
            implementation: "pypy".into(),
            ..here()
        };
        for (asked, program, script) in [
            (Launch::Auto, Lane::Exec, Lane::Exec),
            (Launch::Exec, Lane::Exec, Lane::Exec),
            (Launch::Fork, Lane::Exec, Lane::Exec),
            (Launch::Direct, Lane::Direct, Lane::Exec),
            (Launch::Parked, Lane::Cold, Lane::Cold),
            (Launch::Cold, Lane::Cold, Lane::Cold),
        ] {
            assert_eq!(choose(asked, false, &here()).0, program, "{asked:?}");
            assert_eq!(choose(asked, true, &other).0, script, "{asked:?}");
        }
        assert_eq!(
            choose(Launch::Auto, true, &other).1,
            "the launcher does not run with torch 2.15 on linux pypy 3.11"
        );
        for asked in [Launch::Parked, Launch::Direct, Launch::Exec] {
            assert_eq!(choose(asked, true, &here()).0.name(), asked.name());
        }
    }

    #[test]
    fn what_only_torchrun_does_is_left_to_it() {
        let job = |launch, name: &str| Assignment {
            launch,
            command: vec!["python3".into()],
            args: vec!["train.py".into()],
            env: BTreeMap::from([(name.to_owned(), "1".to_owned())]),
            ..crate::node::turn::tests::assignment("a", 3)
        };
        let timer = "TORCHELASTIC_ENABLE_FILE_TIMER";
        let (lane, why) = of(&job(Launch::Auto, timer), false, &here());
        assert_eq!(
            (lane, why.as_str()),
            (
                Lane::Cold,
                "the job sets TORCHELASTIC_ENABLE_FILE_TIMER, which only torchrun obeys"
            )
        );
        assert_eq!(of(&job(Launch::Fork, timer), false, &here()).0, Lane::Fork);
        assert_eq!(
            of(&job(Launch::Auto, "OTHER"), false, &here()).0,
            Lane::Fork
        );
        assert_eq!(of(&job(Launch::Auto, timer), true, &here()).0, Lane::Direct);
    }
}
