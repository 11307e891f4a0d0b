//! Chooses the lane of a worker group on this node and gives the reason. [`super::proven`] says
//! which interpreters are proven.

use serde::{Deserialize, Serialize};

use super::proven::{Version, standing};
use crate::{
    node_report::trial::Trial,
    spec::{Framework, Launch},
};

/// How the workers of one run are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lane {
    #[default]
    Cold,
    Parked,
    Fork,
    Direct,
}

impl Lane {
    /// The word in a document.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Cold => "cold",
            Lane::Parked => "parked",
            Lane::Fork => "fork",
            Lane::Direct => "direct",
        }
    }
}

/// What an interpreter reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// Major and minor version of torch.
    pub torch: (u32, u32),
    /// The whole version of torch, with what its builder added: `2.8.0+cu128`.
    pub build: String,
    /// `sys.implementation.name`. Empty: it did not tell.
    pub implementation: String,
    /// Major and minor version of the language.
    pub python: (u32, u32),
    /// `sys.platform`.
    pub system: String,
    /// What this node has found out about it by itself.
    pub trial: Option<Trial>,
}

/// The lane of a proven interpreter for `auto`. `direct` is slower after a job's first failure,
/// because its first generation is not forked.
const FASTEST: Lane = Lane::Fork;

/// The oldest Python that the launcher supports: it uses `socket.recv_fds` and an absolute
/// `__file__`.
const LAUNCHER_PYTHON: (u32, u32) = (3, 9);

/// The lane of a framework other than torch. torchrun would start nothing that it needs.
pub fn without_torch(framework: Framework) -> (Lane, String) {
    let why = format!("framework {} is started without torchrun", framework.name());
    (Lane::Direct, why)
}

/// The lane of members that share a node. torchrun would give them one environment.
pub fn of_shared() -> (Lane, String) {
    let why = "members that share a node are started without torchrun".to_owned();
    (Lane::Direct, why)
}

/// The lane for a request, and the reason for the user. `python`: the workers are a Python script
/// or module.
pub fn choose(asked: Launch, python: bool, interpreter: &Interpreter) -> (Lane, String) {
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
        Launch::Cold => return (Lane::Cold, "asked for".into()),
        // Without Python there is no interpreter to check.
        Launch::Direct if !python => return (Lane::Direct, "asked for".into()),
        _ if !python => {
            return (
                Lane::Cold,
                "only Python scripts and modules can be started from a parked launcher".into(),
            );
        }
        _ if implementation != "cpython" || system != "linux" || *version < LAUNCHER_PYTHON => {
            return (
                Lane::Cold,
                format!("the launcher does not run with {shown}"),
            );
        }
        Launch::Parked => Lane::Parked,
        Launch::Fork => Lane::Fork,
        Launch::Direct => Lane::Direct,
        Launch::Auto => {
            let known = standing(interpreter);
            return match known.is_proven() {
                true => (
                    FASTEST,
                    format!("the fastest lane that is proven for {shown}{known}"),
                ),
                false => (
                    Lane::Cold,
                    format!("no faster lane is proven for {shown}{known}"),
                ),
            };
        }
    };
    (wanted, "asked for".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_only_what_is_proven() {
        let here = Interpreter {
            torch: (2, 15),
            build: "2.15.0+cpu".into(),
            implementation: "cpython".into(),
            python: (3, 11),
            system: "linux".into(),
            trial: None,
        };
        let proven = (
            Lane::Fork,
            "the fastest lane that is proven for torch 2.15 on linux cpython 3.11".to_owned(),
        );
        assert_eq!(choose(Launch::Auto, true, &here), proven);
        assert_eq!(choose(Launch::Parked, true, &here).0, Lane::Parked);
        assert_eq!(choose(Launch::Cold, true, &here).0, Lane::Cold);
        assert_eq!(
            choose(Launch::Fork, false, &here).0,
            Lane::Cold,
            "not a script"
        );
        assert_eq!(
            choose(Launch::Auto, false, &here).0,
            Lane::Cold,
            "not a script"
        );
        assert_eq!(
            choose(Launch::Direct, false, &here).0,
            Lane::Direct,
            "whatever can be executed"
        );
        let newer = Interpreter {
            torch: (2, 16),
            build: "2.16.0".into(),
            ..here.clone()
        };
        let (lane, why) = choose(Launch::Auto, true, &newer);
        assert_eq!(
            (lane, why.as_str()),
            (
                Lane::Cold,
                "no faster lane is proven for torch 2.16 on linux cpython 3.11"
            )
        );
        assert_eq!(
            choose(Launch::Fork, true, &newer).0,
            Lane::Fork,
            "whoever asks gets it"
        );
        let other = Interpreter {
            implementation: "pypy".into(),
            ..here
        };
        assert_eq!(choose(Launch::Fork, true, &other).0, Lane::Cold);
    }
}
