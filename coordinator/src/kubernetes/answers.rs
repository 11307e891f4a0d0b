//! What is remembered of an API server's answers, and for how long. Time is an argument, and nothing
//! is asked here.

use std::collections::BTreeMap;

/// How long an answer counts, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lives {
    /// A yes is asked for again after this time.
    pub(super) yes_us: u64,
    pub(super) no_us: u64,
}

/// Answers by what was asked.
#[derive(Debug)]
pub(super) struct Answers<K, Yes, No> {
    lives: Lives,
    /// So many are remembered. A question beyond that is asked every time.
    most: usize,
    answers: BTreeMap<K, Answer<Yes, No>>,
}

#[derive(Debug)]
struct Answer<Yes, No> {
    value: Result<Yes, No>,
    asked_us: u64,
    /// After this it counts for nothing, also if nobody can be asked.
    ends_us: u64,
}

/// What is known before anybody is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known<Yes, No> {
    Yes(Yes),
    No(No),
    /// Ask. If nobody can be asked, this yes still counts.
    Once(Yes),
    Nothing,
}

impl<K: Ord, Yes: Clone, No: Clone> Answers<K, Yes, No> {
    pub(super) fn new(lives: Lives, most: usize) -> Self {
        Self {
            lives,
            most,
            answers: BTreeMap::new(),
        }
    }

    pub(super) fn look(&self, question: &K, now_us: u64) -> Known<Yes, No> {
        let Some(answer) = self.answers.get(question) else {
            return Known::Nothing;
        };
        if now_us >= answer.ends_us {
            return Known::Nothing;
        }
        // A clock that was set back makes every answer old.
        let age_us = now_us.checked_sub(answer.asked_us).unwrap_or(u64::MAX);
        match &answer.value {
            Ok(yes) if age_us < self.lives.yes_us => Known::Yes(yes.clone()),
            Ok(yes) => Known::Once(yes.clone()),
            Err(no) if age_us < self.lives.no_us => Known::No(no.clone()),
            Err(_) => Known::Nothing,
        }
    }

    /// `ends_us`: until when a yes can count at all.
    pub(super) fn keep(&mut self, question: K, value: Result<Yes, No>, now_us: u64, ends_us: u64) {
        let ends_us = match &value {
            Ok(_) => ends_us,
            Err(_) => ends_us.min(now_us.saturating_add(self.lives.no_us)),
        };
        // The answer before this one counts no more, even if there is no room for the new one.
        self.answers.remove(&question);
        if self.answers.len() >= self.most {
            self.answers.retain(|_, answer| now_us < answer.ends_us);
        }
        if self.answers.len() >= self.most {
            // A caller that makes up tokens must not push out good ones.
            self.answers.retain(|_, answer| answer.value.is_ok());
        }
        if self.answers.len() < self.most {
            let answer = Answer {
                value,
                asked_us: now_us,
                ends_us,
            };
            self.answers.insert(question, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(most: usize) -> Answers<u32, &'static str, &'static str> {
        Answers::new(
            Lives {
                yes_us: 600,
                no_us: 10,
            },
            most,
        )
    }

    #[test]
    fn a_yes_is_asked_for_again_and_counts_until_its_end_if_nobody_answers() {
        let mut answers = answers(8);
        answers.keep(1, Ok("ann"), 1_000, 5_000);
        assert_eq!(answers.look(&1, 1_599), Known::Yes("ann"));
        assert_eq!(answers.look(&1, 1_600), Known::Once("ann"));
        assert_eq!(answers.look(&1, 4_999), Known::Once("ann"));
        assert_eq!(answers.look(&1, 5_000), Known::Nothing);
        // A yes never counts longer than the token.
        answers.keep(1, Ok("ann"), 4_900, 5_000);
        assert_eq!(answers.look(&1, 5_000), Known::Nothing);
        assert_eq!(
            answers.look(&1, 4_800),
            Known::Once("ann"),
            "the clock was set back"
        );
    }

    #[test]
    fn a_no_is_short_and_takes_the_yes_before_it_away() {
        let mut answers = answers(8);
        answers.keep(1, Ok("ann"), 1_000, 5_000);
        answers.keep(1, Err("denied"), 2_000, 5_000);
        assert_eq!(answers.look(&1, 2_009), Known::No("denied"));
        assert_eq!(answers.look(&1, 2_010), Known::Nothing);
    }

    #[test]
    fn made_up_tokens_push_out_none_that_is_good() {
        let mut answers = answers(3);
        answers.keep(1, Ok("ann"), 0, 5_000);
        for other in 2..100 {
            answers.keep(other, Err("no"), 1, 5_000);
        }
        assert_eq!(answers.look(&1, 1), Known::Yes("ann"));
        assert!(answers.answers.len() <= 3);
        for other in 200..203 {
            answers.keep(other, Ok("bob"), 1, 4_000);
        }
        assert_eq!(answers.look(&1, 1), Known::Yes("ann"));
        // Full of good ones: nothing is remembered, and a refusal still counts.
        assert_eq!(answers.look(&202, 1), Known::Nothing);
        answers.keep(1, Err("no"), 2, 5_000);
        assert_ne!(answers.look(&1, 2), Known::Yes("ann"));
        // Entries that have ended make room.
        answers.keep(300, Ok("eve"), 4_500, 5_000);
        assert_eq!(answers.look(&300, 4_500), Known::Yes("eve"));
    }
}
