//! When a runner has not obeyed: the order's grace is long over, and it neither says that it ends its
//! group nor answers.
//!
//! A runner that is stopped, that spins, or that waits for a disk looks the same from outside: it
//! does not answer. One that answers and has not begun to kill long after the grace has a fault. Both
//! are killed by the agent, and their group is proven dead without them. A runner that kills and
//! answers obeys, however long its processes take to die.
//!
//! A stop counts from when the runner first says that it has it, since its own grace begins then: a
//! connection that broke, or a runner that was stopped for a while, hears of it late. A runner that never
//! says so has the time from when the agent wanted the stop.
//!
//! Times are offsets on a monotonic clock that stops while the machine is suspended, so a runner that
//! slept as long as its agent is not late.

use std::time::Duration;

use crate::run::Disobedience;

/// How long after the end of its grace a runner is not asked yet. It kills within milliseconds.
pub const MARGIN: Duration = Duration::from_secs(10);
/// How long a runner may take to answer. It needs milliseconds; a machine that swaps needs seconds.
pub const ANSWER: Duration = Duration::from_secs(10);

/// What a runner must have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// End the group.
    Stop,
    /// Go, because the group is dead and that is recorded.
    Release,
}

/// An order, and when its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordered {
    pub order: Order,
    pub grace: Duration,
    /// When the grace is over.
    pub due: Duration,
}

impl Ordered {
    pub fn new(order: Order, grace: Duration, now: Duration) -> Self {
        Self {
            order,
            grace,
            due: now.saturating_add(grace),
        }
    }

    /// The runner says at `now` that its group has so much time left. `None`: it goes by an order with more
    /// time, and has not heard of this one.
    pub fn taken(self, now: Duration, left: Duration) -> Option<Self> {
        (left <= self.grace).then(|| Self {
            due: self.due.max(now.saturating_add(left)),
            ..self
        })
    }

    /// The stricter one of two orders that both stand: a release follows a stop, and of two stops
    /// the one whose grace ends first counts.
    pub fn and(self, other: Self) -> Self {
        match (self.order, other.order) {
            (Order::Release, Order::Stop) => self,
            (Order::Stop, Order::Release) => other,
            _ if self.due <= other.due => self,
            _ => other,
        }
    }
}

/// What a runner said last of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    /// It has not begun to kill, or nothing was heard of it.
    #[default]
    Goes,
    Kills,
    Dead,
}

/// What was heard of a runner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub said: Said,
    /// When it was last asked how it is because of its order.
    pub asked: Option<Duration>,
    /// When it last said anything.
    pub answered: Option<Duration>,
}

/// What to do about a runner that has an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has obeyed.
    Obeyed,
    /// It has time until then.
    Wait(Duration),
    /// Ask it how it is.
    Ask,
    /// Kill it, and all below it.
    Kill(Disobedience),
}

/// Judges a runner that is still there.
pub fn judge(now: Duration, ordered: Ordered, heard: Heard) -> Verdict {
    if ordered.order == Order::Stop && heard.said == Said::Dead {
        return Verdict::Obeyed;
    }
    let late = ordered.due.saturating_add(MARGIN);
    if now < late {
        return Verdict::Wait(late);
    }
    // What it said before it was late says nothing about now.
    let Some(asked) = heard.asked.filter(|asked| *asked >= late) else {
        return Verdict::Ask;
    };
    let kill = |answered| {
        Verdict::Kill(Disobedience {
            grace: ordered.grace,
            late: now.saturating_sub(ordered.due),
            answered,
        })
    };
    let answered = heard.answered.is_some_and(|answered| answered >= asked);
    let until = asked.saturating_add(ANSWER);
    match (answered, heard.said) {
        // It may be about to end: an order to go is obeyed a moment after it was heard.
        _ if now < until => Verdict::Wait(until),
        (false, _) => kill(false),
        (true, Said::Kills) => Verdict::Ask,
        (true, Said::Goes | Said::Dead) => kill(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// A runner that was ordered to stop with a grace of 30 s at 100 s.
    fn at(second: u32, said: Said, asked: Option<u32>, answered: Option<u32>) -> Verdict {
        let ordered = Ordered::new(Order::Stop, 30 * S, 100 * S);
        let heard = Heard {
            said,
            asked: asked.map(|second| S * second),
            answered: answered.map(|second| S * second),
        };
        judge(S * second, ordered, heard)
    }

    fn kill(late: u32, answered: bool) -> Verdict {
        Verdict::Kill(Disobedience {
            grace: 30 * S,
            late: S * late,
            answered,
        })
    }

    #[test]
    fn a_runner_has_its_grace_and_a_margin_and_is_asked_before_it_is_killed() {
        use Said::{Goes, Kills};
        assert_eq!(at(100, Goes, None, None), Verdict::Wait(140 * S));
        assert_eq!(at(139, Goes, None, Some(139)), Verdict::Wait(140 * S));
        for said in [Goes, Kills] {
            assert_eq!(at(140, said, None, Some(139)), Verdict::Ask, "{said:?}");
            let asked = Some(140);
            assert_eq!(at(141, said, asked, Some(139)), Verdict::Wait(150 * S));
            assert_eq!(at(150, said, asked, Some(139)), kill(20, false), "{said:?}");
        }
        assert_eq!(at(150, Goes, Some(140), Some(141)), kill(20, true));
    }

    #[test]
    fn a_runner_that_kills_and_answers_obeys_however_long_it_takes() {
        use Said::Kills;
        assert_eq!(at(150, Kills, Some(140), Some(141)), Verdict::Ask);
        assert_eq!(at(9_000, Kills, Some(8_990), Some(8_991)), Verdict::Ask);
        assert_eq!(
            at(9_000, Kills, Some(8_990), Some(8_989)),
            kill(8_870, false)
        );
    }

    #[test]
    fn a_question_from_before_the_end_of_the_grace_does_not_count() {
        assert_eq!(at(150, Said::Goes, Some(139), Some(139)), Verdict::Ask);
    }

    #[test]
    fn a_stop_that_came_late_to_the_runner_counts_from_there() {
        let wanted = Ordered::new(Order::Stop, 30 * S, 100 * S);
        assert_eq!(wanted.taken(101 * S, 300 * S), None, "it goes by another");
        assert_eq!(wanted.taken(101 * S, 5 * S), Some(wanted));
        let ordered = wanted.taken(125 * S, 30 * S).unwrap();
        assert_eq!(ordered, Ordered::new(Order::Stop, 30 * S, 125 * S));
        let heard = Heard {
            said: Said::Goes,
            asked: None,
            answered: Some(125 * S),
        };
        assert_eq!(judge(164 * S, ordered, heard), Verdict::Wait(165 * S));
        assert_eq!(judge(165 * S, ordered, heard), Verdict::Ask);
    }

    #[test]
    fn a_dead_group_is_what_a_stop_wants_and_a_release_wants_the_runner_to_go() {
        assert_eq!(at(9_000, Said::Dead, None, None), Verdict::Obeyed);
        let stop = Ordered::new(Order::Stop, 30 * S, 100 * S);
        let release = Ordered::new(Order::Release, Duration::ZERO, 200 * S);
        assert_eq!(stop.and(release), release);
        assert_eq!(release.and(stop), release);
        let heard = |asked, answered| Heard {
            said: Said::Dead,
            asked: Some(asked),
            answered: Some(answered),
        };
        assert_eq!(judge(205 * S, release, heard(S, S)), Verdict::Wait(210 * S));
        assert_eq!(judge(210 * S, release, heard(S, S)), Verdict::Ask);
        let Verdict::Kill(why) = judge(220 * S, release, heard(210 * S, 211 * S)) else {
            panic!("it stays")
        };
        assert!(why.answered);
    }

    #[test]
    fn of_two_stops_the_one_whose_grace_ends_first_counts() {
        let long = Ordered::new(Order::Stop, 300 * S, 100 * S);
        let short = Ordered::new(Order::Stop, Duration::ZERO, 150 * S);
        assert_eq!(long.and(short), short);
        assert_eq!(short.and(long), short);
        let late = Ordered::new(Order::Stop, 300 * S, 150 * S);
        assert_eq!(long.and(late), long);
    }
}
