//! I26: a job that moves is never told stalled, and never restarted for it. One in which nothing moves is told within its limit
//! and what the looks take, and the ranks that are named truly stand still. Stacks are there before anything is stopped.

use std::time::Duration;

use muster_core::{
    fleet::job::Phase,
    stall::{Stall, Why},
};

use super::*;
use crate::{
    blame::{Blame, Verdict},
    looks::Looked,
    stalls::{Doing, Moved, Sees, Stood},
    troubles::Kind,
};

/// Between a movement and the word of it at the coordinator: the gap between a runner's looks, and a slow network.
const WORD: Duration = Duration::from_secs(5);
/// From the end of the limit until people are told: the gap between a runner's looks, and two looks of six seconds.
const LOOKS: Duration = Duration::from_secs(30);
/// What is not sure is not acted upon before.
const PATIENCE: Duration = Duration::from_secs(600);
const NOBODY: &str = "no rank stood still by itself";
const UNASKED: &str = "the node of the rank could not say where it was";

/// Clocks may run apart by two percent.
fn slack(time: Duration) -> Duration {
    WORD + time / 50
}

/// Judges what is new in this record.
pub(super) fn are_told_rightly(world: &World, judge: &Judge, job: &JobRecord) -> Broken {
    if !world.plan.stalls || world.truth.has_forgotten(&job.uid) {
        return None;
    }
    is_told_rightly(world, judge, job).or_else(|| is_acted_upon_rightly(world, job))
}

/// The last two looks at a run that this coordinator has had.
fn looks<'a>(world: &'a World, process: u64, run: &RunId) -> Option<[&'a Looked; 2]> {
    let of_run = |looked: &&Looked| looked.run == *run && looked.process == process;
    let mut newest = world.truth.looked.iter().rev().filter(of_run);
    let (second, first) = (newest.next()?, newest.next()?);
    Some([first, second])
}

fn is_told_rightly(world: &World, judge: &Judge, job: &JobRecord) -> Broken {
    let generation = job.current.as_ref()?;
    let stall = generation.stall.as_deref()?;
    let stored = world.store.jobs.get(&job.uid)?.current.as_ref();
    let before = stored
        .filter(|stored| stored.number == generation.number)
        .and_then(|stored| stored.stall.as_ref());
    if before.is_some_and(|before| before.at == stall.at) {
        return None;
    }
    let run = generation.run(&job.uid);
    let broken = |what: String| Some(("I26", format!("{}: {what}", words::run(&run))));
    let processes = world.seats.iter().filter_map(|seat| seat.process.as_ref());
    let process = { processes }.find(|process| process.term == judge.term)?;
    let Some([first, second]) = looks(world, process.id, &run) else {
        return broken("is told stalled before its ranks were looked at twice".to_owned());
    };
    let since = process.clock.when(stall.since);
    let from = since + slack(world.now.since(since));
    let moved = moved(world, &run);
    let moves = |moved: &&Moved| moved.seen && moved.at > from && moved.at + WORD < first.asked;
    if let Some(moved) = moved.iter().find(moves) {
        return broken(format!(
            "is told stalled since {since}, and moved at {}: {}",
            moved.at,
            stall.sentence()
        ));
    }
    let works = |moved: &Moved| moved.at + WORD > first.asked && moved.at < second.asked;
    if moved.last().is_some_and(works) && sees_all(world, &run) && still_works(world, &run) {
        return broken(format!("is told stalled and works: {}", stall.sentence()));
    }
    let saves = |stood: &&Stood| {
        stood.doing == Doing::Saves
            && stood.lasts_at(first.asked)
            && stood.lasts_at(second.answered)
    };
    let stood: Vec<&Stood> = of_run(world, &run).collect();
    let is_early = world.now.since(since) + WORD < PATIENCE;
    let others = { stood.iter() }.filter(|stood| stood.lasts_at(second.asked));
    let only_saves = { others.clone() }.all(|stood| stood.doing == Doing::Saves);
    if job.spec.stall_after.is_none()
        && is_early
        && only_saves
        && sees_all(world, &run)
        && stood.iter().any(saves)
    {
        return broken(format!(
            "is told stalled while it saves: {}",
            stall.sentence()
        ));
    }
    let wrong = names_wrongly(world, stall, &stood, [first, second])?;
    broken(format!("{wrong}: {}", stall.sentence()))
}

fn moved<'a>(world: &'a World, run: &RunId) -> &'a [Moved] {
    world.truth.moved.get(run).map_or(&[], Vec::as_slice)
}

fn of_run<'a>(world: &'a World, run: &'a RunId) -> impl Iterator<Item = &'a Stood> {
    { world.truth.stands.iter() }.filter(move |stood| stood.run == *run)
}

fn still_works(world: &World, run: &RunId) -> bool {
    of_run(world, run).any(|stood| stood.doing == Doing::Works && stood.lasts_at(world.now))
}

/// The machines on which this run has ranks.
fn machines<'a>(world: &'a World, run: &'a RunId) -> impl Iterator<Item = (usize, &'a Group)> {
    let places = world.machines.iter().enumerate();
    places.filter_map(|(machine, place)| Some((machine, place.runs.get(run)?)))
}

/// Whether all of its nodes can tell the stacks of its ranks.
fn sees_all(world: &World, run: &RunId) -> bool {
    machines(world, run).all(|(machine, _)| world.sees(machine) == Sees::Stacks)
}

/// Whether a rank is named that did not stand still, or none although it can be seen.
fn names_wrongly(
    world: &World,
    stall: &Stall,
    stood: &[&Stood],
    [first, second]: [&Looked; 2],
) -> Option<String> {
    // It may have gone on meanwhile, or have begun to stand after its first look.
    let there = |stood: &&&Stood| {
        stood.from <= second.answered && stood.until.is_none_or(|until| until >= first.asked)
    };
    let standing: Vec<&&Stood> = stood.iter().filter(there).collect();
    let run = &first.run;
    let all: usize = machines(world, run)
        .map(|(_, group)| group.ranks.iter().filter(|rank| rank.alive).count())
        .sum();
    // Of two orders the rarer one is named, and of two places.
    let most = standing.len() * 2 >= all;
    for named in &stall.named {
        let machine = world.machine_named(&named.node);
        let is_it = |stood: &&&Stood| stood.rank == named.rank && Some(stood.machine) == machine;
        let truly = standing.iter().find(|stood| is_it(stood));
        let fits = |doing: Doing| match stall.why {
            Why::Stopped => doing == Doing::Stopped,
            Why::Device => doing == Doing::Device,
            _ => !doing.moves(),
        };
        let excused = stall.why == Why::Silent || most && !stall.why.is_the_nodes();
        match truly {
            Some(stood) if fits(stood.doing) => {}
            _ if excused || stall.why == Why::Ended => {}
            Some(stood) => {
                return Some(format!(
                    "rank {} is named, but {}",
                    named.rank,
                    stood.doing.words()
                ));
            }
            None => {
                return Some(format!(
                    "rank {} is named and does not stand still",
                    named.rank
                ));
            }
        }
    }
    let stays = |stood: &&&&Stood| stood.lasts_at(first.asked) && stood.lasts_at(second.answered);
    let seen = standing.iter().filter(stays).count() > 0 && sees_all(world, run);
    (seen && !most && stall.named.is_empty()).then(|| "nobody is named".to_owned())
}

/// Judges a restart: not before its time, not of a job that moves, and with what was found.
fn is_acted_upon_rightly(world: &World, job: &JobRecord) -> Broken {
    let before = world.store.jobs.get(&job.uid)?;
    let new = blames::count(job).saturating_sub(blames::count(before)) as usize;
    let mut incidents = job.incidents.iter().rev().take(new);
    let incident = incidents.find(|incident| incident.cause == Cause::Stalled)?;
    let run = RunId {
        job: job.uid.clone(),
        generation: incident.from?,
    };
    let broken = |what: String| Some(("I26", format!("{}: {what}", words::run(&run))));
    let Some(stall) = &incident.stall else {
        return broken("is restarted, and nothing was found before".to_owned());
    };
    if sees_all(world, &run) && stall.stacks.is_empty() && !stall.why.is_the_nodes() {
        return broken("is restarted, and no stack was taken before".to_owned());
    }
    // Of what has just moved the coordinator cannot know yet.
    let known = |moved: &&Moved| moved.at + WORD < world.now;
    let last = moved(world, &run).iter().rev().find(known)?.at;
    let quiet = world.now.since(last);
    let said = job.spec.stall_after;
    let least = match (said, stall.why) {
        (Some(said), _) => said * 2,
        (None, Why::Stopped) => Duration::from_secs(20),
        (None, _) => PATIENCE,
    };
    let silenced = |machine: usize| {
        let since = world.now - slack(least) - Duration::from_secs(30);
        world.befell(machine, since, &Kind::silences).is_some()
    };
    let silenced = machines(world, &run).any(|(machine, _)| silenced(machine));
    if quiet + slack(least) < least && !silenced {
        return broken(format!(
            "is restarted {quiet:?} after it last moved, at least {least:?} are meant: {}",
            stall.sentence()
        ));
    }
    None
}

/// I9 for stalls: the rank that is named stood still, and whoever pays did it.
pub(super) fn compare(
    world: &World,
    incident: &Incident,
    run: &RunId,
    repeats: bool,
) -> Result<Option<Blame>, String> {
    let say = |truly, verdict| {
        Ok(Some(Blame {
            cause: incident.cause,
            truly,
            verdict,
        }))
    };
    let wrong = |what: &str| Err(format!("{} {what}: {}", words::run(run), incident.message));
    let Some(stall) = &incident.stall else {
        return say(NOBODY, Verdict::Excused);
    };
    let lately = world.now - Duration::from_secs(60);
    let recent = |stood: &&Stood| stood.until.is_none_or(|until| until >= lately);
    let stood: Vec<&Stood> = of_run(world, run).filter(recent).collect();
    let pays = incident.charged;
    let Some(named) = stall.named.first() else {
        let code = stood.iter().find(|stood| !stood.doing.is_the_nodes());
        return match (pays, code) {
            (Charged::Job, _) if repeats => say(NOBODY, Verdict::Excused),
            (Charged::Job, Some(stood)) => say(stood.doing.words(), Verdict::Missed),
            (Charged::Job, None) => wrong("pays, and none of its ranks stood still"),
            (Charged::Node, _) => wrong("is charged to a node, and no rank is named"),
            (Charged::Nobody, _) => say(NOBODY, Verdict::Spared),
        };
    };
    // It may have stood still more than once.
    let its = |stood: &&&Stood| stood.rank == named.rank;
    let fits = |stood: &&&Stood| stood.doing.is_the_nodes() == stall.why.is_the_nodes();
    let truly = stood.iter().filter(its).find(fits);
    let Some(truly) = truly.or_else(|| stood.iter().find(its)) else {
        return match stall.why {
            Why::Silent | Why::Mismatch | Why::Apart => say(UNASKED, Verdict::Excused),
            _ => wrong("names a rank that did not stand still"),
        };
    };
    let others = world.store.jobs.values().filter(|job| job.uid != run.job);
    let mut others = others.flat_map(|job| &job.incidents);
    let elsewhere = others
        .any(|other| other.cause == Cause::Stalled && other.node.as_ref() == Some(&named.node));
    match pays {
        Charged::Node if !truly.doing.is_the_nodes() && !elsewhere => {
            wrong("is charged to a node for what its code did")
        }
        Charged::Job if truly.doing.is_the_nodes() && stall.why.is_the_nodes() => {
            wrong("pays for what its node did")
        }
        _ => say(truly.doing.words(), Verdict::First),
    }
}

/// A job in which nothing moves has been told so.
pub(crate) fn stalls_are_told(world: &mut World) {
    let wrong = |job: &JobRecord| untold(world, job).or_else(|| told_for_too_long(world, job));
    if let Some((uid, what)) = world.store.jobs.values().find_map(wrong) {
        world.fail_about(Some(&uid), "I26", what);
    }
}

/// A job that moves again is no longer told to stand still.
fn told_for_too_long(world: &World, job: &JobRecord) -> Option<(JobUid, String)> {
    let current = job.current.as_ref()?;
    let stall = current.stall.as_deref()?;
    let run = current.run(&job.uid);
    let leader = world.leader()?;
    let (at, since) = (leader.clock.when(stall.at), leader.clock.when(stall.since));
    let late = |moved: &&Moved| {
        let known = moved.at > at + slack(world.now.since(since)) && moved.at > since + WORD;
        moved.seen && known && world.now.since(moved.at) > LOOKS
    };
    let moved = moved(world, &run).iter().find(late)?;
    let heard = |(machine, _): (usize, &Group)| {
        let trouble = world.befell(machine, moved.at - LOOKS, &|_| true);
        let slow = world.machines[machine].slow_ms > 0;
        trouble.is_none() && !slow && !is_halted(world, machine)
    };
    let paused = world
        .seats
        .iter()
        .any(|seat| seat.paused_until + LOOKS > moved.at);
    let well = machines(world, &run).all(heard) && !paused && leader.began + LOOKS < moved.at;
    (well && !world.truth.has_forgotten(&job.uid)).then(|| {
        let what = format!(
            "{} has moved at {}, and is still told to stand still since {since}",
            words::run(&run),
            moved.at
        );
        (job.uid.clone(), what)
    })
}

/// Nothing is decided about the jobs of a node that knows more than the store, so nothing new is told of them either.
fn is_halted(world: &World, machine: usize) -> bool {
    let stored = world.store.nodes.get(&world.machines[machine].name);
    stored.is_some_and(|node| node.halt.is_some())
}

fn untold(world: &World, job: &JobRecord) -> Option<(JobUid, String)> {
    let current = job.current.as_ref()?;
    if current.stall.is_some() || !current.started || job.phase != Phase::Running {
        return None;
    }
    let run = current.run(&job.uid);
    let last = moved(world, &run).last().filter(|last| last.seen)?;
    let quiet = world.now.since(last.at);
    let limit = limit(world, job, &run)?;
    if quiet < limit + LOOKS + slack(limit) || world.truth.has_forgotten(&job.uid) {
        return None;
    }
    let well = |(machine, group): (usize, &Group)| {
        let since = last.at - WORD;
        let whole = group.joined_at.is_some() && group.trains();
        let heard = world.befell(machine, since, &|_| true).is_none();
        let place = &world.machines[machine];
        let halted = is_halted(world, machine);
        whole && heard && !halted && place.powered && world.sees(machine) == Sees::Stacks
    };
    let members = current.members.len();
    let all_well = machines(world, &run).all(well) && machines(world, &run).count() == members;
    let since = |stood: &&Stood| stood.until.is_none_or(|until| until > last.at);
    let stood: Vec<&Stood> = of_run(world, &run).filter(since).collect();
    let saves = stood.iter().any(|stood| stood.doing == Doing::Saves);
    // Whoever has spun until then was busy, and so is whoever begins to spin.
    let later = |stood: &&Stood| stood.from > last.at + WORD || stood.until.is_some();
    let later = stood.iter().any(later);
    let paused = world.seats.iter().any(|seat| seat.paused_until > last.at);
    let leads = world.leader().is_some_and(|leader| leader.began < last.at);
    let failed = |looked: &Looked| looked.run == run && looked.failed && looked.asked > last.at;
    let failed = world.truth.looked.iter().any(failed);
    let slow = |(machine, _): (usize, &Group)| world.machines[machine].slow_ms > 0;
    let slow = machines(world, &run).any(slow);
    let may = job.spec.framework.is_torch() && current.won.is_none();
    let told = !all_well
        || saves && job.spec.stall_after.is_none()
        || later
        || paused
        || !leads
        || failed
        || slow
        || !may;
    (!told).then(|| {
        let what = format!(
            "{} stands still for {quiet:?}, its limit is {limit:?}, and nobody is told",
            words::run(&run)
        );
        (job.uid.clone(), what)
    })
}

/// How long nothing of a job may move, from what its ranks have shown.
fn limit(world: &World, job: &JobRecord, run: &RunId) -> Option<Duration> {
    if let Some(said) = job.spec.stall_after {
        return Some(said);
    }
    let mut ranks = machines(world, run).flat_map(|(_, group)| &group.ranks);
    let rank = ranks.next()?;
    let report = &rank.report;
    let steps = report.last_step? - report.first_step?;
    let time = report.last_step_at?.since(report.first_step_at?);
    let again = job.longest_pause * 2;
    if steps < 20 {
        return Some(PATIENCE.max(again));
    }
    let usual = time / u32::try_from(steps).ok()?;
    Some((usual * 4).max(Duration::from_secs(10)).max(again))
}
