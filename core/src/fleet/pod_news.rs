//! What the cluster says about worker pods, and what that means for the nodes that they are.
//!
//! A pod gives its node to one job. A pod that is gone, or whose containers have all ended, proves
//! that its workers are dead: an API server removes a pod only when its kubelet has said so, or when
//! a person forces it, who then answers for it. Such a node is struck off at once. A pod whose agent
//! was never heard is no node yet.
//!
//! A coordinator that starts knows from its store whose nodes its pods are, until it has read them.

use crate::{
    fleet::{
        input::PodNews,
        output::Effect,
        scratch::Scratch,
        turn::Fleet,
        worker_pod::{PodStage, is_pod},
    },
    id::{JobUid, NodeName},
};

impl Fleet {
    pub(crate) fn read_pods(&mut self, news: PodNews, scratch: &mut Scratch) {
        match news {
            PodNews::Listed(all) => {
                (self.pods.all, self.pods.listed) = (all, true);
                let nodes = self.nodes.nodes.keys();
                let pods: Vec<NodeName> = nodes.filter(|name| is_pod(name)).cloned().collect();
                for name in &pods {
                    self.hear_pod(name, scratch);
                }
            }
            PodNews::Applied(name, pod) => {
                self.look_again(&pod.job, scratch);
                self.pods.all.insert(name.clone(), pod);
                self.hear_pod(&name, scratch);
            }
            PodNews::Deleted(name) => {
                self.pods.all.remove(&name);
                self.hear_pod(&name, scratch);
            }
            PodNews::Refused(job, why) => {
                self.look_again(&job, scratch);
                match why {
                    Some(why) => drop(self.pods.refused.insert(job, why)),
                    None => drop(self.pods.refused.remove(&job)),
                }
            }
        }
    }

    /// What a job waits for is told to people, also if nothing follows from it.
    fn look_again(&self, job: &JobUid, scratch: &mut Scratch) {
        if let Some(job) = self.jobs.get(job).filter(|job| !job.phase.is_over()) {
            scratch.touch_job(job);
        }
    }

    /// Gives a node what is known of its pod, if that is new. Also called when the node itself is new.
    pub(crate) fn hear_pod(&mut self, name: &NodeName, scratch: &mut Scratch) {
        let pod = self.pods.all.get(name).cloned();
        let Some(node) = self.nodes.get(name).filter(|_| is_pod(name)) else {
            return;
        };
        // Whoever still speaks is not gone, whatever the cluster says.
        let speaks = node.session.is_some() && node.is_ready();
        let is_gone = match &pod {
            Some(pod) => pod.stage == PodStage::Ended,
            None => self.pods.listed && !speaks,
        };
        if is_gone {
            return self.pod_is_gone(name, scratch);
        }
        let Some(node) = self.nodes.nodes.get(name).filter(|node| node.pod != pod) else {
            return;
        };
        let owner = pod.as_ref().and_then(|pod| self.jobs.get(&pod.job));
        let owner = owner.filter(|job| {
            pod.as_ref()
                .is_some_and(|pod| pod.is_of(&job.name, &job.uid))
        });
        let owner = owner.map(|job| job.uid.clone());
        let is_new_owner = owner.is_some() && node.record.pod_of != owner;
        scratch.node_changed(&self.nodes, &self.jobs, name);
        let node = self.nodes.nodes.get_mut(name).expect("found above");
        node.pod = pod;
        if is_new_owner {
            node.record.pod_of = owner;
        }
    }

    fn pod_is_gone(&mut self, name: &NodeName, scratch: &mut Scratch) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        if let Some(session) = node.session {
            let why = format!("the pod of {name} is gone");
            scratch.effects.push(Effect::Refuse { session, why });
            self.nodes.disconnect(session, scratch.now, false);
        }
        self.strike_off(name, scratch);
        let message = format!("{name}: its pod is gone, and with it all its workers");
        scratch.note("PodGone", message).on_node(name);
    }
}
