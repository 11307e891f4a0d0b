//! Which nodes go together in one generation. What is listed here ends, where it differs, in an error of NCCL or CUDA at the first collective,
//! or in a job that is as slow as its slowest GPU. Which interpreters go together is [`super::stack`]'s.

use std::{collections::BTreeMap, fmt};

use super::profile::{Member, cuda_of};
use crate::id::NodeName;

/// Something that must be alike on all members.
struct Aspect {
    what: &'static str,
    /// None: not known, which is held against nobody.
    of: fn(&Member<'_>) -> Option<String>,
    consequence: &'static str,
}

const ASPECTS: [Aspect; 3] = [
    Aspect {
        what: "what the driver can run",
        of: |member| Some(format!("CUDA {}", cuda_of(member.report)?.0)),
        consequence: "one torch build needs one CUDA major on all nodes (driver 525 or later for 12, 580 for 13)",
    },
    Aspect {
        what: "the GPU model",
        of: |member| member.given().next().map(|gpu| gpu.model.clone()),
        consequence: "every step waits for the slowest, and NCCL may choose algorithms that not all of them have",
    },
    Aspect {
        what: "the number of GPUs",
        of: |member| Some(member.gpus.len().to_string()),
        consequence: "all nodes of a job run the same number of ranks",
    },
];

/// A difference between members of one generation that is known to end badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub what: &'static str,
    /// What each value was found on.
    pub values: BTreeMap<String, Vec<NodeName>>,
    pub consequence: &'static str,
}

impl Mismatch {
    /// From the values as they were found; none if they are all alike.
    pub(super) fn of<'a>(
        what: &'static str,
        consequence: &'static str,
        found: impl Iterator<Item = (String, &'a NodeName)>,
    ) -> Option<Self> {
        let mut values: BTreeMap<String, Vec<NodeName>> = BTreeMap::new();
        found.for_each(|(value, node)| values.entry(value).or_default().push(node.clone()));
        (values.len() > 1).then_some(Mismatch { what, values, consequence })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} differs: ", self.what)?;
        for (i, (value, nodes)) in self.values.iter().enumerate() {
            let others = if nodes.len() > 1 { format!(" and {} more", nodes.len() - 1) } else { String::new() };
            write!(f, "{}{value} on {}{others}", if i == 0 { "" } else { ", " }, nodes[0])?;
        }
        write!(f, "; {}", self.consequence)
    }
}

/// What differs among these members, and how that ends.
pub fn mismatches(members: &[Member<'_>]) -> Vec<Mismatch> {
    let found = ASPECTS.iter().map(|aspect| {
        let values = members.iter().filter_map(|member| Some(((aspect.of)(member)?, member.node)));
        Mismatch::of(aspect.what, aspect.consequence, values)
    });
    found.flatten().collect()
}

/// What a node brings of all that must be alike. Only nodes of the same kind are sure to go together: one that does not say what it is, is of
/// another.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind([Option<String>; ASPECTS.len()]);

impl Kind {
    pub fn of(member: &Member<'_>) -> Self {
        Kind(ASPECTS.each_ref().map(|aspect| (aspect.of)(member)))
    }

    /// How it differs from the others', for people: `CUDA 12, not CUDA 13`.
    pub fn beside(&self, others: &Kind) -> String {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let differing = ASPECTS.iter().zip(self.0.iter().zip(&others.0)).filter(|(_, (own, others))| own != others);
        let said = differing.map(|(aspect, (own, others))| {
            // "unknown" alone would not say what is.
            let what = if own.is_none() || others.is_none() { format!("{} ", aspect.what) } else { String::new() };
            format!("{what}{}, not {}", word(own), word(others))
        });
        said.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{nccl::profile::tests::dgx, node_report::NodeReport};

    impl Kind {
        /// Of a GPU of this model, with all else alike.
        pub(crate) fn of_model(model: &str) -> Self {
            kind(&with_model(model))
        }
    }

    fn with_model(model: &str) -> NodeReport {
        let mut report = dgx();
        report.gpus[0].model = model.into();
        report
    }

    fn kind(report: &NodeReport) -> Kind {
        Kind::of(&Member { node: &"n".into(), report, gpus: &["GPU-0".into()] })
    }

    #[test]
    fn kinds_say_how_they_differ() {
        let (mut old, mut silent) = (with_model("A100"), dgx());
        old.driver.as_mut().unwrap().cuda = "11.8".into();
        silent.driver = None;
        let well = kind(&dgx());
        assert_eq!(kind(&old).beside(&well), "CUDA 11, not CUDA 12; A100, not NVIDIA H100 80GB HBM3");
        assert_eq!(kind(&silent).beside(&well), "what the driver can run unknown, not CUDA 12");
        assert_eq!(well, kind(&dgx()));
    }
}
