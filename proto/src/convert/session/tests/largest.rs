//! The bounds of a report, taken together, against those of a message.

use super::*;

/// The largest report that an agent makes takes less than half of a message.
#[test]
fn the_largest_report_fits_a_message() {
    let tail = vec!["x".repeat(500); 20];
    let ranks = |failed: usize| {
        (0..256)
            .map(|rank| RankReport {
                rank,
                local_rank: rank,
                attempt: u32::MAX,
                pid: u32::MAX,
                started_at: Some(NOW),
                exit: Some(Exit::Signal(11)),
                exited_at: Some(NOW),
                killed_after: None,
                first_error: Some("e".repeat(if (rank as usize) < failed { 706 } else { 303 })),
                exception: ((rank as usize) < failed).then(|| RankException {
                    name: "n".repeat(163),
                    text: "e".repeat(703),
                    frames: vec!["f".repeat(243); 5],
                    left_script: true,
                }),
                tail: if (rank as usize) < failed {
                    tail.clone()
                } else {
                    Vec::new()
                },
                first_step: Some(u64::MAX),
                first_step_at: Some(NOW),
                last_step: Some(u64::MAX),
                last_step_at: Some(NOW),
                steps: StepsShown {
                    total: Some(u64::MAX),
                    loss: Some("9".repeat(24)),
                    rate: Some("9".repeat(48)),
                    format: Some("f".repeat(64)),
                    stepless_lines: None,
                },
                still: Some(Still {
                    since: NOW,
                    idle_since: Some(NOW),
                }),
                // Who has ended comes to no calls, and who lives has no error: about as many bytes.
                arrivals: None,
            })
            .collect::<Vec<_>>()
    };
    let runs: Vec<RunReport> = (1..=4)
        .map(|generation| {
            let run = RunId {
                job: JobUid::from("0a"),
                generation: Generation(generation),
            };
            RunReport {
                ranks: ranks(16),
                joined_ranks: (0..65_536).collect(),
                ..RunReport::preparing(run, Term(1))
            }
        })
        .collect();
    assert!(runs_to_wire(&runs, None, NOW).encoded_len() < crate::limits::MESSAGE_MAX / 2);
}
