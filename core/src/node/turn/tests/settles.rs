//! In the end a node starts the run that it is asked to start, whatever happened before.

use super::*;

impl Machine {
    /// If a newer generation is asked for again and again, and nothing fails any more, then it
    /// runs, whatever happened before.
    pub(super) fn settles_on_what_it_is_told(&mut self) {
        const LATEST: u64 = 9;
        // The older generation is stopped and dies, and the newer one is held and started. Each
        // step takes a round or two.
        const ROUNDS: usize = 8;
        self.happen(Event::Welcome(LATEST, LATEST), usize::MAX);
        for _ in 0..ROUNDS {
            self.happen(
                Event::Desired(LATEST, LATEST, vec![(0, LATEST, RUNNING)]),
                usize::MAX,
            );
            let held: Vec<RunId> = self.groups.keys().cloned().collect();
            for run in held {
                let number = u8::from(run.job.as_str() == job(1));
                if self.groups[&run].phase == GroupPhase::Stopping {
                    self.happen(Event::Progress(number, run.generation.0), usize::MAX);
                }
                self.happen(Event::Speak(number, run.generation.0), usize::MAX);
                self.check();
            }
        }
        let works = self
            .groups
            .iter()
            .filter(|(run, group)| run.job.as_str() == job(0) && group.works());
        assert_eq!(
            works.map(|(run, _)| run.generation.0).collect::<Vec<_>>(),
            [LATEST],
            "what is asked for runs"
        );
    }
}

/// The kind of [`wanted`] that asks for the start of a run.
const RUNNING: u8 = 1;
