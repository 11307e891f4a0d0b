//! Whether the patterns of a job can be used. A `stepPattern` must be a regular expression, say which part is
//! the step, and be small enough for the loop that searches each line of output for it.

use regex_lite::RegexBuilder;

use super::{
    Errors, SpecDocument,
    limits::{CHECKPOINT_PATTERN_MAX, STEP_PATTERN_MAX},
};

/// Bytes of the compiled expression. A line of 512 bytes costs at most as many steps as it has bytes
/// times the states of the expression, so this bounds what a line can cost: below 0.1 s. Of 256
/// bytes of plain text, without regard to case, it takes half; the patterns of public trainers stay
/// below a tenth. Nodes go by the same bound.
pub const STEP_PATTERN_COMPILED_MAX: usize = 32 << 10;

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepPatternError {
    #[error("must have at most {STEP_PATTERN_MAX} bytes, and at least one")]
    Length,
    #[error("is no regular expression: {0}; what is possible: https://docs.rs/regex-lite/#syntax")]
    Syntax(String),
    #[error(
        "is too large to search each line for: compiled it has more than {} KiB; write smaller repetitions, as \\d+ in place of \\d{{0,500}}, and none in another",
        STEP_PATTERN_COMPILED_MAX >> 10
    )]
    TooLarge,
    #[error("must have a group for the step number, as in: step (\\d+)")]
    NoGroup,
}

/// Compiles the pattern, and forgets it.
pub(super) fn check(pattern: &str) -> Result<(), StepPatternError> {
    if pattern.is_empty() || pattern.len() > STEP_PATTERN_MAX {
        return Err(StepPatternError::Length);
    }
    let compiled = RegexBuilder::new(pattern)
        .size_limit(STEP_PATTERN_COMPILED_MAX)
        .build();
    match compiled {
        Ok(regex) if regex.captures_len() < 2 => Err(StepPatternError::NoGroup),
        Ok(_) => Ok(()),
        // The library tells the two apart by its text alone. A test would see another text.
        Err(e) if e.to_string().contains("size limit") => Err(StepPatternError::TooLarge),
        Err(e) => Err(StepPatternError::Syntax(e.to_string())),
    }
}

impl SpecDocument {
    /// Checks the patterns for steps and for checkpoints.
    pub(super) fn check_patterns(&self, errors: &mut Errors) {
        if let Some(pattern) = &self.step_pattern
            && let Err(why) = check(pattern)
        {
            errors.add("spec.stepPattern", why.to_string());
        }
        if let Some(pattern) = &self.checkpoint_pattern
            && (pattern.is_empty()
                || pattern.len() > CHECKPOINT_PATTERN_MAX
                || pattern.contains("**")
                || pattern.contains(char::is_control))
        {
            errors.add(
                "spec.checkpointPattern",
                format!(
                    "must be a path, with * for any part of a name and at most {CHECKPOINT_PATTERN_MAX} bytes; ** is not possible"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs 11.7 s for a line of 511 bytes.
    const HUGE: &str = "((?:(?:[a-y]{0,50}){0,50}){0,50}z)";

    #[test]
    fn what_costs_too_much_is_told_from_what_is_wrong() {
        assert_eq!(check(HUGE), Err(StepPatternError::TooLarge));
        assert_eq!(
            check(r"(\w{0,1000}\w{0,1000}\w{0,1000})"),
            Err(StepPatternError::TooLarge)
        );
        assert_eq!(check("step \\d+"), Err(StepPatternError::NoGroup));
        assert_eq!(check("step (?:\\d+)"), Err(StepPatternError::NoGroup));
        assert_eq!(check(""), Err(StepPatternError::Length));
        assert_eq!(check(&"(".repeat(257)), Err(StepPatternError::Length));
        assert!(matches!(check("step ("), Err(StepPatternError::Syntax(_))));
        assert!(matches!(
            check(r"(\d+)(?=x)"),
            Err(StepPatternError::Syntax(_))
        ));
    }

    #[test]
    fn what_people_write_is_far_below_the_bound() {
        for pattern in [
            r"step (\d+)",
            r"(?i)\bsteps?\b[\s:=\[#]*(\d+)",
            r"Epoch:\s*\[\d+\]\s*\[\s*(?<batch>\d+)/(?<batches>\d+)\].*?loss[:=]\s*(?<loss>[-+0-9.eE]+)",
            r"iteration\s+(?<step>\d+)/\s*(?<total>\d+) \|.*lm loss: (?<loss>\S+)",
            r"^\[\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d{3}\] .* global_step=(\d+), lr=\d\.\d+e[+-]\d{2}",
            r"\{'loss': [0-9.]+, 'grad_norm': [0-9.]+, .*'step': (\d+)\}",
        ] {
            let limit = RegexBuilder::new(pattern)
                .size_limit(STEP_PATTERN_COMPILED_MAX / 2)
                .build();
            assert!(limit.is_ok(), "{pattern}");
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
        // The longest plain text, in either case.
        let longest = format!("(?i)({})", "s".repeat(STEP_PATTERN_MAX - 6));
        assert_eq!(check(&longest), Ok(()));
    }
}
