//! I13: when faults stop and there is room, every job runs, or says truly why it does not. After
//! everything has healed this is checked once a second.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{
    fleet::{
        job::{GenerationRecord, JobRecord, Phase, Reason},
        pod_plan::GANG_TIMEOUT,
    },
    id::{JobUid, NodeName},
    protocol::{self, Speaks},
    run::RunId,
    time::Timestamp,
};

use crate::{
    coordinator::Process,
    event::Event,
    invariants::{self, on_slots, past_its_deadline},
    machine::Machine,
    plan::Plan,
    words,
    world::World,
};

/// How long something may be wrong without a break. The longest honest chain: an unkillable group
/// (70 s), or a start that is awaited (30 s and a grace of 25 s) on a node that is then avoided (60
/// s). For its return the others are stopped (25 s) when it is ready, or has not been ready for 60
/// s. Some seconds are added for every step in between.
const BOUND: Duration = Duration::from_secs(225);
const LOOKED_AT: Duration = Duration::from_secs(245);
/// How long a job may hold pods of which it has too few to begin, and some seconds for every step.
const HELD: Duration = Duration::from_secs(GANG_TIMEOUT.as_secs() + 30);
/// Then two gangs have had the time to give way to each other.
const SCARCE_LOOKED_AT: Duration = Duration::from_secs(900);
const EVERY: Duration = Duration::from_secs(1);
/// A job that trains has made a step within this time, or with slow steps within this many of them.
const STEPPED: Duration = Duration::from_secs(15);
const SLOW_STEPS: u64 = 4;

/// What was wrong is forgotten when it has been right for this long. A job that is well for a moment now
/// and then is not well.
const RIGHT: Duration = Duration::from_secs(20);

/// What has been wrong, since when, and when it was last seen.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    wrong: BTreeMap<String, (Timestamp, Timestamp)>,
    calm: Duration,
    /// Jobs that hold pods and cannot begin: the newest pod of each, and since when it is that.
    holding: BTreeMap<JobUid, (String, Timestamp)>,
}

/// For how long after everything has healed the world is looked at.
pub(crate) fn looked_at(plan: &Plan) -> Duration {
    match plan.scarce {
        true => SCARCE_LOOKED_AT,
        false => LOOKED_AT,
    }
}

impl Watch {
    pub(crate) fn is_calm(&self, enough: Duration) -> bool {
        self.calm > enough
    }
}

pub(crate) fn look(world: &mut World) {
    world.after(EVERY, Event::LookAtJobs);
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    for job in world.store.jobs.values() {
        if let Err(what) = has_what_it_wants(world, job) {
            wrong.insert(job.uid.to_string(), what);
        }
    }
    // Nothing is decided about a node that knows more than the store, nor about its jobs.
    let halted = |place: &Machine| {
        world
            .store
            .nodes
            .get(&place.name)
            .is_some_and(|node| node.halt.is_some())
    };
    let left_alone = |run: &RunId| {
        world
            .store
            .jobs
            .get(&run.job)
            .is_some_and(|job| waits_for_a_person(world, job))
    };
    for place in world.machines.iter().filter(|place| !halted(place)) {
        for (run, group) in place
            .runs
            .iter()
            .filter(|(run, group)| group.is_held() && !left_alone(run))
        {
            let current = world
                .store
                .jobs
                .get(&run.job)
                .and_then(|job| job.current.as_ref());
            if current.is_none_or(|current| current.number != run.generation) {
                let key = format!("{} on {}", words::run(run), place.name);
                wrong.insert(key, format!("{:?} and not wanted any more", group.phase));
            }
        }
    }
    for (place, agent) in world
        .machines
        .iter()
        .filter(|place| !halted(place))
        .filter_map(|place| Some((place, place.agent.as_ref()?)))
    {
        for over in agent.node.runs_over().filter(|run| !left_alone(run)) {
            let key = format!("{} on {}", words::run(over), place.name);
            wrong.insert(
                key,
                "its end was reported and is not acknowledged".to_owned(),
            );
        }
    }
    wrong.extend(invariants::failed_for_ever(world));
    wrong.extend(world.pods_wrong());
    wrong.extend(invariants::first_gets_its_room(world));
    wrong.extend(invariants::lender_gets_its_own(world));
    wrong.extend(invariants::nobody_waits_beside_what_it_could_have(world));
    gangs_give_way(world);
    let now = world.now;
    let remembered = &mut world.liveness.wrong;
    remembered.retain(|_, (_, last)| now.since(*last) < RIGHT);
    world.liveness.calm = if wrong.is_empty() {
        world.liveness.calm + EVERY
    } else {
        Duration::ZERO
    };
    for (key, what) in wrong {
        let (since, last) = world
            .liveness
            .wrong
            .entry(key.clone())
            .or_insert((now, now));
        *last = now;
        let since = *since;
        if now.since(since) > BOUND {
            world.tell_state();
            let rule = match () {
                () if key.ends_with("comes first") => "I25",
                () if key.ends_with("gets its own") => "I29",
                () if key.ends_with("could begin") => "I31",
                () => "I13",
            };
            world.fail(rule, format!("{key} for {:?}: {what}", now.since(since)));
        }
    }
}

/// A job that cannot begin gives its pods back in time. New ones count anew.
fn gangs_give_way(world: &mut World) {
    let (now, held) = (world.now, world.gangs_that_hold());
    let holding = &mut world.liveness.holding;
    holding.retain(|job, (newest, _)| held.contains(&(job.clone(), newest.clone())));
    for (job, newest) in held {
        holding.entry(job).or_insert((newest, now));
    }
    let long = |(_, since): &&(String, Timestamp)| now.since(*since) > HELD;
    let kept = holding.iter().find(|(_, held)| long(held));
    let kept = kept.map(|(job, (_, since))| (job.clone(), now.since(*since)));
    if let Some((job, since)) = kept {
        let what = format!("{job} has too few pods to begin, and holds those for {since:?}");
        world.fail("I13", what);
    }
}

fn has_what_it_wants(world: &World, job: &JobRecord) -> Result<(), String> {
    let says = || format!("{:?}, {}: {}", job.phase, job.reason, job.message);
    if job.phase.is_over() {
        let waits = |name: &NodeName| {
            world
                .store
                .nodes
                .get(name)
                .is_some_and(|node| node.halt.is_some())
        };
        // A node that knows more holds another generation of this job, or says so.
        let holds =
            |place: &Machine| waits(&place.name) && place.runs.keys().any(|run| run.job == job.uid);
        if world.machines.iter().any(holds) || waits_for_a_person(world, job) {
            return Ok(());
        }
        let undecided = |generation: &&GenerationRecord| {
            generation.members.iter().any(|member| waits(&member.node))
        };
        let unproven: Vec<u64> = job
            .unproven_generations()
            .filter(|g| !undecided(g))
            .map(|generation| generation.number.0)
            .collect();
        return if unproven.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "over, but generations {unproven:?} are not proven dead"
            ))
        };
    }
    if waits_for_a_person(world, job) {
        return Ok(());
    }
    if job.suspended {
        let rests = job.current.is_none() && job.reason == Reason::Suspended;
        return match rests {
            true => Ok(()),
            false => Err(format!("is suspended and does not rest; {}", says())),
        };
    }
    if !job.is_eligible() && job.ending.is_none() {
        return invariants::waits_truly(world, job);
    }
    if let Some(wrong) = world
        .leader()
        .and_then(|leader| past_its_deadline(job, leader.clock.at(world.now)))
    {
        return Err(wrong);
    }
    let room = match job.spec.template {
        Some(_) => world.room_for_pods(job),
        None => usable(world, &job.uid, job, &BTreeSet::new()),
    };
    if pauses(world, job) {
        return Ok(());
    }
    let stepped = STEPPED.max(Duration::from_millis(SLOW_STEPS * world.plan.step_ms));
    let trains = world
        .truth
        .stepped_at
        .get(&job.uid)
        .is_some_and(|at| world.now.since(*at) < stepped);
    if trains && job.phase == Phase::Running {
        let have = job
            .current
            .as_ref()
            .map_or(0, |current| current.size() as usize);
        // By its multiple it may leave some of the room.
        let could = (room as u32).min(job.replicas);
        let could = job.spec.size_within(could) as usize;
        // It keeps what it has until it could have as much as it wants.
        let too_many = have > job.replicas as usize && room >= job.replicas as usize;
        let may_grow = could > have
            && !invariants::is_held_back(world, job)
            && !waits_until_it_pays(world, job, (have as u32, could as u32));
        return if may_grow || too_many {
            Err(format!(
                "has {have} nodes, wants {}, could have {could}; {}",
                job.replicas,
                says()
            ))
        } else {
            Ok(())
        };
    }
    let backs_off = job.reason == Reason::BackOff
        && job
            .not_before
            .zip(world.leader())
            .is_some_and(|(at, leader)| at > leader.clock.at(world.now));
    let lacks = matches!(job.reason, Reason::BelowMinimum | Reason::Preempted);
    let has_room = room >= job.spec.min_replicas as usize;
    let lacks_room = lacks && (!has_room || invariants::is_held_back(world, job));
    if backs_off || lacks_room {
        Ok(())
    } else {
        Err(format!("{}; {room} nodes could take it", says()))
    }
}

/// A job that says nothing of it trains before it grows for as long as the growth needs to gain what it costs: no more than
/// its dearest change has cost, and half an hour at most.
fn waits_until_it_pays(world: &World, job: &JobRecord, (have, could): (u32, u32)) -> bool {
    let began = job.current.as_ref().and_then(|one| one.started_at);
    let (Some(began), Some(leader)) = (began, world.leader()) else {
        return false;
    };
    let costs = job.incidents.iter().filter_map(|incident| incident.total());
    let pays = costs.max().unwrap_or_default() * have / (could - have).max(1);
    let until = began + pays.min(Duration::from_secs(1800));
    job.spec.scale_up_cooldown.is_none() && leader.clock.at(world.now) < until
}

/// A node that has or had this job knows more than the store. The job says so, and nothing happens until
/// a person has decided.
pub(crate) fn waits_for_a_person(world: &World, job: &JobRecord) -> bool {
    let halted = |place: &&Machine| {
        let node = world.store.nodes.get(&place.name);
        node.is_some_and(|node| node.halt.is_some())
    };
    let mut halted = world.machines.iter().filter(halted);
    job.reason == Reason::StoreBehind
        && halted.any(|place| invariants::concerns(world, place, &job.uid))
}

/// The job backs off after a pod, or has given its pods back. It waits before it gets new ones.
fn pauses(world: &World, job: &JobRecord) -> bool {
    let leader = world.leader();
    let pauses = |leader: &Process| {
        let until = leader.shell.pauses_until(&job.uid);
        until.is_some_and(|until| leader.clock.at(world.now) < until)
    };
    leader.is_some_and(pauses)
}

/// How many members of this job have room besides the others, on nodes that are there.
/// `given`: nodes that these jobs are taken to have left.
pub(crate) fn usable(
    world: &World,
    uid: &JobUid,
    job: &JobRecord,
    given: &BTreeSet<(&JobUid, &NodeName)>,
) -> usize {
    let fits = |place: &Machine| {
        let known = world
            .store
            .nodes
            .get(&place.name)
            .is_some_and(|node| node.cordon.is_none() && node.halt.is_none());
        if !place.powered || place.agent.is_none() || !known || place.pod.is_some() {
            return 0;
        }
        let speaks = place
            .agent
            .as_ref()
            .map_or(place.speaks, |agent| agent.speaks);
        if Speaks::OURS.agree(speaks).is_err() {
            return 0;
        }
        let most = match job.spec.packs() && speaks.newest >= protocol::SHARED {
            true => usize::MAX,
            false => 1,
        };
        let others = world.store.jobs.values().filter(|other| &other.uid != uid);
        let held = others.flat_map(|other| {
            other
                .unproven_generations()
                .map(move |generation| (other, generation))
        });
        let here: Vec<_> = held
            .filter(|(other, generation)| {
                generation.has(&place.name)
                    && !generation.dead.contains(&place.name)
                    && !given.contains(&(&other.uid, &place.name))
            })
            .collect();
        let need = job.spec.gpus_per_node as usize;
        if need == 0 {
            let mut taken: BTreeMap<&JobUid, usize> = BTreeMap::new();
            for (other, generation) in &here {
                let slots = on_slots(generation, &place.name);
                let most = taken.entry(&other.uid).or_default();
                *most = slots.max(*most);
            }
            let free = (place.slots as usize).saturating_sub(taken.values().sum());
            return free.min(most);
        }
        let members = here
            .iter()
            .flat_map(|(_, generation)| &generation.members)
            .filter(|member| member.node == place.name);
        let taken: std::collections::BTreeSet<&String> =
            members.flat_map(|member| &member.gpus).collect();
        let free = (place.gpus as usize).saturating_sub(taken.len());
        (free / need).min(most)
    };
    world.machines.iter().map(fits).sum()
}
