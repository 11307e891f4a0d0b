//! What the rules must know of pods: where each is, how many a job has, and how many it could have.

use muster_core::{
    fleet::{Change, job::JobRecord, worker_pod::WorkerPod},
    id::{JobUid, NodeName},
};

use crate::{troubles::Kind, world::World};

impl World {
    /// Why a session of this machine's agent is not let in: it is a pod whose token nobody can review,
    /// or that does not exist any more.
    pub(crate) fn pod_is_shut_out(&mut self, machine: usize) -> bool {
        if self.machines[machine].pod.is_none() {
            return false;
        }
        let now = self.now;
        // What was reviewed is remembered for a while.
        let known = self.pods_chance(50);
        let is_away = self.pods.as_ref().is_some_and(|pods| now < pods.away_until);
        let shut = self.object_of(machine).is_none() || is_away && !known;
        if shut {
            self.befalls(machine, Kind::SessionRefused);
        }
        shut
    }

    /// The host of a pod: its name, however little anybody knows of it.
    pub(crate) fn host_of(&self, machine: usize) -> Option<usize> {
        self.machines[machine].pod?.host
    }

    /// Whether this host may have new pods.
    pub(super) fn is_fit(&self, name: &NodeName) -> bool {
        let Some(host) = self.machine_named(name) else {
            return false;
        };
        let place = &self.machines[host];
        let stored = self.store.nodes.get(name);
        let known = stored.is_some_and(|node| node.cordon.is_none() && node.halt.is_none());
        let cluster = self.cluster.as_ref();
        let free = cluster.is_none_or(|cluster| cluster.is_schedulable(host));
        let gone = self
            .pods
            .as_ref()
            .is_some_and(|pods| pods.no_node.contains(&host));
        place.powered && place.agent.is_some() && known && free && !gone
    }

    /// How many pods this job can have now, those included that it has.
    pub(crate) fn room_for_pods(&self, job: &JobRecord) -> usize {
        let Some(pods) = &self.pods else { return 0 };
        let is_good = |host: usize| self.is_fit(&self.machines[host].name);
        let hosts = (0..self.plan.machines).filter(|host| is_good(*host));
        let free: usize = hosts
            .map(|host| {
                pods.room
                    .saturating_sub(pods.bound(&self.machines[host].name))
            })
            .sum();
        let serves = |pod: &&WorkerPod| {
            let stored = self.store.nodes.get(&pod.node());
            let host = pod.host.as_ref().and_then(|host| self.machine_named(host));
            host.is_some_and(is_good)
                && stored.is_none_or(|node| node.cordon.is_none() && node.halt.is_none())
        };
        free + pods.standing(&job.uid).filter(serves).count()
    }

    /// Whether this pod is of a generation that is too small or too large. If its host should be left, the
    /// job gets another pod for it.
    pub(super) fn is_of_another_size(job: &JobRecord, pod: &WorkerPod) -> bool {
        let current = job.current.as_ref();
        let node = pod.node();
        current.is_some_and(|current| current.members.len() != job.replicas as usize)
            && job.unproven_generations().any(|g| g.has(&node))
    }

    /// How many pods this job may have at most, as a coordinator knows the job. One whose term is over does not know of what its
    /// successor has done.
    pub(super) fn most_pods(&self, job: &JobRecord) -> usize {
        let pods = self.pods.iter().flat_map(|pods| pods.standing(&job.uid));
        let replaced = pods
            .filter(|pod| Self::is_of_another_size(job, pod))
            .count();
        job.spec.max_replicas as usize + replaced
    }

    /// How many pods of this job stand of which this coordinator knows, without those that it replaces.
    pub(crate) fn pods_of(&self, process: u64, job: &JobUid) -> usize {
        let Some(pods) = &self.pods else { return 0 };
        let seat = self.seat_of(process);
        let shell = seat.and_then(|seat| self.seats[seat].process.as_ref());
        let knows = |pod: &&WorkerPod| {
            let object = &pods.objects[&pod.node()];
            let told = shell.is_some_and(|process| process.shell.has_found(pod));
            (object.by == process || told)
                && !pods.were_lost.contains(&pod.node())
                && !pods.were_sick.contains(&pod.node())
                && !pods.doomed.contains(&pod.uid)
        };
        pods.standing(job).filter(knows).count()
    }

    /// The name of the host of a pod, if it is one and is bound.
    pub(crate) fn host_named(&self, pod: &NodeName) -> Option<&NodeName> {
        let host = self.host_of(self.machine_named(pod)?)?;
        Some(&self.machines[host].name)
    }

    pub(crate) fn pods_on(&self, host: usize) -> Vec<usize> {
        let here = |machine: &usize| self.host_of(*machine) == Some(host);
        (0..self.machines.len()).filter(here).collect()
    }

    /// A pod has no power without its host, nor when its containers have ended.
    pub(crate) fn may_be_powered(&self, machine: usize) -> bool {
        let host = self.host_of(machine);
        self.machines[machine].is_there() && host.is_none_or(|host| self.machines[host].powered)
    }

    /// Takes down what the rules must know of a change of the store.
    pub(crate) fn pods_note(&mut self, change: &Change) {
        if let (Some(pods), Change::PutNode(node)) = (&mut self.pods, change)
            && node.gone
        {
            pods.were_lost.insert(node.name.clone());
        }
    }
}
