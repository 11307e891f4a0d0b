//! What people and machines do to pods: deletions, evictions, hosts that are gone, an API server that
//! is away or whose answers are lost, and pods that speak of jobs that are none of their business.

use muster_core::{
    fleet::{job::JobRecord, view::Liveness, worker_pod::PodStage},
    hello::Hello,
    id::{Generation, JobUid, NodeName, Term},
    run::{RunId, RunReport},
};

use super::{Containers, PodEvent};
use crate::{
    event::Event, fault::Fault, invariants::concerns, trace::note, troubles::Kind, world::World,
};

impl World {
    /// A fault of pods strikes. `machine`: any machine. True if there was something to hit.
    pub(crate) fn strike_pods(&mut self, fault: Fault, machine: usize) -> bool {
        let now = self.now;
        let (hosts, Some(pods)) = (self.plan.machines, &mut self.pods) else {
            return false;
        };
        let host = pods.rng.below(hosts);
        let short = pods.rng.ms(1_000, 40_000);
        let names: Vec<NodeName> = pods.objects.keys().cloned().collect();
        let picked = pods.rng.pick(&names).cloned();
        match fault {
            Fault::ApiAway => {
                pods.away_until = now + short;
                if pods.rng.percent(50) {
                    self.all_watches_break();
                }
            }
            Fault::AnswersLost => {
                pods.unsure_until = now + short;
                // This is counted when an answer is lost.
                return true;
            }
            Fault::NoRoom => pods.no_room_until = now + short,
            Fault::WatchBroken => self.all_watches_break(),
            Fault::KubeletCut => {
                pods.kubelet_cut[host] = now + short;
                let more = pods.rng.percent(40);
                if more {
                    self.host_is_cut(host, short);
                }
            }
            Fault::HostDeleted if self.machines[host].powered => {
                let back = pods.rng.ms(5_000, 60_000);
                pods.no_node.insert(host);
                note!(self, "the Node object of n{host} is deleted");
                self.power_cut(host);
                self.pods_wait(1_000, 12_000, PodEvent::Collects { host });
                self.after(back, Event::PowerOn { machine: host });
            }
            Fault::PodDeleted | Fault::PodForced | Fault::PodEvicted => {
                let Some(name) = picked else { return false };
                let pod = self.pods.as_ref().and_then(|pods| pods.machine(&name));
                let pod = pod.expect("every object is a machine");
                match fault {
                    Fault::PodDeleted => self.delete_pod(&name),
                    Fault::PodForced => self.delete_by_force(&name, pod),
                    _ if self.machines[pod].is_there() => self.containers_end(pod),
                    _ => return false,
                }
            }
            Fault::PodLies => {
                let place = &mut self.machines[machine];
                if place.agent.is_none() || place.pod.is_none() {
                    return false;
                }
                place.lies = true;
                self.break_session(machine);
            }
            Fault::GpuSick if self.machines[host].powered => {
                if !self.gpu_sickens(host) {
                    return false;
                }
            }
            _ => return false,
        }
        self.count(fault);
        true
    }

    fn all_watches_break(&mut self) {
        let processes = self.seats.iter().filter_map(|seat| seat.process.as_ref());
        let processes: Vec<u64> = processes.map(|process| process.id).collect();
        processes
            .into_iter()
            .for_each(|process| self.watch_breaks(process));
    }

    /// The host and all its pods do not reach the coordinator either.
    fn host_is_cut(&mut self, host: usize, lasts: std::time::Duration) {
        let here = |machine: &usize| *machine == host || self.host_of(*machine) == Some(host);
        let here: Vec<usize> = (0..self.machines.len()).filter(here).collect();
        for machine in here {
            self.cut(machine, true, true);
            let fault = Fault::CutBoth;
            let other = machine;
            self.after(
                lasts,
                Event::Mends {
                    fault,
                    machine,
                    other,
                },
            );
        }
    }

    /// The object is gone at once. Its kubelet ends the containers when it hears of it.
    fn delete_by_force(&mut self, name: &NodeName, machine: usize) {
        note!(self, "somebody deletes the pod {name} by force");
        self.begins(machine, Kind::StruckOff);
        self.begins(machine, Kind::Leaving);
        self.somebody_answers(machine);
        self.pod_gone(name);
    }

    /// Whoever has deleted a pod by force has said that nothing of it lives. While its agent is heard
    /// that may be wrong. Once it is silent they have made sure.
    pub(super) fn somebody_answers(&mut self, machine: usize) {
        if !self.machines[machine].is_there() {
            return;
        }
        let name = &self.machines[machine].name;
        let view = self
            .leader()
            .and_then(|leader| leader.fleet.node_view(name));
        let heard = view.is_some_and(|view| view.liveness == Liveness::Ready);
        if heard && self.machines[machine].powered {
            return self.pods_wait(50, 250, PodEvent::Answers { machine });
        }
        note!(self, "somebody makes sure that nothing of {name} lives");
        let groups = self.machines[machine].runs.values_mut();
        groups.for_each(|group| group.unkillable_until = muster_core::time::Timestamp(0));
        self.containers_end(machine);
    }

    /// The cluster collects the pods of a host that has no Node object. No kubelet has said anything.
    pub(super) fn pods_collected(&mut self, host: usize) {
        let of = self.machines[host].name.clone();
        let Some(pods) = self
            .pods
            .as_ref()
            .filter(|pods| pods.no_node.contains(&host))
        else {
            return;
        };
        let here = pods.objects.iter();
        let here = here.filter(|(_, object)| object.pod.host.as_ref() == Some(&of));
        let here: Vec<(NodeName, usize)> = here
            .map(|(name, object)| (name.clone(), object.machine))
            .collect();
        for (name, machine) in here {
            self.begins(machine, Kind::StruckOff);
            self.begins(machine, Kind::Leaving);
            self.somebody_answers(machine);
            self.pod_gone(&name);
        }
    }

    /// A node is struck off, and with a host its Node object.
    pub(crate) fn pods_of_gone_host(&mut self, host: usize) {
        if let Some(pods) = &mut self.pods
            && host < self.plan.machines
        {
            pods.no_node.insert(host);
            self.pods_wait(100, 5_000, PodEvent::Collects { host });
        }
    }

    /// A host has power again, and its kubelet makes its Node object anew. Or the containers of a pod
    /// are up.
    pub(crate) fn is_back(&mut self, machine: usize) {
        if let Some(pod) = &mut self.machines[machine].pod {
            pod.containers = Containers::Up;
        }
        if let Some(pods) = &mut self.pods {
            pods.no_node.remove(&machine);
        }
    }

    /// An agent that lies says that it knows a newer generation of a job that it never had.
    pub(crate) fn perhaps_lies(&mut self, machine: usize, mut hello: Hello) -> Hello {
        if !std::mem::take(&mut self.machines[machine].lies) {
            return hello;
        }
        let own = self.object_of(machine).map(|object| object.pod.job.clone());
        let place = &self.machines[machine];
        let is_others =
            |job: &&JobRecord| Some(&job.uid) != own.as_ref() && !concerns(self, place, &job.uid);
        let Some(victim) = self.store.jobs.values().find(is_others) else {
            return hello;
        };
        note!(self, "n{machine} lies about {}", victim.uid);
        self.machines[machine].lied = true;
        let run = RunId {
            job: victim.uid.clone(),
            generation: Generation(victim.last_generation.0 + 5),
        };
        hello.runs.push(RunReport::preparing(run, Term(1)));
        hello
    }

    pub(crate) fn pods_heal(&mut self) {
        let now = self.now;
        if let Some(pods) = &mut self.pods {
            (pods.away_until, pods.unsure_until, pods.no_room_until) = (now, now, now);
            pods.kubelet_cut.fill(now);
        }
        self.all_gpus_are_well();
    }

    /// What is wrong with pods, and must not be for long: those of jobs that are over run on, or a job
    /// has more than it wants.
    pub(crate) fn pods_wrong(&self) -> Vec<(String, String)> {
        let Some(pods) = &self.pods else {
            return Vec::new();
        };
        let mut wrong = Vec::new();
        for object in pods.objects.values() {
            let job = self.store.jobs.get(&object.pod.job);
            let place = self.machines[object.machine].pod.unwrap_or_default();
            let host = place.host.map(|host| &self.machines[host]);
            let lingers = object.pod.deleting && !object.lingers.is_zero();
            if job.is_none_or(|job| job.phase.is_over())
                && object.pod.stage != PodStage::Ended
                && place.containers != Containers::Ended
                && !lingers
                && host.is_none_or(|host| host.powered)
                && job.is_none_or(|job| job.unproven_generations().next().is_none())
            {
                let key = format!("pod {}", object.pod.name);
                let what = "its job is over, and it is there".to_owned();
                wrong.push((key, what));
            }
        }
        for job in self.store.jobs.values() {
            let standing = pods.standing(&job.uid);
            let standing = standing.filter(|pod| !Self::is_of_another_size(job, pod));
            let standing = standing.filter(|pod| {
                let machine = pods.machines[&pod.node()];
                let host = self.host_of(machine);
                host.is_none_or(|host| self.machines[host].powered)
            });
            let standing = standing.count();
            if !job.phase.is_over() && !job.suspended && standing > job.replicas as usize {
                let what = format!("has {standing} pods, and wants {}", job.replicas);
                wrong.push((format!("pods of {}", job.uid), what));
            }
        }
        wrong
    }

    /// Jobs that cannot begin and hold pods that others could use, each with the name of its newest
    /// pod.
    pub(crate) fn gangs_that_hold(&self) -> Vec<(JobUid, String)> {
        let Some(pods) = &self.pods else {
            return Vec::new();
        };
        let mut held = Vec::new();
        for job in self.store.jobs.values() {
            let begun = job.current.is_some() || job.unproven_generations().next().is_some();
            if begun || job.phase.is_over() || job.suspended || job.ending.is_some() {
                continue;
            }
            let standing = || pods.standing(&job.uid);
            let running = standing().filter(|pod| pod.stage == PodStage::Running);
            let holds = standing().any(|pod| pod.host.is_some());
            let lacks = standing().any(|pod| pod.host.is_none());
            let newest = standing().max_by_key(|pod| pod.created);
            if let (true, true, Some(newest)) = (holds, lacks, newest)
                && running.count() < job.spec.min_replicas as usize
            {
                held.push((job.uid.clone(), newest.name.clone()));
            }
        }
        held
    }
}
