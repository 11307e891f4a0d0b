//! What a job's own rules ([`crate::spec::rules`]) say about a break, a success or a deadline.
//!
//! Who is to blame is decided before, and the rules look at the one who is: collateral is never asked
//! about. A failure that is charged to the job matches `exit`, `signal` and `failure`; one that is not
//! matches `nodeLost` or `evicted`, or no rule. Nothing is changed here.

use crate::{
    fleet::{
        blame::Blame,
        job::{Ending, GenerationRecord, JobRecord, Phase, Reason},
        receipt::{Cause, Charged},
    },
    id::NodeName,
    period,
    spec::rules::{Of, Rule, Then, When},
};

/// A rule that decides, with its place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruling {
    pub index: usize,
    pub rule: Rule,
}

impl Ruling {
    /// How people are told of it.
    pub(crate) fn name(&self) -> String {
        self.rule.named(self.index)
    }
}

/// A member whose ranks have ended well while others train.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended<'a> {
    pub number: u32,
    /// Its role and its number there. `None`: the job has no roles.
    pub role: Option<(&'a str, u32)>,
    /// All members of its role have ended well.
    pub with_its_role: bool,
}

/// The roles of the members on this node. Empty: the job has no roles.
pub(crate) fn roles_on<'a>(generation: &'a GenerationRecord, node: &NodeName) -> Vec<&'a str> {
    let seats = generation.seats_on(node);
    let places = seats
        .iter()
        .filter_map(|seat| generation.layout.place(seat.number));
    places.map(|place| place.share.name.as_str()).collect()
}

/// The role of the member that failed first, or the roles on the node that did.
pub(crate) fn roles_at_fault<'a>(generation: &'a GenerationRecord, blame: &Blame) -> Vec<&'a str> {
    match (blame.rank, &blame.node) {
        (Some(rank), _) => generation.role_of(rank).into_iter().collect(),
        (None, Some(node)) => roles_on(generation, node),
        (None, None) => Vec::new(),
    }
}

/// The first rule that matches.
fn first(rules: &[Rule], matches: impl Fn(&Rule) -> bool) -> Option<Ruling> {
    let mut all = rules.iter().enumerate();
    let (index, rule) = all.find(|(_, rule)| matches(rule))?;
    let rule = rule.clone();
    Some(Ruling { index, rule })
}

/// The rule about a broken generation. `roles`: those of the member that failed first, or of the
/// members of the node that did.
pub(crate) fn of_break(rules: &[Rule], blame: &Blame, roles: &[&str]) -> Option<Ruling> {
    let is_jobs = blame.charged == Charged::Job;
    let means = |when: &When| match when {
        When::Success(_) | When::Deadline => false,
        When::NodeLost => !is_jobs && is_loss(blame.cause),
        When::Evicted => !is_jobs && blame.cause == Cause::NodeLeaving,
        of_job => is_jobs && of_job.is_failure(blame.exit),
    };
    first(rules, |rule| means(&rule.when) && rule.is_about(roles))
}

/// Whether a node is at fault, by itself or in the word of an operator.
fn is_loss(cause: Cause) -> bool {
    use Cause::*;
    matches!(cause, NodeLost | NodeRebooted | NodeUnhealthy | NodeDeleted)
}

/// The rule about a node that the job leaves before anything has failed there. `when`: the node is taken
/// away (`Evicted`), or something on it is broken (`NodeLost`). `roles`: those of its members.
pub(crate) fn of_leaving(rules: &[Rule], when: When, roles: &[&str]) -> Option<Ruling> {
    first(rules, |rule| rule.when == when && rule.is_about(roles))
}

/// The rule about a member that has ended well.
pub(crate) fn of_success(rules: &[Rule], ended: Ended<'_>) -> Option<Ruling> {
    first(rules, |rule| {
        let number = match &rule.role {
            None => ended.number,
            Some(own) => match ended.role {
                Some((role, number)) if role == own => number,
                _ => return false,
            },
        };
        match rule.when {
            When::Success(Of::Any) => true,
            When::Success(Of::First) => number == 0,
            // If all members have ended well, the job is over without a rule.
            When::Success(Of::All) => rule.role.is_some() && ended.with_its_role,
            _ => false,
        }
    })
}

/// Whether a member's success can decide the job while others train.
pub(crate) fn some_win(rules: &[Rule]) -> bool {
    let wins = |rule: &Rule| {
        let of_some = match rule.when {
            When::Success(Of::All) => rule.role.is_some(),
            When::Success(Of::Any | Of::First) => true,
            _ => false,
        };
        rule.then == Then::Succeed && of_some
    };
    rules.iter().any(wins)
}

/// The end of a job that has had all its time.
pub(crate) fn deadline(job: &JobRecord) -> Ending {
    let after = job.spec.lifetime.active_deadline().map(period::format);
    let message = format!(
        "it has had the {} of its activeDeadlineSeconds",
        after.unwrap_or_default()
    );
    let ruling = first(&job.spec.rules, |rule| rule.when == When::Deadline);
    let (phase, reason) = match ruling.as_ref().map(|ruling| ruling.rule.then) {
        Some(Then::Succeed) => (Phase::Succeeded, Reason::Completed),
        _ => (Phase::Failed, Reason::DeadlineExceeded),
    };
    let rule = ruling.map(|ruling| format!("; {}", ruling.name()));
    Ending {
        phase,
        reason,
        message: message + &rule.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
