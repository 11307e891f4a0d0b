//! I20: what a job asks for about its ends is done, and nothing else. The rules are read anew here, and
//! compared with how the rank really ended.

use std::time::Duration;

use muster_core::{
    exit::Exit,
    fleet::{
        Policy,
        job::{Phase, Reason, Won},
    },
    spec::rules::{Of, Rule, Then, When},
};

use super::*;

/// Judges a change of a job that has rules or limits of its life.
pub(super) fn are_asked_for(world: &World, judge: &Judge, job: &JobRecord) -> Broken {
    let before = world.store.jobs.get(&job.uid)?;
    within_the_limits_of_rules(job)
        .or_else(|| deadlines_are_over(judge, before, job))
        .or_else(|| breaks_end_as_asked(world, before, job))
        .or_else(|| a_member_has_won(world, before, job))
}

/// A rule restarts its job no more often than it says. A limit with a window is counted in the record.
fn within_the_limits_of_rules(job: &JobRecord) -> Broken {
    let beyond = |(index, rule): &(usize, &Rule)| {
        let limit = rule.budget.as_ref().map(|budget| budget.limit);
        let spent = job.rule_restarts.get(index);
        limit
            .zip(spent)
            .is_some_and(|(limit, spent)| spent.count > limit)
    };
    let (index, _) = job.spec.rules.iter().enumerate().find(beyond)?;
    let count = job.rule_restarts[&index].count;
    let rule = job.spec.rules[index].named(index);
    Some((
        "I20",
        format!("{} was restarted {count} times by {rule}", job.uid),
    ))
}

/// A job that ends for its deadline has had all its time since it was last resumed.
fn deadlines_are_over(judge: &Judge, before: &JobRecord, job: &JobRecord) -> Broken {
    let ending = newly_ending(before, job)?;
    let life = &job.spec.lifetime;
    let limit = match ending.reason {
        Reason::DeadlineExceeded => life.active_deadline_seconds,
        Reason::StartDeadlineExceeded => life.start_deadline_seconds,
        _ => return None,
    };
    let since = before.resumed.max(before.eligible);
    let since = since.unwrap_or(before.created);
    let had = judge.now.since(since);
    let short = limit.is_none_or(|limit| had < Duration::from_secs(limit));
    let late = ending.reason == Reason::StartDeadlineExceeded && before.first_started.is_some();
    (short || late || before.suspended).then(|| {
        let reason = ending.reason;
        (
            "I20",
            format!(
                "{} ends with {reason} and has had {had:?} of {limit:?} s",
                job.uid
            ),
        )
    })
}

fn newly_ending<'a>(
    before: &JobRecord,
    job: &'a JobRecord,
) -> Option<&'a muster_core::fleet::job::Ending> {
    job.ending.as_ref().filter(|_| before.ending.is_none())
}

/// A break ends the job exactly if the first rule that means it says so.
fn breaks_end_as_asked(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let new = blames::count(job).saturating_sub(blames::count(before)) as usize;
    let mut told = job.incidents.iter().rev().take(new);
    let incident = told.find(|incident| incident.from.is_some() && incident.cause.is_failure())?;
    if matches!(incident.cause, Cause::EndedEarly | Cause::CollectiveTimeout) {
        // The exit that counts is that of the first rank which missed another. No incident names it.
        return None;
    }
    let paid = incident.charged == Charged::Job;
    // Of a job in which nothing moves no rank has ended.
    let stalled = incident.cause == Cause::Stalled;
    let exit = exit_of(world, job, incident).filter(|_| !stalled);
    if exit.is_none()
        && !stalled
        && incident
            .culprit
            .as_deref()
            .is_some_and(|who| who.starts_with("rank "))
    {
        // The machine has forgotten the run.
        return None;
    }
    // A rule that ends the job well takes the charge away.
    let by_success = incident
        .rule
        .as_deref()
        .is_some_and(|rule| rule.contains(": succeed"));
    let roles = roles_at_fault(before, incident);
    let about = |rule: &Rule| rule.role.as_ref().is_none_or(|role| roles.contains(role));
    let expected = first_that_means(
        &job.spec.rules,
        about,
        exit,
        paid || by_success,
        incident.cause,
    );
    let said = expected.map(|(index, rule)| rule.named(index));
    if incident.rule != said {
        return Some((
            "I20",
            format!(
                "{}: {:?} decided about {}, and it was for {said:?}",
                job.uid, incident.rule, incident.message
            ),
        ));
    }
    let then = expected.map(|(_, rule)| rule.then);
    let end = job
        .ending
        .as_ref()
        .map(|ending| (ending.phase, ending.reason));
    let as_asked = match then {
        Some(Then::Fail) => end == Some((Phase::Failed, Reason::FailedByRule)),
        Some(Then::Succeed) => end == Some((Phase::Succeeded, Reason::Completed)),
        _ => !matches!(end, Some((_, Reason::FailedByRule))),
    };
    (!as_asked).then(|| {
        (
            "I20",
            format!(
                "{} ends with {end:?} after {said:?}: {}",
                job.uid, incident.message
            ),
        )
    })
}

/// The roles of those that an incident accuses: of the rank, or of the members of the node.
fn roles_at_fault(before: &JobRecord, incident: &Incident) -> Vec<String> {
    let generation = incident.from.and_then(|from| before.generation(from));
    let Some(generation) = generation.filter(|_| incident.culprit.is_some()) else {
        return Vec::new();
    };
    // The role of each member, and of each rank, in their order.
    let mut of_members: Vec<&str> = Vec::new();
    let mut of_ranks: Vec<&str> = Vec::new();
    for share in &generation.layout.0 {
        of_members.extend((0..share.members).map(|_| share.name.as_str()));
        of_ranks.extend((0..share.members * share.procs).map(|_| share.name.as_str()));
    }
    match rank_of(incident) {
        Some(rank) => of_ranks
            .get(rank as usize)
            .map(|role| (*role).to_owned())
            .into_iter()
            .collect(),
        None => {
            let members = (0..generation.size()).zip(of_members);
            let on_it = |number: u32| {
                let holder = generation.members.holder(number);
                holder.is_some_and(|share| Some(&share.node) == incident.node.as_ref())
            };
            members
                .filter(|(number, _)| on_it(*number))
                .map(|(_, role)| role.to_owned())
                .collect()
        }
    }
}

/// The rank that an incident names.
fn rank_of(incident: &Incident) -> Option<u32> {
    let named = incident.culprit.as_deref()?.strip_prefix("rank ")?;
    named.split(' ').next()?.parse().ok()
}

fn first_that_means(
    rules: &[Rule],
    about: impl Fn(&Rule) -> bool,
    exit: Option<Exit>,
    paid: bool,
    cause: Cause,
) -> Option<(usize, &Rule)> {
    let code = exit.map(|exit| match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
    });
    let lost = matches!(
        cause,
        Cause::NodeLost | Cause::NodeRebooted | Cause::NodeUnhealthy | Cause::NodeDeleted
    );
    let means = |rule: &Rule| match (&rule.when, exit) {
        (When::Exit(codes), _) => {
            let listed = codes.to_string();
            let mut ranges = listed.split(',').map(|range| {
                let (low, high) = range.split_once('-').unwrap_or((range, range));
                (low.parse::<i32>().ok(), high.parse::<i32>().ok())
            });
            paid && ranges.any(|(low, high)| code >= low && code <= high && code.is_some())
        }
        (When::Signal(signals), Some(Exit::Signal(signal))) => {
            paid && (signals.is_empty() || signals.contains(&signal))
        }
        (When::Failure, _) => paid,
        (When::NodeLost, _) => !paid && lost,
        (When::Evicted, _) => !paid && cause == Cause::NodeLeaving,
        _ => false,
    };
    let mut rules = rules.iter().enumerate();
    rules.find(|(_, rule)| means(rule) && about(rule))
}

/// How the rank that an incident names really ended.
fn exit_of(world: &World, job: &JobRecord, incident: &Incident) -> Option<Exit> {
    let rank = rank_of(incident)?;
    let machine = world.machine_named(incident.node.as_ref()?)?;
    let run = RunId {
        job: job.uid.clone(),
        generation: incident.from?,
    };
    let group = world.machines[machine].runs.get(&run)?;
    let rank = group.ranks.iter().find(|known| known.report.rank == rank)?;
    rank.report.exit
}

/// A job wins by a member only if all ranks of that member have ended well, and a rule says so.
fn a_member_has_won(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let generation = job.current.as_ref().or(job.retiring.last())?;
    let Won {
        rule, node, number, ..
    } = generation.won.as_ref()?;
    let known = before.generation(generation.number);
    if known.is_some_and(|known| known.won.is_some()) {
        return None;
    }
    let rule = job.spec.rules.get(*rule);
    let run = generation.run(&job.uid);
    // A node that holds one member needs no number to say which.
    let winner = number.or_else(|| Some(generation.seats_on(node).first()?.number))?;
    let ended_well = |number: &u32| {
        let holder = generation.members.holder(*number);
        let group = holder
            .and_then(|share| world.machine_named(&share.node))
            .and_then(|machine| world.machines[machine].runs.get(&run));
        group.is_none_or(|group| {
            let ranks = generation.ranks(*number);
            let mut own = group
                .ranks
                .iter()
                .filter(|rank| ranks.contains(&rank.report.rank));
            own.all(|rank| rank.report.exit == Some(Exit::Code(0)))
        })
    };
    let shares = generation.layout.0.iter();
    let roles = shares.flat_map(|share| (0..share.members).map(|_| Some(share.name.as_str())));
    let says = rule.is_some_and(|rule| {
        // Those that the rule is about, in their order.
        let about: Vec<u32> = match rule.role.as_deref() {
            None => (0..generation.size()).collect(),
            Some(role) => (0..generation.size())
                .zip(roles)
                .filter(|(_, of)| *of == Some(role))
                .map(|(number, _)| number)
                .collect(),
        };
        rule.then == Then::Succeed
            && match rule.when {
                When::Success(Of::Any) => about.contains(&winner),
                When::Success(Of::First) => about.first() == Some(&winner),
                When::Success(Of::All) => {
                    rule.role.is_some() && about.contains(&winner) && about.iter().all(ended_well)
                }
                _ => false,
            }
    });
    let well = ended_well(&winner);
    (!says || !well).then(|| ("I20", format!("{} wins by {node}: {rule:?}", job.uid)))
}

/// Whether a job may be deleted by itself: it has been over for its time.
pub(super) fn has_had_its_time(judge: &Judge, job: &JobRecord) -> bool {
    let ttl = job.spec.lifetime.ttl();
    let over = job.finished.filter(|_| job.phase.is_over());
    let least = Policy::default().end_shown;
    ttl.zip(over)
        .is_some_and(|(ttl, over)| judge.now >= over + ttl.max(least))
}

/// A job that is past its deadline is ended. Returns what is wrong, if it is not.
pub(crate) fn past_its_deadline(job: &JobRecord, now: Timestamp) -> Option<String> {
    let at = job.active_deadline().filter(|at| *at <= now)?;
    let waits = job.phase.is_over() || job.ending.is_some() || job.suspended;
    let won = job
        .current
        .as_ref()
        .is_some_and(|current| current.won.is_some());
    (!waits && !won).then(|| format!("is past its deadline by {:?}", now.since(at)))
}
