//! The rules, one function each, named by their number. They look at what really is (processes, disks, the committed store), never at
//! what somebody in the world believes.
//!
//! | rule | is broken when |
//! |---|---|
//! | I1 | the processes on a GPU or slot are not of one job and one generation |
//! | I2 | those that meet and train are not exactly the decided members of one generation |
//! | I3 | an older generation makes a step after a newer one has |
//! | I4 | an accepted job is gone, or there twice |
//! | I5 | a term, node epoch, generation or event number goes back, or means something else than before |
//! | I6 | a deposed coordinator changes the store, or a node that has met its successor |
//! | I7 | workers are stopped that nobody has decided to stop |
//! | I8 | a job that is over changes |
//! | I9 | an innocent node is blamed, or a job pays for what it did not do |
//! | I10 | Muster cordons more than its cap, or resizes or restarts a job beyond its limits |
//! | I11 | a generation has fewer members than the minimum, or more than the maximum |
//! | I12 | a run that is said to be dead has a process |
//! | I13 | faults are over and there is room, and a job neither runs nor says truly why (`liveness`) |
//! | I14 | what one node's agent says changes another node's record |
//! | I15 | something grows beyond its bound |
//! | I16 | somebody unsure goes on: silent nodes get work, an old store or ledger is obeyed, silence is judged by who has not listened |
//! | R1 | something is commanded or answered that is not in the store |
//! | R2 | a node obeys what it has not persisted |
//! | R4 | workers of one run are started twice |
//! | R6 | a generation starts while an older one may make a step |
//! | R9 | a GPU or slot is given away that another job may still use |
//!
//! I1 to I16 are the invariants of the failure model, R1 to R9 five rules of the protocol that can be looked at directly.

use std::{collections::BTreeSet, time::Duration};

use muster_core::{
    fleet::{
        Answer, Change, Effect, MUSTER, NodeRecord,
        job::{GenerationRecord, HISTORY_MAX, INCIDENTS_MAX, JobRecord},
        receipt::{Cause, Charged, Incident},
    },
    id::{JobUid, NodeEpoch, NodeName, SessionId, Term},
    run::{DesiredRun, RunId, Target},
    spec::Progress,
    time::Timestamp,
};

use crate::{coordinator::Process, machine::Machine, store::Store, words, world::World};

/// A node is told of its jobs' unburied generations, of what it holds beyond them, and of jobs deleted lately (256).
const DESIRED_MAX: usize = 512;
const MARKS_MAX: usize = 32;
const LEDGER_JOBS_MAX: usize = 1_000;

/// A node is blamed rightly for what begins so long after it was last in trouble, at most: silence, a stop that hangs and the wait
/// for a start that does not come add up to less.
const TROUBLE: Duration = Duration::from_secs(180);

/// Who decided a change, when by its own clock, and on whose word.
pub(crate) struct Judge {
    pub(crate) now: Timestamp,
    pub(crate) term: Term,
    pub(crate) speakers: Vec<NodeName>,
}

/// What an event may have changed is looked at; the rest is as it was, and was looked at then.
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
                broken = Some(format!("{} and {} work on {} at once", words::run(other), words::run(run), place.name));
            }
        }
    }
    let on_slots = groups.iter().filter(|run| place.runs[**run].assignment.gpus.is_empty()).count();
    if on_slots > place.slots as usize {
        broken = Some(format!("{on_slots} groups work on the {} slots of {}", place.slots, place.name));
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
            broken = Some(format!("{} works on {}, whose agent has said that it is over", words::run(run), place.name));
        }
        let recorded = world.store.jobs.get(&run.job).and_then(|job| job.generation(run.generation));
        if recorded.is_some_and(|generation| generation.dead.contains(&place.name)) {
            broken = Some(format!("{} works on {} and is recorded as dead there", words::run(run), place.name));
        }
    }
    if let Some(what) = broken {
        world.fail("I12", what);
    }
}

/// I4: a job whose submission was answered is in the store until somebody deletes it.
pub(crate) fn accepted_jobs_exist(world: &mut World) {
    if world.truth.rolled_back.is_some() {
        return;
    }
    let lost = world.users.wishes.iter().find_map(|wish| {
        let uid = wish.accepted.as_ref().filter(|uid| !wish.deleting && !world.store.jobs.contains_key(*uid))?;
        Some(format!("{} was accepted as {uid} and is gone", wish.name))
    });
    if let Some(what) = lost {
        world.fail("I4", what);
    }
}

/// Called after every turn of an agent: remembers what it says to be over. I15: and that it says no more than it holds.
pub(crate) fn said_over_is_over(world: &mut World, machine: usize) {
    let place = &mut world.machines[machine];
    let Some(agent) = &place.agent else { return };
    let before = place.said_over.len();
    place.said_over.extend(agent.node.runs_over().cloned());
    if place.said_over.len() > before {
        no_orphan_after_dead(world, machine);
    }
}

/// I12 for what is on disk: a run that is held keeps its directory.
pub(crate) fn purged_is_dead(world: &mut World, machine: usize, run: &RunId) {
    let older = |id: &RunId| id.job == run.job && id.generation <= run.generation;
    let held = world.machines[machine].runs.iter().find(|(id, group)| older(id) && group.is_held()).map(|(id, _)| id.clone());
    if let Some(held) = held {
        world.fail("I12", format!("{} is purged on n{machine} and is held there", words::run(&held)));
    }
}

/// I2: those that meet are exactly the members that were decided for one generation.
pub(crate) fn members_are_the_decided(world: &mut World, training: u64) {
    let members = world.members(training);
    let run = world.trainings[&training].run.clone();
    let mut met: Vec<(u32, &NodeName)> = Vec::new();
    for (machine, other) in &members {
        if *other != run {
            let what = format!("{} and {} meet in one world", words::run(&run), words::run(other));
            return world.fail("I2", what);
        }
        let place = &world.machines[*machine];
        met.push((place.runs[other].assignment.node_rank, &place.name));
    }
    met.sort_unstable();
    let decided = world.store.jobs.get(&run.job).and_then(|job| job.generation(run.generation));
    if world.truth.rolled_back.is_some() && decided.is_none_or(|generation| !generation.started) {
        // Decided, and forgotten since with the store.
        return;
    }
    let decided = decided.filter(|generation| generation.started).map(|generation| &generation.members);
    let same = decided.is_some_and(|decided| {
        decided.len() == met.len()
            && decided.iter().zip(&met).enumerate().all(|(i, (m, (rank, node)))| i as u32 == *rank && &&m.node == node)
    });
    if !same {
        let what = format!("{} trains with {met:?}, decided were {decided:?}", words::run(&run));
        world.fail("I2", what);
    }
}

/// I3: once a newer generation has made a step, no older one does.
pub(crate) fn only_the_newest_trains(world: &mut World, run: &RunId) {
    if world.truth.rolled_back.is_some() {
        return;
    }
    let newest = world.truth.newest_stepped.entry(run.job.clone()).or_insert(run.generation);
    if run.generation < *newest {
        let what = format!("{} makes a step after generation {newest} has", words::run(run));
        return world.fail("I3", what);
    }
    *newest = run.generation;
}

/// R4: the workers of one run are started once; what follows is another generation's.
pub(crate) fn started_once(world: &mut World, machine: usize, run: &RunId) {
    if !world.truth.launched.insert((run.clone(), machine)) {
        world.fail("R4", format!("the workers of {} are started a second time on n{machine}", words::run(run)));
    }
}

/// R2: what is obeyed was persisted before.
pub(crate) fn persisted_before_obeyed(world: &mut World, machine: usize, run: &RunId) {
    let known = world.machines[machine].ledger.jobs.get(&run.job);
    if known.is_none_or(|seen| seen.generation != run.generation) {
        world.fail("R2", format!("n{machine} obeys {} and has persisted {known:?}", words::run(run)));
    }
}

/// I5 for a node: term, epoch and generations it has persisted never go back.
pub(crate) fn ledger_goes_up(world: &mut World, machine: usize) {
    let Machine { ledger, ledger_highest: highest, .. } = &mut world.machines[machine];
    let back = |job: &JobUid| ledger.jobs.get(job).is_some_and(|seen| seen.generation < highest.jobs[job].generation);
    let jobs_back: Vec<&JobUid> = highest.jobs.keys().filter(|job| back(job)).collect();
    if ledger.jobs.len() > LEDGER_JOBS_MAX {
        let what = format!("the ledger of n{machine} remembers {} jobs", ledger.jobs.len());
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
        world.fail("I5", format!("a coordinator starts under term {term}, which was used before"));
    }
    world.truth.highest_term = term;
}

/// I7: workers are stopped by a decision only: their generation was replaced or ended, or its start was refused here.
pub(crate) fn silence_never_kills(world: &mut World, machine: usize, run: &RunId) {
    let current = world.store.jobs.get(&run.job).and_then(|job| job.current.as_ref()).is_some_and(|g| g.number == run.generation);
    if current && world.truth.rolled_back.is_none() && !world.truth.refusals.contains(&(run.clone(), machine)) {
        world.fail("I7", format!("{} is stopped on n{machine}, and nobody has decided that", words::run(run)));
    }
}

/// R1: nothing leaves the coordinator that is not in the store.
pub(crate) fn committed_before_commanded(world: &mut World, seat: usize, effect: &Effect) {
    let Some(process) = &world.seats[seat].process else { return };
    // One that was deposed may repeat what it had committed until then.
    let store = process.deposed.as_deref().unwrap_or(&world.store);
    let broken = match effect {
        Effect::Welcome { session, term, epoch, .. } => unwelcome(world, process, *session, *term, *epoch),
        Effect::Publish { desired, .. } if desired.runs.len() > DESIRED_MAX => {
            Some(("I15", format!("a node is to have {} runs", desired.runs.len())))
        }
        Effect::Publish { desired, .. } => {
            desired.runs.iter().find_map(|wanted| uncommitted(store, wanted)).map(|what| ("R1", what))
        }
        Effect::Answer { answer: Answer::Job { job, .. }, .. } => {
            let uid = &job.record.uid;
            let stored = store.jobs.get(uid) == Some(&job.record);
            (!stored).then(|| ("R1", format!("a user is told of job {uid} as it is not stored")))
        }
        _ => None,
    };
    if let Some((rule, what)) = broken {
        world.fail(rule, what);
    }
}

/// Term and epoch of a welcome are stored, and the node has seen no such epoch before. I16: nor a newer term.
fn unwelcome(world: &World, process: &Process, session: SessionId, term: Term, epoch: NodeEpoch) -> Broken {
    let conn = process.sessions.get(&session).and_then(|id| world.conns.get(id))?;
    let place = &world.machines[conn.machine];
    let stored = world.store.nodes.get(&place.name).map(|node| node.epoch);
    if term < place.ledger_highest.term {
        let what = format!("{} has obeyed term {} and is welcomed under {term}", place.name, place.ledger_highest.term);
        return Some(("I16", what));
    }
    let new = term == world.store.term && stored == Some(epoch) && epoch > place.ledger_highest.epoch;
    (!new).then(|| {
        let what =
            format!("{} is welcomed under term {term}, epoch {epoch}; stored are {} and {stored:?}", place.name, world.store.term);
        ("R1", what)
    })
}

fn uncommitted(store: &Store, wanted: &DesiredRun) -> Option<String> {
    let job = store.jobs.get(&wanted.run.job);
    let generation = job.and_then(|job| job.generation(wanted.run.generation));
    let is_current = job.and_then(|job| job.current.as_ref()).is_some_and(|current| current.number == wanted.run.generation);
    let run = words::run(&wanted.run);
    let (assignment, meets) = match &wanted.target {
        Target::Ready(assignment) => (assignment, None),
        Target::Running(assignment, meets) => (assignment, Some(meets)),
        Target::Stopped { .. } => return is_current.then(|| format!("{run} is to be stopped and is current in the store")),
        Target::Gone { .. } => return is_current.then(|| format!("{run} is to be gone and is current in the store")),
    };
    let Some(generation) = generation else { return Some(format!("{run} is commanded and not stored")) };
    let same = generation.members.len() == assignment.node_count as usize
        && generation.rendezvous == assignment.rendezvous
        && generation.members[assignment.node_rank as usize].gpus == assignment.gpus;
    if !same {
        Some(format!("{run} is commanded otherwise than stored"))
    } else if meets.is_some() && (!generation.started || generation.store.as_ref() != meets) {
        Some(format!("{run} is told to run and is not started in the store"))
    } else {
        None
    }
}

/// Judges a change of the store, before it is made.
pub(crate) fn change_is_lawful(world: &mut World, judge: &Judge, change: &Change) {
    let broken = match change {
        _ if judge.term < world.store.term => {
            Some(("I6", format!("the store takes a change of term {}, and term {} has begun", judge.term, world.store.term)))
        }
        Change::PutJob(job) => job_change(world, judge, job),
        Change::DeleteJob(uid) => deletion(world, uid),
        Change::PutNode(node) => node_change(world, judge, node),
        Change::DeleteNode(name) => {
            let place = world.machine_named(name).map(|machine| &world.machines[machine]);
            place.filter(|place| place.powered).map(|place| ("I12", format!("{} is struck off and has power", place.name)))
        }
        Change::Event(event) => {
            (event.sequence <= world.store.last_event).then(|| ("I5", format!("event {} comes again", event.sequence)))
        }
    };
    if let Some((rule, what)) = broken {
        world.fail(rule, what);
    }
}

type Broken = Option<(&'static str, String)>;

fn job_change(world: &World, judge: &Judge, job: &JobRecord) -> Broken {
    let wish = |job: &JobRecord| job.spec.env.first().map(|var| var.value.clone());
    if !world.store.jobs.contains_key(&job.uid)
        && let Some(twin) = world.store.jobs.values().find(|other| wish(other) == wish(job))
    {
        return Some(("I4", format!("{} and {} are one submission", twin.uid, job.uid)));
    }
    if let Some(current) = &job.current {
        let members = current.members.len() as u32;
        let nodes: BTreeSet<&NodeName> = current.members.iter().map(|member| &member.node).collect();
        if members < job.spec.min_replicas || members > job.spec.max_replicas || nodes.len() < members as usize {
            return Some(("I11", format!("generation {} of {} has members {nodes:?}", current.number, job.uid)));
        }
    }
    let before = world.store.jobs.get(&job.uid)?;
    terminal_is_terminal(before, job)
        .or_else(|| within_limits(judge, before, job))
        .or_else(|| only_who_is_heard(world, before, job))
        .or_else(|| generations_go_up(before, job))
        .or_else(|| started_when_inert(world, before, job))
        .or_else(|| blame_is_fair(world, before, job))
}

/// I8: what is over stays over, with the same end.
fn terminal_is_terminal(before: &JobRecord, job: &JobRecord) -> Broken {
    let changed = before.phase.is_over()
        && ((before.phase, before.finished, before.last_generation) != (job.phase, job.finished, job.last_generation)
            || job.current.is_some());
    changed.then(|| ("I8", format!("{} was {:?} and is {:?}", job.uid, before.phase, job.phase)))
}

/// I10: a job is restarted no more often than its user allows, and grows no sooner. I15: its record stays small.
fn within_limits(judge: &Judge, before: &JobRecord, job: &JobRecord) -> Broken {
    if job.restarts.len() > job.spec.restart_policy.max_restarts as usize {
        return Some(("I10", format!("{} was restarted {} times", job.uid, job.restarts.len())));
    }
    if job.incidents.len() > INCIDENTS_MAX || job.history.len() > HISTORY_MAX {
        let what = format!("{} keeps {} incidents and {} generations", job.uid, job.incidents.len(), job.history.len());
        return Some(("I15", what));
    }
    let grows = job.incidents.last().filter(|incident| incident.cause == Cause::NodeJoined)?;
    if before.incidents.last().is_some_and(|last| last.from == grows.from && last.cause == grows.cause) {
        return None;
    }
    let formed = before.current.as_ref().filter(|current| Some(current.number) == grows.from)?.started_at?;
    let soon = judge.now < formed + job.spec.scale_up_cooldown;
    soon.then(|| ("I10", format!("{} grows {:?} after it was formed", job.uid, judge.now.since(formed))))
}

/// I16: a generation is opened on nodes that the coordinator hears.
fn only_who_is_heard(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let current = job.current.as_ref()?;
    if before.last_generation == job.last_generation {
        return None;
    }
    let leader = world.leader()?;
    let heard = |node: &NodeName| {
        let machine = world.machine_named(node);
        let of_it = |id: &u64| world.conns.get(id).is_some_and(|conn| Some(conn.machine) == machine && conn.coordinator_open);
        leader.sessions.values().any(of_it)
    };
    let unheard = current.members.iter().map(|member| &member.node).find(|node| !heard(node))?;
    Some(("I16", format!("generation {} of {} is opened on {unheard}, which has no session", current.number, job.uid)))
}

/// I5 for a job: numbers go up, and what one number meant it means for ever.
fn generations_go_up(before: &JobRecord, job: &JobRecord) -> Broken {
    if job.last_generation < before.last_generation {
        return Some((
            "I5",
            format!("{} goes back from generation {} to {}", job.uid, before.last_generation, job.last_generation),
        ));
    }
    let same = |old: &GenerationRecord, new: &GenerationRecord| {
        (&old.members, &old.rendezvous, &old.store_host, old.restart_count)
            == (&new.members, &new.rendezvous, &new.store_host, new.restart_count)
            && new.started >= old.started
            && (old.store.is_none() || old.store == new.store)
            && new.dead.is_superset(&old.dead)
            && (old.stopping.is_none() || new.stopping.is_some())
    };
    let changed = before.unburied().find(|old| job.generation(old.number).is_some_and(|new| !same(old, new)))?;
    Some(("I5", format!("generation {} of {} is another than it was", changed.number, job.uid)))
}

/// R6: a generation starts when no process of the ones before can make a step any more.
fn started_when_inert(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let current = job.current.as_ref().filter(|current| current.started)?;
    if before.current.as_ref().is_some_and(|old| old.number == current.number && old.started) {
        return None;
    }
    for old in &job.retiring {
        let run = old.run(&job.uid);
        let trains = |node: &NodeName| {
            let place = world.machine_named(node).map(|machine| &world.machines[machine]);
            place.and_then(|place| place.runs.get(&run)).is_some_and(|group| group.trains())
        };
        let mut members = old.members.iter().map(|member| trains(&member.node));
        let may_step = match job.spec.progress {
            Progress::Synchronous => members.all(|trains| trains),
            Progress::Independent => members.any(|trains| trains),
        };
        if may_step {
            return Some((
                "R6",
                format!("generation {} of {} starts while {} may make a step", current.number, job.uid, words::run(&run)),
            ));
        }
    }
    None
}

/// I9 for jobs: who is blamed did it, and a job pays for its own faults only.
fn blame_is_fair(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let count = |job: &JobRecord| job.incidents.len() as u32 + job.incidents_dropped;
    if count(job) == count(before) && job.restarts.len() > before.restarts.len() {
        return Some(("I9", format!("{} is charged without an incident", job.uid)));
    }
    let charged = job.restarts.last() != before.restarts.last() && !job.restarts.is_empty();
    let newest = job.incidents.iter().rev().find(|incident| incident.from.is_some() && incident.charged == Charged::Job);
    if charged && newest.is_none_or(|incident| incident.from < before.current.as_ref().map(|current| current.number)) {
        return Some(("I9", format!("a restart of {} is counted that was no fault of its", job.uid)));
    }
    let new = (count(job) - count(before)) as usize;
    job.incidents.iter().rev().take(new).find_map(|incident| unfair(world, before, job, incident))
}

fn unfair(world: &World, before: &JobRecord, job: &JobRecord, incident: &Incident) -> Broken {
    // Where nobody is named the network is to blame. In doubt a job pays from the fourth time on without a step further.
    let advanced = incident.last_step_before > before.last_step;
    let in_vain = !advanced && before.in_vain >= 3;
    if incident.culprit.is_none() && incident.charged == Charged::Job && !in_vain {
        return Some(("I9", format!("{} pays for the network: {}", job.uid, incident.message)));
    }
    let (Some(node), Some(from), Some(_)) = (&incident.node, incident.from, &incident.culprit) else { return None };
    let run = RunId { job: job.uid.clone(), generation: from };
    let machine = world.machine_named(node)?;
    let truth = &world.truth;
    let own_fault = truth.job_faults.iter().any(|(faulty, _)| *faulty == run);
    let members = job.generation(from).map_or(0, |generation| generation.members.len());
    let refused_everywhere = truth.refusals.iter().filter(|(refused, _)| *refused == run).count() >= members;
    if incident.charged == Charged::Job && !own_fault && !refused_everywhere && !in_vain {
        return Some(("I9", format!("{} pays for what it did not do: {}", words::run(&run), incident.message)));
    }
    let here = (run.clone(), machine);
    let guilty = truth.job_faults.contains(&here) || truth.refusals.contains(&here) || in_trouble(world, machine);
    (!guilty).then(|| ("I9", format!("{node} is blamed for {} and is innocent: {}", words::run(&run), incident.message)))
}

fn in_trouble(world: &World, machine: usize) -> bool {
    let trouble = world.machines[machine].trouble;
    trouble.0 > 0 && world.now.since(trouble) < TROUBLE
}

/// I12 for deletions: somebody asked, and nothing of the job lives.
fn deletion(world: &World, uid: &JobUid) -> Broken {
    let asked =
        world.users.wishes.iter().any(|wish| wish.deleting && world.store.jobs.get(uid).is_some_and(|job| job.name == wish.name));
    if !asked {
        return Some(("I4", format!("{uid} is deleted and nobody asked")));
    }
    let alive = world.machines.iter().find(|place| place.runs.iter().any(|(run, group)| &run.job == uid && group.has_process()))?;
    Some(("I12", format!("{uid} is deleted and lives on {}", alive.name)))
}

/// I5 and I9 for nodes: epochs go up; marks and cordons have their reason.
fn node_change(world: &World, judge: &Judge, node: &NodeRecord) -> Broken {
    let machine = world.machine_named(&node.name)?;
    let before = world.store.nodes.get(&node.name);
    let epoch = before.map_or(world.machines[machine].ledger_highest.epoch, |before| before.epoch);
    if node.epoch < epoch {
        return Some(("I5", format!("{} goes back from epoch {epoch} to {}", node.name, node.epoch)));
    }
    // I14: what a node is, only its own agent says.
    let said = |node: &NodeRecord| (node.epoch, node.boot_id.clone(), node.report.clone());
    if !judge.speakers.contains(&node.name) && before.is_none_or(|before| said(before) != said(node)) {
        let speakers = &judge.speakers;
        return Some(("I14", format!("the record of {} is changed on the word of {speakers:?}", node.name)));
    }
    if node.marks.len() > MARKS_MAX {
        return Some(("I15", format!("{} has {} marks", node.name, node.marks.len())));
    }
    let old_marks = before.map_or(&[][..], |before| &before.marks);
    for mark in node.marks.iter().filter(|mark| !old_marks.contains(mark)) {
        let here = |(run, at): &(RunId, usize)| run.job == mark.job && *at == machine;
        let guilty = world.truth.job_faults.iter().any(here) || world.truth.refusals.iter().any(here) || in_trouble(world, machine);
        if !guilty {
            return Some(("I9", format!("{} gets a mark for {} and is innocent", node.name, mark.job)));
        }
    }
    let cordon = node.cordon.as_ref().filter(|cordon| cordon.by == MUSTER && before.is_none_or(|before| before.cordon.is_none()));
    cordon.and_then(|_| cordon_is_earned(node))
}

/// I9: one job alone, however often it fails, cordons nobody.
fn cordon_is_earned(node: &NodeRecord) -> Broken {
    let jobs: BTreeSet<&JobUid> = node.marks.iter().map(|mark| &mark.job).collect();
    let earned = node.marks.len() >= 3 && jobs.len() >= 2;
    (!earned).then(|| ("I9", format!("{} is cordoned for the failures of {jobs:?}", node.name)))
}

/// R9: what another job may still have a process on is not given away. Looked at when the whole transaction is made.
pub(crate) fn only_what_is_free(world: &mut World, opened: &[JobUid]) {
    let broken = opened.iter().filter_map(|uid| world.store.jobs.get(uid)).find_map(|job| given_twice(world, job));
    if let Some(what) = broken {
        world.fail("R9", what);
    }
}

fn given_twice(world: &World, job: &JobRecord) -> Option<String> {
    let current = job.current.as_ref()?;
    let others = || world.store.jobs.values().filter(|other| other.uid != job.uid);
    // Where its own end is known already it has nothing.
    for member in current.members.iter().filter(|member| !current.dead.contains(&member.node)) {
        let here = |generation: &&GenerationRecord| generation.has(&member.node) && !generation.dead.contains(&member.node);
        let on_it = |other: &JobRecord, may: &dyn Fn(&GenerationRecord) -> bool| other.unburied().filter(here).any(may);
        let shares = |generation: &GenerationRecord| {
            let mut theirs = generation.members.iter().filter(|other| other.node == member.node).flat_map(|other| &other.gpus);
            theirs.any(|gpu| member.gpus.contains(gpu))
        };
        if let Some(other) = others().find(|other| on_it(other, &shares)) {
            return Some(format!("{} is given a GPU of {} that {} may use", job.uid, member.node, other.uid));
        }
        let slots = world.machine_named(&member.node).map_or(0, |machine| world.machines[machine].slots as usize);
        let on_slots = others().filter(|other| other.spec.gpus_per_node == 0 && on_it(other, &|_| true));
        let taken: Vec<String> = on_slots.map(|other| other.uid.to_string()).collect();
        if job.spec.gpus_per_node == 0 && taken.len() >= slots {
            return Some(format!("{} is given a slot of {}, which has {slots}, and {taken:?} may be there", job.uid, member.node));
        }
    }
    None
}

/// The cap on cordons, looked at when a transaction with a new one is complete: Muster never cordons more than a tenth of the fleet.
pub(crate) fn cordons_are_capped(world: &mut World, before: usize) {
    let (ours, all) = (cordons(world), world.store.nodes.len());
    if ours > before && ours > (all / 10).max(1) {
        world.fail("I10", format!("{ours} nodes of {all} are cordoned by Muster"));
    }
}

pub(crate) fn cordons(world: &World) -> usize {
    world.store.nodes.values().filter(|node| node.cordon.as_ref().is_some_and(|cordon| cordon.by == MUSTER)).count()
}
