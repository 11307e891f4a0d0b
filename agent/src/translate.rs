//! Translates a runner's messages to core's types: its status and its journal of exits.
//!
//! Both sides use the time since boot, so times pass through. Times of an earlier boot have no
//! meaning any more and become 0, the boot itself. Texts are cut to what a report may carry here, where they are
//! made.

use std::net::SocketAddr;
use std::time::Duration;

use muster_core::{
    exit::{Exit, ExitClass},
    node::{GroupPhase, GroupStatus, SeenExit},
    run::{
        Endpoint, Import, Imports, LAST_OUTPUT, Leftover, NcclPart, NcclTimes, NestedWorld,
        PhasesReport, RankException, RankReport, StepPatternFault, StepsShown, WorldReport,
    },
    slow::{Arrivals, InGroup},
    stall::Still,
    time::Timestamp,
};
use muster_runner::wire;

/// How many failed ranks have their last lines reported, and how much of each. 16 x 20 x 500 bytes
/// are 160 KiB of a 4 MiB message. When a node fails, all its ranks fail alike.
const TAILS_MAX: usize = 16;
const TAIL_LINES: usize = 20;
const LINE_BYTES: usize = 500;
/// The runner cuts a reason to 700 bytes and a mark. The failed ranks whose last lines are not
/// reported have less.
const REASON_BYTES: usize = 703;
const SHORT_REASON_BYTES: usize = 300;

/// `this_boot` means that the status was made since the
/// machine started.
pub(crate) fn group_status(status: &wire::Status, this_boot: bool) -> GroupStatus {
    let at = |us: u64| Timestamp(if this_boot { us } else { 0 });
    let mut tails = 0;
    let mut ranks: Vec<RankReport> = status
        .ranks
        .iter()
        .map(|rank| rank_report(rank, &at, &mut tails))
        .collect();
    if ranks.len() > ALL_GROUPS_UP_TO {
        let found = ranks.iter_mut().filter_map(|rank| rank.arrivals.as_mut());
        found.for_each(|arrivals| arrivals.groups.truncate(1));
    }
    let launcher = status.launcher.as_ref();
    let store = status.store.as_ref();
    GroupStatus {
        phase: match status.phase {
            wire::Phase::Holding => GroupPhase::Holding,
            wire::Phase::Running => GroupPhase::Running,
            wire::Phase::Stopping => GroupPhase::Stopping,
            wire::Phase::Dead => GroupPhase::Dead,
        },
        store: store.and_then(|store| endpoint(&store.addr)),
        joined_ranks: store
            .map(|store| store.joined_ranks.clone())
            .unwrap_or_default(),
        all_joined_at: store.and_then(|store| store.all_joined_us).map(at),
        launched_at: launcher.map(|launcher| at(launcher.started_us)),
        torchrun_exit: launcher.and_then(|launcher| launcher.exit).map(exit),
        torchrun_error: None,
        dead_at: status.dead.as_ref().map(|dead| at(dead.at_us)),
        fenced: status.stop.as_ref().is_some_and(|stop| stop.fenced),
        ranks,
        world: Box::new(WorldReport {
            announced: store.and_then(|store| store.announced),
            nested: status.nested.as_ref().map(nested),
        }),
        leftovers: status.leftovers.iter().map(leftover).collect(),
        step_pattern_fault: status.step_pattern_fault.and_then(step_pattern_fault),
        phases: Box::new(phases(status, &at)),
    }
}

fn phases(status: &wire::Status, at: &impl Fn(u64) -> Timestamp) -> PhasesReport {
    let seen = status.phases.clone().unwrap_or_default();
    let communicator = { status.store.as_ref() }.and_then(|store| store.communicator_us);
    let import = |import: &wire::ImportStatus| Import {
        name: cut(&import.name),
        time: Duration::from_micros(import.us),
        why: cut(&import.why),
    };
    let part = |(name, us): &(String, u64)| NcclPart {
        name: cut(name),
        time: Duration::from_micros(*us),
    };
    PhasesReport {
        script_at: seen.script_us.map(at),
        gpu_at: seen.gpu_us.map(at),
        communicator_at: communicator.map(at),
        imports: seen.imports.map(|imports| Imports {
            time: Duration::from_micros(imports.us),
            by: imports.by.iter().map(import).collect(),
        }),
        nccl: seen.nccl.map(|nccl| NcclTimes {
            time: Duration::from_micros(nccl.us),
            parts: nccl.parts.iter().map(part).collect(),
        }),
    }
}

fn step_pattern_fault(fault: wire::StepPatternFault) -> Option<StepPatternFault> {
    match fault {
        wire::StepPatternFault::TooLarge => Some(StepPatternFault::TooLarge),
        wire::StepPatternFault::TooSlow => Some(StepPatternFault::TooSlow),
        // The runner's log says which.
        wire::StepPatternFault::Other => None,
    }
}

fn leftover(leftover: &wire::Leftover) -> Leftover {
    Leftover {
        pid: u32::try_from(leftover.pid).unwrap_or(0),
        program: cut(&leftover.program),
        killed: leftover.killed,
    }
}

fn nested(world: &wire::NestedWorld) -> NestedWorld {
    NestedWorld {
        rank: world.rank,
        pid: world.pid.unsigned_abs(),
        launcher: world.launcher.clone(),
        world_size: world.world_size,
    }
}

/// The TCPStore listens at the address that the node had when the run began.
fn endpoint(bound: &str) -> Option<Endpoint> {
    let bound: SocketAddr = bound.parse().ok()?;
    Some(Endpoint {
        host: bound.ip().to_string(),
        port: bound.port(),
    })
}

fn rank_report(
    rank: &wire::RankStatus,
    at: &impl Fn(u64) -> Timestamp,
    tails: &mut usize,
) -> RankReport {
    let failed = rank.exit.is_some_and(|exit| !exit.success());
    let shown = failed && *tails < TAILS_MAX;
    *tails += usize::from(shown);
    let lines = if shown {
        &rank.tail[rank.tail.len().saturating_sub(TAIL_LINES)..]
    } else {
        &[]
    };
    RankReport {
        rank: rank.rank,
        local_rank: rank.local_rank,
        attempt: rank.attempt,
        pid: u32::try_from(rank.pid).unwrap_or(0),
        // A rank that has said hello and has not started yet has no times.
        started_at: (rank.started_us != 0).then(|| at(rank.started_us)),
        exit: rank.exit.map(exit),
        exited_at: rank.exited_us.map(at),
        killed_after: rank.killed_after_ms.map(Duration::from_millis),
        first_error: first_error(
            rank,
            if shown {
                REASON_BYTES
            } else {
                SHORT_REASON_BYTES
            },
        ),
        exception: rank
            .exception
            .as_ref()
            .filter(|_| shown)
            .map(|exception| RankException {
                name: clean(&exception.name, REASON_BYTES),
                text: clean(&exception.text, REASON_BYTES),
                frames: exception.frames.iter().map(|frame| cut(frame)).collect(),
                left_script: exception.left_script,
            })
            .filter(|exception| !exception.name.is_empty()),
        tail: lines.iter().map(|line| cut(line)).collect(),
        first_step: rank.first_step,
        first_step_at: rank.first_step_us.map(at),
        last_step: rank.last_step,
        last_step_at: rank.last_step_us.map(at),
        steps: StepsShown {
            total: rank.total_steps,
            loss: rank.loss.clone(),
            rate: rank.rate.clone(),
            format: rank.step_format.clone(),
            stepless_lines: rank.last_step.is_none().then(|| about(rank.stepless_lines)),
        },
        still: rank.still.as_ref().map(|still| Still {
            since: at(still.since_us),
            idle_since: still.idle_since_us.map(at),
        }),
        arrivals: rank
            .arrivals
            .as_ref()
            .map(|found| Box::new(arrivals(found))),
    }
}

/// A run of more ranks says of each only when it comes to the calls of its first group, which is the one of all ranks: a
/// message has room for some 300 groups of a run.
const ALL_GROUPS_UP_TO: usize = 64;

fn arrivals(found: &wire::ArrivalsStatus) -> Arrivals {
    let groups = found.groups.iter().map(|one| InGroup {
        group: cut(&one.group),
        calls: one.calls,
        round: Duration::from_micros(one.round_us),
        marks: one.marks.clone(),
        inside: one.inside_us.map(Duration::from_micros),
        sends: one.sends,
    });
    Arrivals {
        look: found.look,
        groups: groups.collect(),
        clock: None,
    }
}

/// Why the rank failed, or what it printed last.
fn first_error(rank: &wire::RankStatus, most: usize) -> Option<String> {
    let given = |text: &Option<String>| {
        let text = text.as_deref().map(|text| clean(text, most));
        text.filter(|text| !text.is_empty())
    };
    given(&rank.first_error).or_else(|| {
        let last = given(&rank.last_output)?;
        // No older coordinator may take it for proof that a peer was lost.
        let proves = exit(rank.exit?).class(Some(&last)) == ExitClass::PeerLost;
        (!proves).then(|| format!("{LAST_OUTPUT}{last}"))
    })
}

/// A count with one digit, so that it is seldom news.
fn about(count: u64) -> u64 {
    let unit = 10u64.pow(count.checked_ilog10().unwrap_or(0));
    count / unit * unit
}

/// The exits in the journal of a runner that is gone.
pub(crate) fn seen_exits(records: &[wire::ExitRecord], this_boot: bool) -> Vec<SeenExit> {
    let at = |us: u64| Timestamp(if this_boot { us } else { 0 });
    let seen = |record: &wire::ExitRecord| SeenExit {
        rank: record.rank,
        attempt: record.attempt,
        pid: u32::try_from(record.pid).unwrap_or(0),
        started_at: at(record.started_us),
        exit: exit(record.exit),
        exited_at: at(record.exited_us),
    };
    records.iter().map(seen).collect()
}

fn exit(exit: wire::Exit) -> Exit {
    match exit {
        wire::Exit::Code { code } => Exit::Code(code),
        wire::Exit::Signal { signal, .. } => Exit::Signal(signal),
    }
}

/// A line without characters that a terminal or a message cannot carry, cut to the longest length
/// that is read.
pub(crate) fn cut(line: &str) -> String {
    clean(line, LINE_BYTES)
}

fn clean(line: &str, most: usize) -> String {
    let mut text: String = line
        .chars()
        .filter(|c| *c == '\t' || !c.is_control())
        .collect();
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(number: u32, exit: Option<wire::Exit>) -> wire::RankStatus {
        wire::RankStatus {
            rank: number,
            local_rank: number,
            attempt: 1,
            pid: 9,
            start_time: 1,
            started_us: 10,
            exit,
            killed_after_ms: None,
            exited_us: exit.map(|_| 20),
            last_step: None,
            last_step_us: None,
            first_step: None,
            first_step_us: None,
            total_steps: None,
            loss: None,
            rate: None,
            step_format: None,
            stepless_lines: 0,
            tail: vec!["x\0".repeat(600); 30],
            first_error: None,
            exception: None,
            last_output: None,
            log_bytes: 0,
            still: None,
            arrivals: None,
        }
    }

    fn status(ranks: Vec<wire::RankStatus>) -> wire::Status {
        wire::Status {
            v: 1,
            job: "a".into(),
            generation: 1,
            phase: wire::Phase::Running,
            now_us: 50,
            launcher: None,
            ranks,
            store: Some(wire::StoreStatus {
                addr: "127.0.0.1:4711".into(),
                clients: 1,
                joined_ranks: vec![0],
                missing_ranks: vec![],
                announced: Some(3),
                all_joined_us: Some(30),
                communicator_us: Some(45),
                refused: 0,
                refused_why: None,
            }),
            stop: None,
            dead: None,
            leftovers: Vec::new(),
            stuck: Vec::new(),
            fell_back: false,
            nested: Some(wire::NestedWorld {
                rank: 1,
                pid: 7,
                launcher: "torchrun".into(),
                world_size: 2,
            }),
            step_pattern_fault: Some(wire::StepPatternFault::TooSlow),
            phases: Some(wire::PhasesStatus {
                script_us: Some(12),
                gpu_us: Some(40),
                imports: Some(wire::ImportsStatus {
                    us: 9,
                    by: vec![wire::ImportStatus {
                        name: "scipy\u{7}".into(),
                        us: 8,
                        why: "asks for RANK".into(),
                    }],
                }),
                nccl: Some(wire::NcclStatus {
                    us: 4,
                    parts: vec![("topo".into(), 3)],
                }),
            }),
        }
    }

    #[test]
    fn a_reason_that_the_coordinator_knows_by_its_beginning_is_the_runners() {
        assert_eq!(wire::OUT_OF_MEMORY, muster_core::exit::OUT_OF_MEMORY);
        assert_eq!(wire::NO_RANK_BEGAN, muster_core::exit::NO_RANK_BEGAN);
    }

    #[test]
    fn tails_are_cut_to_what_a_message_carries() {
        let failed = Some(wire::Exit::Code { code: 1 });
        let ranks = (0..20)
            .map(|n| rank(n, if n == 0 { None } else { failed }))
            .collect();
        let group = group_status(&status(ranks), true);
        assert_eq!(
            group
                .ranks
                .iter()
                .filter(|rank| !rank.tail.is_empty())
                .count(),
            TAILS_MAX
        );
        assert!(group.ranks[0].tail.is_empty(), "it lives");
        assert_eq!(group.ranks[1].tail.len(), TAIL_LINES);
        assert_eq!(group.ranks[1].tail[0], "x".repeat(500) + "…");
        assert_eq!(
            group.store,
            Some(Endpoint {
                host: "127.0.0.1".into(),
                port: 4711
            })
        );
        assert_eq!(group.all_joined_at, Some(Timestamp(30)));
        assert_eq!(group.world.announced, Some(3));
        assert_eq!(group.world.nested.unwrap().rank, 1);
        let phases = *group.phases;
        assert_eq!(
            (phases.script_at, phases.gpu_at, phases.communicator_at),
            (
                Some(Timestamp(12)),
                Some(Timestamp(40)),
                Some(Timestamp(45))
            )
        );
        let imports = phases.imports.unwrap();
        assert_eq!(
            (imports.time.as_micros(), imports.by[0].name.as_str()),
            (9, "scipy")
        );
        let nccl = phases.nccl.unwrap();
        assert_eq!(
            (nccl.time.as_micros(), nccl.parts[0].name.as_str()),
            (4, "topo")
        );
    }

    #[test]
    fn the_last_output_is_marked_and_never_taken_for_proof() {
        let failed = |first: Option<&str>, last: Option<&str>| {
            let mut rank = rank(0, Some(wire::Exit::Code { code: 3 }));
            rank.first_error = first.map(str::to_owned);
            rank.last_output = last.map(str::to_owned);
            let group = group_status(&status(vec![rank]), true);
            group.ranks[0].first_error.clone()
        };
        let shown = Some("last output: tokenizer not found".to_owned());
        assert_eq!(failed(None, Some("tokenizer not found")), shown);
        let reason = "ValueError: bad".to_owned();
        assert_eq!(failed(Some(&reason), Some("x")), Some(reason));
        let victim = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer";
        assert_eq!(failed(None, Some(victim)), None);
        assert_eq!(failed(None, None), None);
    }

    #[test]
    fn what_had_to_be_killed_is_told() {
        let killed = wire::RankStatus {
            killed_after_ms: Some(1_500),
            ..rank(0, Some(wire::Exit::Code { code: 1 }))
        };
        let status = wire::Status {
            leftovers: vec![wire::Leftover {
                pid: 7,
                program: "python3 train.py".into(),
                killed: true,
            }],
            ..status(vec![killed, rank(1, None)])
        };
        let group = group_status(&status, true);
        let killed = group.ranks.iter().map(|rank| rank.killed_after);
        assert_eq!(
            killed.collect::<Vec<_>>(),
            [Some(Duration::from_millis(1_500)), None]
        );
        assert_eq!(
            group.leftovers,
            [Leftover {
                pid: 7,
                program: "python3 train.py".into(),
                killed: true
            }]
        );
    }

    #[test]
    fn times_of_another_boot_are_the_boot() {
        let group = group_status(&status(vec![rank(0, None)]), false);
        assert_eq!(
            (group.all_joined_at, group.ranks[0].started_at),
            (Some(Timestamp(0)), Some(Timestamp(0)))
        );
    }
}
