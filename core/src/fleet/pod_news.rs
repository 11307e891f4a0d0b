//! What the cluster says about worker pods, and what that means for the nodes that they are.
//!
//! A pod gives its node to one job. The node is struck off, and its workers are dead, in two cases.
//! The kubelet has said that all containers of the pod have ended, and its agent is not heard. Or the
//! cluster has no such pod any more, and its agent is Lost. In the second case somebody has answered
//! for the machine: a person who deleted the pod by force or the Node object, or a cloud. While an
//! agent is heard its pod is not gone, whatever the cluster says.
//!
//! In a namespace with more pods than are kept (`crowded`), a pod that is not told of is not gone: that
//! would be a proof of death which a user of the namespace can make by filling it.
//!
//! A coordinator that starts knows from its store which node belongs to which job, until it has read
//! the pods.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    fleet::{
        changes::Changes,
        input::PodNews,
        output::Effect,
        registry::Liveness,
        scratch::Scratch,
        state::Fleet,
        worker_pod::{PodStage, WorkerPod, is_pod},
    },
    hello::Hello,
    id::{JobUid, NodeName},
    run::RunReport,
};

impl Fleet {
    pub(crate) fn read_pods(&mut self, news: PodNews, scratch: &mut Scratch) {
        match news {
            PodNews::Listed(all) => {
                self.pods.list(all, BTreeSet::new(), &self.nodes);
                self.hear_pods(scratch);
            }
            PodNews::ListedInPart(all, crowded) => {
                self.pods.list(all, crowded, &self.nodes);
                self.hear_pods(scratch);
            }
            PodNews::Crowded(crowded) => self.pods.crowded = crowded,
            PodNews::Applied(name, pod) => {
                self.pods.gone.remove(&name);
                self.look_again(&pod.job, &mut scratch.changes);
                // Its GPUs are free, though its kubelet may still name them.
                scratch.changes.capacity |= pod.stage == PodStage::Ended;
                self.pods.say(&name, Some(pod));
                self.hear_pod(&name, scratch);
            }
            PodNews::Deleted(name, last) => {
                self.pods.say(&name, None);
                if let Some(node) = self.nodes.get_mut(&name) {
                    node.pod = Some(last);
                    self.pods.gone.insert(name.clone());
                }
                self.hear_pod(&name, scratch);
            }
            PodNews::Unneeded(job, pods) => {
                self.look_again(&job, &mut scratch.changes);
                let unneeded = &mut self.pods.unneeded;
                unneeded.retain(|job, _| self.jobs.contains_key(job));
                match pods.is_empty() {
                    true => drop(unneeded.remove(&job)),
                    false => drop(unneeded.insert(job, pods)),
                }
            }
            PodNews::Refused(job, why) => {
                self.look_again(&job, &mut scratch.changes);
                self.pods
                    .refused
                    .retain(|job, _| self.jobs.contains_key(job));
                match why {
                    Some(why) => drop(self.pods.refused.insert(job, why)),
                    None => drop(self.pods.refused.remove(&job)),
                }
            }
        }
    }

    fn hear_pods(&mut self, scratch: &mut Scratch) {
        let nodes = self.nodes.names();
        let pods: Vec<NodeName> = nodes.filter(|name| is_pod(name)).cloned().collect();
        for name in &pods {
            self.hear_pod(name, scratch);
        }
    }

    /// What a job waits for is told to people, also if nothing follows from it.
    fn look_again(&self, job: &JobUid, changes: &mut Changes) {
        if let Some(job) = self.jobs.get(job).filter(|job| !job.is_over()) {
            changes.touch_job(job);
        }
    }

    /// Gives a node what is known of its pod, if that is new, and strikes it off if it is gone. Also
    /// called when the node itself is new, or is not heard any more.
    pub(crate) fn hear_pod(&mut self, name: &NodeName, scratch: &mut Scratch) {
        let pod = self.pods.all.get(name).cloned();
        let Some(node) = self.nodes.get(name).filter(|_| is_pod(name)) else {
            return;
        };
        let speaks = node.session.is_some() && node.is_ready();
        let last = pod.as_ref().or(node.pod.as_ref());
        let ended = last.is_some_and(|pod| pod.stage == PodStage::Ended);
        // An agent may come before the watch has told of its pod. Then it was given nothing.
        let was_known = node.pod.is_some() || node.record.pod_of.is_some() || !node.jobs.is_empty();
        let is_missing = self.pods.is_missing(name) && was_known;
        let is_lost = is_missing && node.liveness == Liveness::Lost;
        if (ended && !speaks) || is_lost {
            return self.pod_is_gone(name, ended, scratch);
        }
        let pod = match pod {
            // Nothing new is placed on what is about to go.
            None if is_missing => node.pod.clone().map(going),
            other => other,
        };
        if node.pod == pod {
            return;
        }
        let owner = pod.as_ref().and_then(|pod| self.job_of_pod(pod)).cloned();
        let is_new_owner = owner.is_some() && node.record.pod_of != owner;
        scratch.changes.node_changed(&self.nodes, &self.jobs, name);
        let node = self.nodes.get_mut(name).expect("found above");
        node.pod = pod;
        if is_new_owner {
            node.record.pod_of = owner;
        }
    }

    fn pod_is_gone(&mut self, name: &NodeName, ended: bool, scratch: &mut Scratch) {
        if let Some(session) = self.nodes.get(name).and_then(|node| node.session) {
            let why = format!("the pod of {name} is gone");
            scratch.effects.push(Effect::Refuse { session, why });
            self.nodes.disconnect(session, scratch.now, false);
        }
        self.remove_node(name, &mut scratch.changes);
        self.pods.gone.remove(name);
        let how = match ended {
            true => "all its containers have ended",
            false => "it is gone, and its agent is silent",
        };
        let message = format!("{name} is struck off with its pod: {how}");
        scratch.events.note("PodGone", message).on_node(name);
    }

    /// The only job of which this node may report. `None`: all jobs, because it is a host. A job that
    /// the store does not know is nobody's yet, and is held up by nobody.
    fn speaks_for(&self, name: &NodeName) -> Option<Option<JobUid>> {
        let of_unknown = || {
            let pod = self.pods.all.get(name)?;
            (!self.jobs.contains_key(&pod.job)).then_some(&pod.job)
        };
        is_pod(name).then(|| self.owner_of(name).or_else(of_unknown).cloned())
    }

    /// The hello without what a worker pod says of other jobs than its own. Such a pod is not
    /// trusted: every user who may make pods in a namespace can send a hello as one of them.
    pub(crate) fn of_own_job(&self, hello: Hello) -> Hello {
        let Some(job) = self.speaks_for(&hello.node) else {
            return hello;
        };
        let is_own = |uid: &JobUid| job.as_ref() == Some(uid);
        let mut hello = hello;
        hello.jobs_seen.retain(|uid, _| is_own(uid));
        hello.runs.retain(|run| is_own(&run.run.job));
        hello
    }

    /// The same for runs.
    pub(crate) fn own_runs(&self, name: &NodeName, mut runs: Vec<RunReport>) -> Vec<RunReport> {
        if let Some(job) = self.speaks_for(name) {
            runs.retain(|run| job.as_ref() == Some(&run.run.job));
        }
        runs
    }
}

fn going(mut pod: Arc<WorkerPod>) -> Arc<WorkerPod> {
    if !pod.deleting {
        Arc::make_mut(&mut pod).deleting = true;
    }
    pod
}
