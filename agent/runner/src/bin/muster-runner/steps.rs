//! Finds the training step in a line of output.
//!
//! Without a pattern: the word `step` in any case, up to four separators, a whole number (`step 12/100`,
//! `global_step=12`, `"step": 12`). A pattern of the job replaces this; its first capture group is the number.
//! A guess from text: it feeds progress displays and receipts, never a decision about life and death.

use std::time::Duration;

use regex_lite::Regex;

/// Bytes of a line that are looked at: progress stands at the front, and this bounds the work per line.
const LOOK: usize = 512;

/// Lines per [`WINDOW`] and stream that a job's own pattern is tried on: 2,000 lines/s x 512 bytes is about 1 MiB/s for
/// regex-lite, a few per cent of a core even under a flood.
const PATTERN_LINES: u32 = 200;
const WINDOW: Duration = Duration::from_millis(100);

/// How lines are searched, one for all ranks.
pub(crate) enum Pattern {
    Word,
    Own(Box<Regex>),
}

impl Pattern {
    pub(crate) fn new(pattern: Option<&str>) -> Result<Self, String> {
        let Some(text) = pattern else { return Ok(Self::Word) };
        let regex = Regex::new(text).map_err(|e| e.to_string())?;
        if regex.captures_len() < 2 {
            return Err("the pattern has no capture group".into());
        }
        Ok(Self::Own(Box::new(regex)))
    }
}

/// The budget of one stream.
#[derive(Default)]
pub(crate) struct Budget {
    window: Duration,
    tried: u32,
}

impl Budget {
    /// The step in `line`, if it has one and this stream has not used up its share.
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
                regex.captures(&String::from_utf8_lossy(line))?.get(1)?.as_str().parse().ok()
            }
        }
    }
}

fn word(line: &[u8]) -> Option<u64> {
    let mut from = 0;
    while let Some(found) = line[from..].windows(4).position(|w| w.eq_ignore_ascii_case(b"step")) {
        from += found + 4;
        let rest = &line[from..];
        let gap = rest.iter().take(4).take_while(|b| b"=: \t\"'#[(".contains(b)).count();
        if let Some(step) = number(&rest[gap..]) {
            return Some(step);
        }
    }
    None
}

/// A whole number at the start; `0.5` and `1e-3` are not steps, `12.` at the end of a sentence is.
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
        let cases: [(&str, Option<u64>); 18] = [
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
        ];
        for (line, step) in cases {
            assert_eq!(Budget::default().step(&Pattern::Word, line.as_bytes(), Duration::ZERO), step, "{line}");
        }
    }

    #[test]
    fn a_step_far_into_the_line_is_not_looked_for() {
        let line = " ".repeat(LOOK) + "step 3";
        assert_eq!(Budget::default().step(&Pattern::Word, line.as_bytes(), Duration::ZERO), None);
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
        assert_eq!(Pattern::new(Some("step")).err().as_deref(), Some("the pattern has no capture group"));
        assert!(Pattern::new(Some("(")).is_err());
    }
}
