//! Says with which interpreters the faster lanes are proven.
//!
//! A lane is proven for an interpreter if the compatibility suite (`tests/drills/tests/lanes.rs`)
//! has run each of its scripts under plain torchrun and in that lane, and found only differences
//! that it lists. `proven.txt` has every run of it, and `tools/lanes` writes them there. Of an interpreter
//! that is not there, a node may have made a trial of its own.

use std::fmt;

use super::interpreter::Interpreter;
use crate::node_report::trial::Trial;

/// One run of the suite a line: `TORCH PYTHON SUITE DATE VERDICT BUILD [# what differed]`.
const RUNS: &str = include_str!("proven.txt");

/// One run of the whole suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuiteRun<'a> {
    /// The version of torch as [`Version`] shows it: a release by its first two numbers, everything else
    /// whole.
    pub torch: &'a str,
    /// CPython's, on Linux.
    pub python: (u32, u32),
    /// The version of the suite. `-`: it was run before suites had versions.
    pub suite: &'a str,
    pub date: &'a str,
    pub passed: bool,
    /// The whole version of torch.
    pub build: &'a str,
    /// What differed, if it has not passed.
    pub differed: &'a str,
}

impl<'a> SuiteRun<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (words, differed) = line.split_once('#').unwrap_or((line, ""));
        let words: Vec<&str> = words.split_whitespace().collect();
        let [torch, python, suite, date, verdict, build] = words[..] else {
            return None;
        };
        let (major, minor) = python.split_once('.')?;
        let passed = match verdict {
            "passed" => true,
            "failed" => false,
            _ => return None,
        };
        Some(Self {
            torch,
            python: (number(major)?, number(minor)?),
            suite,
            date,
            passed,
            build,
            differed: differed.trim(),
        })
    }
}

/// The lines of a table of runs, without comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// All runs of the suite that this version knows, one for each pair of torch and Python.
pub fn runs() -> impl Iterator<Item = SuiteRun<'static>> {
    // A test reads every line.
    lines(RUNS).filter_map(SuiteRun::read)
}

/// What is known of an interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The suite has passed.
    Proven,
    /// The suite was run, and something differed. A node makes no trial then: the short half of the suite
    /// sees less than the whole.
    Failed {
        date: &'static str,
    },
    /// The short half of the suite has passed on this node.
    ProvenHere {
        day: String,
    },
    /// Something differed on this node.
    FailedHere {
        day: String,
        first: String,
    },
    Unknown,
}

impl Standing {
    /// Whether `auto` may take the fastest lane.
    pub fn is_proven(&self) -> bool {
        matches!(self, Standing::Proven | Standing::ProvenHere { .. })
    }
}

/// The end of a sentence about the lanes of an interpreter.
impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Proven | Standing::Unknown => Ok(()),
            Standing::Failed { date } => write!(
                f,
                ": the compatibility suite found differences on {date} (docs/lanes.md)"
            ),
            Standing::ProvenHere { day } => write!(f, ", by this node on {day}"),
            Standing::FailedHere { day, first } => {
                write!(f, ": this node found a difference on {day}: {first}")
            }
        }
    }
}

/// What is known of this interpreter.
pub fn standing(interpreter: &Interpreter) -> Standing {
    if interpreter.implementation != "cpython" || interpreter.system != "linux" {
        return Standing::Unknown;
    }
    let version = Version::of(&interpreter.build).to_string();
    let run = runs().find(|run| run.torch == version && run.python == interpreter.python);
    match (run, &interpreter.trial) {
        (Some(run), _) if run.passed => Standing::Proven,
        (Some(run), _) => Standing::Failed { date: run.date },
        (None, Some(trial)) => of_trial(trial),
        (None, None) => Standing::Unknown,
    }
}

fn of_trial(trial: &Trial) -> Standing {
    let day = trial.day();
    match trial.differs.first() {
        None => Standing::ProvenHere { day },
        Some(first) => Standing::FailedHere {
            day,
            first: first.lines().next().unwrap_or_default().to_owned(),
        },
    }
}

/// The part of a build's version that decides whether another build behaves alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// A release of PyTorch itself, for whatever device. Its patches change no behaviour, so its
    /// first two numbers stand for it.
    Release(u32, u32),
    /// A nightly, a release candidate, or somebody else's build, as NVIDIA's containers have it. It
    /// may hold anything between two releases, so it stands only for itself.
    Whole(String),
}

impl Version {
    /// Reads the version text of torch (PEP 440), such as `2.8.0+cu128`.
    pub fn of(build: &str) -> Self {
        let (public, local) = build
            .split_once('+')
            .map_or((build, None), |(p, l)| (p, Some(l)));
        let numbers: Option<Vec<u32>> = public.split('.').map(number).collect();
        match numbers.as_deref() {
            Some(&[major, minor] | &[major, minor, _]) if local.is_none_or(is_of_pytorch) => {
                Self::Release(major, minor)
            }
            _ => Self::Whole(build.to_owned()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Release(major, minor) => write!(f, "{major}.{minor}"),
            Self::Whole(build) => f.write_str(build),
        }
    }
}

/// Whether `auto` may take the fastest lane with this interpreter.
pub fn proven(interpreter: &Interpreter) -> bool {
    standing(interpreter).is_proven()
}

/// Whether PyTorch marks its own builds so. The mark names the device that a build is for.
fn is_of_pytorch(local: &str) -> bool {
    let numbered = |prefix: &str| {
        local
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.split('.').all(|part| number(part).is_some()))
    };
    matches!(local, "cpu" | "xpu") || numbered("cu") || numbered("rocm")
}

/// A number as it stands in a version: digits alone, without a sign.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter(build: &str) -> Interpreter {
        Interpreter {
            torch: (2, 15),
            build: build.into(),
            implementation: "cpython".into(),
            python: (3, 11),
            system: "linux".into(),
            trial: None,
        }
    }

    #[test]
    fn every_run_can_be_read_and_stands_there_once() {
        let mut pairs = Vec::new();
        for line in lines(RUNS) {
            let run = SuiteRun::read(line).unwrap_or_else(|| panic!("{line}"));
            assert!(
                run.build == "-" || Version::of(run.build).to_string() == run.torch,
                "{line}"
            );
            let dashed = |number: &str| number.len() == 4 || number.len() == 2;
            assert!(run.date.split('-').all(dashed), "{line}");
            assert_eq!(run.differed.is_empty(), run.passed, "{line}");
            pairs.push((run.torch, run.python));
        }
        let all = pairs.len();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), all);
        assert!(all >= 3);
        for line in [
            "2.8 3.12 0 2026-11-26 maybe 2.8.0",
            "2.8 3.12 0 2026-11-26 passed",
            "2.8 3 0 2026-11-26 passed 2.8.0",
        ] {
            assert_eq!(SuiteRun::read(line), None, "{line}");
        }
    }

    #[test]
    fn a_trial_speaks_where_the_suite_was_not_run() {
        let tried = |build: &str, differs: &[&str]| {
            let trial = Trial {
                at_unix_us: 1_795_737_600_000_000,
                differs: differs.iter().map(|what| (*what).to_owned()).collect(),
                ..Trial::default()
            };
            standing(&Interpreter {
                trial: Some(trial),
                ..interpreter(build)
            })
        };
        assert_eq!(standing(&interpreter("2.16.0")), Standing::Unknown);
        let here = tried("2.16.0", &[]);
        assert!(here.is_proven());
        assert_eq!(here.to_string(), ", by this node on 2026-11-27");
        let failed = tried(
            "2.16.0",
            &["start.py: umask: 0 instead of 18\nmore", "second"],
        );
        assert!(!failed.is_proven());
        assert_eq!(
            failed.to_string(),
            ": this node found a difference on 2026-11-27: start.py: umask: 0 instead of 18"
        );
        assert_eq!(
            tried("2.15.0", &["a busy machine"]),
            Standing::Proven,
            "the whole suite has passed"
        );
    }

    #[test]
    fn only_a_release_is_as_good_as_another_of_its_minor_version() {
        for release in [
            "2.15.0",
            "2.15.2",
            "2.15.0+cpu",
            "2.15.1+cu128",
            "2.15.0+rocm6.2.4",
            "2.15.0+xpu",
        ] {
            assert_eq!(Version::of(release), Version::Release(2, 15), "{release}");
            assert!(proven(&interpreter(release)), "{release}");
        }
        for other in [
            "2.15.0a0+79aa3d2.nv26.02",
            "2.15.0.dev20261101+cu130",
            "2.15.0rc2",
            "2.15.0b1",
            "2.15.0+git1234abc",
            "2.15.0+cu128.mine",
            "2.15.0+cu",
            "2.15.0+cu+128",
            "2.15.0.post1",
            "2.15.+0",
            "2.15.0.0",
            "2",
            "",
        ] {
            assert_eq!(Version::of(other), Version::Whole(other.into()));
            assert!(!proven(&interpreter(other)), "{other}");
        }
        assert!(!proven(&interpreter("2.16.0")));
    }

    #[test]
    fn it_is_proven_for_cpython_on_linux() {
        let here = interpreter("2.15.0");
        assert!(proven(&here));
        let other = |change: fn(&mut Interpreter)| {
            let mut other = here.clone();
            change(&mut other);
            other
        };
        assert!(!proven(&other(|i| i.implementation = "pypy".into())));
        assert!(!proven(&other(|i| i.system = "darwin".into())));
        assert!(!proven(&other(|i| i.python = (3, 10))));
    }
}
