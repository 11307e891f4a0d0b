//! Finds the training step in a line of output.
//!
//! Without a pattern it looks for the word `step` in any case, or for `iter` or `iteration` on a
//! line without the word `epoch`, because iterations within an epoch begin anew. Up to four
//! separators may follow, then a whole number (`step 12/100`, `global_step=12`, `"step": 12`, `iter
//! 12: loss 0.5`). A number in a file name does not count, since a checkpoint is named after the
//! step at which it was saved.
//!
//! A pattern of the job replaces this rule; its first capture group is the number. The step is a
//! guess from text. It feeds progress displays and receipts, and never decides about life and
//! death.

use std::time::Duration;

use regex_lite::Regex;

/// How many bytes of a line are searched. Progress stands at the front, and the bound limits the
/// work per line.
const LOOK: usize = 512;

/// How many lines per [`WINDOW`] and stream a job's own pattern is tried on. 2,000 lines/s x 512
/// bytes is about 1 MiB/s for regex-lite, a few per cent of a core even under a flood.
const PATTERN_LINES: u32 = 200;
const WINDOW: Duration = Duration::from_millis(100);

/// The most separators between the word `step` and its number.
const GAP: usize = 4;
/// The most separators after `iteration`. Megatron prints that number eight characters wide.
const GAP_OF_ITERATION: usize = 9;

/// How lines are searched. All ranks share one pattern.
pub(crate) enum Pattern {
    Word,
    Own(Box<Regex>),
}

impl Pattern {
    pub(crate) fn new(pattern: Option<&str>) -> Result<Self, String> {
        let Some(text) = pattern else {
            return Ok(Self::Word);
        };
        let regex = Regex::new(text).map_err(|e| e.to_string())?;
        if regex.captures_len() < 2 {
            return Err("the pattern has no capture group".into());
        }
        Ok(Self::Own(Box::new(regex)))
    }
}

/// How often a stream has tried a job's own pattern in the current window.
#[derive(Default)]
pub(crate) struct Budget {
    window: Duration,
    tried: u32,
}

impl Budget {
    /// The step in `line`, if it has one and this stream has not used up its budget.
    pub(crate) fn step(&mut self, pattern: &Pattern, line: &[u8], now: Duration) -> Option<u64> {
        let line = &line[..line.len().min(LOOK)];
        match pattern {
            Pattern::Word => word(line),
            Pattern::Own(regex) => {
                if now.saturating_sub(self.window) >= WINDOW {
                    (self.window, self.tried) = (now, 0);
                }
                self.tried += 1;
                if self.tried > PATTERN_LINES {
                    return None;
                }
                regex
                    .captures(&String::from_utf8_lossy(line))?
                    .get(1)?
                    .as_str()
                    .parse()
                    .ok()
            }
        }
    }
}

fn word(line: &[u8]) -> Option<u64> {
    for (at, word) in line.windows(4).enumerate() {
        let rest = &line[at + 4..];
        let (rest, gap) = if word.eq_ignore_ascii_case(b"step") {
            (rest, GAP)
        } else if word.eq_ignore_ascii_case(b"iter") && is_count_of_its_own(line, at) {
            let ends = rest.len() >= 5 && rest[..5].eq_ignore_ascii_case(b"ation");
            (if ends { &rest[5..] } else { rest }, GAP_OF_ITERATION)
        } else {
            continue;
        };
        let gap = rest
            .iter()
            .take(gap)
            .take_while(|b| b"=: \t\"'#[(".contains(b))
            .count();
        if let Some(step) = number(&rest[gap..]).filter(|_| !is_file(line, at)) {
            return Some(step);
        }
    }
    None
}

/// Whether `iter` at this place is a whole word on a line without the word `epoch`. Iterations
/// within an epoch begin anew with each epoch.
fn is_count_of_its_own(line: &[u8], at: usize) -> bool {
    let begins = at == 0 || !line[at - 1].is_ascii_alphabetic();
    begins
        && !line
            .windows(5)
            .any(|word| word.eq_ignore_ascii_case(b"epoch"))
}

/// Whether the word at this place is part of a file name: `epoch=0-step=100.ckpt`,
/// `global_step100/mp_rank_00.pt`.
fn is_file(line: &[u8], at: usize) -> bool {
    let space = |b: &u8| b.is_ascii_whitespace() || b"'\"".contains(b);
    let start = line[..at]
        .iter()
        .rposition(space)
        .map_or(0, |before| before + 1);
    let end = line[at..]
        .iter()
        .position(space)
        .map_or(line.len(), |after| at + after);
    let named = line[start..end]
        .windows(4)
        .any(|w| w.eq_ignore_ascii_case(b"ckpt"))
        || line[start..end]
            .windows(10)
            .any(|w| w.eq_ignore_ascii_case(b"checkpoint"));
    let after = line[at..end]
        .windows(3)
        .any(|w| w[0].is_ascii_digit() && b"./\\".contains(&w[1]) && w[2].is_ascii_alphabetic());
    named || after
}

/// A whole number at the start. `0.5` and `1e-3` are not steps; `12.` at the end of a sentence is
/// one.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    match text.get(digits..digits + 2) {
        Some([b'.', d]) if d.is_ascii_digit() => return None,
        Some([b'e' | b'E', d]) if d.is_ascii_digit() || *d == b'-' => return None,
        _ => {}
    }
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_step_and_a_number() {
        let cases: [(&str, Option<u64>); 33] = [
            ("step 12/100 loss 0.5", Some(12)),
            ("global_step=12", Some(12)),
            ("Step: 7", Some(7)),
            ("STEP = 8,", Some(8)),
            ("step9", Some(9)),
            ("[rank0] epoch 3 step 40.", Some(40)),
            ("{\"step\": 77, \"loss\": 1}", Some(77)),
            ("steps done, step 5", Some(5)),
            ("step[3]", Some(3)),
            ("lr step 0.1", None),
            ("step 1e-3", None),
            ("steps 4", None),
            ("step_time=4", None),
            ("one step", None),
            ("ste", None),
            ("", None),
            ("step      9", None),
            ("step 99999999999999999999999", None),
            // nanoGPT: training, then evaluation.
            ("iter 251: loss 2.3402, time 45.21ms, mfu 1.20%", Some(251)),
            ("step 250: train loss 1.9, val loss 1.98", Some(250)),
            // Megatron.
            (
                " [2026-11-21 11:35:28] iteration       10/     100 | consumed samples: 160",
                Some(10),
            ),
            ("iteration 10/100 | consumed samples: 160", Some(10)),
            ("Iteration: 7", Some(7)),
            ("iter", None),
            ("iterations 7", None),
            ("arbiter 7", None),
            ("Epoch 3, iter 40", None),
            ("Epoch 3, step 40", Some(40)),
            // Lightning, DeepSpeed.
            (
                "Restored all states from the checkpoint at /runs/a/epoch=0-step=100.ckpt",
                None,
            ),
            (
                "Restoring states from the checkpoint path at 'out/checkpoint-step=100'",
                None,
            ),
            (
                "loading out/global_step100/mp_rank_00_model_states.pt",
                None,
            ),
            ("saved step=100.ckpt at step 100", Some(100)),
            ("epoch 1 step 12/100.", Some(12)),
        ];
        for (line, step) in cases {
            assert_eq!(
                Budget::default().step(&Pattern::Word, line.as_bytes(), Duration::ZERO),
                step,
                "{line}"
            );
        }
    }

    #[test]
    fn a_step_far_into_the_line_is_not_looked_for() {
        let line = " ".repeat(LOOK) + "step 3";
        assert_eq!(
            Budget::default().step(&Pattern::Word, line.as_bytes(), Duration::ZERO),
            None
        );
    }

    #[test]
    fn an_own_pattern_has_a_budget_per_window() {
        let pattern = Pattern::new(Some(r"^it\s+(\d+)")).unwrap();
        let mut budget = Budget::default();
        let now = Duration::from_secs(9);
        for _ in 0..PATTERN_LINES {
            assert_eq!(budget.step(&pattern, b"it  31", now), Some(31));
        }
        assert_eq!(budget.step(&pattern, b"it  31", now), None);
        assert_eq!(budget.step(&pattern, b"it  31", now + WINDOW), Some(31));
        assert_eq!(budget.step(&pattern, b"step 31", now + WINDOW), None);
    }

    #[test]
    fn patterns_that_cannot_work_are_refused() {
        assert_eq!(
            Pattern::new(Some("step")).err().as_deref(),
            Some("the pattern has no capture group")
        );
        assert!(Pattern::new(Some("(")).is_err());
    }
}
