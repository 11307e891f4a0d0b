//! A Kubernetes cluster beside the fleet, in some worlds: its Node objects, people who cordon and
//! uncordon them with kubectl, a watch that is late, and a writer whose writes arrive later still.
//!
//! What an object should carry, and how it gets there, is the code of production. The shell here
//! only carries values to and fro: it reads an object with its version, and the write is refused if
//! the version has changed by the time it arrives.

use std::{collections::BTreeSet, sync::Arc};

use muster_core::{
    fleet::{Change, CordonedBy, Input, NodeRecord, ObjectNews, Request},
    id::NodeName,
    node_object::{CORDONED_AT, Correction, NodeObject, Raw, correction},
    time::Timestamp,
};

use crate::{
    event::Event,
    plan::{Plan, Size},
    rng::Rng,
    trace::note,
    world::World,
};

/// How many seeds in a hundred have a cluster.
const SHARE: u64 = 30;

#[derive(Debug)]
pub(crate) struct Cluster {
    /// A source of its own, so that worlds without a cluster stay the same.
    rng: Rng,
    objects: Vec<Object>,
    /// Nodes that a person has uncordoned with kubectl, and the store knows it.
    overruled: BTreeSet<NodeName>,
}

#[derive(Clone, Debug, Default)]
struct Object {
    raw: Raw,
    version: u64,
    /// A person made it unschedulable, and no cordon of Muster stood there, or the books knew that
    /// it was over.
    foreign: bool,
}

impl Cluster {
    pub(crate) fn drawn(seed: u64, plan: &Plan) -> Option<Self> {
        // These bytes spell "kube".
        let mut rng = Rng::new(seed ^ 0x6b75_6265);
        (rng.percent(SHARE) && plan.size != Size::Large).then(|| Self {
            rng,
            objects: vec![Object::default(); plan.machines],
            overruled: BTreeSet::new(),
        })
    }

    /// Whether the cluster's scheduler may use this host.
    pub(crate) fn is_schedulable(&self, host: usize) -> bool {
        !self.objects[host].raw.unschedulable
    }
}

impl World {
    fn cluster_waits(&mut self, low: u64, high: u64, event: Event) {
        if let Some(cluster) = &mut self.cluster {
            let delay = cluster.rng.ms(low, high);
            self.after(delay, event);
        }
    }

    pub(crate) fn cluster_begins(&mut self) {
        self.cluster_waits(1_000, 6_000, Event::PersonAtObjects);
    }

    /// A coordinator has started: it lists the objects, and begins to write.
    pub(crate) fn cluster_is_listed(&mut self, process: u64) {
        self.cluster_waits(10, 1_500, Event::ObjectsListed { process });
        self.cluster_waits(100, 1_000, Event::WriterLooks { process });
    }

    pub(crate) fn objects_listed(&mut self, process: u64) {
        let (Some(seat), Some(cluster)) = (self.seat_of(process), &self.cluster) else {
            return;
        };
        let objects = cluster.objects.iter().zip(&self.machines);
        let all = objects
            .map(|(object, place)| {
                let read = NodeObject::read(object.raw.clone());
                (place.name.clone(), Arc::new(read))
            })
            .collect();
        let versions = cluster.objects.iter().map(|object| object.version);
        let versions = versions.collect();
        let process = self.seats[seat].process.as_mut().expect("it is there");
        process.versions_heard = versions;
        self.decide(seat, Input::Objects(ObjectNews::Listed(all)), None);
    }

    /// An object has changed, and every coordinator hears of it some time later.
    fn object_changed(&mut self, machine: usize) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let object = &mut cluster.objects[machine];
        object.version += 1;
        let (version, raw) = (object.version, object.raw.clone());
        let processes = self.seats.iter().filter_map(|seat| seat.process.as_ref());
        let processes: Vec<u64> = processes.map(|process| process.id).collect();
        for process in processes {
            let raw = Box::new(raw.clone());
            let event = Event::ObjectHeard {
                process,
                machine,
                version,
                raw,
            };
            self.cluster_waits(1, 1_500, event);
        }
    }

    pub(crate) fn object_heard(&mut self, process: u64, machine: usize, version: u64, raw: Raw) {
        let Some(seat) = self.seat_of(process) else {
            return;
        };
        let name = self.machines[machine].name.clone();
        let process = self.seats[seat].process.as_mut().expect("it is there");
        // Before the list nothing is followed, and a watch never goes back.
        let heard = process.versions_heard.get_mut(machine);
        let Some(heard) = heard.filter(|heard| **heard < version) else {
            return;
        };
        *heard = version;
        let object = Arc::new(NodeObject::read(raw));
        let news = ObjectNews::Applied(name, object);
        self.decide(seat, Input::Objects(news), None);
    }

    /// The writer reads one object that lacks something, and sends its write.
    pub(crate) fn writer_looks(&mut self, process: u64) {
        let Some(seat) = self.seat_of(process) else {
            return;
        };
        self.cluster_waits(50, 1_500, Event::WriterLooks { process });
        let (now, Some(cluster)) = (self.now, &mut self.cluster) else {
            return;
        };
        let brain = self.seats[seat].process.as_ref().expect("it is there");
        // Whoever writes has asked the lease first.
        if brain.deposed.is_some() {
            return;
        }
        let lacks = |machine: &usize| {
            let view = brain.fleet.node_view(&self.machines[*machine].name);
            Some((*machine, view?.unmarked?))
        };
        let machines: Vec<usize> = (0..cluster.objects.len()).collect();
        let due: Vec<_> = machines.iter().filter_map(lacks).collect();
        let Some((machine, wanted)) = cluster.rng.pick(&due).cloned() else {
            return;
        };
        let object = &cluster.objects[machine];
        let seen = NodeObject::read(object.raw.clone());
        let correction = correction(&wanted, &seen, brain.clock.at(now));
        if correction.is_empty() {
            return;
        }
        let event = Event::WriteArrives {
            machine,
            version: object.version,
            correction: Box::new(correction),
        };
        self.cluster_waits(1, 600, event);
    }

    /// I17: Muster lifts no cordon of somebody else.
    pub(crate) fn write_arrives(&mut self, machine: usize, version: u64, correction: Correction) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let object = &mut cluster.objects[machine];
        if object.version != version {
            return note!(self, "a write on the object of n{machine} comes too late");
        }
        let lifts = correction.unschedulable == Some(false);
        let undone = object.foreign && lifts;
        object.raw = written(object.raw.clone(), &correction);
        note!(self, "the object of n{machine}: {correction:?}");
        if undone {
            let what = format!("n{machine} was cordoned by a person, and Muster lifts that");
            self.fail("I17", what);
        }
        self.object_changed(machine);
    }

    /// A person cordons and uncordons nodes, by either tool.
    pub(crate) fn person_at_objects(&mut self) {
        if self.healed.is_some() || !self.plan.users_act {
            return;
        }
        self.cluster_waits(200, 5_000, Event::PersonAtObjects);
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let machine = cluster.rng.below(cluster.objects.len());
        let object = &mut cluster.objects[machine];
        let at = object.raw.annotations.get(CORDONED_AT);
        let at = at.and_then(|at| Timestamp::from_rfc3339(at));
        let record = self.store.nodes.get(&self.machines[machine].name);
        // Nobody can tell apart what has happened before any coordinator has seen it.
        let ours = at.is_some() && at > record.and_then(|record| record.overruled);
        let roll = cluster.rng.below(100);
        match (object.raw.unschedulable, roll) {
            (true, 0..70) => {
                (object.raw.unschedulable, object.foreign) = (false, false);
                note!(self, "a person uncordons the object of n{machine}");
                self.object_changed(machine);
            }
            (false, 0..15) => {
                (object.raw.unschedulable, object.foreign) = (true, !ours);
                note!(self, "a person cordons the object of n{machine}");
                self.object_changed(machine);
            }
            (false, 15..45) => {
                let node = self.machines[machine].name.clone();
                let reason = "fan".into();
                let id = self.asks(Request::Cordon { node, reason }, None, 0);
                self.queue.push(self.now, Event::RequestArrives { id });
            }
            _ => {}
        }
    }

    /// People lift what they have cordoned, so that there is room.
    pub(crate) fn cluster_heals(&mut self) {
        for machine in 0..self.plan.machines {
            let Some(cluster) = &mut self.cluster else {
                return;
            };
            let object = &mut cluster.objects[machine];
            if object.raw.unschedulable {
                (object.raw.unschedulable, object.foreign) = (false, false);
                self.object_changed(machine);
            }
        }
    }

    /// Takes down whom a person has overruled, before the store is changed.
    pub(crate) fn cluster_notes(&mut self, change: &Change) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        match change {
            Change::PutNode(node) => {
                let before = self.store.nodes.get(&node.name);
                let had = before.is_some_and(|before| before.cordon.is_some());
                let held = before.and_then(|before| before.hold_off.as_ref());
                if had && node.hold_off.is_some() && node.hold_off.as_ref() != held {
                    cluster.overruled.insert(node.name.clone());
                }
            }
            Change::DeleteNode(name) => drop(cluster.overruled.remove(name)),
            _ => {}
        }
    }

    /// I17: what a person has uncordoned, Muster does not cordon for a day, and no world lasts as
    /// long.
    pub(crate) fn cordons_again(&self, node: &NodeRecord) -> bool {
        let ours = node
            .cordon
            .as_ref()
            .is_some_and(|cordon| cordon.by == CordonedBy::Muster);
        let cluster = self.cluster.as_ref();
        ours && cluster.is_some_and(|cluster| cluster.overruled.contains(&node.name))
    }

    /// The cordon stands on the object already. A new one gets there only after it is stored.
    pub(crate) fn is_taken_over(&self, node: &NodeRecord) -> bool {
        let (Some(cluster), Some(cordon)) = (&self.cluster, &node.cordon) else {
            return false;
        };
        let machine = self.machine_named(&node.name);
        let object = machine.and_then(|machine| cluster.objects.get(machine));
        let object = object.map(|object| &object.raw);
        let at = object.and_then(|raw| raw.annotations.get(CORDONED_AT));
        at == Some(&cordon.at.rfc3339())
    }
}

fn written(mut raw: Raw, correction: &Correction) -> Raw {
    raw.unschedulable = correction.unschedulable.unwrap_or(raw.unschedulable);
    for (key, value) in &correction.annotations {
        raw.annotations.remove(*key);
        let value = value.iter().map(|value| ((*key).to_owned(), value.clone()));
        raw.annotations.extend(value);
    }
    if let Some(condition) = &correction.condition {
        raw.conditions.retain(|other| other.kind != condition.kind);
        raw.conditions.push(condition.clone());
    }
    raw
}
