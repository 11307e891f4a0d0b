//! Worker pods, in some worlds: an API server that keeps their objects, and what happens to these. The
//! API server is away at times, and at times it does what it was asked for and the answer is lost.
//! Watches are late, and break.
//!
//! A pod is a machine of the world like any other: it has power while its containers run. So everything
//! that can break on a machine can break in a pod. What the coordinators do about pods is
//! `core::fleet::pod_work`, in the shell of production but for its requests.
//!
//! | file | owns |
//! |---|---|
//! | `shell` | the coordinators: news in, requests out |
//! | `kubelet` | the scheduler, the kubelets, and the containers |
//! | `books` | where pods are, and how many a job has or could have |
//! | `gpus` | the GPUs that kubelets give to pods |
//! | `harm` | people who delete pods, evictions, and everything else that goes wrong |

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::{
        pod_work::{Created, Deleted, PodsByNode},
        worker_pod::{PodStage, PodWait, WorkerPod, node_of},
    },
    id::{JobName, JobUid, NodeName},
    time::Timestamp,
};

use crate::{
    event::Event,
    fault::Fault,
    plan::Plan,
    rng::Rng,
    trace::note,
    troubles::Kind,
    world::{World, machine},
};

mod books;
mod gpus;
mod harm;
mod kubelet;
mod shell;

pub(crate) use gpus::KubeletGpu;
pub(crate) use shell::Shell;

/// How long a coordinator waits for an answer of the API server, as in production.
const ANSWER: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub(crate) struct Pods {
    /// A source of its own, so that worlds without pods stay the same.
    rng: Rng,
    /// The objects that exist.
    objects: BTreeMap<NodeName, Object>,
    /// The machine that each pod is, also of pods that are gone.
    machines: BTreeMap<NodeName, usize>,
    /// How many pods a host takes.
    room: usize,
    /// Until then the API server is away, or its answers are lost, or nothing can be scheduled.
    away_until: Timestamp,
    unsure_until: Timestamp,
    no_room_until: Timestamp,
    /// Until then the kubelet of this host does not reach the API server.
    kubelet_cut: Vec<Timestamp>,
    /// Hosts whose Node objects were deleted.
    no_node: BTreeSet<usize>,
    /// Nodes that were Lost at any time. Others are made in their place.
    were_lost: BTreeSet<NodeName>,
    /// Pods that had a sick GPU at any time. Others are made in their place.
    were_sick: BTreeSet<NodeName>,
    /// The uids of pods whose deletion a coordinator has begun.
    doomed: BTreeSet<String>,
}

/// A pod as the API server has it.
#[derive(Clone, Debug)]
struct Object {
    pod: WorkerPod,
    machine: usize,
    /// Until then some container of it goes on when it is deleted, though no worker does.
    lingers: Duration,
    /// The coordinator that made it.
    by: u64,
}

/// What a machine that is a pod has beyond others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The machine on which it is.
    pub(crate) host: Option<usize>,
    pub(crate) containers: Containers,
    /// Its kubelet has told its containers to end.
    told_to_end: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Containers {
    #[default]
    None,
    /// Its image is pulled, or they are started again.
    Starting,
    Up,
    /// They have ended, and none starts again.
    Ended,
}

/// What happens around pods.
#[derive(Clone, Debug)]
pub(crate) enum PodEvent {
    /// A coordinator asks for all pods, and watches them from now on.
    Lists {
        process: u64,
    },
    Listed {
        process: u64,
        all: PodsByNode,
    },
    /// A coordinator hears of a pod as it was then. `gone`: it is deleted.
    Heard {
        process: u64,
        watch: u64,
        pod: Arc<WorkerPod>,
        gone: bool,
    },
    ShellLooks {
        process: u64,
        at: Timestamp,
    },
    Written {
        process: u64,
        write: Write,
    },
    Answered {
        process: u64,
        job: JobUid,
        did: Did,
    },
    SchedulerLooks,
    KubeletLooks {
        host: usize,
    },
    Starts {
        machine: usize,
    },
    Stops {
        machine: usize,
    },
    Ends {
        machine: usize,
    },
    /// Somebody who has deleted a pod by force answers for it.
    Answers {
        machine: usize,
    },
    Collects {
        host: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Write {
    Create {
        job: Box<(JobName, JobUid)>,
        name: String,
        avoided: BTreeSet<NodeName>,
        /// How many pods the job may have with this one.
        most: usize,
    },
    Delete {
        /// The coordinator that asks.
        by: u64,
        job: JobUid,
        node: NodeName,
        uid: String,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Did {
    Create(String, Created),
    Delete(String, Deleted),
}

impl PodEvent {
    /// The coordinator that this is for.
    pub(crate) fn process(&self) -> Option<u64> {
        match self {
            Self::Lists { process }
            | Self::Listed { process, .. }
            | Self::Heard { process, .. }
            | Self::ShellLooks { process, .. }
            | Self::Answered { process, .. } => Some(*process),
            _ => None,
        }
    }
}

impl Pods {
    pub(crate) fn drawn(seed: u64, plan: &Plan) -> Option<Self> {
        // These bytes spell "made".
        let mut rng = Rng::new(seed ^ 0x6d61_6465);
        plan.pods.then(|| Self {
            room: rng.range(1, 2) as usize,
            rng,
            objects: BTreeMap::new(),
            machines: BTreeMap::new(),
            away_until: Timestamp(0),
            unsure_until: Timestamp(0),
            no_room_until: Timestamp(0),
            kubelet_cut: vec![Timestamp(0); plan.machines],
            no_node: BTreeSet::new(),
            were_lost: BTreeSet::new(),
            were_sick: BTreeSet::new(),
            doomed: BTreeSet::new(),
        })
    }

    /// How many pods are bound to this host, in the books of the API server.
    fn bound(&self, host: &NodeName) -> usize {
        let there = |object: &&Object| {
            object.pod.host.as_ref() == Some(host) && object.pod.stage != PodStage::Ended
        };
        self.objects.values().filter(there).count()
    }

    pub(crate) fn machine(&self, name: &NodeName) -> Option<usize> {
        self.machines.get(name).copied()
    }

    /// Pods that Muster has made for this job, and that stand: neither ended nor going.
    pub(crate) fn standing<'a>(&'a self, job: &'a JobUid) -> impl Iterator<Item = &'a WorkerPod> {
        let pods = self.objects.values().map(|object| &object.pod);
        pods.filter(move |pod| pod.job == *job && !pod.deleting && pod.stage != PodStage::Ended)
    }
}

impl World {
    pub(crate) fn pod_event(&mut self, event: PodEvent) {
        match event {
            PodEvent::Lists { process } => self.lists_pods(process),
            PodEvent::Listed { process, all } => self.pods_listed(process, all),
            PodEvent::Heard {
                process,
                watch,
                pod,
                gone,
            } => self.pod_heard(process, watch, pod, gone),
            PodEvent::ShellLooks { process, at } => self.shell_looks(process, at),
            PodEvent::Written { process, write } => self.pod_written(process, write),
            PodEvent::Answered { process, job, did } => self.pod_answered(process, &job, did),
            PodEvent::SchedulerLooks => self.scheduler_looks(),
            PodEvent::KubeletLooks { host } => self.kubelet_looks(host),
            PodEvent::Starts { machine } => self.containers_start(machine),
            PodEvent::Stops { machine } => self.containers_stop(machine),
            PodEvent::Ends { machine } => self.containers_end(machine),
            PodEvent::Answers { machine } => self.somebody_answers(machine),
            PodEvent::Collects { host } => self.pods_collected(host),
        }
    }

    pub(crate) fn pods_begin(&mut self) {
        if self.pods.is_none() {
            return;
        }
        self.kubelets_have_gpus();
        self.pods_wait(100, 1_000, PodEvent::SchedulerLooks);
        for host in 0..self.plan.machines {
            self.pods_wait(100, 1_000, PodEvent::KubeletLooks { host });
        }
    }

    fn pods_wait(&mut self, low: u64, high: u64, event: PodEvent) {
        if let Some(pods) = &mut self.pods {
            let delay = pods.rng.ms(low, high);
            self.after(delay, Event::Pods(event));
        }
    }

    /// A draw from the pods' own source.
    fn pods_chance(&mut self, percent: u64) -> bool {
        let pods = self.pods.as_mut();
        pods.is_some_and(|pods| pods.rng.percent(percent))
    }

    /// The template of a job: most jobs of worlds with pods have one.
    pub(crate) fn template(&mut self) -> Option<String> {
        self.pods_chance(75).then(|| "{}".to_owned())
    }

    /// The machine of a pod is drawn from those that may be there, so that faults do not strike what
    /// is long gone.
    pub(crate) fn drawn_machine(&mut self) -> usize {
        let Some(pods) = &self.pods else {
            return self.rng.below(self.machines.len());
        };
        let up = |machine: &usize| self.machines[*machine].is_there();
        let pods: Vec<usize> = pods.machines.values().copied().filter(up).collect();
        let hosts = self.plan.machines;
        let drawn = self.rng.below(hosts + pods.len());
        drawn.checked_sub(hosts).map_or(drawn, |pod| pods[pod])
    }

    /// An object is as it is now. Every coordinator that watches hears of it later.
    fn pod_changed(&mut self, name: &NodeName) {
        let object = self.pods.as_ref().and_then(|pods| pods.objects.get(name));
        if let Some(object) = object {
            let pod = Arc::new(object.pod.clone());
            self.tell_watches(&pod, false);
        }
    }

    /// An object is deleted.
    fn pod_gone(&mut self, name: &NodeName) {
        let Some(object) = self
            .pods
            .as_mut()
            .and_then(|pods| pods.objects.remove(name))
        else {
            return;
        };
        note!(self, "the object of {name} is gone");
        let pod = Arc::new(object.pod);
        self.tell_watches(&pod, true);
    }

    fn tell_watches(&mut self, pod: &Arc<WorkerPod>, gone: bool) {
        let (now, Some(pods)) = (self.now, &mut self.pods) else {
            return;
        };
        for seat in &mut self.seats {
            let Some(process) = &mut seat.process else {
                continue;
            };
            let Some(watch) = process.shell.watch else {
                continue;
            };
            // Most news are quick, unless the API server is overloaded. None overtakes another.
            let late = match now < pods.unsure_until {
                true => 10_000,
                false => 2_000,
            };
            let is_late = pods.rng.percent(20);
            let delay = pods.rng.ms(1, if is_late { late } else { 60 });
            let at = (now + delay).max(pods.away_until);
            let at = at.max(process.shell.last + Duration::from_micros(1));
            process.shell.last = at;
            let event = PodEvent::Heard {
                process: process.id,
                watch,
                pod: pod.clone(),
                gone,
            };
            self.queue.push(at, Event::Pods(event));
        }
    }

    /// A request reaches the API server, or does not.
    fn pod_written(&mut self, process: u64, write: Write) {
        let (now, Some(pods)) = (self.now, &mut self.pods) else {
            return;
        };
        if now < pods.away_until {
            return self.answer_write(process, &write, None);
        }
        let unsure = now < pods.unsure_until && pods.rng.percent(60);
        match (unsure, pods.rng.below(3)) {
            (false, _) => {
                let did = self.do_write(process, &write);
                self.answer_write(process, &write, Some(did));
            }
            // It is done at once, or when the answer is not awaited any more, or never.
            (true, 0) => {
                self.count(Fault::AnswersLost);
                drop(self.do_write(process, &write));
                self.answer_write(process, &write, None);
            }
            (true, 1) => {
                self.count(Fault::AnswersLost);
                self.answer_write(process, &write, None);
                self.pods_wait(2_000, 9_000, PodEvent::Written { process: 0, write });
            }
            (true, _) => self.answer_write(process, &write, None),
        }
    }

    /// `None`: the coordinator gets no answer.
    fn answer_write(&mut self, process: u64, write: &Write, did: Option<Did>) {
        let waits = if did.is_none() {
            ANSWER
        } else {
            Duration::ZERO
        };
        let (job, unknown) = match write {
            Write::Create { job, name, .. } => {
                (job.1.clone(), Did::Create(name.clone(), Created::Unknown))
            }
            Write::Delete { job, uid, .. } => {
                (job.clone(), Did::Delete(uid.clone(), Deleted::Unknown))
            }
        };
        let did = did.unwrap_or(unknown);
        let answered = PodEvent::Answered { process, job, did };
        let Some(pods) = &mut self.pods else { return };
        // An answer may come after the watch has told everything.
        let slow = pods.rng.percent(20);
        let delay = waits + pods.rng.ms(1, if slow { 1_500 } else { 80 });
        self.after(delay, Event::Pods(answered));
    }

    fn do_write(&mut self, process: u64, write: &Write) -> Did {
        match write {
            Write::Create {
                job,
                name,
                avoided,
                most,
            } => {
                let node = node_of(&job.0.namespace, name);
                let pods = self.pods.as_ref();
                if pods.is_some_and(|pods| !pods.objects.contains_key(&node)) {
                    // Requests overtake each other: it may have been asked for before the last change.
                    let now = self.store.jobs.get(&job.1);
                    let now = now.map_or(0, |job| self.most_pods(job));
                    crate::invariants::no_pod_too_many(self, process, &job.1, now.max(*most));
                }
                let made = self.create_pod(process, job, name, avoided);
                Did::Create(name.clone(), made)
            }
            Write::Delete { by, node, uid, .. } => {
                let pods = self.pods.as_ref();
                let object = pods.and_then(|pods| pods.objects.get(node));
                if object.is_none_or(|object| object.pod.uid != *uid) {
                    return Did::Delete(uid.clone(), Deleted::Missing);
                }
                // What one that is gone has asked for may come when another has given the pod work.
                if self.leader().is_some_and(|leader| leader.id == *by) {
                    crate::invariants::no_living_pod_is_deleted(self, node);
                }
                self.delete_pod(node);
                Did::Delete(uid.clone(), Deleted::Yes)
            }
        }
    }

    fn create_pod(
        &mut self,
        process: u64,
        (job_name, job): &(JobName, JobUid),
        name: &str,
        avoided: &BTreeSet<NodeName>,
    ) -> Created {
        let node = node_of(&job_name.namespace, name);
        let Some(pods) = &mut self.pods else {
            return Created::No;
        };
        if pods.objects.contains_key(&node) {
            return Created::Exists;
        }
        if pods.machines.contains_key(&node) {
            // The name was used by a pod that is gone, by force even before its containers were. Its machine is no place for another
            // one, so it is as if the old object were still on its way out.
            return Created::Exists;
        }
        let index = self.machines.len();
        let mut place = machine(index, &self.plan);
        (place.name, place.powered, place.boot) = (node.clone(), false, 0);
        (place.slots, place.gpus) = (1, 0);
        place.ledger = muster_core::node::Ledger::new(node.clone());
        place.ledger_highest = place.ledger.clone();
        place.pod = Some(Place::default());
        let uid = format!("pod{}", self.fresh());
        let pod = WorkerPod {
            namespace: job_name.namespace.clone(),
            name: name.to_owned(),
            uid,
            job: job.clone(),
            created: self.now,
            host: None,
            avoids: avoided.clone(),
            stage: PodStage::Waiting,
            deleting: false,
            waits: None,
        };
        self.machines.push(place);
        let pods = self.pods.as_mut().expect("looked at above");
        let lingers = match pods.rng.percent(15) {
            true => pods.rng.ms(1_000, 500_000),
            false => Duration::ZERO,
        };
        let object = Object {
            pod,
            machine: index,
            lingers,
            by: process,
        };
        pods.machines.insert(node.clone(), index);
        pods.objects.insert(node.clone(), object);
        note!(self, "the pod {node} is made for {job}, as machine {index}");
        self.pod_changed(&node);
        Created::Yes
    }

    /// The object is deleted with grace: at once if nothing was started, else by its kubelet.
    fn delete_pod(&mut self, name: &NodeName) {
        let Some(object) = self
            .pods
            .as_mut()
            .and_then(|pods| pods.objects.get_mut(name))
        else {
            return;
        };
        note!(self, "the pod {name} is deleted");
        let machine = object.machine;
        if object.pod.host.is_none() {
            return self.pod_gone(name);
        }
        if !std::mem::replace(&mut object.pod.deleting, true) {
            self.begins(machine, Kind::Leaving);
            self.pod_changed(name);
        }
    }

    /// The uid of the object that this machine is, if it still is there.
    fn object_of(&self, machine: usize) -> Option<&Object> {
        let pods = self.pods.as_ref()?;
        let object = pods.objects.get(&self.machines[machine].name)?;
        (object.machine == machine).then_some(object)
    }

    /// The scheduler's word about a pod that it cannot place.
    fn cannot_place(&mut self, name: &NodeName) {
        let object = self
            .pods
            .as_mut()
            .and_then(|pods| pods.objects.get_mut(name));
        let Some(object) = object.filter(|object| object.pod.waits.is_none()) else {
            return;
        };
        object.pod.waits = Some(PodWait {
            reason: "Unschedulable".into(),
            message: "no host has room".into(),
        });
        self.pod_changed(name);
    }
}
