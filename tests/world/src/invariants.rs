//! The rules, one function each, named by their number. They look at what really is (processes,
//! disks, the committed store), never at what a program in the world believes.
//!
//! | rule | is broken when |
//! |---|---|
//! | I1 | the processes on a GPU or slot belong to more than one job or generation |
//! | I2 | the workers that meet and train are not exactly the decided members of one generation |
//! | I3 | an older generation makes a step after a newer one has |
//! | I4 | an accepted job is gone, or exists twice |
//! | I5 | a term, node epoch, generation or event number goes back, or changes its meaning |
//! | I6 | a deposed coordinator changes the store, or changes a node that has met its successor |
//! | I7 | workers are stopped without a decision to stop them |
//! | I8 | a job that is over changes |
//! | I9 | an innocent node is blamed, or a job pays for what it did not do |
//! | I10 | Muster cordons more than its cap, or resizes or restarts a job beyond its limits |
//! | I11 | a generation has fewer members than the minimum, or more than the maximum |
//! | I12 | a run that is said to be dead has a process |
//! | I13 | faults are over and there is room, and a job neither runs nor says truly why (`liveness`) |
//! | I14 | the report of one node's agent changes another node's record, or holds up a job that the node never had |
//! | I15 | something grows beyond its bound |
//! | I16 | a program that cannot be sure goes on: silent nodes get work, an old store or ledger is obeyed, or a coordinator that has not listened judges silence |
//! | I17 | Muster lifts a cordon on a Node object that it has not set, or cordons again what a person has just uncordoned |
//! | I18 | Muster deletes or ends a worker pod in which a worker may live |
//! | I19 | a job gets more worker pods than it may have |
//! | I20 | a job's own rules, deadlines or time to live are not obeyed, or end it in another way than they say |
//! | I21 | a job breaks again and again by its own ranks, and nobody ever pays for it |
//! | I22 | a moment of a job's life counts for no state or for two, or for one in which it is not |
//! | I23 | what is reserved of a node is not what the records of all jobs say |
//! | I24 | a job that is over leaves no record or two, or its record says other than its account |
//! | I25 | a job gives room to no job of higher priority that waits, or before its time; the first that waits does not get what lower priorities could give; a namespace has more GPUs than it may |
//! | I26 | a job that moves is told stalled or restarted for it, one in which nothing moves is not told in time, a rank is named that moves, or no stack is taken before a restart |
//! | I27 | a job has failed or succeeded and nobody is told, or people are told what is not in the store |
//! | I28 | a job starts before what it waits for has ended as asked or its time has come, or gives up although that may still be |
//! | I29 | a queue holds more than its quota and what it may borrow, all of a tree more than they have, or what was lent does not come back |
//! | I30 | a generation has a number of members that is no multiple of what its job asks for (`multipleOf`) |
//! | I31 | a job waits for ever beside nodes that it could have, and nobody that comes before it waits for nodes |
//! | I32 | where jobs of equal priority go by fair share, one gets nodes before another that asks for the same and whose owner has used less |
//! | R1 | the coordinator commands or answers what is not in the store |
//! | R2 | a node obeys what it has not persisted |
//! | R3 | a rank is started again that has not failed, that must end, or that the store has not ordered; or a world is formed anew although that would have been enough |
//! | R4 | workers of one run are started twice |
//! | R6 | a generation starts while an older one may make a step |
//! | R7 | workers of two generations of a job with `fenceAfter` live at once, or an agent that knows no fences has such a job |
//! | R9 | a GPU or slot is given away that another job may still use |
//! | R10 | many nodes fall silent at once and the brake is not on, or it is on and a wholly silent generation is replaced, or it stays on too long |
//! | R12 | a node that knows more than the store is not halted, gets orders, has its jobs decided on, or is released without an operator |
//!
//! I1 to I32 are the invariants of the failure model. R1 to R12 are rules of the protocol that can
//! be checked directly.

use std::collections::BTreeSet;

use muster_core::{
    fleet::{
        Answer, Change, CordonedBy, Effect, Mark, NodeRecord,
        job::{GenerationRecord, HISTORY_MAX, INCIDENTS_MAX, JobRecord, Member},
        receipt::{Cause, Charged, Incident},
    },
    id::{JobUid, NodeEpoch, NodeName, SessionId, Term},
    protocol::Speaks,
    run::{Assignment, DesiredRun, RunId, Start, Target},
    spec::Progress,
    time::Timestamp,
};

use crate::{
    coordinator::Process,
    machine::{Group, Machine, Rank},
    store::Store,
    words,
    world::World,
};

mod after;
mod blames;
mod brake;
mod commands;
mod decisions;
mod ends;
mod fences;
mod history;
mod notify;
mod pods;
mod queues;
mod restarts;
mod roles;
mod rollback;
mod sizes;
mod stalls;
mod time;
mod unpaid;

pub(crate) use after::waits_truly;
pub(crate) use brake::{Silences, brake_is_let_go};
pub(crate) use commands::committed_before_commanded;
pub(crate) use rollback::concerns;
pub(crate) use sizes::records_are_small;
pub(crate) use stalls::stalls_are_told;

pub(crate) use pods::{no_living_pod_is_deleted, no_pod_too_many};

pub(crate) use ends::past_its_deadline;

pub(crate) use fences::one_generation_lives;
pub(crate) use history::all_have_left_one;
pub(crate) use notify::all_ends_are_told;
pub(crate) use queues::{
    EVICT_AFTER, first_gets_its_room, is_held_back, lender_gets_its_own,
    nobody_waits_beside_what_it_could_have,
};
pub(crate) use restarts::{failed_for_ever, restart_is_asked_rightly, started_again_once};
pub(crate) use roles::{roles_are_filled, shares_are_understood};

pub(crate) use decisions::{
    change_is_lawful, cordons, cordons_are_capped, leaves_a_cordon, on_slots, only_what_is_free,
};

/// A node is told of its jobs' generations that are not proven dead, of what it holds beyond them,
/// and of recently deleted jobs (256). Twice that is a safe bound.
const DESIRED_MAX: usize = 512;
const MARKS_MAX: usize = 32;
const LEDGER_JOBS_MAX: usize = 1_000;

type Broken = Option<(&'static str, String)>;

/// The coordinator that decided a change, with its clock, its term and the machines that spoke.
pub(crate) struct Judge {
    pub(crate) now: Timestamp,
    pub(crate) term: Term,
    pub(crate) speakers: Vec<NodeName>,
}

/// Checks all changes of one decision before they are made, where they must be judged together.
pub(crate) fn decision_is_lawful(world: &mut World, judge: &Judge, changes: &[Change]) {
    let broken = rollback::rollback(world, changes)
        .or_else(|| brake::brake(world, judge, changes))
        .or_else(|| blames::marks_are_explained(world, changes))
        .or_else(|| queues::of_priorities(world, judge, changes))
        .or_else(|| after::starts_as_asked(world, judge, changes));
    if let Some((rule, what)) = broken {
        world.fail(rule, what);
    }
}

/// Checks whatever an event may have changed. The rest is as it was, and was checked then.
pub(crate) fn after_every_event(world: &mut World) {
    let mut changed = std::mem::take(&mut world.changed);
    changed.sort_unstable();
    changed.dedup();
    for machine in changed.drain(..) {
        gpu_belongs_to_one(world, machine);
        no_orphan_after_dead(world, machine);
    }
    world.changed = changed;
}

/// I1: the processes on a GPU or slot are of one job and one generation.
fn gpu_belongs_to_one(world: &mut World, machine: usize) {
    let place = &world.machines[machine];
    let groups: Vec<&RunId> = place.working().map(|(run, _)| run).collect();
    let mut broken = None;
    for (i, run) in groups.iter().enumerate() {
        for other in &groups[..i] {
            let gpus = |run: &RunId| &place.runs[run].assignment.gpus;
            if run.job == other.job || gpus(run).iter().any(|gpu| gpus(other).contains(gpu)) {
                broken = Some(format!(
                    "{} and {} work on {} at once",
                    words::run(other),
                    words::run(run),
                    place.name
                ));
            }
        }
    }
    let on_slots = groups
        .iter()
        .filter(|run| place.runs[**run].assignment.gpus.is_empty())
        .count();
    if on_slots > place.slots as usize {
        broken = Some(format!(
            "{on_slots} groups work on the {} slots of {}",
            place.slots, place.name
        ));
    }
    if let Some(what) = broken {
        world.fail("I1", what);
    }
}

/// I12: a run that is said or recorded to be dead has no process.
fn no_orphan_after_dead(world: &mut World, machine: usize) {
    let place = &world.machines[machine];
    let mut broken = None;
    for (run, _) in place.working() {
        if place.said_over.contains(run) {
            broken = Some(format!(
                "{} works on {}, whose agent has said that it is over",
                words::run(run),
                place.name
            ));
        }
        let recorded = world
            .store
            .jobs
            .get(&run.job)
            .and_then(|job| job.generation(run.generation));
        if recorded.is_some_and(|generation| generation.dead.contains(&place.name)) {
            broken = Some(format!(
                "{} works on {} and is recorded as dead there",
                words::run(run),
                place.name
            ));
        }
    }
    if let Some(what) = broken {
        world.fail("I12", what);
    }
}

/// I4: a job whose submission was answered is in the store until a user deletes it.
pub(crate) fn accepted_jobs_exist(world: &mut World) {
    let lost = world.users.wishes.iter().find_map(|wish| {
        let uid = wish
            .accepted
            .as_ref()
            .filter(|uid| !wish.deleting && !world.store.jobs.contains_key(*uid))
            .filter(|uid| !world.truth.has_forgotten(uid))?;
        let what = format!("{} was accepted as {uid} and is gone", wish.name);
        Some((uid.clone(), what))
    });
    if let Some((uid, what)) = lost {
        world.fail_about(Some(&uid), "I4", what);
    }
}

/// Called after every turn of an agent. It remembers which runs the agent reports as over. I15: the
/// agent reports no more than it holds.
pub(crate) fn said_over_is_over(world: &mut World, machine: usize) {
    let place = &mut world.machines[machine];
    let Some(agent) = &place.agent else { return };
    let before = place.said_over.len();
    place.said_over.extend(agent.node.runs_over().cloned());
    if place.said_over.len() > before {
        no_orphan_after_dead(world, machine);
    }
}

/// I12 on disk: a run that is held keeps its directory.
pub(crate) fn purged_is_dead(world: &mut World, machine: usize, run: &RunId) {
    let (older, place) = (
        |id: &RunId| id.job == run.job && id.generation <= run.generation,
        &world.machines[machine],
    );
    let own = |group: &Group| group.state_dir == place.state_dir && group.is_held();
    let held = place
        .runs
        .iter()
        .find(|(id, group)| older(id) && own(group))
        .map(|(id, _)| id.clone());
    if let Some(held) = held {
        world.fail(
            "I12",
            format!(
                "{} is purged on n{machine} and is held there",
                words::run(&held)
            ),
        );
    }
}

/// I2: the workers that meet are exactly the decided members of one generation.
pub(crate) fn members_are_the_decided(world: &mut World, training: u64) {
    let members = world.members(training);
    let run = world.trainings[&training].run.clone();
    let mut met: Vec<(Vec<u32>, &NodeName)> = Vec::new();
    for (machine, other) in &members {
        if *other != run {
            let what = format!(
                "{} and {} meet in one world",
                words::run(&run),
                words::run(other)
            );
            return world.fail("I2", what);
        }
        let place = &world.machines[*machine];
        let each = place.runs[other].assignment.each();
        met.push((each.iter().map(|own| own.node_rank).collect(), &place.name));
    }
    met.sort_unstable();
    let decided = world
        .store
        .jobs
        .get(&run.job)
        .and_then(|job| job.generation(run.generation));
    let others = |generation: &GenerationRecord| {
        !generation.started || !met.iter().any(|(_, node)| generation.has(node))
    };
    if world.truth.has_forgotten(&run.job) && decided.is_none_or(others) {
        // The generation was decided, and then forgotten with the store, which may have given the
        // number out again.
        return;
    }
    let decided = decided
        .filter(|generation| generation.started)
        .map(|generation| &generation.members);
    let same = decided.is_some_and(|decided| {
        decided.len() == met.len()
            && (0..)
                .zip(decided.iter())
                .zip(&met)
                .all(|((rank, share), (numbers, node))| {
                    let seats = decided.seats(rank);
                    seats.iter().map(|seat| &seat.number).eq(numbers) && &&share.node == node
                })
    });
    if !same {
        let what = format!(
            "{} trains with {met:?}, decided were {decided:?}",
            words::run(&run)
        );
        world.fail("I2", what);
    }
}

/// I3: once a newer generation has made a step, no older one does.
pub(crate) fn only_the_newest_trains(world: &mut World, run: &RunId) {
    if world.truth.has_forgotten(&run.job) {
        return;
    }
    // Workers on a machine that wakes may make a step before their runner stops them. A job with
    // `fenceAfter` accepts that, because its generations say whose checkpoint is whose.
    let fenced = world
        .store
        .jobs
        .get(&run.job)
        .is_some_and(|job| job.spec.fence_after.is_some());
    let waking = fenced
        && (0..world.machines.len())
            .any(|machine| world.machines[machine].runs.contains_key(run) && world.wakes(machine));
    let newest = world
        .truth
        .newest_stepped
        .entry(run.job.clone())
        .or_insert(run.generation);
    if run.generation < *newest {
        if waking {
            world.truth.waking_steps += 1;
            return;
        }
        let what = format!(
            "{} makes a step after generation {newest} has",
            words::run(run)
        );
        return world.fail_about(Some(&run.job), "I3", what);
    }
    *newest = run.generation;
}

/// R4: the workers of one run are started once. Any later start belongs to another generation.
pub(crate) fn started_once(world: &mut World, machine: usize, run: &RunId) {
    if !world.truth.launched.insert((run.clone(), machine)) {
        world.fail_about(
            Some(&run.job),
            "R4",
            format!(
                "the workers of {} are started a second time on n{machine}",
                words::run(run)
            ),
        );
    }
}

/// R2: whatever a node obeys was persisted before.
pub(crate) fn persisted_before_obeyed(world: &mut World, machine: usize, run: &RunId) {
    let known = world.machines[machine].ledger.jobs.get(&run.job);
    if known.is_none_or(|seen| seen.generation != run.generation) {
        world.fail(
            "R2",
            format!(
                "n{machine} obeys {} and has persisted {known:?}",
                words::run(run)
            ),
        );
    }
}

/// I5 for a node: term, epoch and generations it has persisted never go back.
pub(crate) fn ledger_goes_up(world: &mut World, machine: usize) {
    let Machine {
        ledger,
        ledger_highest: highest,
        ..
    } = &mut world.machines[machine];
    let back = |job: &JobUid| {
        ledger
            .jobs
            .get(job)
            .is_some_and(|seen| seen.generation < highest.jobs[job].generation)
    };
    let jobs_back: Vec<&JobUid> = highest.jobs.keys().filter(|job| back(job)).collect();
    if ledger.jobs.len() > LEDGER_JOBS_MAX {
        let what = format!(
            "the ledger of n{machine} remembers {} jobs",
            ledger.jobs.len()
        );
        return world.fail("I15", what);
    }
    if ledger.term < highest.term || ledger.epoch < highest.epoch || !jobs_back.is_empty() {
        let what = format!(
            "the ledger of n{machine} goes back from term {}, epoch {} to term {}, epoch {}; jobs {jobs_back:?}",
            highest.term, highest.epoch, ledger.term, ledger.epoch
        );
        return world.fail("I5", what);
    }
    *highest = ledger.clone();
}

/// I5 for the coordinator: every process has a term of its own.
pub(crate) fn term_goes_up(world: &mut World, term: Term) {
    if term <= world.truth.highest_term {
        world.fail(
            "I5",
            format!("a coordinator starts under term {term}, which was used before"),
        );
    }
    world.truth.highest_term = term;
}

/// I7: workers are stopped only by a decision. Their generation was replaced or ended, or its start
/// was refused here.
pub(crate) fn silence_never_kills(world: &mut World, machine: usize, run: &RunId) {
    let current = world
        .store
        .jobs
        .get(&run.job)
        .and_then(|job| job.current.as_ref())
        .is_some_and(|g| g.number == run.generation);
    if current && !world.truth.has_forgotten(&run.job) && !world.refused(machine, run) {
        world.fail_about(
            Some(&run.job),
            "I7",
            format!(
                "{} is stopped on n{machine}, and nobody has decided that",
                words::run(run)
            ),
        );
    }
}
