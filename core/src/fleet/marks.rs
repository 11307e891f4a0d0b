//! What a job's failures, and its good times, say about nodes. The rules are in `fault_ledger`.
//! This file finds which nodes a failure or a good time speaks of, and changes their marks.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::{
        blame::Blame,
        cordon, fault_ledger,
        job::GenerationRecord,
        job_turn::{Facts, JobTurn},
        live::{AVOID, Avoided},
        node_record::{Mark, NodeRecord, Standing},
        receipt::{Cause, Charged},
        unhealthy,
        worker_pod::is_pod,
    },
    id::NodeName,
};

impl JobTurn<'_> {
    /// Records what a failure says about the node on which it began, and about the nodes on which
    /// the job failed before.
    pub(crate) fn hold_against_node(&mut self, blame: &Blame, lasted: Duration) {
        let Some(name) = &blame.node else {
            return;
        };
        self.avoid(name, blame);
        if blame.culprit.is_none() {
            // What went wrong there is a stranger's doing.
            return;
        }
        let standing = match (blame.cause, blame.charged) {
            (Cause::Stalled, Charged::Node) => Some(Standing::Node),
            (cause, _) => fault_ledger::at_first(cause),
        };
        let Some(mut standing) = standing else {
            return;
        };
        if is_pod(name) && self.nodes.get(name).and_then(unhealthy::leaves).is_some() {
            // Somebody ends the pod. That says nothing about its host.
            return;
        }
        if is_pod(&blamed(self.facts(), name)) {
            // Its host is not known, and a pod does not live long enough to be judged.
            return;
        }
        // That a GPU is unhealthy is the word of the host's agent.
        let is_its_word = is_pod(name) && blame.cause != Cause::NodeUnhealthy;
        if standing == Standing::Node && is_its_word {
            // It is a pod's own word, and the host answers for it. Other jobs must confirm it.
            standing = Standing::Open;
        }
        if blame.is_at_memory_limit() {
            // The limit is the job's, or its own size is. No other node says more.
            standing = Standing::Acquitted;
        }
        if standing == Standing::Open {
            let elsewhere = others_failed_on(self.facts(), name);
            if !elsewhere.is_empty() {
                standing = Standing::Acquitted;
                self.acquit(elsewhere.iter().chain([name]));
            }
        }
        let mark = Mark {
            at: self.now,
            job: self.uid.clone(),
            name: self.job.name.clone(),
            cause: blame.cause,
            lasted,
            standing,
        };
        let (policy, now) = (self.policy, self.now);
        self.change_node(name, |record| fault_ledger::add(record, mark, policy, now));
        self.consider_cordon(name);
    }

    /// A node that could not start the job is not asked again for a while.
    fn avoid(&mut self, name: &NodeName, blame: &Blame) {
        if matches!(blame.cause, Cause::StartFailed | Cause::StartTimeout)
            && blame.charged != Charged::Job
        {
            self.live.avoided.push(Avoided {
                node: name.clone(),
                until: self.now + AVOID,
                why: blame.message.clone(),
            });
        }
    }

    fn acquit<'a>(&mut self, names: impl Iterator<Item = &'a NodeName>) {
        let uid = self.uid;
        for name in names {
            self.change_node(name, |record| fault_ledger::acquit(record, uid));
        }
    }

    /// Compares how the job fares without the nodes on which it failed. If it lasts longer
    /// elsewhere, it accuses them. `lasted`: how long the current generation has trained. `None`:
    /// the job has succeeded.
    pub(crate) fn compare(&mut self, lasted: Option<Duration>) {
        let uid = self.uid;
        for (name, proof) in undecided(self.facts()) {
            if lasted.is_none_or(|lasted| lasted >= proof) {
                self.change_node(&name, |record| fault_ledger::accuse(record, uid, lasted));
                self.consider_cordon(&name);
            } else {
                self.wake(self.now + (proof - lasted.unwrap_or_default()));
            }
        }
    }

    fn change_node(&mut self, name: &NodeName, change: impl FnOnce(&mut NodeRecord)) {
        let name = blamed(self.facts(), name);
        self.scratch.changes.touch_node(self.nodes, &name);
        if let Some(node) = self.nodes.get_mut(&name) {
            change(&mut node.record);
        }
    }

    fn consider_cordon(&mut self, name: &NodeName) {
        let (brake, policy, name) = (self.brake, self.policy, blamed(self.facts(), name));
        cordon::consider(self.nodes, self.others, &name, brake, policy, self.scratch);
    }
}

/// Nodes on which a failure of this job began within the window. Only failures count that the
/// job itself may have caused.
pub(crate) fn failed_on(facts: Facts<'_>) -> BTreeSet<&NodeName> {
    let recent = facts
        .job
        .incidents
        .iter()
        .filter(|incident| facts.now.since(incident.detected_at) < facts.policy.storm_window);
    recent
        .filter(|incident| fault_ledger::may_be_the_jobs(incident.cause))
        .filter_map(|incident| incident.node.as_ref())
        .collect()
}

fn others_failed_on(facts: Facts<'_>, name: &NodeName) -> Vec<NodeName> {
    let others = failed_on(facts).into_iter();
    others.filter(|node| *node != name).cloned().collect()
}

/// Nodes on which the job failed and which it no longer uses, each with how long the job must last until
/// that says something about the node.
fn undecided(facts: Facts<'_>) -> Vec<(NodeName, Duration)> {
    let Some(generation) = facts.job.current.as_ref() else {
        return Vec::new();
    };
    let left = failed_on(facts).into_iter();
    left.filter(|node| !uses(facts, generation, node))
        .filter_map(|name| {
            let record = &facts.nodes.blamed(facts.nodes.get(name)?).record;
            Some((name.clone(), fault_ledger::next_proof(record, facts.uid)?))
        })
        .collect()
}

/// Whether a member is this node, or on the host of this node.
fn uses(facts: Facts<'_>, generation: &GenerationRecord, name: &NodeName) -> bool {
    let host = blamed(facts, name);
    generation.has(name)
        || generation
            .members
            .iter()
            .any(|member| blamed(facts, &member.node) == host)
}

/// The node that answers for what happens on this one. If it is a pod that is gone, its host is not
/// known any more, and no mark is put.
fn blamed(facts: Facts<'_>, name: &NodeName) -> NodeName {
    let node = facts.nodes.get(name);
    node.map_or(name, |node| &facts.nodes.blamed(node).record.name)
        .clone()
}
