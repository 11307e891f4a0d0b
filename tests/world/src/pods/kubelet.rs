//! The cluster's scheduler, the kubelets, and the containers of pods. A kubelet looks at its host now
//! and then: it does what the objects say, and tells what is there. Both are late, and while it does not
//! reach the API server it does neither.

use std::time::Duration;

use muster_core::{fleet::worker_pod::PodStage, id::NodeName, run::RunId};

use super::{Containers, PodEvent};
use crate::{event::Event, trace::note, troubles::Kind, world::World};

/// How long a coordinator has to end a generation on all its nodes together, before a pod that is
/// told to end stops its part alone (`COORDINATED` in the runner).
const COORDINATED: Duration = Duration::from_secs(2);
/// A pod's grace beyond that of its job. Then the kubelet kills.
const POD_GRACE: Duration = Duration::from_secs(15);

impl World {
    /// Binds pods to hosts that have room for them, and collects pods whose job is deleted.
    pub(super) fn scheduler_looks(&mut self) {
        self.pods_wait(100, 1_500, PodEvent::SchedulerLooks);
        let (now, Some(pods)) = (self.now, &mut self.pods) else {
            return;
        };
        if now < pods.away_until {
            return;
        }
        let first = pods.rng.below(self.plan.machines);
        let collects = pods.rng.percent(20);
        let orphan = |job: &_| collects && !self.store.jobs.contains_key(job);
        let orphans = pods.objects.iter().filter(|(_, it)| orphan(&it.pod.job));
        let orphans: Vec<NodeName> = orphans.map(|(name, _)| name.clone()).collect();
        orphans.iter().for_each(|name| self.delete_pod(name));
        let pods = self.pods.as_ref().expect("looked at above");
        let unbound = pods.objects.iter().filter(|(_, it)| it.pod.host.is_none());
        let unbound: Vec<NodeName> = unbound.map(|(name, _)| name.clone()).collect();
        for name in unbound {
            match self.host_for(&name, first) {
                Some(host) => self.bind(&name, host),
                None => self.cannot_place(&name),
            }
        }
    }

    fn host_for(&self, name: &NodeName, first: usize) -> Option<usize> {
        let (now, hosts) = (self.now, self.plan.machines);
        let pods = self.pods.as_ref()?;
        let avoided = &pods.objects.get(name)?.pod.avoids;
        let fits = |host: &usize| {
            let place = &self.machines[*host];
            place.powered
                && !pods.no_node.contains(host)
                && !avoided.contains(&place.name)
                && self
                    .cluster
                    .as_ref()
                    .is_none_or(|it| it.is_schedulable(*host))
                && pods.bound(&place.name) < pods.room
        };
        let mut hosts = (0..hosts).map(|host| (first + host) % hosts);
        hosts.find(|host| now >= pods.no_room_until && fits(host))
    }

    fn bind(&mut self, name: &NodeName, host: usize) {
        let of = self.machines[host].name.clone();
        let Some(object) = self
            .pods
            .as_mut()
            .and_then(|pods| pods.objects.get_mut(name))
        else {
            return;
        };
        (object.pod.host, object.pod.waits) = (Some(of), None);
        let machine = object.machine;
        if let Some(place) = &mut self.machines[machine].pod {
            place.host = Some(host);
        }
        note!(self, "{name} is bound to n{host}");
        self.gets_a_gpu(name, host);
        self.pod_changed(name);
    }

    pub(super) fn kubelet_looks(&mut self, host: usize) {
        self.pods_wait(150, 1_000, PodEvent::KubeletLooks { host });
        let (now, Some(pods)) = (self.now, &self.pods) else {
            return;
        };
        let place = &self.machines[host];
        let reaches = now >= pods.kubelet_cut[host].max(pods.away_until);
        if !place.powered || now < place.stands_until || !reaches {
            return;
        }
        let here = pods.machines.values().copied();
        let mut here: Vec<usize> = here
            .filter(|pod| self.host_of(*pod) == Some(host))
            .collect();
        here.sort_unstable();
        here.retain(|pod| self.machines[*pod].is_there() || self.object_of(*pod).is_some());
        for machine in here {
            self.kubelet_minds(machine);
        }
    }

    /// What a kubelet does about one pod.
    fn kubelet_minds(&mut self, machine: usize) {
        let name = self.machines[machine].name.clone();
        let containers = self.machines[machine].pod.map(|place| place.containers);
        let object = self.object_of(machine);
        let deleting = object.map(|object| object.pod.deleting);
        let crashed = !self.machines[machine].powered;
        match (containers.unwrap_or_default(), deleting) {
            (Containers::Ended, Some(true)) => {
                self.tell_stage(&name, PodStage::Ended);
                return self.pod_gone(&name);
            }
            (Containers::Ended, _) => {}
            // The object is gone, so nothing of the pod is left in a moment.
            (_, None) => self.pods_wait(1, 300, PodEvent::Ends { machine }),
            (Containers::None, Some(false)) => {
                self.set_containers(machine, Containers::Starting);
                self.pods_wait(300, 6_000, PodEvent::Starts { machine });
            }
            (Containers::None | Containers::Starting, Some(true)) => {
                self.containers_end(machine);
            }
            (Containers::Starting, Some(false)) => {}
            (Containers::Up, Some(true)) if crashed => self.containers_end(machine),
            (Containers::Up, Some(true)) => self.told_to_end(machine),
            (Containers::Up, Some(false)) if crashed => {
                self.set_containers(machine, Containers::Starting);
                self.pods_wait(300, 10_000, PodEvent::Starts { machine });
            }
            (Containers::Up, Some(false)) => {}
        }
        let place = &self.machines[machine];
        match place.pod.map(|pod| pod.containers) {
            Some(Containers::Ended) => self.tell_stage(&name, PodStage::Ended),
            Some(_) if place.boot > 0 => self.tell_stage(&name, PodStage::Running),
            _ => {}
        }
    }

    fn tell_stage(&mut self, name: &NodeName, stage: PodStage) {
        let object = self
            .pods
            .as_mut()
            .and_then(|pods| pods.objects.get_mut(name));
        if let Some(object) = object
            && object.pod.stage != stage
        {
            object.pod.stage = stage;
            note!(self, "{name} is {stage:?}, says its kubelet");
            self.pod_changed(name);
        }
    }

    fn set_containers(&mut self, machine: usize, containers: Containers) {
        if let Some(place) = &mut self.machines[machine].pod {
            place.containers = containers;
        }
    }

    pub(super) fn containers_start(&mut self, machine: usize) {
        let host = self.host_of(machine);
        let place = &self.machines[machine];
        let starting = place
            .pod
            .is_some_and(|pod| pod.containers == Containers::Starting);
        if !starting || place.powered {
            return;
        }
        if host.is_none_or(|host| !self.machines[host].powered) {
            let before = match place.boot {
                0 => Containers::None,
                _ => Containers::Up,
            };
            return self.set_containers(machine, before);
        }
        self.power_on(machine);
    }

    /// SIGTERM: the pod's agent says that it leaves, and what still runs a little later is stopped.
    fn told_to_end(&mut self, machine: usize) {
        let place = &mut self.machines[machine];
        let told = place.pod.as_mut().map(|pod| &mut pod.told_to_end);
        if told.is_none_or(|told| std::mem::replace(told, true)) {
            return;
        }
        place.noticed = true;
        note!(self, "{} is told to end", self.machines[machine].name);
        self.begins(machine, Kind::StruckOff);
        self.begins(machine, Kind::Leaving);
        self.describe_node(machine);
        // Whoever has a container that takes longer gives the pod the grace for it.
        let lingers = self.object_of(machine).map(|object| object.lingers);
        let kills = COORDINATED + self.longest_grace(machine) + POD_GRACE;
        let kills = kills + lingers.unwrap_or_default();
        self.after(kills, Event::Pods(PodEvent::Ends { machine }));
        self.after(COORDINATED, Event::Pods(PodEvent::Stops { machine }));
    }

    fn longest_grace(&self, machine: usize) -> Duration {
        let runs = self.machines[machine].runs.keys();
        let jobs = runs.filter_map(|run| self.store.jobs.get(&run.job));
        jobs.map(|job| job.spec.stop_grace_period)
            .max()
            .unwrap_or_default()
    }

    /// What lives in a pod that was told to end is stopped, each group with its job's grace. When
    /// nothing lives the containers end.
    pub(super) fn containers_stop(&mut self, machine: usize) {
        let place = &self.machines[machine];
        if !place.powered || !place.is_there() {
            return;
        }
        let grace = self.longest_grace(machine);
        let held = place.runs.iter().filter(|(_, group)| group.is_held());
        let living: Vec<(RunId, u64, bool)> = held
            .filter(|(_, group)| group.has_process())
            .map(|(run, group)| (run.clone(), group.life, group.stop_asked))
            .collect();
        if living.is_empty() {
            let lingers = self.object_of(machine).map(|object| object.lingers);
            let delay = lingers.unwrap_or_default() + Duration::from_millis(100);
            return self.after(delay, Event::Pods(PodEvent::Ends { machine }));
        }
        for (run, life, _) in living.into_iter().filter(|(_, _, asked)| !asked) {
            self.stop_group(machine, run, life, grace);
        }
        self.after(
            Duration::from_millis(200),
            Event::Pods(PodEvent::Stops { machine }),
        );
    }

    /// All containers of the pod have ended, and none starts again.
    pub(super) fn containers_end(&mut self, machine: usize) {
        let now = self.now;
        let place = &self.machines[machine];
        if place
            .pod
            .is_none_or(|pod| pod.containers == Containers::Ended)
        {
            return;
        }
        // Not even the kubelet kills these.
        let groups = place.runs.values().filter(|group| group.has_process());
        let stuck = groups.map(|group| group.unkillable_until).max();
        if let Some(until) = stuck.filter(|until| now < *until) {
            return self
                .queue
                .push(until, Event::Pods(PodEvent::Ends { machine }));
        }
        note!(
            self,
            "the containers of {} end",
            self.machines[machine].name
        );
        self.set_containers(machine, Containers::Ended);
        self.begins(machine, Kind::NoPower);
        self.begins(machine, Kind::StruckOff);
        if !self.machines[machine].powered {
            return;
        }
        self.agent_dies(machine, None);
        self.machines[machine].powered = false;
        self.changed.push(machine);
        let place = &mut self.machines[machine];
        let (mut fell, mut held) = (Vec::new(), Vec::new());
        for (run, group) in &mut place.runs {
            if group.has_process() {
                fell.push((run.clone(), group.world));
            }
            held.push(run.clone());
            (group.runner, group.launcher, group.left) =
                (crate::machine::Runner::Gone, false, None);
            group.ranks.iter_mut().for_each(|rank| rank.alive = false);
        }
        for (run, world) in fell {
            self.did(machine, &run, Kind::NoPower, None);
            if let Some(world) = world {
                self.peers_will_notice(world, machine, 1, 300);
            }
        }
        held.iter().for_each(|run| self.store_is_gone(machine, run));
    }

    /// The job is over, so the pod's agent ends the containers.
    pub(crate) fn pod_retires(&mut self, machine: usize) {
        note!(self, "{} has done its work", self.machines[machine].name);
        let works = self.machines[machine].working().next().is_some();
        if works || self.machines[machine].pod.is_none() {
            let name = &self.machines[machine].name;
            let what = format!("{name} ends its containers, and a worker lives there");
            return self.fail("I18", what);
        }
        self.pods_wait(10, 500, PodEvent::Ends { machine });
    }

    /// The host of pods has lost its power.
    pub(crate) fn pods_lose_power(&mut self, host: usize) {
        let Some(pods) = &self.pods else { return };
        let all = pods.machines.values().copied();
        let mut here: Vec<usize> = all.filter(|pod| self.host_of(*pod) == Some(host)).collect();
        here.sort_unstable();
        for machine in here {
            self.power_cut(machine);
        }
    }
}
