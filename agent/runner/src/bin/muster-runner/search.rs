//! The search for steps in all outputs of this runner, within what it may cost: this process has one
//! thread, which must hear its orders.

use std::time::Duration;

use muster_runner::wire::{Hold, StepPatternFault};
use muster_steps::{Allowance, Formats, PatternError, Reader, Step};

use crate::time;

pub(crate) struct Search {
    formats: Formats,
    allowance: Allowance,
    /// Why nothing is searched for any more.
    pub(crate) fault: Option<StepPatternFault>,
}

impl Search {
    /// By the job's own pattern, or else by the table.
    pub(crate) fn of(hold: &Hold) -> Result<Self, String> {
        let (formats, fault) = match (&hold.step_pattern, &hold.step_formats) {
            (Some(pattern), _) => match Formats::own(pattern) {
                Ok(formats) => (formats, None),
                // The job was accepted before there was a bound.
                Err(PatternError::TooLarge) => {
                    (Formats::standard(), Some(StepPatternFault::TooLarge))
                }
                Err(e) => return Err(format!("step_pattern: {e}")),
            },
            (None, Some(text)) => {
                let formats = Formats::with(text).map_err(|e| format!("step_formats: {e}"))?;
                (formats, None)
            }
            (None, None) => (Formats::standard(), None),
        };
        Ok(Self {
            formats,
            allowance: Allowance::default(),
            fault,
        })
    }

    /// The step that `line` shows.
    pub(crate) fn look(&mut self, reader: &mut Reader, line: &[u8], now: Duration) -> Option<Step> {
        if self.fault.is_some() {
            return None;
        }
        if !self.formats.is_own() {
            return reader.look(&self.formats, line, now);
        }
        if !self.allowance.allows(now) {
            return None;
        }
        let begun = time::of_thread();
        let step = reader.look(&self.formats, line, now);
        if self
            .allowance
            .spend(time::of_thread().saturating_sub(begun))
        {
            say!(
                "{} stepPattern is too slow, so no steps are searched for any more",
                time::stamp()
            );
            self.fault = Some(StepPatternFault::TooSlow);
        }
        step
    }
}
