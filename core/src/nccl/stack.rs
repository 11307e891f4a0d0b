//! The software of a generation's ranks: torch, the CUDA that torch was built for, and NCCL. All of
//! it belongs to the interpreter that the job names. So a node knows it only after a look there,
//! and the coordinator only once every member is ready to start.
//!
//! An unknown version counts against nobody: NCCL may be a part of torch itself, or the system's.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::mixture::Mismatch;
use crate::id::NodeName;

/// Versions as their makers write them. Empty: not known, or not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stack {
    /// `2.15.0+cu132`
    pub torch: String,
    /// The CUDA that torch was built for: `13.2`. Empty: torch was built without CUDA.
    pub cuda: String,
    /// `2.30.7`
    pub nccl: String,
    /// Which of its two implementations of the backend `nccl` torch takes, as `TORCH_DIST_USE_NCCL2` says
    /// it: `0` the old one, `1` the new one. Empty: torch before 2.14 has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nccl2: String,
}

/// The variable by which torch chooses the implementation of its backend `nccl`. 2.14 takes the old one
/// unless it is `1`, and 2.15 the new one unless it is `0` (`torch/distributed/distributed_c10d.py` of
/// 2.13, 2.14.1 and 2.15.0).
pub const USE_NCCL2: &str = "TORCH_DIST_USE_NCCL2";
/// The first torch that has both, and the first that takes the new one by itself.
const HAS_NCCL2: (u32, u32) = (2, 14);
const TAKES_NCCL2: (u32, u32) = (2, 15);

/// [`Stack::nccl2`] of ranks with this torch and this value of the variable.
pub fn nccl2(torch: (u32, u32), value: Option<&str>) -> &'static str {
    match value {
        _ if torch < HAS_NCCL2 => "",
        Some("1") => "1",
        Some("0") => "0",
        _ if torch < TAKES_NCCL2 => "0",
        _ => "1",
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("torch", &self.torch),
            ("CUDA", &self.cuda),
            ("NCCL", &self.nccl),
        ];
        let known = parts
            .iter()
            .filter(|(_, version)| !version.is_empty())
            .map(|(what, version)| format!("{what} {version}"));
        f.write_str(&known.collect::<Vec<_>>().join(", "))
    }
}

/// A part of a version that must be the same on all members.
struct Aspect {
    what: &'static str,
    /// The word in front of the version.
    name: &'static str,
    of: fn(&Stack) -> Option<Vec<u32>>,
    /// It matters only to a job with GPUs, because other jobs do not load it.
    gpus: bool,
    consequence: &'static str,
}

const ASPECTS: [Aspect; 4] = [
    Aspect {
        what: "the release of torch",
        name: "torch",
        of: |stack| numbers(&stack.torch, 2),
        gpus: false,
        consequence: "ranks of two releases agree on nothing by promise: collectives, the TCPStore's keys and checkpoints differ, and they hang or fail",
    },
    Aspect {
        what: "the CUDA torch was built for",
        name: "CUDA",
        of: |stack| numbers(&stack.cuda, 1),
        gpus: true,
        consequence: "NCCL must be of one CUDA major on all ranks",
    },
    Aspect {
        what: "the version of NCCL",
        name: "NCCL",
        // All three numbers, because NCCL compares its whole version code, patch level included
        // (`initTransportsRank`).
        of: |stack| numbers(&stack.nccl, 3),
        gpus: true,
        consequence: "NCCL refuses ranks of another version at the first communicator (\"Mismatched NCCL version\", invalid usage)",
    },
    Aspect {
        what: "the implementation of torch's backend nccl",
        name: USE_NCCL2,
        of: |stack| numbers(&stack.nccl2, 1),
        gpus: true,
        consequence: "0 is the old implementation and 1 the new one; ranks of both agree on nothing by promise, and they hang or fail",
    },
];

/// The first `count` numbers of a version. `None`: it has fewer, so the version counts as not
/// known.
fn numbers(version: &str, count: usize) -> Option<Vec<u32>> {
    let release = version.split(['+', '-']).next().unwrap_or_default();
    let found: Vec<u32> = release
        .split('.')
        .map_while(|part| part.parse().ok())
        .take(count)
        .collect();
    (found.len() == count).then_some(found)
}

impl Aspect {
    fn called(&self, value: &[u32]) -> String {
        called(self.name, value)
    }
}

fn called(name: &str, version: &[u32]) -> String {
    let dotted: Vec<String> = version.iter().map(u32::to_string).collect();
    format!("{name} {}", dotted.join("."))
}

fn aspects(gpus: bool) -> impl Iterator<Item = &'static Aspect> {
    ASPECTS.iter().filter(move |aspect| gpus || !aspect.gpus)
}

/// A node that would train in a generation, with its software.
#[derive(Clone, Copy, Debug)]
pub struct Bearer<'a> {
    pub node: &'a NodeName,
    pub stack: &'a Stack,
    /// The node has trained in the generation before.
    pub survivor: bool,
}

/// The differences among these nodes, and their consequences. `gpus`: the job was given GPUs.
pub fn mismatches(bearers: &[Bearer<'_>], gpus: bool) -> Vec<Mismatch> {
    let found = aspects(gpus).map(|aspect| {
        let values = bearers
            .iter()
            .filter_map(|b| Some((aspect.called(&(aspect.of)(b.stack)?), b.node)));
        Mismatch::of(aspect.what, aspect.consequence, values)
    });
    found.flatten().collect()
}

/// How a node differs from those that stay: `torch 2.14, not torch 2.15`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Odd {
    /// What differs, as the word in front of the version.
    pub name: &'static str,
    pub own: Vec<u32>,
    pub others: Vec<u32>,
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |version: &[u32]| called(self.name, version);
        write!(f, "{}, not {}", version(&self.own), version(&self.others))
    }
}

/// The nodes that do not go with the others, and how they differ. The others go together. For each aspect one version stays: one that leaves enough nodes (`min`), then the one with most survivors, then the one with most nodes, then the newest.
pub fn mismatched(bearers: &[Bearer<'_>], gpus: bool, min: u32) -> BTreeMap<NodeName, Odd> {
    let (mut left, mut odd) = (bearers.to_vec(), BTreeMap::new());
    for aspect in aspects(gpus) {
        let mut versions: BTreeMap<Vec<u32>, (u32, u32)> = BTreeMap::new();
        let mut unknown = 0;
        for bearer in &left {
            match (aspect.of)(bearer.stack) {
                Some(version) => {
                    let (survivors, all) = versions.entry(version).or_default();
                    *survivors += u32::from(bearer.survivor);
                    *all += 1;
                }
                None => unknown += 1,
            }
        }
        // Of equal ones the last wins, which is the newest.
        let best = versions
            .into_iter()
            .max_by_key(|(_, (survivors, all))| (all + unknown >= min, *survivors, *all));
        let Some((best, _)) = best else { continue };
        left.retain(|bearer| {
            let other = (aspect.of)(bearer.stack).filter(|version| *version != best);
            let goes = other.is_none();
            if let Some(own) = other {
                let others = best.clone();
                let name = aspect.name;
                odd.insert(bearer.node.clone(), Odd { name, own, others });
            }
            goes
        });
    }
    odd
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stack(torch: &str, cuda: &str, nccl: &str) -> Stack {
        Stack {
            torch: torch.into(),
            cuda: cuda.into(),
            nccl: nccl.into(),
            nccl2: String::new(),
        }
    }

    /// The nodes are named a, b, ... The letters in `survivors` are those of survivors.
    fn odd(stacks: &[Stack], survivors: &str, gpus: bool, min: u32) -> Vec<(String, String)> {
        let names: Vec<NodeName> = (b'a'..)
            .take(stacks.len())
            .map(|letter| char::from(letter).to_string().as_str().into())
            .collect();
        let bearers: Vec<Bearer<'_>> = names
            .iter()
            .zip(stacks)
            .map(|(node, stack)| Bearer {
                node,
                stack,
                survivor: survivors.contains(node.as_str()),
            })
            .collect();
        let odd = mismatched(&bearers, gpus, min);
        assert_eq!(
            odd.is_empty(),
            mismatches(&bearers, gpus).is_empty(),
            "the two say the same"
        );
        odd.into_iter()
            .map(|(node, how)| (node.to_string(), how.to_string()))
            .collect()
    }

    fn one(node: &str, how: &str) -> Vec<(String, String)> {
        vec![(node.into(), how.into())]
    }

    #[test]
    fn the_minority_is_odd_and_says_how() {
        let (new, old) = (
            stack("2.15.0+cu132", "13.2", "2.30.7"),
            stack("2.9.1", "13.0", "2.30.7"),
        );
        assert_eq!(
            odd(&[new.clone(), old.clone(), new.clone()], "", true, 2),
            one("b", "torch 2.9, not torch 2.15")
        );
        assert_eq!(
            odd(&[old.clone(), new.clone()], "", true, 1),
            one("a", "torch 2.9, not torch 2.15"),
            "the newer of two"
        );
        assert_eq!(
            odd(&[old, new.clone()], "a", true, 1),
            one("b", "torch 2.15, not torch 2.9"),
            "a node that trains already stays"
        );
        assert_eq!(
            odd(
                &[new.clone(), stack("2.15.3", "13.9", "2.30.7")],
                "",
                true,
                1
            ),
            [],
            "no more than that must be alike"
        );
    }

    #[test]
    fn survivors_stay_only_where_they_are_enough() {
        let (new, old) = (stack("2.15.0", "", ""), stack("2.14.0", "", ""));
        let mixed = [old, new.clone(), new];
        assert_eq!(odd(&mixed, "a", false, 1).len(), 2);
        assert_eq!(
            odd(&mixed, "a", false, 2),
            one("a", "torch 2.14, not torch 2.15")
        );
    }

    #[test]
    fn nccl_must_be_the_same_to_the_patch_where_there_are_gpus() {
        let stacks = [
            stack("2.15.0", "13.2", "2.30.7"),
            stack("2.15.0", "13.2", "2.30.7"),
            stack("2.15.0", "13.2", "2.30.4"),
        ];
        assert_eq!(
            odd(&stacks, "", true, 2),
            one("c", "NCCL 2.30.4, not NCCL 2.30.7")
        );
        assert_eq!(odd(&stacks, "", false, 2), [], "nobody loads it");
        let stacks = [
            stack("2.15.0", "12.8", "2.30.7"),
            stack("2.15.0", "13.2", "2.30.7"),
            stack("2.15.0", "13.0", "2.30.7"),
        ];
        assert_eq!(odd(&stacks, "", true, 2), one("a", "CUDA 12, not CUDA 13"));
    }

    #[test]
    fn one_implementation_of_the_backend_for_all_ranks_with_gpus() {
        let with = |value| Stack {
            nccl2: nccl2((2, 15), value).into(),
            ..stack("2.15.0", "13.2", "2.30.7")
        };
        let stacks = [with(None), with(Some("0")), with(Some("yes"))];
        assert_eq!(
            odd(&stacks, "", true, 2),
            one("b", "TORCH_DIST_USE_NCCL2 0, not TORCH_DIST_USE_NCCL2 1")
        );
        assert_eq!(odd(&stacks, "", false, 2), [], "nobody opens it");
        let of_2_14 = [None, Some("0"), Some("1"), Some("yes")].map(|value| nccl2((2, 14), value));
        assert_eq!(of_2_14, ["0", "0", "1", "0"]);
        assert_eq!(nccl2((2, 13), Some("1")), "", "an older torch has one");
    }

    #[test]
    fn what_is_not_known_is_held_against_nobody() {
        let stacks = [
            Stack::default(),
            stack("2.15.0", "13.2", ""),
            stack("2.15.0a0+git1234", "13.2", "2.30.7"),
            stack("main", "", ""),
        ];
        assert_eq!(odd(&stacks, "", true, 4), []);
        let bare = stack("2.15.0+cu132", "", "2.30.7");
        assert_eq!(
            (
                bare.to_string().as_str(),
                Stack::default().to_string().as_str()
            ),
            ("torch 2.15.0+cu132, NCCL 2.30.7", "")
        );
    }

    proptest! {
        /// The nodes that are left go together. If all go together, none is called odd.
        #[test]
        fn the_rest_goes_together(
            versions in prop::collection::vec((0u32..3, 0u32..3, 0u32..3, any::<bool>()), 0..9), gpus in any::<bool>(), min in 1u32..5,
        ) {
            let written = |number: u32, around: &str| if number == 0 { String::new() } else { around.replace('N', &number.to_string()) };
            let stacks: Vec<Stack> = versions.iter()
                .map(|(torch, cuda, nccl, _)| stack(&written(*torch, "2.N.0"), &written(*cuda, "N.1"), &written(*nccl, "2.30.N"))).collect();
            let names: Vec<NodeName> = (0..stacks.len()).map(|i| format!("n{i}").as_str().into()).collect();
            let bearers: Vec<Bearer<'_>> = names.iter().zip(&stacks).zip(&versions)
                .map(|((node, stack), (.., survivor))| Bearer { node, stack, survivor: *survivor }).collect();
            let odd = mismatched(&bearers, gpus, min);
            let rest: Vec<Bearer<'_>> = bearers.iter().filter(|b| !odd.contains_key(b.node)).copied().collect();
            prop_assert!(mismatches(&rest, gpus).is_empty(), "{rest:?}");
            prop_assert_eq!(odd.is_empty(), mismatches(&bearers, gpus).is_empty());
            prop_assert!(bearers.is_empty() || !rest.is_empty());
        }
    }
}
