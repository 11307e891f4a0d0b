//! Short words for the log.

use muster_core::run::{Desired, RunId, Target};

pub(crate) fn run(run: &RunId) -> String {
    format!("{}-g{}", run.job, run.generation)
}

pub(crate) fn desired(desired: &Desired) -> String {
    let one = |wanted: &muster_core::run::DesiredRun| {
        let target = match &wanted.target {
            Target::Ready(_) => "ready",
            Target::Running(..) => "running",
            Target::Stopped { .. } => "stopped",
            Target::Gone { .. } => "gone",
        };
        format!("{} {target}", run(&wanted.run))
    };
    let runs: Vec<String> = desired.runs.iter().map(one).collect();
    let warm: Vec<&str> = desired
        .prewarm
        .iter()
        .map(|job| job.run.job.as_str())
        .collect();
    let warm = if warm.is_empty() {
        String::new()
    } else {
        format!(", a launcher ready for {}", warm.join(", "))
    };
    format!(
        "[{}]{warm} (term {}, epoch {})",
        runs.join(", "),
        desired.term,
        desired.epoch
    )
}
