//! Judges whether the members of a generation have interpreters that go together
//! ([`crate::nccl::stack`]), and owns what a job remembers of them. It never chooses nodes
//! (`placement`). A node knows what a job's interpreter has only when it is ready to run the job. So
//! this is judged when all members of a generation are ready and none is started.
//!
//! If the job refuses a mixture, such a generation is broken before it starts. The job remembers
//! what its members had, and placement uses that. Each refused generation adds knowledge, until the
//! nodes of one go together or there are too few. The knowledge is forgotten when a node's agent
//! starts anew, when a user scales the job, or when the node turns out to match a generation that
//! starts. While a job waits for nodes, what it remembers expires after five minutes. While it
//! trains, it does not. A job that does not refuse a mixture starts with a warning.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        blame::Evidence,
        generation,
        job::{GenerationRecord, JobRecord, KnownStack, Stage},
        job_turn::JobTurn,
        registry::{Node, Registry},
    },
    id::Generation,
    nccl::stack::{self, Bearer, Stack},
    run::RunId,
    spec::NodeMix,
    time::Timestamp,
};

/// How many nodes' software one job remembers. The oldest entries are forgotten, and those nodes
/// are asked again. 1,024 entries of about 120 bytes suffice if a whole large job is refused.
const KNOWN_MAX: usize = 1_024;
/// How long a waiting job trusts what it remembers. Each new look costs a generation and a receipt,
/// and `muster scale` makes it look at once.
const ASK_AGAIN: Duration = Duration::from_secs(300);

impl JobRecord {
    fn refuses(&self) -> bool {
        self.spec.node_mix == NodeMix::Refuse
    }

    /// What is known of the job's interpreter on this node: the node's own last report, or else the
    /// job's memory.
    pub(crate) fn stack_on(&self, node: &Node) -> Stack {
        if !self.refuses() {
            return Stack::default();
        }
        let run = |generation| RunId {
            job: self.uid.clone(),
            generation: Generation(generation),
        };
        let said = node
            .runs
            .range(run(0)..=run(u64::MAX))
            .rev()
            .map(|(_, run)| &run.stack)
            .find(|stack| **stack != Stack::default());
        let known = || {
            self.stacks
                .get(&node.record.name)
                .filter(|known| known.incarnation == node.incarnation)
                .map(|known| &known.stack)
        };
        said.or_else(known).cloned().unwrap_or_default()
    }

    /// When a job that waits for nodes forgets its oldest entry.
    pub(crate) fn asks_again_at(&self) -> Option<Timestamp> {
        self.stacks.values().map(|known| known.at + ASK_AGAIN).min()
    }

    pub(crate) fn forget_stacks(&mut self, now: Timestamp) {
        self.stacks.retain(|_, known| known.at + ASK_AGAIN > now);
    }
}

/// The members, and what their nodes report of the interpreter.
fn bearers<'a>(
    nodes: &'a Registry,
    job: &'a JobRecord,
    generation: &'a GenerationRecord,
) -> Vec<Bearer<'a>> {
    let before = job.trained_last();
    let reports = generation::reports(nodes, &job.uid, generation);
    let known = reports.filter_map(|(node, run)| Some((node, &run?.stack)));
    known
        .map(|(node, stack)| Bearer {
            node,
            stack,
            survivor: before.is_some_and(|g| g.has(node)),
        })
        .collect()
}

/// Members of the generation being formed that do not go with the others, if the job refuses
/// that. There are none before all members are ready.
pub(crate) fn mismatched(nodes: &Registry, job: &JobRecord, now: Timestamp) -> Vec<Evidence> {
    let Stage::Forming(generation, _) = job.stage() else {
        return Vec::new();
    };
    if !job.refuses() || !generation::unready(nodes, &job.uid, generation).is_empty() {
        return Vec::new();
    }
    let odd = stack::mismatched(
        &bearers(nodes, job, generation),
        job.spec.gpus_max() > 0,
        job.spec.min_replicas,
    );
    odd.into_iter()
        .map(|(node, how)| Evidence::MixedNodes {
            node,
            how: how.to_string(),
            at: now,
        })
        .collect()
}

impl JobTurn<'_> {
    /// Remembers what the members of a refused generation have, because their runs are soon
    /// forgotten.
    pub(crate) fn note_stacks(&mut self, evidence: &[Evidence]) {
        let job = &*self.job;
        let Some(generation) = &job.current else {
            return;
        };
        if !evidence
            .iter()
            .any(|e| matches!(e, Evidence::MixedNodes { .. }))
        {
            return;
        }
        let note = |bearer: Bearer<'_>| {
            let incarnation = self.nodes.get(bearer.node)?.incarnation;
            Some((
                bearer.node.clone(),
                KnownStack {
                    at: self.now,
                    stack: bearer.stack.clone(),
                    incarnation,
                },
            ))
        };
        let noted: Vec<_> = bearers(self.nodes, job, generation)
            .into_iter()
            .filter_map(note)
            .collect();
        let stacks = &mut self.job.stacks;
        stacks.extend(noted);
        while stacks.len() > KNOWN_MAX {
            let oldest = stacks
                .iter()
                .min_by_key(|(_, known)| known.at)
                .map(|(node, _)| node.clone());
            oldest.and_then(|node| stacks.remove(&node));
        }
    }

    /// Describes the software of the generation about to start, for its event. Warns of
    /// differences, and forgets the remembered nodes that go with it.
    pub(crate) fn know_stacks(&mut self) -> String {
        let job = &*self.job;
        let Some(generation) = &job.current else {
            return String::new();
        };
        let (bearers, gpus) = (
            bearers(self.nodes, job, generation),
            job.spec.gpus_max() > 0,
        );
        let mismatches = stack::mismatches(&bearers, gpus);
        // A large job has many members, but few different stacks.
        let different: BTreeMap<&Stack, Bearer<'_>> = bearers
            .iter()
            .map(|bearer| (bearer.stack, *bearer))
            .collect();
        let fits = |known: &KnownStack, node| {
            let with = different.values().copied().chain([Bearer {
                node,
                stack: &known.stack,
                survivor: false,
            }]);
            stack::mismatches(&with.collect::<Vec<_>>(), gpus).is_empty()
        };
        let alike: Vec<_> = job
            .stacks
            .iter()
            .filter(|(node, known)| generation.has(node) || fits(known, node))
            .map(|(node, _)| node.clone())
            .collect();
        let said: Vec<String> = different
            .keys()
            .map(|stack| stack.to_string())
            .filter(|said| !said.is_empty())
            .collect();
        let number = generation.number;
        for mismatch in mismatches {
            self.warn("MixedNodes", mismatch.to_string())
                .in_generation(number);
        }
        for node in &alike {
            self.job.stacks.remove(node);
        }
        said.join(" / ")
    }
}
