//! What a job's own rules ([`crate::spec::rules`]) say about a break, a success or a deadline.
//!
//! Who is to blame is decided before, and the rules look at the one who is: collateral is never asked
//! about. A failure that is charged to the job matches `exit`, `signal` and `failure`; one that is not
//! matches `nodeLost` or `evicted`, or no rule. Nothing is changed here.

use crate::{
    fleet::{
        blame::Blame,
        job::{Ending, JobRecord, Phase, Reason},
        receipt::{Cause, Charged},
    },
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

/// The first rule that matches.
fn first(rules: &[Rule], matches: impl Fn(&When) -> bool) -> Option<Ruling> {
    let mut all = rules.iter().enumerate();
    let (index, rule) = all.find(|(_, rule)| matches(&rule.when))?;
    let rule = rule.clone();
    Some(Ruling { index, rule })
}

/// The rule about a broken generation.
pub(crate) fn of_break(rules: &[Rule], blame: &Blame) -> Option<Ruling> {
    let is_jobs = blame.charged == Charged::Job;
    first(rules, |when| match when {
        When::Success(_) | When::Deadline => false,
        When::NodeLost => !is_jobs && is_loss(blame.cause),
        When::Evicted => !is_jobs && blame.cause == Cause::NodeLeaving,
        of_job => is_jobs && of_job.is_failure(blame.exit),
    })
}

/// Whether a node is at fault, by itself or in the word of an operator.
fn is_loss(cause: Cause) -> bool {
    use Cause::*;
    matches!(cause, NodeLost | NodeRebooted | NodeUnhealthy | NodeDeleted)
}

/// The rule about a node that the job leaves, because the node is taken away.
pub(crate) fn of_leaving(rules: &[Rule]) -> Option<Ruling> {
    first(rules, |when| *when == When::Evicted)
}

/// The rule about a member, by its node rank, whose ranks have ended well while others train.
pub(crate) fn of_success(rules: &[Rule], node_rank: usize) -> Option<Ruling> {
    first(rules, |when| match when {
        When::Success(Of::Any) => true,
        When::Success(Of::First) => node_rank == 0,
        _ => false,
    })
}

/// Whether a member's success can decide the job while others train.
pub(crate) fn some_win(rules: &[Rule]) -> bool {
    let wins = |rule: &Rule| {
        rule.then == Then::Succeed && matches!(rule.when, When::Success(Of::Any | Of::First))
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
    let ruling = first(&job.spec.rules, |when| *when == When::Deadline);
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
