//! Acts on what was judged of a generation: the job ends, the generation breaks, or its condition is noted.

use crate::{
    fleet::{
        blame::Evidence,
        ending,
        job::{Ending, Phase, Reason, Won},
        job_turn::JobTurn,
        judge::{self, Judgement},
        live::{Condition, LeftAsItIs},
    },
    period,
};

/// Acts on what was judged.
pub(crate) fn apply(turn: &mut JobTurn<'_>, judgement: Judgement) {
    let mut doubt = judge::doubt(turn.facts());
    turn.live.condition = match judgement {
        Judgement::Nothing => return,
        Judgement::Done => return succeed(turn),
        Judgement::RanksDone { since, until } => {
            turn.wake(until);
            Condition::RanksDone { since }
        }
        Judgement::LendersUnconfirmed(since) => {
            turn.wake(turn.now + judge::LOOK_AGAIN);
            Condition::RanksDone { since }
        }
        Judgement::Wins(won) => {
            note_win(turn, won);
            Condition::Won
        }
        Judgement::Won(until) => {
            turn.wake(until);
            Condition::Won
        }
        Judgement::WonAndOver(won) => return succeed_by(turn, &won),
        Judgement::Sound => Condition::Sound,
        Judgement::Doubted(until) => {
            turn.wake(until);
            // It waits for evidence and has not asked the brake, so an earlier freeze is over.
            doubt.left = doubt.left.filter(|left| !left.is_frozen());
            Condition::Doubted(doubt)
        }
        Judgement::Frozen { silent, sentence } => {
            doubt.left = Some(LeftAsItIs::Frozen(sentence));
            doubt.shared_silence.grows(silent);
            Condition::Doubted(doubt)
        }
        Judgement::Stranded { silent, shortfall } => {
            doubt.left = Some(LeftAsItIs::Stranded(shortfall));
            doubt.shared_silence.grows(silent);
            Condition::Doubted(doubt)
        }
        Judgement::SomeAreBack(until) => {
            turn.wake(until);
            doubt.left = Some(LeftAsItIs::SomeAreBack);
            doubt.shared_silence.until = Some(until);
            Condition::Doubted(doubt)
        }
        Judgement::Broken(evidence) => {
            turn.note_stacks(&evidence);
            turn.break_generation(&evidence, doubt.since);
            let facts = turn.facts();
            let goes_on = judge::judged(facts).map(|generation| judge::evidence(facts, generation));
            let broken = goes_on.is_some_and(|left| left.iter().any(Evidence::breaks));
            match broken {
                true => Condition::Doubted(doubt),
                false => Condition::Sound,
            }
        }
    };
}

/// Records that a rule has decided, and gives the other members time to end.
fn note_win(turn: &mut JobTurn<'_>, won: Won) {
    let grace = turn.policy.success_grace;
    turn.wake(turn.now + grace);
    let message = format!(
        "{} ended with exit code 0; {}; the other members have {} to end",
        ending::winner(turn.job, &won),
        ending::rule_name(turn.job, won.rule),
        period::format(grace)
    );
    let Some(generation) = &mut turn.job.current else {
        return;
    };
    let number = generation.number;
    generation.won = Some(won);
    turn.note("SucceededByRule", message).in_generation(number);
}

/// Every rank has ended well.
fn succeed(turn: &mut JobTurn<'_>) {
    turn.compare(None);
    let ending = succeeded("every rank ended with exit code 0".into());
    ending::end(turn.nodes, turn.job, ending);
}

/// The job has succeeded, because a rule says so of one member's success.
fn succeed_by(turn: &mut JobTurn<'_>, won: &Won) {
    turn.compare(None);
    let message = format!(
        "{} ended with exit code 0; {}",
        ending::winner(turn.job, won),
        ending::rule_name(turn.job, won.rule)
    );
    ending::end_in_order(turn.nodes, turn.job, succeeded(message));
}

fn succeeded(message: String) -> Ending {
    Ending {
        phase: Phase::Succeeded,
        reason: Reason::Completed,
        message,
    }
}
