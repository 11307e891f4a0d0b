//! R10: what the brake for mass losses promises. Silent nodes are counted anew here, from the
//! coordinator's events. The coordinator may not know the host of a pod yet, and then counts the pod by
//! itself. So this rule demands the brake only when enough hosts are silent with all their pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::fleet::Policy;

use super::*;

/// What one coordinator has said so far.
#[derive(Debug, Default)]
pub(crate) struct Silences {
    process: u64,
    /// Nodes that it does not hear. The moment is there if it lost them itself.
    silent: BTreeMap<NodeName, Option<Timestamp>>,
    on: bool,
    /// When the number of silent nodes fell below the minimum, if the brake is still on.
    enough_back: Option<Timestamp>,
    /// The same for all nodes but one.
    all_but_one_back: Option<Timestamp>,
    /// The last turn. If it is long ago, the coordinator has stood still, and then those who may still
    /// come back have more time.
    turned: Timestamp,
}

impl Silences {
    /// True if this event says that a node is newly lost.
    fn take_in(&mut self, event: &muster_core::fleet::Event, store: &Store) -> bool {
        match event.reason.as_str() {
            "MassLoss" => self.on = true,
            "MassLossOver" => self.on = false,
            _ => {}
        }
        let Some(node) = event.node.as_ref().filter(|_| event.job.is_none()) else {
            return false;
        };
        match event.reason.as_str() {
            "NodeReady" | "NodeDeleted" | "PodGone" => drop(self.silent.remove(node)),
            "NodeSuspect" => drop(self.silent.insert(node.clone(), None)),
            "NodeLost" => {
                let anew = store.nodes.get(node).is_some_and(|stored| !stored.gone);
                self.silent
                    .insert(node.clone(), Some(event.at).filter(|_| anew));
                return anew;
            }
            _ => {}
        }
        false
    }

    /// How many hosts were lost within the window, with all that is on them.
    fn lost(&self, world: &World, policy: &Policy, now: Timestamp) -> u32 {
        let host = |name| world.host_named(name).unwrap_or(name).clone();
        let is_heard = |name: &&NodeName| !self.silent.contains_key(*name);
        let heard: BTreeSet<NodeName> = world
            .store
            .nodes
            .keys()
            .filter(is_heard)
            .map(host)
            .collect();
        let is_new =
            |at: &Option<Timestamp>| at.is_some_and(|at| now.since(at) < policy.mass_loss_window);
        let lost = self.silent.iter().filter(|(_, at)| is_new(at));
        let hosts: BTreeSet<NodeName> = lost.map(|(name, _)| host(name)).collect();
        hosts.difference(&heard).count() as u32
    }

    /// Notes whether enough nodes are back, and says whether the brake is on for too long after that.
    fn is_kept_on(&mut self, policy: &Policy, now: Timestamp) -> bool {
        let stood = now.since(self.turned) > policy.tick * 4;
        let noted = |is_so: bool, before: Option<Timestamp>| {
            is_so.then(|| before.filter(|_| !stood).unwrap_or(now))
        };
        let silent = self.silent.len();
        let few = self.on && silent < policy.mass_loss_min as usize;
        self.enough_back = noted(few, self.enough_back);
        self.all_but_one_back = noted(self.on && silent <= 1, self.all_but_one_back);
        self.turned = now;
        // It listens a little longer in a large fleet.
        let over = |since: Option<Timestamp>, time| {
            since.is_some_and(|since| now >= since + time + Duration::from_secs(1))
        };
        over(self.enough_back, policy.mass_loss_window)
            || over(self.all_but_one_back, policy.listen)
    }

    fn none_is_heard(&self, generation: &GenerationRecord) -> bool {
        generation
            .members
            .iter()
            .all(|member| self.silent.contains_key(&member.node))
    }
}

pub(super) fn brake(world: &mut World, judge: &Judge, changes: &[Change]) -> Broken {
    let (process, policy) = (world.leader()?.id, Policy::default());
    let mut silences = std::mem::take(&mut world.truth.silences);
    if silences.process != process {
        silences = Silences {
            process,
            ..Silences::default()
        };
    }
    let (mut lost, mut nodes) = (false, world.store.nodes.len());
    for change in changes {
        match change {
            Change::Event(event) => lost |= silences.take_in(event, &world.store),
            Change::PutNode(node) => {
                nodes += usize::from(!world.store.nodes.contains_key(&node.name));
                // The node may have to be heard anew after this coordinator itself stood still.
                // That is no event.
                silences
                    .silent
                    .get_mut(&node.name)
                    .filter(|_| !node.gone)
                    .into_iter()
                    .for_each(|lost| *lost = None);
            }
            _ => {}
        }
    }
    let broken = judged(world, &silences, &policy, (lost, nodes), judge.now).or_else(|| {
        changes
            .iter()
            .filter(|_| silences.on)
            .find_map(|change| braked(world, &silences, change))
    });
    world.truth.silences = silences;
    broken
}

/// Checks that the brake is on when it must be.
fn judged(
    world: &World,
    silences: &Silences,
    policy: &Policy,
    (lost, nodes): (bool, usize),
    now: Timestamp,
) -> Broken {
    let fell = silences.lost(world, policy, now);
    let many = fell >= policy.mass_loss_min
        && fell as usize * 100 > policy.mass_loss_percent as usize * nodes;
    if lost && many && !silences.on {
        return Some((
            "R10",
            format!(
                "{fell} of {nodes} nodes fell silent within a minute with all their pods, and the brake is not on"
            ),
        ));
    }
    None
}

/// Called after every turn of a coordinator, also of one that decides nothing: the brake is off when it
/// must be.
pub(crate) fn brake_is_let_go(world: &mut World, process: u64, now: Timestamp) {
    let silences = &mut world.truth.silences;
    if silences.process == process && silences.is_kept_on(&Policy::default(), now) {
        let (silent, all) = (silences.silent.len(), world.store.nodes.len());
        let what = format!("the brake is still on with {silent} of {all} nodes silent");
        world.fail("R10", what);
    }
}

/// While the brake is on, no node is cordoned, and no wholly silent generation is replaced for its
/// silence.
fn braked(world: &World, silences: &Silences, change: &Change) -> Broken {
    match change {
        Change::PutNode(node) => {
            let free = world
                .store
                .nodes
                .get(&node.name)
                .is_none_or(|before| before.cordon.is_none());
            let ours = node
                .cordon
                .as_ref()
                .is_some_and(|cordon| cordon.by == CordonedBy::Muster);
            let new = !world.is_taken_over(node);
            (free && ours && new).then(|| {
                (
                    "R10",
                    format!("{} is cordoned while the brake is on", node.name),
                )
            })
        }
        Change::PutJob(job) => {
            let current = world.store.jobs.get(&job.uid)?.current.as_ref()?;
            let replaced = job
                .retiring
                .iter()
                .find(|generation| generation.number == current.number)?;
            let incident = job
                .incidents
                .iter()
                .rev()
                .find(|incident| incident.from == Some(current.number))?;
            let for_silence = matches!(incident.cause, Cause::NodeLost | Cause::StartTimeout)
                && replaced.dead.is_empty()
                && replaced.fenced.is_empty()
                && !incident
                    .collateral
                    .iter()
                    .any(|name| name.starts_with("rank "));
            let what = || {
                format!(
                    "{} is replaced while the brake is on, and nobody of it is heard",
                    words::run(&replaced.run(&job.uid))
                )
            };
            (for_silence && silences.none_is_heard(replaced)).then(|| ("R10", what()))
        }
        _ => None,
    }
}
