//! The rows of a receipt that say what its time was spent on.
//!
//! What was seen of a start has rows of its own. What was not is named in one row, and its time is in the
//! row that follows: a phase that nobody saw is never shown as zero.

use muster_proto::v1::{Import, Incident, Job, NcclPart, StartPhases};

use super::{NOT_MEASURED, millis, plain};

pub(super) fn rows(incident: &Incident, job: &Job) -> Vec<(&'static str, String)> {
    let row = |name, us: Option<u64>| (name, us.map_or_else(|| NOT_MEASURED.into(), millis));
    let [detect, decide, launch, total] = [
        row("detect", incident.detect_us),
        row("decide", incident.decide_us),
        row("launch", incident.launch_us),
        row("total", incident.total_us),
    ];
    if !incident.restarted_ranks.is_empty() {
        // The others were not stopped, and have no new first step.
        return vec![detect, decide, launch, total];
    }
    let mut rows = vec![detect, decide, row("stop", incident.stop_us), launch];
    let start = incident.start.clone().unwrap_or_default();
    let started = incident.join_us.or(incident.first_step_us).is_some();
    if incident.start.is_some() && started {
        rows.extend(of_start(&start, job));
    } else {
        rows.push(row("join", incident.join_us));
        rows.push(row("first step", incident.first_step_us));
    }
    rows.push(total);
    rows
}

fn of_start(start: &StartPhases, job: &Job) -> Vec<(&'static str, String)> {
    let with_gpus = job.spec.as_ref().and_then(|spec| spec.gpus_per_node) > Some(0);
    let (mut rows, mut unseen) = (Vec::new(), Vec::new());
    for (name, us, more, is_main, needs_gpu) in [
        ("fork", start.fork_us, String::new(), false, false),
        (
            "imports",
            start.imports_us,
            imports(&start.imports),
            false,
            false,
        ),
        ("GPU", start.gpu_us, String::new(), false, true),
        ("join", start.join_us, String::new(), true, false),
        ("model", start.model_us, String::new(), false, true),
        ("NCCL", start.nccl_us, parts(&start.nccl), false, true),
        (
            "first step",
            start.first_step_us,
            String::new(),
            true,
            false,
        ),
    ] {
        match us {
            Some(us) => rows.push((name, format!("{}{more}", millis(us)))),
            None if is_main => rows.push((name, NOT_MEASURED.into())),
            None if needs_gpu && !with_gpus => {}
            None => unseen.push(name),
        }
    }
    if !unseen.is_empty() {
        rows.push(("not seen", unseen.join(", ")));
    }
    rows
}

/// The packages that cost most, behind the time of all imports.
pub(in crate::output) fn imports(imports: &[Import]) -> String {
    let one = |import: &Import| {
        let why = match import.why.is_empty() {
            true => String::new(),
            false => format!(" ({})", import.why),
        };
        format!("{} {}{why}", import.name, millis(import.us))
    };
    behind(imports.iter().map(one).collect())
}

fn parts(parts: &[NcclPart]) -> String {
    let one = |part: &NcclPart| format!("{} {}", part.name, millis(part.us));
    behind(parts.iter().map(one).collect())
}

fn behind(words: Vec<String>) -> String {
    match words.is_empty() {
        true => String::new(),
        false => plain(&format!("  {}", words.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::JobSpec;

    use super::*;

    fn job(gpus: i64) -> Job {
        Job {
            spec: Some(JobSpec {
                gpus_per_node: Some(gpus),
                ..JobSpec::default()
            }),
            ..Job::default()
        }
    }

    fn incident(start: Option<StartPhases>) -> Incident {
        Incident {
            detect_us: Some(1_000),
            decide_us: Some(0),
            stop_us: Some(20_000),
            launch_us: Some(9_000),
            join_us: Some(500_000),
            first_step_us: Some(1_500_000),
            total_us: Some(2_030_000),
            start,
            ..Incident::default()
        }
    }

    fn shown(incident: &Incident, job: &Job) -> Vec<String> {
        let rows = rows(incident, job).into_iter();
        rows.map(|(name, text)| format!("{name}: {text}")).collect()
    }

    #[test]
    fn what_was_seen_has_rows_and_what_was_not_is_named_once() {
        let start = StartPhases {
            fork_us: Some(4_000),
            imports_us: Some(300_000),
            join_us: Some(196_000),
            first_step_us: Some(1_500_000),
            imports: vec![
                Import {
                    name: "scipy".into(),
                    us: 280_000,
                    why: "asks for RANK".into(),
                },
                Import {
                    name: "yaml".into(),
                    us: 9_000,
                    why: String::new(),
                },
            ],
            ..StartPhases::default()
        };
        let on_cpu = shown(&incident(Some(start.clone())), &job(0));
        let must = [
            "detect: 1.000 ms",
            "decide: 0.000 ms",
            "stop: 20.000 ms",
            "launch: 9.000 ms",
            "fork: 4.000 ms",
            "imports: 300.000 ms  scipy 280.000 ms (asks for RANK), yaml 9.000 ms",
            "join: 196.000 ms",
            "first step: 1500.000 ms",
            "total: 2030.000 ms",
        ];
        assert_eq!(on_cpu, must);
        let on_gpu = shown(&incident(Some(start)), &job(8));
        assert!(
            on_gpu.contains(&"not seen: GPU, model, NCCL".into()),
            "{on_gpu:?}"
        );
        let all = StartPhases {
            gpu_us: Some(1),
            model_us: Some(2),
            nccl_us: Some(250_000),
            nccl: vec![NcclPart {
                name: "topo".into(),
                us: 110_000,
            }],
            fork_us: Some(1),
            imports_us: Some(1),
            ..StartPhases::default()
        };
        let all = shown(&incident(Some(all)), &job(8));
        assert!(
            all.contains(&"NCCL: 250.000 ms  topo 110.000 ms".into()),
            "{all:?}"
        );
        assert!(!all.iter().any(|row| row.starts_with("not seen")));
    }

    #[test]
    fn an_older_coordinators_receipt_and_one_that_has_not_started_are_as_before() {
        let older = shown(&incident(None), &job(8));
        assert_eq!(
            &older[4..6],
            ["join: 500.000 ms", "first step: 1500.000 ms"]
        );
        let open = Incident {
            join_us: None,
            first_step_us: None,
            ..incident(Some(StartPhases::default()))
        };
        let open = shown(&open, &job(8));
        assert_eq!(
            &open[4..6],
            ["join: not measured", "first step: not measured"]
        );
    }
}
