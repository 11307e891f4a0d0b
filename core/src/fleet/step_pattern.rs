//! Tells that a job's `stepPattern` is not searched for any more. The job goes on without steps.

use crate::{
    fleet::{generation, job_turn::JobTurn},
    id::NodeName,
    run::StepPatternFault,
};

impl JobTurn<'_> {
    /// Writes the event about the pattern, once in each generation.
    pub(crate) fn tell_step_pattern(&mut self) {
        let Some(generation) = self.job.current.as_ref() else {
            return;
        };
        if generation.step_pattern_told {
            return;
        }
        let number = generation.number;
        let found = generation::reports(self.nodes, self.uid, generation)
            .find_map(|(node, run)| Some((node.clone(), run?.step_pattern_fault?)));
        let Some((node, fault)) = found else { return };
        if let Some(generation) = &mut self.job.current {
            generation.step_pattern_told = true;
        }
        let event = self.warn("StepPatternGivenUp", message(&node, fault));
        event.in_generation(number).on_node(&node);
    }
}

fn message(node: &NodeName, fault: StepPatternFault) -> String {
    let why = match fault {
        StepPatternFault::TooLarge => format!(
            "{node} does not search for stepPattern: it is larger than a pattern may be, which was not checked when the job was accepted"
        ),
        StepPatternFault::TooSlow => format!(
            "{node} does not search for stepPattern any more: it took more than 20 ms on too many lines"
        ),
    };
    format!(
        "{why}. The job goes on, and its steps are not shown; submit it with smaller repetitions in the pattern, as \\d+ in place of \\d{{0,500}}"
    )
}
