//! The phases of a receipt: the time of one incident, divided among what it was spent on.
//!
//! They are disjoint, and together they are the whole: from the event to the last moment that was seen.
//! Each phase ends with a moment and begins where the one before ended, so the time before a moment that
//! nobody saw is part of the next phase. A moment that lies before an earlier one (nodes' clocks and
//! messages differ by milliseconds) ends a phase of no length. The start of the ranks is divided in two
//! ways. One divides it by the two moments that every start has: all have joined, the first step. The
//! other one is finer and takes what was seen besides. In that one, imports and NCCL's initialization are
//! times without a place of their own: they are taken out of the phases in which they can have been.

use std::time::Duration;

use crate::{fleet::receipt::Incident, time::Timestamp};

/// The time of each phase. `None`: its end was not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// From the event until the coordinator knew.
    pub detect: Option<Duration>,
    /// Until the next generation was stored.
    pub decide: Option<Duration>,
    /// Until the old generation was proven dead.
    pub stop: Option<Duration>,
    /// Until the last member had started its ranks.
    pub launch: Option<Duration>,
    /// Until all ranks had joined.
    pub join: Option<Duration>,
    /// Until the first step.
    pub first_step: Option<Duration>,
    /// What `join` and `first_step` are together, in a finer way.
    pub start: StartPhases,
}

/// The start of the ranks, divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartPhases {
    /// Until the last rank's script began.
    pub fork: Option<Duration>,
    /// What the ranks imported themselves.
    pub imports: Option<Duration>,
    /// Until the last rank had a GPU open.
    pub gpu: Option<Duration>,
    /// Until all ranks had joined.
    pub join: Option<Duration>,
    /// Until the first communicator, and so the first collective: the model and the checkpoint.
    pub model: Option<Duration>,
    /// NCCL's initialization.
    pub nccl: Option<Duration>,
    /// Until the first step.
    pub first_step: Option<Duration>,
}

impl Phases {
    /// All of them together.
    pub fn sum(&self) -> Duration {
        let Self {
            detect,
            decide,
            stop,
            launch,
            join,
            first_step,
            start: _,
        } = *self;
        let all = [detect, decide, stop, launch, join, first_step];
        all.into_iter().flatten().sum()
    }
}

impl StartPhases {
    /// All of them together.
    pub fn sum(&self) -> Duration {
        let Self {
            fork,
            imports,
            gpu,
            join,
            model,
            nccl,
            first_step,
        } = *self;
        let all = [fork, imports, gpu, join, model, nccl, first_step];
        all.into_iter().flatten().sum()
    }
}

/// What ends a part of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Script,
    Gpu,
    Joined,
    Communicator,
    FirstStep,
}

struct Clock(Timestamp);

impl Clock {
    /// The time until this moment, which is the next to measure from.
    fn until(&mut self, at: Option<Timestamp>) -> Option<Duration> {
        let at = at?.max(self.0);
        let from = std::mem::replace(&mut self.0, at);
        Some(at.since(from))
    }
}

impl Incident {
    /// The time from the event to the first step of the new generation. If ranks were started again
    /// alone: to the start of the last of them, because the others have made steps all the time.
    pub fn total(&self) -> Option<Duration> {
        match self.restarted_ranks.is_empty() {
            true => self.first_step_at.or(self.joined_at),
            false => self.launched_at,
        }?;
        Some(self.phases().sum())
    }

    pub fn phases(&self) -> Phases {
        let mut clock = Clock(self.event_at);
        let [detect, decide, stop, launch] = [
            Some(self.detected_at),
            self.decided_at,
            self.stopped_at,
            self.launched_at,
        ]
        .map(|at| clock.until(at));
        let start = self.start(clock.0);
        Phases {
            detect,
            decide,
            stop,
            launch,
            join: clock.until(self.joined_at),
            first_step: clock.until(self.first_step_at),
            start,
        }
    }

    fn start(&self, launched: Timestamp) -> StartPhases {
        let Some(end) = self.first_step_at.or(self.joined_at) else {
            return StartPhases::default();
        };
        let end = end.max(launched);
        let seen = &self.seen;
        // A communicator that is made while the ranks join tells nothing of the model.
        let communicator = seen
            .communicator_at
            .filter(|at| self.joined_at.is_some_and(|joined| *at > joined));
        let mut marks = [
            (seen.script_at, Mark::Script),
            (seen.gpu_at, Mark::Gpu),
            (self.joined_at, Mark::Joined),
            (communicator, Mark::Communicator),
            (self.first_step_at, Mark::FirstStep),
        ]
        .map(|(at, mark)| (at.map(|at| at.max(launched)), mark));
        marks.sort();
        let mut clock = Clock(launched);
        let mut parts: Vec<(Mark, Duration)> = Vec::new();
        for (at, mark) in marks {
            let is_end = matches!(mark, Mark::Joined | Mark::FirstStep);
            // What came after the end of the start is no part of it.
            if let Some(took) = clock.until(at.filter(|at| *at < end || is_end)) {
                parts.push((mark, took));
            }
        }
        let script = parts.iter().position(|(mark, _)| *mark == Mark::Script);
        let imports = seen.imports.as_ref().zip(script);
        let imports = imports.map(|(imports, script)| take(&mut parts[script + 1..], imports.time));
        let begun = {
            parts
                .iter()
                .rposition(|(mark, _)| *mark == Mark::Communicator)
        }
        .or_else(|| parts.iter().rposition(|(mark, _)| *mark == Mark::Joined));
        let nccl = seen.nccl.as_ref().zip(begun);
        let nccl = nccl.map(|(nccl, begun)| take(&mut parts[begun + 1..], nccl.time));
        let of = |mark: Mark| {
            let part = parts.iter().find(|(known, _)| *known == mark);
            part.map(|(_, took)| *took)
        };
        StartPhases {
            fork: of(Mark::Script),
            imports,
            gpu: of(Mark::Gpu),
            join: of(Mark::Joined),
            model: of(Mark::Communicator),
            nccl,
            first_step: of(Mark::FirstStep),
        }
    }
}

/// Takes a time out of these parts, from the first on, and returns what there was to take.
fn take(parts: &mut [(Mark, Duration)], time: Duration) -> Duration {
    let mut left = time;
    for (_, part) in parts {
        let taken = left.min(*part);
        (*part, left) = (*part - taken, left - taken);
    }
    time - left
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::run::{Imports, NcclTimes, PhasesReport};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Option<Timestamp> {
        Some(Timestamp(ms * 1_000))
    }

    /// A start on a GPU: launched at 100 ms, first step at 3,000.
    fn start(seen: PhasesReport) -> Incident {
        Incident {
            detected_at: Timestamp(10_000),
            decided_at: at(20),
            stopped_at: at(60),
            launched_at: at(100),
            joined_at: at(1_000),
            first_step_at: at(3_000),
            seen,
            ..Incident::at(Timestamp(0))
        }
    }

    #[test]
    fn a_start_on_a_gpu_is_divided_into_what_it_was_spent_on() {
        let incident = start(PhasesReport {
            script_at: at(110),
            gpu_at: at(1_300),
            communicator_at: at(2_000),
            imports: Some(Imports {
                time: ms(600),
                by: Vec::new(),
            }),
            nccl: Some(NcclTimes {
                time: ms(250),
                parts: Vec::new(),
            }),
        });
        let phases = incident.phases();
        assert_eq!(
            (phases.join, phases.first_step),
            (Some(ms(900)), Some(ms(2_000)))
        );
        let must = StartPhases {
            fork: Some(ms(10)),
            imports: Some(ms(600)),
            gpu: Some(ms(300)),
            join: Some(ms(290)),
            model: Some(ms(700)),
            nccl: Some(ms(250)),
            first_step: Some(ms(750)),
        };
        assert_eq!(phases.start, must);
    }

    #[test]
    fn what_was_not_seen_belongs_to_what_follows() {
        let phases = start(PhasesReport::default()).phases().start;
        let must = StartPhases {
            join: Some(ms(900)),
            first_step: Some(ms(2_000)),
            ..StartPhases::default()
        };
        assert_eq!(phases, must);
        // Nobody saw the ranks join: a job without a process group.
        let incident = Incident {
            joined_at: None,
            ..start(PhasesReport::default())
        };
        assert_eq!(incident.phases().first_step, Some(ms(2_900)));
        // A script that prints no step. The GPU was opened after all that is known.
        let incident = Incident {
            first_step_at: None,
            ..start(PhasesReport {
                gpu_at: at(1_300),
                ..PhasesReport::default()
            })
        };
        let must = StartPhases {
            join: Some(ms(900)),
            ..StartPhases::default()
        };
        assert_eq!(incident.phases().start, must);
    }

    #[test]
    fn a_communicator_that_is_made_at_the_joining_says_nothing_of_the_model() {
        let phases = start(PhasesReport {
            communicator_at: at(900),
            nccl: Some(NcclTimes {
                time: ms(9_999),
                parts: Vec::new(),
            }),
            ..PhasesReport::default()
        });
        let phases = phases.phases().start;
        assert_eq!((phases.join, phases.model), (Some(ms(900)), None));
        // NCCL says more than there was.
        assert_eq!(
            (phases.nccl, phases.first_step),
            (Some(ms(2_000)), Some(ms(0)))
        );
    }

    fn moment() -> impl Strategy<Value = Option<Timestamp>> {
        proptest::option::of((0..5_000_u64).prop_map(Timestamp))
    }

    fn time() -> impl Strategy<Value = Option<Duration>> {
        proptest::option::of((0..5_000_u64).prop_map(Duration::from_micros))
    }

    proptest! {
        /// In whatever order the moments lie, and whichever were not seen.
        #[test]
        fn phases_are_disjoint_and_their_sum_is_the_whole(
            (event, detected) in (0..5_000_u64, 0..5_000_u64),
            main in proptest::array::uniform5(moment()),
            marks in proptest::array::uniform3(moment()),
            (imports, nccl) in (time(), time()),
        ) {
            let [decided_at, stopped_at, launched_at, joined_at, first_step_at] = main;
            let [script_at, gpu_at, communicator_at] = marks;
            let event_at = Timestamp(event);
            let incident = Incident {
                detected_at: Timestamp(detected),
                decided_at, stopped_at, launched_at, joined_at, first_step_at,
                seen: PhasesReport {
                    script_at, gpu_at, communicator_at,
                    imports: imports.map(|time| Imports { time, by: Vec::new() }),
                    nccl: nccl.map(|time| NcclTimes { time, parts: Vec::new() }),
                },
                ..Incident::at(event_at)
            };
            let phases = incident.phases();
            let before: Duration = [phases.detect, phases.decide, phases.stop, phases.launch].into_iter().flatten().sum();
            let after: Duration = [phases.join, phases.first_step].into_iter().flatten().sum();
            // An oracle of its own: the last moment that was seen.
            let moments = [Some(incident.detected_at), decided_at, stopped_at, launched_at, joined_at, first_step_at];
            let last = moments.into_iter().flatten().max().unwrap_or_default();
            prop_assert_eq!(before + after, last.since(event_at));
            if first_step_at.or(joined_at).is_some() {
                prop_assert_eq!(incident.total(), Some(before + after));
            }
            prop_assert_eq!(phases.start.sum(), after);
        }
    }
}
