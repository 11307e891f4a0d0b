//! The list of nodes: what a search found goes out, and nodes that came over the wire can be searched.

use std::collections::BTreeSet;

pub use muster_core::fleet::node_list::Listed;
use muster_core::{
    fleet::{
        node_list::{Found, Gpus, Texts},
        view::Liveness,
    },
    health::Severity,
};

use crate::v1::{self, finding::Subject};

/// What is told of all nodes.
pub fn sums<T>(found: &Found<T>) -> v1::NodeSums {
    // A fleet has less than 2^32 of anything.
    let number = |sum: usize| sum.try_into().unwrap_or(u32::MAX);
    let sums = &found.sums;
    v1::NodeSums {
        matching: number(found.matching),
        nodes: number(sums.nodes),
        ready: number(sums.ready),
        suspect: number(sums.suspect),
        lost: number(sums.lost),
        cordoned: number(sums.cordoned),
        unhealthy: number(sums.unhealthy),
        gpus: number(sums.gpus.all),
        gpus_held: number(sums.gpus.held_by_jobs),
        gpus_withheld: number(sums.gpus.withheld),
    }
}

/// Whether a finding of this severity keeps work away. A word of a newer coordinator does not.
pub fn withholds(severity: &str) -> bool {
    let severity = severity.parse::<Severity>();
    severity.is_ok_and(|severity| severity >= Severity::Drain)
}

/// The GPUs that get no new work because of a finding, by UUID.
pub fn withheld(node: &v1::Node) -> BTreeSet<&str> {
    grave(node)
        .filter_map(|found| match &found.subject {
            Some(Subject::Gpu(uuid)) => Some(uuid.as_str()),
            _ => None,
        })
        .collect()
}

fn grave(node: &v1::Node) -> impl Iterator<Item = &v1::Finding> {
    let findings = node.hardware.iter().flat_map(|hardware| &hardware.findings);
    findings.filter(|found| withholds(&found.severity))
}

impl Listed for v1::Node {
    fn name(&self) -> &str {
        &self.name
    }

    fn liveness(&self) -> Liveness {
        match self.state() {
            v1::NodeState::Ready => Liveness::Ready,
            v1::NodeState::Suspect => Liveness::Suspect,
            v1::NodeState::Lost => Liveness::Lost,
            v1::NodeState::Unknown | v1::NodeState::Unspecified => Liveness::Unknown,
        }
    }

    fn is_cordoned(&self) -> bool {
        self.cordon.is_some()
    }

    fn is_unhealthy(&self) -> bool {
        grave(self).next().is_some()
    }

    fn gpus(&self) -> Gpus {
        let held: BTreeSet<&String> = self.runs.iter().flat_map(|run| &run.gpus).collect();
        Gpus {
            all: self.gpus.len(),
            held_by_jobs: held.len(),
            withheld: withheld(self).len(),
        }
    }

    fn add_texts(&self, texts: &mut Texts) {
        texts.add(&self.host);
        for (key, value) in &self.labels {
            texts.add_label(key, value);
        }
        texts.add_models(self.gpus.iter().map(|gpu| gpu.model.as_str()));
        for run in &self.runs {
            texts.add(&run.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_core::fleet::node_list::{Wanted, find};

    use super::*;

    fn node() -> v1::Node {
        let finding = |severity: &str| v1::Finding {
            severity: severity.into(),
            subject: Some(Subject::Gpu(format!("g-{severity}"))),
            ..v1::Finding::default()
        };
        v1::Node {
            name: "n1".into(),
            state: v1::NodeState::Suspect.into(),
            host: "box-17".into(),
            labels: [("rack".to_owned(), "A7".to_owned())].into(),
            gpus: vec![
                v1::Gpu {
                    model: "NVIDIA H100".into(),
                    ..v1::Gpu::default()
                };
                3
            ],
            runs: vec![
                v1::NodeRun {
                    namespace: "team".into(),
                    job: "digits".into(),
                    gpus: vec!["g0".into(), "g1".into()],
                    ..v1::NodeRun::default()
                };
                2
            ],
            hardware: Some(v1::Hardware {
                findings: ["note", "warn", "drain", "fail_now", "tomorrow"]
                    .map(finding)
                    .into(),
                ..v1::Hardware::default()
            }),
            ..v1::Node::default()
        }
    }

    #[test]
    fn a_node_is_found_by_what_is_shown_of_it() {
        let finds = |text: &str| {
            let wanted = Wanted {
                text,
                skip: 0,
                most: 1,
            };
            find([node()], wanted).matching == 1
        };
        for text in [
            "n1",
            "Suspect, unhealthy",
            "BOX",
            "rack=a7",
            "h100",
            "digits",
        ] {
            assert!(finds(text), "{text}");
        }
        assert!(!finds("team") && !finds("cordoned") && !finds("g0"));
    }

    #[test]
    fn sums_are_told_as_they_are() {
        let wanted = Wanted {
            text: "nobody",
            ..Wanted::default()
        };
        let told = sums(&find([node(), v1::Node::default()], wanted));
        let expected = v1::NodeSums {
            matching: 0,
            nodes: 2,
            suspect: 1,
            unhealthy: 1,
            gpus: 3,
            gpus_held: 2,
            gpus_withheld: 2,
            ..v1::NodeSums::default()
        };
        assert_eq!(told, expected);
    }
}
