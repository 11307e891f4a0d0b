//! The last moment at which the coordinator was certainly alive. Workers of jobs with `fenceAfter`
//! depend on it.
//!
//! An answer may have travelled for any time, and may lie here for more time while this agent does
//! not run. So its arrival does not tell when it was sent. But it was sent after the question, and
//! this node knows the moment of the question. The coordinator counts from the arrival of the
//! question, which is later.

use std::collections::VecDeque;

use crate::time::Timestamp;

/// Questions without an answer. At one a second they are a minute's worth; a connection is given up
/// long before.
const ASKED_MAX: usize = 64;

/// The questions of one session that have no answer yet.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    asked: VecDeque<(u64, Timestamp)>,
}

impl Lease {
    /// A question was sent, at `at` or later. Numbers ascend.
    pub fn asked(&mut self, number: u64, at: Timestamp) {
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back((number, at));
    }

    /// A question was answered. Returns the last moment at which the coordinator was certainly
    /// alive. `None`: this question was not asked.
    pub fn answered(&mut self, number: u64) -> Option<Timestamp> {
        // Answers come in the order of the questions.
        while let Some((asked, at)) = self.asked.front().copied() {
            if asked > number {
                return None;
            }
            self.asked.pop_front();
            if asked == number {
                return Some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_old_as_its_question() {
        let mut lease = Lease::default();
        for (number, at) in [(0, 10), (1, 20), (2, 30)] {
            lease.asked(number, Timestamp(at));
        }
        assert_eq!(lease.answered(1), Some(Timestamp(20)), "one may be lost");
        assert_eq!(lease.answered(1), None, "nothing is answered twice");
        assert_eq!(lease.answered(9), None, "nobody asked that");
        assert_eq!(
            lease.answered(2),
            None,
            "what was before it is not answered any more"
        );
    }

    #[test]
    fn questions_without_answers_do_not_pile_up() {
        let mut lease = Lease::default();
        (0..1_000).for_each(|number| lease.asked(number, Timestamp(number)));
        assert_eq!(lease.asked.len(), ASKED_MAX);
        assert_eq!(lease.answered(999), Some(Timestamp(999)));
    }
}
