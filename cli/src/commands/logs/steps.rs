//! `muster logs --steps`: of all lines only those with a step, and the step that was found.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::Path,
    time::Duration,
};

use muster_steps::{Formats, Reader};

use crate::output::{steps::thousands, table::plain};

/// How many lines with a number are shown if none had a step.
const EXAMPLES: usize = 5;
/// How much of each.
const EXAMPLE_CHARS: usize = 160;

/// What was found in all logs so far.
pub(super) struct Steps<K> {
    formats: Formats,
    logs: BTreeMap<K, Found>,
    lines: u64,
    matched: u64,
    /// The newest lines with a number, for a job in which no step is found.
    examples: VecDeque<String>,
}

#[derive(Default)]
struct Found {
    reader: Reader,
    last: Option<u64>,
    /// Lines seen, which serve as a clock: a pattern is tried only so often in a time.
    clock: Duration,
}

/// The formats to search with: a pattern, or a file in addition to the table.
pub(super) fn formats(pattern: Option<&str>, file: Option<&Path>) -> Result<Formats, String> {
    match (pattern, file) {
        (Some(pattern), _) => Formats::own(pattern).map_err(|e| e.to_string()),
        (None, Some(file)) => {
            let refuse = |message: String| format!("{}: {message}", file.display());
            let text = fs::read_to_string(file).map_err(|e| refuse(e.to_string()))?;
            Formats::with(&text).map_err(|e| refuse(e.to_string()))
        }
        (None, None) => Ok(Formats::standard()),
    }
}

impl<K: Ord + Clone> Steps<K> {
    pub(super) fn new(formats: Formats) -> Self {
        Self {
            formats,
            logs: BTreeMap::new(),
            lines: 0,
            matched: 0,
            examples: VecDeque::new(),
        }
    }

    /// What to print of one line: for each new step the step, the format and the text.
    pub(super) fn look(&mut self, log: &K, line: &str) -> Vec<String> {
        let found = self.logs.entry(log.clone()).or_default();
        let mut shown = Vec::new();
        for state in line.split('\r').filter(|state| !state.trim().is_empty()) {
            self.lines += 1;
            found.clock += Duration::from_millis(1);
            let Some(step) = found
                .reader
                .look(&self.formats, state.as_bytes(), found.clock)
            else {
                if self.matched == 0 && state.bytes().any(|b| b.is_ascii_digit()) {
                    if self.examples.len() == EXAMPLES {
                        self.examples.pop_front();
                    }
                    self.examples.push_back(plain(
                        &state.chars().take(EXAMPLE_CHARS).collect::<String>(),
                    ));
                }
                continue;
            };
            self.matched += 1;
            if found.last.replace(step.count) == Some(step.count) {
                continue;
            }
            let total = step.total.map(|total| format!("/{total}"));
            shown.push(format!(
                "{}{} {}: {}",
                step.count,
                total.unwrap_or_default(),
                step.format,
                state.trim_end()
            ));
        }
        shown
    }

    /// What a person should know at the end. `None`: steps were found.
    pub(super) fn advice(&self) -> Option<String> {
        if self.matched > 0 || self.lines == 0 {
            return None;
        }
        let mut text = format!(
            "no step recognised in {} lines: print \"step N\", or set stepPattern to a regular expression whose first group is the step; \
             try it here with --step-pattern 'update (\\d+)'",
            thousands(self.lines)
        );
        for example in &self.examples {
            text += &format!("\n  a line with a number: {example}");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Steps<u32> {
        Steps::new(formats(None, None).unwrap())
    }

    #[test]
    fn a_pattern_that_is_accepted_is_searched_for() {
        assert_eq!(
            muster_steps::COMPILED_MAX,
            muster_core::spec::STEP_PATTERN_COMPILED_MAX
        );
    }

    #[test]
    fn lines_with_a_step_are_shown_with_it() {
        let mut steps = steps();
        assert!(steps.look(&0, "loading 3 files").is_empty());
        assert_eq!(
            steps.look(&0, "\rTraining:  12%|#   | 12/100 [00:03<00:22]\r\rTraining:  13%|#   | 13/100 [00:03<00:22]"),
            [
                "12/100 tqdm: Training:  12%|#   | 12/100 [00:03<00:22]",
                "13/100 tqdm: Training:  13%|#   | 13/100 [00:03<00:22]"
            ]
        );
        assert_eq!(steps.look(&1, "step 4"), ["4 step: step 4"]);
        assert_eq!(steps.advice(), None);
    }

    #[test]
    fn without_any_step_there_is_advice_and_an_example() {
        let mut steps = steps();
        steps.look(&0, "hello");
        steps.look(&0, "update 12 done");
        let advice = steps.advice().unwrap();
        assert!(
            advice.starts_with("no step recognised in 2 lines: "),
            "{advice}"
        );
        assert!(
            advice.ends_with("\n  a line with a number: update 12 done"),
            "{advice}"
        );
        let mut tried: Steps<u32> = Steps::new(formats(Some(r"update (\d+)"), None).unwrap());
        assert_eq!(
            tried.look(&0, "update 12 done"),
            ["12 stepPattern: update 12 done"]
        );
        assert_eq!(tried.advice(), None);
    }
}
