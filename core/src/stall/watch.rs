//! The steps from a suspicion to two looks: when to ask, when to ask again, and when to leave it.
//!
//! A generation *moves*, or is *still*. If it has been still for its limit, a *round* begins: the ranks are asked, and again
//! two seconds after they have answered. If an answer does not come, or the verdict is that it moves, the next round comes
//! later and later, so that a job that works in silence is asked seldom.

use std::time::Duration;

use super::Suspicion;
use crate::{id::Generation, stacks::RankStack, time::Timestamp};

/// The time between the two looks. A step that goes on shows in it.
const BETWEEN: Duration = Duration::from_secs(2);
/// How long an answer may take. Agents have six seconds for theirs.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause after a round that has confirmed nothing, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// Times come as ages, so they differ by what messages take. A rank that has moved differs by seconds.
pub const SAME: Duration = Duration::from_secs(1);

/// What is remembered of one generation. It is lost with the coordinator, and begins anew.
#[derive(Debug, Default)]
pub struct Watch {
    generation: Option<Generation>,
    still_since: Option<Timestamp>,
    round: Option<Round>,
    not_before: Option<Timestamp>,
    pause: Duration,
    /// The number of the last question.
    asked: u64,
}

#[derive(Debug)]
struct Round {
    asked: Timestamp,
    first: Option<(Timestamp, Vec<RankStack>)>,
    /// The second question was asked.
    again: bool,
    second: Option<Vec<RankStack>>,
}

/// What follows now.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// It has moved after it had been still for so long.
    pub moved: Option<Duration>,
    pub todo: Todo,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Todo {
    Nothing,
    /// Come back at this time.
    Wait(Timestamp),
    /// Ask where all ranks are, under this number, and come back at this time.
    Ask(u64, Timestamp),
    /// Two looks are there.
    Judge(Vec<RankStack>, Vec<RankStack>),
}

impl Watch {
    pub fn step(
        &mut self,
        generation: Generation,
        suspicion: Option<Suspicion>,
        now: Timestamp,
    ) -> Step {
        if self.generation != Some(generation) {
            *self = Self {
                generation: Some(generation),
                asked: self.asked,
                ..Self::default()
            };
        }
        let before = self.still_since;
        let moved = match (before, suspicion) {
            (Some(before), None) => Some(now.since(before)),
            (Some(before), Some(s)) if s.since > before + SAME => Some(s.since.since(before)),
            _ => None,
        };
        self.still_since = suspicion.map(|suspicion| match (before, moved) {
            (Some(before), None) => before,
            _ => suspicion.since,
        });
        if moved.is_some() {
            (self.round, self.not_before, self.pause) = (None, None, Duration::ZERO);
        }
        let todo = match suspicion {
            None => Todo::Nothing,
            Some(suspicion) => self.suspected(suspicion, now),
        };
        Step { moved, todo }
    }

    fn suspected(&mut self, suspicion: Suspicion, now: Timestamp) -> Todo {
        let due = self
            .not_before
            .map_or(suspicion.due, |at| at.max(suspicion.due));
        if now < due {
            // A processor was used meanwhile.
            self.round = None;
            return Todo::Wait(due);
        }
        let Some(round) = &mut self.round else {
            self.round = Some(Round {
                asked: now,
                first: None,
                again: false,
                second: None,
            });
            return self.ask(now);
        };
        if let (Some((_, first)), Some(second)) = (&mut round.first, &mut round.second) {
            let looks = (std::mem::take(first), std::mem::take(second));
            self.round = None;
            return Todo::Judge(looks.0, looks.1);
        }
        match &round.first {
            Some((at, _)) if !round.again => {
                if now < *at + BETWEEN {
                    return Todo::Wait(*at + BETWEEN);
                }
                (round.asked, round.again) = (now, true);
                self.ask(now)
            }
            _ if now < round.asked + PATIENCE => Todo::Wait(round.asked + PATIENCE),
            _ => Todo::Wait(self.put_off(now)),
        }
    }

    fn ask(&mut self, now: Timestamp) -> Todo {
        self.asked += 1;
        Todo::Ask(self.asked, now + PATIENCE)
    }

    /// Takes an answer. False: nobody waits for it any more.
    pub fn heard(&mut self, number: u64, ranks: Vec<RankStack>, now: Timestamp) -> bool {
        let Some(round) = self.round.as_mut().filter(|_| number == self.asked) else {
            return false;
        };
        match round.again {
            false => round.first = Some((now, ranks)),
            true => round.second = Some(ranks),
        }
        true
    }

    /// The round has confirmed nothing. The next one may begin at the returned time.
    pub fn put_off(&mut self, now: Timestamp) -> Timestamp {
        let (first, most) = PAUSE;
        self.pause = (self.pause * 2).clamp(first, most);
        self.put_off_until(now + self.pause)
    }

    /// No round begins before this time, unless it moves before.
    pub fn put_off_until(&mut self, at: Timestamp) -> Timestamp {
        (self.round, self.not_before) = (None, Some(at));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    /// Still since one moment, with a limit of ten seconds.
    fn still(seconds: u64) -> Option<Suspicion> {
        Some(Suspicion {
            since: at(seconds),
            idle: at(seconds),
            due: at(seconds + 10),
        })
    }

    fn todo(watch: &mut Watch, suspicion: Option<Suspicion>, seconds: u64) -> Todo {
        watch.step(Generation(1), suspicion, at(seconds)).todo
    }

    #[test]
    fn it_is_asked_twice_and_then_judged() {
        let mut watch = Watch::default();
        assert_eq!(todo(&mut watch, still(100), 104), Todo::Wait(at(110)));
        assert_eq!(todo(&mut watch, still(100), 110), Todo::Ask(1, at(130)));
        assert_eq!(todo(&mut watch, still(100), 111), Todo::Wait(at(130)));
        assert!(!watch.heard(7, Vec::new(), at(111)), "nobody asked that");
        assert!(watch.heard(1, Vec::new(), at(111)));
        assert_eq!(todo(&mut watch, still(100), 111), Todo::Wait(at(113)));
        assert_eq!(todo(&mut watch, still(100), 113), Todo::Ask(2, at(133)));
        assert!(!watch.heard(1, Vec::new(), at(113)), "it is late");
        assert!(watch.heard(2, Vec::new(), at(114)));
        let judged = todo(&mut watch, still(100), 114);
        assert_eq!(judged, Todo::Judge(Vec::new(), Vec::new()));
    }

    #[test]
    fn a_rank_that_moves_ends_the_round() {
        let mut watch = Watch::default();
        todo(&mut watch, still(100), 110);
        let step = watch.step(Generation(1), None, at(112));
        assert_eq!(step.moved, Some(Duration::from_secs(12)));
        assert!(!watch.heard(1, Vec::new(), at(112)));
        // It moved and stood still again between two turns.
        todo(&mut watch, still(200), 205);
        let step = watch.step(Generation(1), still(230), at(236));
        assert_eq!(step.moved, Some(Duration::from_secs(30)));
        assert_eq!(step.todo, Todo::Wait(at(240)));
    }

    #[test]
    fn times_that_differ_by_a_message_are_the_same() {
        let mut watch = Watch::default();
        todo(&mut watch, still(100), 104);
        let late = Some(Suspicion {
            since: at(100) + Duration::from_millis(300),
            idle: at(100) + Duration::from_millis(300),
            due: at(110),
        });
        let step = watch.step(Generation(1), late, at(105));
        assert_eq!((step.moved, step.todo), (None, Todo::Wait(at(110))));
    }

    #[test]
    fn a_job_that_works_in_silence_is_asked_seldom() {
        let mut watch = Watch::default();
        let (mut now, mut asked) = (110, 0);
        while now < 110 + 3_600 {
            match todo(&mut watch, still(100), now) {
                Todo::Ask(number, _) => {
                    asked += 1;
                    assert!(watch.heard(number, Vec::new(), at(now)));
                }
                Todo::Judge(..) => {
                    watch.put_off(at(now));
                }
                _ => {}
            }
            now += 1;
        }
        assert!((20..40).contains(&asked), "{asked} questions in an hour");
    }

    #[test]
    fn an_answer_that_does_not_come_is_given_up() {
        let mut watch = Watch::default();
        todo(&mut watch, still(100), 110);
        assert_eq!(todo(&mut watch, still(100), 130), Todo::Wait(at(140)));
        assert_eq!(todo(&mut watch, still(100), 140), Todo::Ask(2, at(160)));
    }

    #[test]
    fn the_next_generation_begins_anew() {
        let mut watch = Watch::default();
        todo(&mut watch, still(100), 110);
        let step = watch.step(Generation(2), still(100), at(111));
        assert_eq!(step.todo, Todo::Ask(2, at(131)), "no number is given twice");
    }
}
