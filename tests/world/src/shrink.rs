//! Makes a history that breaks a rule smaller: less time, no users, fewer machines, jobs, kinds of
//! faults and strikes. The same rule must still break. The result is what the violation needs.

use std::time::Duration;

use crate::{Cut, Options, Report, run};

/// The number of histories to try: a few hundred of some milliseconds each.
const TRIES: usize = 600;

/// What can be taken away from this seed's world so that the same rule still breaks. `None` if it
/// breaks no rule.
pub fn shrink(seed: u64, options: &Options) -> Option<(Cut, Report)> {
    let report = run(seed, options);
    let rule = report.violation.as_ref()?.rule;
    let mut search = Search {
        seed,
        options,
        rule,
        cut: options.cut.clone(),
        report,
        tries: TRIES,
    };
    loop {
        let before = search.cut.clone();
        search.shorter();
        search.without_users();
        search.fewer_machines();
        search.fewer_jobs();
        search.fewer_kinds();
        search.fewer_strikes();
        if search.cut == before || search.tries == 0 {
            return Some((search.cut, search.report));
        }
    }
}

struct Search<'a> {
    seed: u64,
    options: &'a Options,
    rule: &'static str,
    cut: Cut,
    report: Report,
    tries: usize,
}

impl Search<'_> {
    /// Keeps this cut if the rule still breaks.
    fn take(&mut self, cut: Cut) -> bool {
        if cut == self.cut || self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let report = run(
            self.seed,
            &Options {
                cut: cut.clone(),
                ..self.options.clone()
            },
        );
        let same = report
            .violation
            .as_ref()
            .is_some_and(|violation| violation.rule == self.rule);
        if same {
            (self.cut, self.report) = (cut, report);
        }
        same
    }

    fn shorter(&mut self) {
        let lasted = self.report.lasted.min(self.report.trouble);
        for part in [0.25, 0.5, 0.75, 1.0] {
            let trouble = lasted.mul_f64(part).max(Duration::from_secs(1)).as_millis() as u64;
            if Duration::from_millis(trouble) < self.report.trouble
                && self.take(Cut {
                    trouble_ms: Some(trouble),
                    ..self.cut.clone()
                })
            {
                return;
            }
        }
    }

    fn without_users(&mut self) {
        self.take(Cut {
            quiet_users: true,
            ..self.cut.clone()
        });
    }

    fn fewer_machines(&mut self) {
        for machines in 1..self.report.machines {
            if self.take(Cut {
                machines: Some(machines),
                ..self.cut.clone()
            }) {
                return;
            }
        }
    }

    fn fewer_jobs(&mut self) {
        for jobs in 1..self.report.jobs {
            if self.take(Cut {
                jobs: Some(jobs),
                ..self.cut.clone()
            }) {
                return;
            }
        }
    }

    fn fewer_kinds(&mut self) {
        // First it leaves out all kinds that did not strike, at once. Then it goes one by one.
        let struck: Vec<_> = self
            .report
            .kinds
            .iter()
            .copied()
            .filter(|kind| self.report.faults.contains_key(kind))
            .collect();
        self.take(Cut {
            faults: Some(struck),
            ..self.cut.clone()
        });
        for kind in self.report.kinds.clone() {
            let kept = self
                .report
                .kinds
                .iter()
                .copied()
                .filter(|other| *other != kind)
                .collect();
            self.take(Cut {
                faults: Some(kept),
                ..self.cut.clone()
            });
        }
    }

    /// Leaves out halves, quarters and so on of the strikes, down to single ones (delta debugging,
    /// Zeller 1999).
    fn fewer_strikes(&mut self) {
        let mut size = (self.report.strikes / 2).max(1);
        loop {
            let mut from = 1;
            while from <= self.report.strikes {
                let mut cut = self.cut.clone();
                cut.skipped
                    .extend(from..(from + size).min(self.report.strikes + 1));
                self.take(cut);
                from += size;
            }
            if size == 1 {
                break;
            }
            size /= 2;
        }
        let strikes = self.report.strikes;
        let tidy = self
            .cut
            .skipped
            .iter()
            .copied()
            .filter(|number| *number <= strikes)
            .collect();
        self.take(Cut {
            skipped: tidy,
            ..self.cut.clone()
        });
    }
}
