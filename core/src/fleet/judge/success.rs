//! Decides whether a rule makes one member's success the job's, while others train. It never judges
//! failures.

use std::{collections::BTreeMap, ops::Range};

use super::Judgement;
use crate::{
    fleet::{
        blame::Evidence,
        generation,
        job::{GenerationRecord, Won},
        job_turn::Facts,
        rules::{self, Ended},
    },
    id::NodeName,
    run::RunReport,
    spec::rules::Then,
    time::Timestamp,
};

/// When a member ended well, its number, and its node. In this order, the first to end comes first.
type EndedWell<'a> = (Timestamp, u32, &'a NodeName);

/// Applies the rules to the members that have ended well while others train.
pub(super) fn win(facts: Facts<'_>, generation: &GenerationRecord) -> Option<Judgement> {
    if let Some(won) = &generation.won {
        let until = won.at + facts.policy.success_grace;
        let over = facts.now >= until || all_ended(facts, generation);
        return Some(match over {
            true => Judgement::WonAndOver(won.clone()),
            false => Judgement::Won(until),
        });
    }
    if !rules::some_win(&facts.job.spec.rules) {
        return None;
    }
    let ended = ended_well(facts, generation);
    if ended.is_empty() {
        return None;
    }
    let broke = first_break(facts, generation);
    // A failure before a member's success has broken the world that it succeeded in.
    let counts = |at: Timestamp| broke.is_none_or(|broke| at <= broke);
    let mut of_role: BTreeMap<usize, u32> = BTreeMap::new();
    for (at, number, node) in ended {
        let place = generation.layout.place(number);
        let with_its_role = place.is_some_and(|place| {
            let so_far = of_role.entry(place.role).or_default();
            *so_far += 1;
            *so_far == place.share.members
        });
        let ended = Ended {
            number,
            role: place.map(|place| (place.share.name.as_str(), place.index)),
            with_its_role,
        };
        let ruling = rules::of_success(&facts.job.spec.rules, ended);
        let ruling = ruling.filter(|ruling| ruling.rule.then == Then::Succeed);
        if let Some(ruling) = ruling.filter(|_| counts(at)) {
            return Some(Judgement::Wins(Won {
                rule: ruling.index,
                node: node.clone(),
                number: Some(number).filter(|_| generation.seats_on(node).len() > 1),
                at: facts.now,
            }));
        }
    }
    None
}

/// The members that have ended well, the first one first. Those that serve the others do not count.
fn ended_well<'a>(facts: Facts<'a>, generation: &'a GenerationRecord) -> Vec<EndedWell<'a>> {
    let mut ended = Vec::new();
    for (node, run) in generation::reports(facts.nodes, facts.uid, generation) {
        let Some(run) = run else { continue };
        for seat in generation.seats_on(node).iter() {
            let number = seat.number;
            if !generation.serves(number) && generation.member_finished(run, number) {
                ended.push((ended_at(run, &generation.ranks(number)), number, node));
            }
        }
    }
    ended.sort();
    ended
}

/// When the first failure that is nobody's victim broke the generation.
fn first_break(facts: Facts<'_>, generation: &GenerationRecord) -> Option<Timestamp> {
    let evidence = super::evidence(facts, generation);
    let broke = evidence.iter().filter(|e| e.breaks() && !e.is_victim());
    broke.map(Evidence::at).min()
}

/// Whether every member has ended well or is proven dead, except those that serve the others.
fn all_ended(facts: Facts<'_>, generation: &GenerationRecord) -> bool {
    let mut reports = generation::reports(facts.nodes, facts.uid, generation);
    reports.all(|(node, run)| {
        let ended = |run: &RunReport| generation.finished_on(node, run);
        generation.dead.contains(node) || generation.is_service(node) || run.is_some_and(ended)
    })
}

/// When the last of these ranks ended.
fn ended_at(run: &RunReport, ranks: &Range<u32>) -> Timestamp {
    let own = run.ranks.iter().filter(|rank| ranks.contains(&rank.rank));
    own.filter_map(|rank| rank.exited_at)
        .max()
        .unwrap_or_default()
}
