//! I9: a blamed node or rank did it, then and there, and a job pays only for its own faults. Each
//! blame of the coordinator is compared with the truth: the same kind of thing happened, to the
//! same run, rank or node, at that time.

use std::time::Duration;

use muster_core::id::Generation;

use super::*;
use crate::{
    blame::{Blame, Verdict},
    runner::PEER_LOST,
    trace::note,
    troubles::{Deed, Kind},
};

/// In doubt a job pays from the fourth time on that brought no new step.
const DOUBTFUL_MAX: u32 = 3;

/// And from the eleventh time on within its window.
const DOUBTFUL_IN_WINDOW_MAX: usize = 10;

/// How long a message may wait for the decision that uses it (`Plan::gather_ms`).
const UNDER_WAY: Duration = Duration::from_millis(20);

/// Within this time a node's word about a rank has reached the coordinator, if nothing is in its way.
const TOLD_WITHIN: Duration = Duration::from_secs(3);

const IN_DOUBT: &str = "in doubt: the job has failed again and again without a step further";
const ENDED_EARLY: &str = "the rank ended well while others trained";
const FORGOTTEN: &str = "an older copy of the store was put back, and nobody can say";

/// I9 for jobs. Counts the blames that are true or excused.
pub(super) fn are_true(world: &mut World, job: &JobRecord) -> Broken {
    note_opened(world, job);
    let before = world.store.jobs.get(&job.uid)?;
    let new = (count(job).saturating_sub(count(before))) as usize;
    let told = job.incidents.iter().rev().take(new);
    let compared: Vec<Result<Blame, String>> = told
        .filter_map(|incident| compare(world, before, job, incident).transpose())
        .collect();
    let mut broken = None;
    for blame in compared {
        match blame {
            Ok(blame) => {
                note!(
                    world,
                    "   truly: {}: {}",
                    blame.truly,
                    blame.verdict.words()
                );
                *world.truth.blames.entry(blame).or_insert(0) += 1;
            }
            Err(what) => broken = broken.or(Some(("I9", what))),
        }
    }
    broken
}

pub(super) fn count(job: &JobRecord) -> u32 {
    job.incidents.len() as u32 + job.incidents_dropped
}

fn note_opened(world: &mut World, job: &JobRecord) {
    let Some(current) = &job.current else { return };
    let stored = world
        .store
        .jobs
        .get(&job.uid)
        .and_then(|before| before.current.as_ref())
        .map(|before| before.number);
    if stored != Some(current.number) {
        let run = current.run(&job.uid);
        // The store may have forgotten another generation with this number.
        world.truth.deeds.remove(&run);
        world.truth.opened.insert(run, world.now);
    }
}

/// If nothing is named and nobody pays, there is nothing to compare.
fn compare(
    world: &World,
    before: &JobRecord,
    job: &JobRecord,
    incident: &Incident,
) -> Result<Option<Blame>, String> {
    let Some(from) = incident.from else {
        return Ok(None);
    };
    let run = RunId {
        job: job.uid.clone(),
        generation: from,
    };
    let cause = incident.cause;
    let say = |truly, verdict| {
        Ok(Some(Blame {
            cause,
            truly,
            verdict,
        }))
    };
    let advanced = incident.last_step_before > before.furthest_step.max(before.last_step);
    let window = job.spec.restart_policy.window;
    let recent = before.doubtful.iter();
    let recent = recent.filter(|at| incident.detected_at.since(**at) < window);
    let repeats = !advanced && before.doubtful_in_row >= DOUBTFUL_MAX
        || recent.count() >= DOUBTFUL_IN_WINDOW_MAX;
    if cause == Cause::Stalled {
        return stalls::compare(world, incident, &run, repeats);
    }
    let pays = incident.charged == Charged::Job;
    let mut deeds = world.truth.deeds.get(&run).into_iter().flatten();
    let first = deeds.find(|deed| !is_answered(before, &run, deed));
    let named = incident
        .node
        .as_ref()
        .filter(|_| incident.culprit.is_some())
        .and_then(|node| world.machine_named(node));
    let Some(machine) = named else {
        return match (pays, first) {
            (true, _) if repeats => say(IN_DOUBT, Verdict::Excused),
            (true, _) if world.truth.has_forgotten_run(&run) => say(FORGOTTEN, Verdict::Excused),
            // Nobody is named, and no network is between the ranks of one node.
            (true, Some(deed)) if owns(deed.kind.words()) && on_one_node(before, from) => {
                say(deed.kind.words(), Verdict::Missed)
            }
            (true, _) => Err(format!(
                "{} pays for the network: {}",
                words::run(&run),
                incident.message
            )),
            (false, _) if cause != Cause::PeersLost => Ok(None),
            (false, Some(deed)) if !matches!(deed.kind, Kind::PeersParted | Kind::Fenced) => {
                match was_told(world, &run, deed) {
                    true => Err(format!(
                        "nobody is named for {}, and n{} had said long ago that {}: {}",
                        words::run(&run),
                        deed.machine,
                        deed.kind.words(),
                        incident.message
                    )),
                    false => say(deed.kind.words(), Verdict::Missed),
                }
            }
            (false, _) => say(Kind::PeersParted.words(), Verdict::Spared),
        };
    };
    match truth_of(world, before, job, &run, incident, machine) {
        Some((truly, _)) if pays && !owns(truly) && !refused_everywhere(world, job, &run) => {
            match repeats {
                true => say(IN_DOUBT, Verdict::Excused),
                false => Err(format!(
                    "{} pays for what it did not do ({truly}): {}",
                    words::run(&run),
                    incident.message
                )),
            }
        }
        Some((truly, began)) => {
            let is_first = first.is_none_or(|first| first.machine == machine || first.at >= began);
            say(
                truly,
                if is_first {
                    Verdict::First
                } else {
                    Verdict::Later
                },
            )
        }
        None if pays && repeats => say(IN_DOUBT, Verdict::Excused),
        None if world.truth.has_forgotten_run(&run) => say(FORGOTTEN, Verdict::Excused),
        None if pays => Err(format!(
            "{} pays for what it did not do: {}",
            words::run(&run),
            incident.message
        )),
        None => {
            let node = &world.machines[machine].name;
            Err(format!(
                "{node} is blamed for {} and is innocent: {}",
                words::run(&run),
                incident.message
            ))
        }
    }
}

/// Whether the store knows this failure of a rank and has answered it by a restart of that rank. It
/// has broken nothing, and nobody pays for it again.
pub(super) fn is_answered(before: &JobRecord, run: &RunId, deed: &Deed) -> bool {
    let generation = before.generation(run.generation);
    let restarts = generation.zip(deed.rank).and_then(|(generation, of)| {
        let restarts = generation.member_restarts.get(&of.0)?;
        Some((restarts, of.1))
    });
    deed.kind == Kind::RankFailed
        && restarts.is_some_and(|(restarts, attempt)| {
            attempt < restarts.attempt || attempt == restarts.attempt && restarts.due.is_some()
        })
}

/// Whether the leading coordinator must have heard of this failure of a rank before it decided: its end is
/// long ago, and nothing kept the node's word from it since. A rank that has left its group and still runs
/// has told nobody anything.
fn was_told(world: &World, run: &RunId, deed: &Deed) -> bool {
    let kept = |kind: Kind| {
        use Kind::*;
        kind.silences() || matches!(kind, SlowDisk | RunnerKilled | NoPower | Fenced | Leaving)
    };
    let place = &world.machines[deed.machine];
    let (now, since) = (place.clock(world.now), deed.at - TOLD_WITHIN);
    let ranks = place.runs.get(run).map_or(&[][..], |group| &group.ranks);
    let its = |own: &&Rank| Some((own.report.rank, own.report.attempt)) == deed.rank;
    // One that has left its group may lose another itself, and then says only that.
    let says = |own: &&Rank| own.report.first_error.as_deref() != Some(PEER_LOST);
    let its = ranks.iter().find(its).filter(says);
    let ended = its.and_then(|own| own.report.exited_at);
    let long_ago = ended.is_some_and(|at| now.since(at) > TOLD_WITHIN);
    let stood = world.seats.iter().any(|seat| seat.paused_until > since);
    let leads = !stood && world.leader().is_some_and(|leader| leader.began <= since);
    deed.kind == Kind::RankFailed
        && leads
        && long_ago
        && world.befell(deed.machine, since, &kept).is_none()
}

/// Whether one node had all members of this generation.
fn on_one_node(before: &JobRecord, number: Generation) -> bool {
    let generation = before.generation(number);
    generation.is_some_and(|generation| generation.members.len() == 1)
}

/// Whether this is the job's own fault.
fn owns(truly: &str) -> bool {
    truly == Kind::RankFailed.words() || truly == ENDED_EARLY
}

fn refused_everywhere(world: &World, job: &JobRecord, run: &RunId) -> bool {
    let Some(generation) = job.generation(run.generation) else {
        return false;
    };
    let refused = |node: &NodeName| {
        world
            .machine_named(node)
            .is_some_and(|machine| world.refused(machine, run))
    };
    generation
        .members
        .iter()
        .all(|member| refused(&member.node))
}

/// What truly happened to the named rank or node, and when it began, if it matches what the
/// incident says.
fn truth_of(
    world: &World,
    before: &JobRecord,
    job: &JobRecord,
    run: &RunId,
    incident: &Incident,
    machine: usize,
) -> Option<(&'static str, Timestamp)> {
    let opened = world.truth.opened.get(run).copied().unwrap_or(Timestamp(0));
    let deeds = || {
        world
            .truth
            .deeds
            .get(run)
            .into_iter()
            .flatten()
            .filter(|deed| deed.machine == machine && !is_answered(before, run, deed))
    };
    let did = |of: &dyn Fn(&Deed) -> bool| {
        deeds()
            .find(|deed| of(deed))
            .map(|deed| (deed.kind.words(), deed.at))
    };
    let culprit = incident.culprit.as_deref().unwrap_or_default();
    match incident.cause {
        Cause::WorkerFailed | Cause::WorkerKilled if culprit.starts_with("rank ") => {
            let rank: Option<u32> = culprit.split(' ').nth(1).and_then(|rank| rank.parse().ok());
            did(&|deed| deed.kind == Kind::RankFailed && deed.rank.map(|(rank, _)| rank) == rank)
        }
        // The others could not go on without it, whatever befell them meanwhile.
        Cause::EndedEarly => {
            let rank: Option<u32> = culprit.split(' ').nth(1).and_then(|rank| rank.parse().ok());
            let ranks = &world.machines[machine].runs.get(run)?.ranks;
            let ended = ranks.iter().find(|own| Some(own.report.rank) == rank)?;
            let well = ended.report.exit.is_some_and(|exit| exit.is_success());
            well.then_some((ENDED_EARLY, opened))
        }
        Cause::WorkerKilled => did(&|deed| matches!(deed.kind, Kind::RunnerKilled | Kind::NoPower)),
        Cause::StartFailed => did(&|deed| {
            matches!(
                deed.kind,
                Kind::Refused | Kind::RunnerKilled | Kind::NoPower
            )
        }),
        Cause::StartTimeout => world.befell(machine, opened, &|kind| {
            kind.silences() || matches!(kind, Kind::Unkillable | Kind::SlowDisk)
        }),
        // A node that is heard again is not blamed for a silence any more.
        Cause::NodeLost => world.befell(machine, world.now - UNDER_WAY, &Kind::silences),
        Cause::NodeRebooted => {
            let member = job
                .generation(run.generation)?
                .members
                .iter()
                .find(|m| Some(&m.node) == incident.node.as_ref())?;
            let boot = |id: &str| {
                id.rsplit('-')
                    .next()
                    .and_then(|boot| boot.parse::<u32>().ok())
            };
            let booted = boot(&member.boot_id)? < world.machines[machine].boot;
            // A node that had not reported its reboot yet may have been given the run after it.
            booted
                .then(|| world.befell(machine, Timestamp(0), &|kind| kind == Kind::NoPower))
                .flatten()
        }
        // What was killed there was ended with it, as far as anybody can know.
        Cause::NodeLeaving => world.befell(machine, opened, &|kind| kind == Kind::Leaving),
        // Its host may say so late.
        Cause::NodeUnhealthy => world.befell(machine, Timestamp(0), &|kind| kind == Kind::SickGpu),
        Cause::NodeDeleted => world.befell(machine, opened, &|kind| kind == Kind::StruckOff),
        _ => None,
    }
}

/// I9 for nodes: each new mark belongs to an incident of its job that names the node and is of the
/// same kind. The incident itself is checked elsewhere.
pub(super) fn marks_are_explained(world: &World, changes: &[Change]) -> Broken {
    changes.iter().find_map(|change| {
        let Change::PutNode(node) = change else {
            return None;
        };
        let known = |mark: &Mark| {
            let before = world.store.nodes.get(&node.name);
            before.is_some_and(|before| {
                before
                    .marks
                    .iter()
                    .any(|old| (old.at, &old.job, old.cause) == (mark.at, &mark.job, mark.cause))
            })
        };
        let explained = |mark: &Mark| {
            // The last one is the whole: the deaths of a job may be written apart before it.
            let put = changes.iter().rev().find_map(|change| match change {
                Change::PutJob(job) if job.uid == mark.job => Some(&**job),
                _ => None,
            });
            let Some(job) = put else { return false };
            let new = world.store.jobs.get(&mark.job).map_or(0, count);
            let told = job
                .incidents
                .iter()
                .rev()
                .take((count(job).saturating_sub(new)) as usize);
            told.into_iter().any(|incident| {
                let of = incident.node.as_ref();
                let host = of.and_then(|of| world.host_named(of));
                (of == Some(&node.name) || host == Some(&node.name)) && incident.cause == mark.cause
            })
        };
        let new = node.marks.iter().filter(|mark| !known(mark));
        if let Some(broken) = new
            .into_iter()
            .find_map(|mark| pods::marks_of_pods(world, node, mark))
        {
            return Some(broken);
        }
        let mark = node
            .marks
            .iter()
            .find(|mark| !known(mark) && !explained(mark))?;
        Some((
            "I9",
            format!(
                "{} gets a mark of {} for {:?}, which no incident explains",
                node.name, mark.job, mark.cause
            ),
        ))
    })
}

impl World {
    /// The first thing of this kind that happened to this machine and lasted at some time since
    /// then.
    pub(super) fn befell(
        &self,
        machine: usize,
        since: Timestamp,
        of: &dyn Fn(Kind) -> bool,
    ) -> Option<(&'static str, Timestamp)> {
        let troubles = self.truth.troubles.get(&machine)?.iter();
        let lasted = troubles
            .filter(|trouble| of(trouble.kind) && trouble.until.is_none_or(|until| until >= since));
        lasted
            .min_by_key(|trouble| trouble.from)
            .map(|trouble| (trouble.kind.words(), trouble.from))
    }

    pub(crate) fn refused(&self, machine: usize, run: &RunId) -> bool {
        let deeds = self.truth.deeds.get(run).into_iter().flatten();
        deeds
            .into_iter()
            .any(|deed| deed.kind == Kind::Refused && deed.machine == machine)
    }
}
