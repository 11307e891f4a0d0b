//! Says with which interpreters the faster lanes are proven.
//!
//! A lane is proven for an interpreter if the compatibility suite (`tests/drills/tests/lanes.rs`)
//! has run each of its scripts under plain torchrun and in that lane, and found only differences
//! that it lists.

use std::fmt;

use super::interpreter::Interpreter;

/// Versions of torch, and of CPython on Linux, with which the suite has passed in every lane. `make
/// lanes` runs it and prints the content of this list. A version of torch is listed as [`Version`]
/// shows it: a release by its first two numbers, everything else whole.
const PROVEN: [(&str, (u32, u32)); 3] = [("2.15", (3, 11)), ("2.15", (3, 12)), ("2.15", (3, 13))];

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

/// Whether every lane is proven for this interpreter.
pub fn proven(interpreter: &Interpreter) -> bool {
    let version = Version::of(&interpreter.build).to_string();
    interpreter.implementation == "cpython"
        && interpreter.system == "linux"
        && PROVEN
            .iter()
            .any(|(torch, python)| *torch == version && *python == interpreter.python)
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
        }
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
