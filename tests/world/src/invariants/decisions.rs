//! What a coordinator may decide. Each change that it commits is compared with what was stored
//! before.

use muster_core::{fleet::job::Reason, spec::SCALE_UP_COOLDOWN};

use super::{roles::no_multiple, *};

/// Judges a change of the store, before it is made.
pub(crate) fn change_is_lawful(world: &mut World, judge: &Judge, change: &Change) {
    let broken = match change {
        _ if judge.term < world.store.term => Some((
            "I6",
            format!(
                "the store takes a change of term {}, and term {} has begun",
                judge.term, world.store.term
            ),
        )),
        Change::PutJob(job) => {
            let broken = job_change(world, judge, job);
            let broken = broken.or_else(|| ends::are_asked_for(world, judge, job));
            let broken = broken.or_else(|| unpaid::ends_somewhere(world, job));
            let broken = broken.or_else(|| stalls::are_told_rightly(world, judge, job));
            broken.or_else(|| blames::are_true(world, job))
        }
        Change::DeleteJob(uid) => {
            deletion(world, judge, uid).or_else(|| history::is_left(&world.store, uid))
        }
        Change::PutNode(node) => node_change(world, judge, node),
        Change::DeleteNode(name) => {
            let place = world
                .machine_named(name)
                .map(|machine| &world.machines[machine]);
            place
                .filter(|place| place.powered)
                .map(|place| ("I12", format!("{} is struck off and has power", place.name)))
        }
        Change::PutTombstone(_) | Change::DeleteTombstone(_) => None,
        Change::Event(event) if event.reason == "CapacityMismatch" => {
            Some(("I23", event.message.clone()))
        }
        Change::PutHistory(record) => history::is_true(&world.store, record),
        Change::DropHistory(number) => history::is_surplus(&world.store, *number),
        Change::PutOutbox(outbox) => notify::is_true(&world.store, outbox),
        Change::Event(event) => (event.sequence <= world.store.last_event)
            .then(|| ("I5", format!("event {} comes again", event.sequence))),
    };
    let about = match change {
        Change::PutJob(job) => Some(&job.uid),
        Change::DeleteJob(uid) => Some(uid),
        _ => None,
    };
    if let Some((rule, what)) = broken {
        world.fail_about(about, rule, what);
    }
}

fn job_change(world: &World, judge: &Judge, job: &JobRecord) -> Broken {
    let wish = |job: &JobRecord| job.spec.env.first().map(|var| var.value.clone());
    if !world.store.jobs.contains_key(&job.uid)
        && let Some(twin) = world
            .store
            .jobs
            .values()
            .find(|other| wish(other) == wish(job))
    {
        return Some((
            "I4",
            format!("{} and {} are one submission", twin.uid, job.uid),
        ));
    }
    if let Some(current) = &job.current {
        let members = current.size();
        let nodes: BTreeSet<&NodeName> =
            current.members.iter().map(|member| &member.node).collect();
        if members < job.spec.min_replicas
            || members > job.spec.max_replicas
            || nodes.len() < current.members.len()
        {
            return Some((
                "I11",
                format!(
                    "generation {} of {} has members {nodes:?}",
                    current.number, job.uid
                ),
            ));
        }
    }
    if let Some(what) = job.current.as_ref().and_then(|g| roles_are_filled(job, g)) {
        return Some(("I11", what));
    }
    if let Some(what) = job.current.as_ref().and_then(|g| no_multiple(job, g)) {
        return Some(("I30", what));
    }
    if let Some(broken) = time::adds_up(job) {
        return Some(broken);
    }
    let before = world.store.jobs.get(&job.uid)?;
    let halted = job.reason == Reason::StoreBehind && before.reason != Reason::StoreBehind;
    if halted && !rollback::concerns_somebody(world, &job.uid) {
        let what = format!(
            "{} is halted, and no node that had it has said anything: {}",
            job.uid, job.message
        );
        return Some(("I14", what));
    }
    terminal_is_terminal(world, before, job)
        .or_else(|| within_limits(judge, before, job))
        .or_else(|| only_who_is_heard(world, before, job))
        .or_else(|| generations_go_up(before, job))
        .or_else(|| started_when_inert(world, before, job))
        .or_else(|| charges_are_told(before, job))
        .or_else(|| time::only_grows(before, job))
        .or_else(|| restarts::are_due(world, before, job))
        .or_else(|| restarts::are_enough(world, before, job))
}

/// I8: a job that is over stays over, with the same end. If an operator has accepted the store, a node may
/// know of later generations, which are then stopped by their numbers.
fn terminal_is_terminal(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let accepts = world.leader().is_some_and(|leader| leader.accepts);
    let numbered = job.last_generation != before.last_generation && !accepts;
    let changed = before.phase.is_over()
        && ((before.phase, before.finished) != (job.phase, job.finished)
            || numbered
            || job.current.is_some());
    changed.then(|| {
        (
            "I8",
            format!("{} was {:?} and is {:?}", job.uid, before.phase, job.phase),
        )
    })
}

/// I10: a job is restarted no more often than its user allows, and grows no sooner. I15: its record
/// stays small.
fn within_limits(judge: &Judge, before: &JobRecord, job: &JobRecord) -> Broken {
    if job.restarts.len() > job.spec.restart_policy.max_restarts as usize {
        return Some((
            "I10",
            format!("{} was restarted {} times", job.uid, job.restarts.len()),
        ));
    }
    if job.incidents.len() > INCIDENTS_MAX || job.history.len() > HISTORY_MAX {
        let what = format!(
            "{} keeps {} incidents and {} generations",
            job.uid,
            job.incidents.len(),
            job.history.len()
        );
        return Some(("I15", what));
    }
    let grows = job
        .incidents
        .last()
        .filter(|incident| incident.cause == Cause::NodeJoined)?;
    if before
        .incidents
        .last()
        .is_some_and(|last| last.from == grows.from && last.cause == grows.cause)
    {
        return None;
    }
    let formed = before
        .current
        .as_ref()
        .filter(|current| Some(current.number) == grows.from)?
        .started_at?;
    let own = job.spec.scale_up_cooldown;
    let soon = judge.now < formed + own.unwrap_or(SCALE_UP_COOLDOWN);
    soon.then(|| {
        (
            "I10",
            format!(
                "{} grows {:?} after it was formed",
                job.uid,
                judge.now.since(formed)
            ),
        )
    })
}

/// I16: a generation is opened only on nodes that the coordinator hears.
fn only_who_is_heard(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let current = job.current.as_ref()?;
    if before
        .current
        .as_ref()
        .is_some_and(|before| before.number == current.number)
    {
        return None;
    }
    let leader = world.leader()?;
    let heard = |node: &NodeName| {
        let machine = world.machine_named(node);
        let of_it = |id: &u64| {
            world
                .conns
                .get(id)
                .is_some_and(|conn| Some(conn.machine) == machine && conn.coordinator_open)
        };
        leader.sessions.values().any(of_it)
    };
    let shut = |node: &NodeName| {
        leader
            .fleet
            .node_view(node)
            .and_then(|view| view.report.health.withholds_node().cloned())
    };
    if let Some((node, why)) = current
        .members
        .iter()
        .find_map(|member| Some((&member.node, shut(&member.node)?)))
    {
        return Some((
            "I16",
            format!(
                "generation {} of {} is opened on {node}, which says {}",
                current.number, job.uid, why.check
            ),
        ));
    }
    let sick = |node: &NodeName| Some((node.clone(), world.sick_by_report(node)?));
    let mut members = current.members.iter();
    if let Some((node, check)) = members.find_map(|member| sick(&member.node)) {
        let what = format!(
            "generation {} of {} is opened on {node}, and a GPU of this pod has {check}",
            current.number, job.uid
        );
        return Some(("I16", what));
    }
    let unheard = current
        .members
        .iter()
        .map(|member| &member.node)
        .find(|node| !heard(node))?;
    Some((
        "I16",
        format!(
            "generation {} of {} is opened on {unheard}, which has no session",
            current.number, job.uid
        ),
    ))
}

/// I5 for a job: numbers only go up, and each number keeps its meaning for ever.
fn generations_go_up(before: &JobRecord, job: &JobRecord) -> Broken {
    if job.last_generation < before.last_generation {
        return Some((
            "I5",
            format!(
                "{} goes back from generation {} to {}",
                job.uid, before.last_generation, job.last_generation
            ),
        ));
    }
    // Of a member whose workers are dead the boot, GPUs and addresses may be forgotten.
    let is_member = |old: &Member, new: &Member, dead: bool| {
        let number = |of: &Member| of.seats.iter().map(|seat| seat.number).collect::<Vec<_>>();
        old == new || dead && (&old.node, number(old)) == (&new.node, number(new))
    };
    let same_members = |old: &GenerationRecord, new: &GenerationRecord| {
        let mut pairs = old.members.iter().zip(new.members.iter());
        old.members.len() == new.members.len()
            && pairs.all(|(old, other)| is_member(old, other, new.dead.contains(&other.node)))
    };
    let same = |old: &GenerationRecord, new: &GenerationRecord| {
        same_members(old, new)
            && (&old.rendezvous, &old.store_host, old.restart_count)
                == (&new.rendezvous, &new.store_host, new.restart_count)
            && new.started >= old.started
            && (old.store.is_none() || old.store == new.store)
            && new.dead.is_superset(&old.dead)
            && (old.stopping.is_none() || new.stopping.is_some())
    };
    let changed = before.unproven_generations().find(|old| {
        job.generation(old.number)
            .is_some_and(|new| !same(old, new))
    })?;
    Some((
        "I5",
        format!(
            "generation {} of {} is another than it was",
            changed.number, job.uid
        ),
    ))
}

/// R6: a generation starts only when no process of earlier ones can make a step any more.
fn started_when_inert(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let current = job.current.as_ref().filter(|current| current.started)?;
    if before
        .current
        .as_ref()
        .is_some_and(|old| old.number == current.number && old.started)
    {
        return None;
    }
    for old in &job.retiring {
        let run = old.run(&job.uid);
        let trains = |node: &NodeName| {
            let machine = world.machine_named(node);
            // R7 looks at processes that wake. Without a fence the job waits for a machine that
            // stands still.
            if job.spec.fence_after.is_some() && machine.is_some_and(|machine| world.wakes(machine))
            {
                return false;
            }
            let place = machine.map(|machine| &world.machines[machine]);
            place
                .and_then(|place| place.runs.get(&run))
                .is_some_and(|group| group.goes_on())
        };
        let mut members = old.members.iter().map(|member| trains(&member.node));
        let may_step = match job.spec.progress {
            Progress::Synchronous => members.all(|trains| trains),
            Progress::Independent => members.any(|trains| trains),
        };
        if may_step {
            return Some((
                "R6",
                format!(
                    "generation {} of {} starts while {} may make a step",
                    current.number,
                    job.uid,
                    words::run(&run)
                ),
            ));
        }
    }
    None
}

/// I9 for budgets: every charge to a job has an incident that names it.
fn charges_are_told(before: &JobRecord, job: &JobRecord) -> Broken {
    if blames::count(job) == blames::count(before) && job.restarts.len() > before.restarts.len() {
        return Some(("I9", format!("{} is charged without an incident", job.uid)));
    }
    let charged = job.restarts.last() != before.restarts.last() && !job.restarts.is_empty();
    let newest = job
        .incidents
        .iter()
        .rev()
        .find(|incident| incident.from.is_some() && incident.charged == Charged::Job);
    if charged
        && newest.is_none_or(|incident| {
            incident.from < before.current.as_ref().map(|current| current.number)
        })
    {
        return Some((
            "I9",
            format!(
                "a restart of {} is counted that was no fault of its",
                job.uid
            ),
        ));
    }
    None
}

/// I12 for deletions: a user asked, and no process of the job lives.
fn deletion(world: &mut World, judge: &Judge, uid: &JobUid) -> Broken {
    let job = world.store.jobs.get(uid).cloned();
    if let Some(job) = job.filter(|job| ends::has_had_its_time(judge, job)) {
        // The user asked for it at the submission.
        world.users.is_deleted_by_itself(&job);
    }
    let world = &*world;
    let asked = world.users.wishes.iter().any(|wish| {
        wish.deleting
            && world
                .store
                .jobs
                .get(uid)
                .is_some_and(|job| job.name == wish.name)
    });
    if !asked {
        return Some(("I4", format!("{uid} is deleted and nobody asked")));
    }
    // Decisions between an older copy of the store and its return cannot be known on a machine that
    // was not heard since.
    let known = |run: &RunId, place: &Machine| {
        let generation = world
            .store
            .jobs
            .get(uid)
            .and_then(|job| job.generation(run.generation));
        !world.truth.has_forgotten(uid)
            || generation.is_some_and(|generation| generation.has(&place.name))
    };
    let lives = |place: &&Machine| {
        place
            .runs
            .iter()
            .any(|(run, group)| &run.job == uid && group.has_process() && known(run, place))
    };
    let alive = world.machines.iter().find(lives)?;
    Some((
        "I12",
        format!("{uid} is deleted and lives on {}", alive.name),
    ))
}

/// I5 and I9 for nodes: epochs go up, and every cordon has its reason.
fn node_change(world: &World, judge: &Judge, node: &NodeRecord) -> Broken {
    let machine = world.machine_named(&node.name)?;
    let before = world.store.nodes.get(&node.name);
    let place = &world.machines[machine];
    // A hello of an agent that is gone may arrive after its machine was replaced. The ledger there
    // belongs to another agent.
    let known = if place.agent.is_some() {
        place.ledger_highest.epoch
    } else {
        NodeEpoch(0)
    };
    let epoch = before.map_or(known, |before| before.epoch);
    if node.epoch < epoch {
        return Some((
            "I5",
            format!(
                "{} goes back from epoch {epoch} to {}",
                node.name, node.epoch
            ),
        ));
    }
    // I14: only a node's own agent says what the node is.
    let said = |node: &NodeRecord| (node.epoch, node.boot_id.clone());
    if !judge.speakers.contains(&node.name)
        && before.is_none_or(|before| said(before) != said(node))
    {
        let speakers = &judge.speakers;
        return Some((
            "I14",
            format!(
                "the record of {} is changed on the word of {speakers:?}",
                node.name
            ),
        ));
    }
    if let Some(broken) = pods::heard_of_its_own(world, node) {
        return Some(broken);
    }
    if node.marks.len() > MARKS_MAX {
        return Some((
            "I15",
            format!("{} has {} marks", node.name, node.marks.len()),
        ));
    }
    let cordon = node.cordon.as_ref().filter(|cordon| {
        cordon.by == CordonedBy::Muster && before.is_none_or(|before| before.cordon.is_none())
    });
    let new = cordon.filter(|_| !world.is_taken_over(node));
    let again = new.filter(|_| world.cordons_again(node));
    if again.is_some() {
        let what = format!(
            "a person uncordoned {}, and Muster cordons it again",
            node.name
        );
        return Some(("I17", what));
    }
    new.and_then(|_| cordon_is_earned(node))
}

/// I9: one job alone cordons no node, however often it fails.
fn cordon_is_earned(node: &NodeRecord) -> Broken {
    let jobs: BTreeSet<&JobUid> = node.marks.iter().map(|mark| &mark.job).collect();
    let earned = node.marks.len() >= 3 && jobs.len() >= 2;
    (!earned).then(|| {
        (
            "I9",
            format!("{} is cordoned for the failures of {jobs:?}", node.name),
        )
    })
}

/// R9: a GPU or slot on which another job may still have a process is not given away. This is
/// checked when all writes of the commit are made.
pub(crate) fn only_what_is_free(world: &mut World, opened: &[JobUid]) {
    let broken = opened
        .iter()
        .filter_map(|uid| world.store.jobs.get(uid))
        .find_map(|job| given_twice(world, job));
    if let Some(what) = broken {
        world.fail("R9", what);
    }
}

fn given_twice(world: &World, job: &JobRecord) -> Option<String> {
    let current = job.current.as_ref()?;
    let others = || {
        world
            .store
            .jobs
            .values()
            .filter(|other| other.uid != job.uid)
    };
    // If its own end is already known, it holds nothing.
    for member in current
        .members
        .iter()
        .filter(|member| !current.dead.contains(&member.node))
    {
        let here = |generation: &&GenerationRecord| {
            generation.has(&member.node) && !generation.dead.contains(&member.node)
        };
        let on_it = |other: &JobRecord, may: &dyn Fn(&GenerationRecord) -> bool| {
            other.unproven_generations().filter(here).any(may)
        };
        let shares = |generation: &GenerationRecord| {
            let mut theirs = generation
                .members
                .iter()
                .filter(|other| other.node == member.node)
                .flat_map(|other| &other.gpus);
            theirs.any(|gpu| member.gpus.contains(gpu))
        };
        if let Some(other) = others().find(|other| on_it(other, &shares)) {
            return Some(format!(
                "{} is given a GPU of {} that {} may use",
                job.uid, member.node, other.uid
            ));
        }
        let slots = world
            .machine_named(&member.node)
            .map_or(0, |machine| world.machines[machine].slots as usize);
        let of_other = |other: &JobRecord| {
            let there = other.unproven_generations().filter(here);
            there.map(|there| on_slots(there, &member.node)).max()
        };
        let taken: usize = others().filter_map(of_other).sum();
        let own = on_slots(current, &member.node);
        if own > 0 && taken + own > slots {
            return Some(format!(
                "{} is given {own} slots of {}, which has {slots}, and others may use {taken}",
                job.uid, member.node
            ));
        }
    }
    None
}

/// How many slots of a node a generation takes: one for each member there without GPUs.
pub(crate) fn on_slots(generation: &GenerationRecord, node: &NodeName) -> usize {
    let seats = generation.seats_on(node);
    seats.iter().filter(|seat| seat.gpus.is_empty()).count()
}

/// The cap on cordons: Muster never cordons more than a tenth of the fleet. It is checked when a
/// commit with a new cordon is complete.
pub(crate) fn cordons_are_capped(world: &mut World, before: usize) {
    let (ours, all) = (cordons(world), world.store.nodes.len());
    if ours > before && ours > (all / 10).max(1) {
        world.fail(
            "I10",
            format!("{ours} nodes of {all} are cordoned by Muster"),
        );
    }
}

pub(crate) fn cordons(world: &World) -> usize {
    world
        .store
        .nodes
        .values()
        .filter(|node| cordoned(node))
        .count()
}

/// Whether a change may bring a cordon of Muster. Only then are all nodes counted. A cordon that was
/// there before its record is no new one.
pub(crate) fn leaves_a_cordon(world: &World, change: &Change) -> bool {
    matches!(change, Change::PutNode(node) if cordoned(node) && !world.is_taken_over(node))
}

fn cordoned(node: &NodeRecord) -> bool {
    node.cordon
        .as_ref()
        .is_some_and(|cordon| cordon.by == CordonedBy::Muster)
}
