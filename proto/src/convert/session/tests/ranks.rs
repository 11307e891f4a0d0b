//! Ranks of reports, at random.

use super::*;

pub(super) fn rank(number: u32) -> impl Strategy<Value = RankReport> {
    let step = || option::of(any::<u64>());
    let exception = (
        "[A-Za-z.]{1,20}",
        "[ -~]{0,20}",
        collection::vec("[ -~]{0,20}", 0..4),
        any::<bool>(),
    )
        .prop_map(|(name, text, frames, left_script)| RankException {
            name,
            text,
            frames,
            left_script,
        });
    let words = (
        option::of(".{1,40}".prop_filter("no NUL", |t| !t.contains('\0'))),
        option::of(exception),
        collection::vec("[ -~]{0,20}", 0..4),
    );
    (
        (
            any::<u32>(),
            any::<u32>(),
            time(),
            option::of(exit()),
            time(),
        ),
        words,
        (step(), time(), step(), time()),
        (
            step(),
            option::of("[0-9.]{1,9}"),
            option::of("[0-9.]{1,9} it/s"),
            option::of("[a-z.]{1,9}"),
            step(),
        ),
    )
        .prop_map(
            move |(
                (local_rank, pid, started_at, exit, exited_at),
                (first_error, exception, tail),
                (first_step, first_step_at, last_step, last_step_at),
                (total, loss, rate, format, stepless_lines),
            )| {
                RankReport {
                    rank: number,
                    local_rank,
                    attempt: pid % 3 + 1,
                    pid,
                    started_at,
                    exit,
                    exited_at,
                    killed_after: (pid % 4 == 0)
                        .then(|| Duration::from_millis((pid % 1_000_000).into())),
                    first_error,
                    exception,
                    tail,
                    first_step,
                    first_step_at,
                    last_step,
                    last_step_at,
                    steps: StepsShown {
                        total,
                        loss,
                        rate,
                        format,
                        stepless_lines,
                    },
                    still: started_at.map(|since| Still {
                        since,
                        idle_since: exited_at,
                    }),
                    arrivals: first_step.map(|look| {
                        Box::new(Arrivals {
                            look,
                            groups: vec![InGroup {
                                group: "0".into(),
                                calls: u64::from(pid),
                                round: Duration::from_micros(u64::from(pid)),
                                marks: vec![(1, look), (u64::MAX, 3), (7, u64::MAX)],
                                inside: last_step.map(|us| Duration::from_micros(us / 2)),
                                sends: exit.is_some(),
                            }],
                            clock: None,
                        })
                    }),
                }
            },
        )
}
