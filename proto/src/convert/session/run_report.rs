//! What an agent says about its runs.

use std::{collections::BTreeSet, time::Duration};

use muster_core::{
    exit::Exit,
    id::{Generation, JobUid, Term},
    nccl::stack::Stack,
    run::{
        CheckpointReport, Disobedience, DueTo, Endpoint, Key, LaneReport, Leftover, NestedWorld,
        RankException, RankReport, RunId, RunPhase, RunReport, StepPatternFault, StepsShown,
        WorldReport,
    },
    slow::Clock,
    stall::Still,
    time::Timestamp,
};

use super::arrivals::{arrivals_from_wire, arrivals_to_wire};
use super::bounds::{
    NAME_MAX, SENTENCE_MAX, age, at, count, malformed, numbered, optional_text, required_text,
    text, texts,
};
use super::desired::{millis, period_from_wire};
use super::phases;
use crate::{
    convert::Malformed,
    v1::{self, exit::How},
};

/// Runs that one node reports: one for each slot, and some that have ended and wait until the
/// coordinator has recorded that.
pub const RUNS_MAX: usize = 64;
/// Ranks of one run: the bound of `procPerNode`.
const RANKS_MAX: usize = 256;
/// Ranks of one world that the TCPStore names as joined. 131,072 take 400 KiB on the wire, a tenth
/// of a message.
const JOINED_MAX: usize = 128 << 10;
/// Processes that one run has left behind, as an agent names them.
const LEFTOVERS_MAX: usize = 16;
/// 128 bits.
const KEY_DIGITS: usize = 32;
/// Frames of an exception. The runner keeps 5.
const FRAMES_MAX: usize = 16;
/// Lines of a failed rank's output. The runner keeps the last 20.
const TAIL_MAX: usize = 64;

/// Writes run reports; `now` is on the clock of the reports.
/// `clock`: how far this node's clock is from the coordinator's.
pub fn runs_to_wire(runs: &[RunReport], clock: Option<Clock>, now: Timestamp) -> v1::RunReports {
    v1::RunReports {
        runs: { runs.iter() }
            .map(|run| with_clock(run_to_wire(run, now), clock))
            .collect(),
    }
}

/// Says how far the clock is by which ranks came to their collectives, if that is known.
fn with_clock(mut run: v1::RunReport, clock: Option<Clock>) -> v1::RunReport {
    let Some(clock) = clock else { return run };
    let found = run
        .ranks
        .iter_mut()
        .filter_map(|rank| rank.arrivals.as_mut());
    for arrivals in found {
        arrivals.clock_ahead_us = Some(clock.ahead_us);
        arrivals.clock_error_us = clock.error_us;
    }
    run
}

fn run_to_wire(report: &RunReport, now: Timestamp) -> v1::RunReport {
    let (phase, refused) = match &report.phase {
        RunPhase::Preparing => (v1::RunPhase::Preparing, ""),
        RunPhase::Ready => (v1::RunPhase::Ready, ""),
        RunPhase::Running => (v1::RunPhase::Running, ""),
        RunPhase::Stopping => (v1::RunPhase::Stopping, ""),
        RunPhase::Dead => (v1::RunPhase::Dead, ""),
        RunPhase::Refused(why) => (v1::RunPhase::Refused, why.as_str()),
    };
    v1::RunReport {
        job_uid: report.run.job.to_string(),
        generation: report.run.generation.0,
        term: report.term.0,
        phase: phase.into(),
        refused: refused.to_owned(),
        refused_due_to: match report.refused_due_to {
            DueTo::Unknown => v1::RefusalDueTo::Unspecified,
            DueTo::Job => v1::RefusalDueTo::Job,
            DueTo::Node => v1::RefusalDueTo::Node,
            DueTo::Stranger => v1::RefusalDueTo::Stranger,
            DueTo::Account => v1::RefusalDueTo::Account,
        }
        .into(),
        store: report.store.as_ref().map(endpoint_to_wire),
        port: report.port.unwrap_or(0).into(),
        ports: report.ports.iter().map(|port| (*port).into()).collect(),
        key: report
            .key
            .as_ref()
            .map_or(String::new(), |key| key.0.clone()),
        joined_ranks: report.joined_ranks.clone(),
        all_joined_age_us: age(report.all_joined_at, now),
        launched_age_us: age(report.launched_at, now),
        launcher_exit: report.torchrun_exit.map(exit_to_wire),
        dead_age_us: age(report.dead_at, now),
        ranks: report
            .ranks
            .iter()
            .map(|rank| rank_to_wire(rank, now))
            .collect(),
        leftovers: report.leftovers.iter().map(leftover_to_wire).collect(),
        launcher_error: report.torchrun_error.clone().unwrap_or_default(),
        fenced: report.fenced,
        announced: report.world.announced,
        nested: report.world.nested.as_ref().map(|nested| v1::NestedWorld {
            rank: nested.rank,
            pid: nested.pid,
            launcher: nested.launcher.clone(),
            world_size: nested.world_size,
        }),
        step_pattern_fault: fault_to_wire(report.step_pattern_fault).into(),
        disobedience: report.disobedience.as_ref().map(|why| v1::Disobedience {
            grace_ms: millis(why.grace),
            late_ms: millis(why.late),
            answered: why.answered,
        }),
        phases: phases::to_wire(&report.phases, now),
        checkpoint: report.checkpoint.map(|checkpoint| v1::CheckpointReport {
            saved_age_us: age(checkpoint.saved_at, now),
        }),
        lane: Some(v1::LaneReport {
            name: report.lane.name.clone(),
            reason: report.lane.reason.clone(),
            launcher_bytes: report.lane.launcher_bytes,
        }),
        stack: Some(v1::Stack {
            torch: report.stack.torch.clone(),
            cuda: report.stack.cuda.clone(),
            nccl: report.stack.nccl.clone(),
            nccl2: report.stack.nccl2.clone(),
        }),
    }
}

fn rank_to_wire(rank: &RankReport, now: Timestamp) -> v1::RankReport {
    v1::RankReport {
        rank: rank.rank,
        local_rank: rank.local_rank,
        pid: rank.pid,
        started_age_us: age(rank.started_at, now),
        exit: rank.exit.map(exit_to_wire),
        exited_age_us: age(rank.exited_at, now),
        first_error: rank.first_error.clone().unwrap_or_default(),
        tail: rank.tail.clone(),
        first_step: rank.first_step,
        first_step_age_us: age(rank.first_step_at, now),
        last_step: rank.last_step,
        last_step_age_us: age(rank.last_step_at, now),
        total_steps: rank.steps.total,
        loss: rank.steps.loss.clone().unwrap_or_default(),
        rate: rank.steps.rate.clone().unwrap_or_default(),
        step_format: rank.steps.format.clone().unwrap_or_default(),
        stepless_lines: rank.steps.stepless_lines,
        attempt: rank.attempt,
        exception: rank.exception.as_ref().map(exception_to_wire),
        killed_after_ms: rank.killed_after.map(millis),
        still: rank.still.map(|still| v1::StillReport {
            age_us: age(Some(still.since), now).unwrap_or(0),
            idle_age_us: age(still.idle_since, now),
        }),
        arrivals: rank.arrivals.as_deref().map(arrivals_to_wire),
    }
}

fn fault_to_wire(fault: Option<StepPatternFault>) -> v1::StepPatternFault {
    match fault {
        None => v1::StepPatternFault::Unspecified,
        Some(StepPatternFault::TooLarge) => v1::StepPatternFault::TooLarge,
        Some(StepPatternFault::TooSlow) => v1::StepPatternFault::TooSlow,
    }
}

/// A fault that only a newer agent knows is none for this coordinator.
fn fault_from_wire(wire: i32) -> Option<StepPatternFault> {
    match v1::StepPatternFault::try_from(wire) {
        Ok(v1::StepPatternFault::TooLarge) => Some(StepPatternFault::TooLarge),
        Ok(v1::StepPatternFault::TooSlow) => Some(StepPatternFault::TooSlow),
        Ok(v1::StepPatternFault::Unspecified) | Err(_) => None,
    }
}

fn leftover_to_wire(leftover: &Leftover) -> v1::Leftover {
    v1::Leftover {
        pid: leftover.pid,
        program: leftover.program.clone(),
        killed: leftover.killed,
    }
}

fn exception_to_wire(exception: &RankException) -> v1::RankException {
    v1::RankException {
        name: exception.name.clone(),
        text: exception.text.clone(),
        frames: exception.frames.clone(),
        left_script: exception.left_script,
    }
}

fn exception_from_wire(field: &str, wire: v1::RankException) -> Result<RankException, Malformed> {
    let at = |name: &str| format!("{field}.{name}");
    Ok(RankException {
        name: required_text(&at("name"), wire.name, SENTENCE_MAX)?,
        text: text(&at("text"), wire.text, SENTENCE_MAX)?,
        frames: texts(&at("frames"), wire.frames, FRAMES_MAX, SENTENCE_MAX)?,
        left_script: wire.left_script,
    })
}

fn exit_to_wire(exit: Exit) -> v1::Exit {
    let how = match exit {
        Exit::Code(code) => How::Code(code),
        Exit::Signal(signal) => How::Signal(signal),
    };
    v1::Exit { how: Some(how) }
}

pub(super) fn endpoint_to_wire(endpoint: &Endpoint) -> v1::Endpoint {
    v1::Endpoint {
        host: endpoint.host.clone(),
        port: endpoint.port.into(),
    }
}

/// Reads run reports; `now` is on the receiver's clock. The error names the first field that is not
/// well-formed.
pub fn runs_from_wire(wire: v1::RunReports, now: Timestamp) -> Result<Vec<RunReport>, Malformed> {
    count("runs", wire.runs.len(), RUNS_MAX)?;
    let mut seen = BTreeSet::new();
    let mut runs = Vec::with_capacity(wire.runs.len());
    for (i, run) in wire.runs.into_iter().enumerate() {
        let field = format!("runs[{i}]");
        let report = run_from_wire(&field, run, now)?;
        if !seen.insert(report.run.clone()) {
            return Err(malformed(field, "names a run that is listed before"));
        }
        runs.push(report);
    }
    Ok(runs)
}

fn run_from_wire(field: &str, wire: v1::RunReport, now: Timestamp) -> Result<RunReport, Malformed> {
    let run = run_id_from_wire(field, wire.job_uid, wire.generation)?;
    let refused = text(&format!("{field}.refused"), wire.refused, SENTENCE_MAX)?;
    let phase = match v1::RunPhase::try_from(wire.phase) {
        Ok(v1::RunPhase::Preparing) => RunPhase::Preparing,
        Ok(v1::RunPhase::Ready) => RunPhase::Ready,
        Ok(v1::RunPhase::Running) => RunPhase::Running,
        Ok(v1::RunPhase::Stopping) => RunPhase::Stopping,
        Ok(v1::RunPhase::Dead) => RunPhase::Dead,
        Ok(v1::RunPhase::Refused) => RunPhase::Refused(refused),
        Ok(v1::RunPhase::Unspecified) | Err(_) => {
            return Err(malformed(
                format!("{field}.phase"),
                format!("{} is not a phase", wire.phase),
            ));
        }
    };
    count(
        &format!("{field}.joined_ranks"),
        wire.joined_ranks.len(),
        JOINED_MAX,
    )?;
    count(&format!("{field}.ranks"), wire.ranks.len(), RANKS_MAX)?;
    let mut ranks: Vec<RankReport> = Vec::with_capacity(wire.ranks.len());
    for (i, rank) in wire.ranks.into_iter().enumerate() {
        let field = format!("{field}.ranks[{i}]");
        let rank = rank_from_wire(&field, rank, now)?;
        if ranks.iter().any(|other| other.rank == rank.rank) {
            return Err(malformed(
                field,
                format!("rank {} is listed before", rank.rank),
            ));
        }
        ranks.push(rank);
    }
    count(&format!("{field}.ports"), wire.ports.len(), RANKS_MAX)?;
    let port = |port: u32| {
        u16::try_from(port)
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| malformed(format!("{field}.ports"), format!("{port} is not a port")))
    };
    let ports = wire.ports.into_iter().map(port);
    let ports = ports.collect::<Result<_, _>>()?;
    let (lane, stack) = (
        wire.lane.unwrap_or_default(),
        wire.stack.unwrap_or_default(),
    );
    Ok(RunReport {
        lane: LaneReport {
            name: text(&format!("{field}.lane.name"), lane.name, NAME_MAX)?,
            reason: text(&format!("{field}.lane.reason"), lane.reason, SENTENCE_MAX)?,
            launcher_bytes: lane.launcher_bytes,
        },
        stack: Stack {
            torch: text(&format!("{field}.stack.torch"), stack.torch, NAME_MAX)?,
            cuda: text(&format!("{field}.stack.cuda"), stack.cuda, NAME_MAX)?,
            nccl: text(&format!("{field}.stack.nccl"), stack.nccl, NAME_MAX)?,
            nccl2: text(&format!("{field}.stack.nccl2"), stack.nccl2, NAME_MAX)?,
        },
        run,
        term: Term(wire.term),
        phase,
        // Of a number that a later version sends, nothing is known.
        refused_due_to: match v1::RefusalDueTo::try_from(wire.refused_due_to) {
            Ok(v1::RefusalDueTo::Job) => DueTo::Job,
            Ok(v1::RefusalDueTo::Node) => DueTo::Node,
            Ok(v1::RefusalDueTo::Stranger) => DueTo::Stranger,
            Ok(v1::RefusalDueTo::Account) => DueTo::Account,
            Ok(v1::RefusalDueTo::Unspecified) | Err(_) => DueTo::Unknown,
        },
        store: wire
            .store
            .map(|store| endpoint_from_wire(&format!("{field}.store"), store))
            .transpose()?,
        port: match u16::try_from(wire.port) {
            Ok(0) => None,
            Ok(port) => Some(port),
            Err(_) => {
                return Err(malformed(
                    format!("{field}.port"),
                    format!("{} is not a port", wire.port),
                ));
            }
        },
        ports,
        key: key_from_wire(&format!("{field}.key"), wire.key)?,
        joined_ranks: wire.joined_ranks,
        all_joined_at: at(wire.all_joined_age_us, now),
        launched_at: at(wire.launched_age_us, now),
        torchrun_exit: wire
            .launcher_exit
            .map(|exit| exit_from_wire(&format!("{field}.launcher_exit"), exit))
            .transpose()?,
        dead_at: at(wire.dead_age_us, now),
        fenced: wire.fenced,
        checkpoint: wire.checkpoint.map(|checkpoint| CheckpointReport {
            saved_at: at(checkpoint.saved_age_us, now),
        }),
        torchrun_error: optional_text(
            &format!("{field}.launcher_error"),
            wire.launcher_error,
            SENTENCE_MAX,
        )?,
        ranks,
        leftovers: leftovers_from_wire(&format!("{field}.leftovers"), wire.leftovers)?,
        step_pattern_fault: fault_from_wire(wire.step_pattern_fault),
        phases: wire
            .phases
            .map(|phases| phases::from_wire(&format!("{field}.phases"), phases, now))
            .transpose()?
            .unwrap_or_default(),
        disobedience: wire.disobedience.map(|why| Disobedience {
            grace: Duration::from_millis(why.grace_ms),
            late: Duration::from_millis(why.late_ms),
            answered: why.answered,
        }),
        world: WorldReport {
            announced: wire.announced,
            nested: wire
                .nested
                .map(|nested| nested_from_wire(&format!("{field}.nested"), nested))
                .transpose()?,
        },
    })
}

fn nested_from_wire(field: &str, wire: v1::NestedWorld) -> Result<NestedWorld, Malformed> {
    Ok(NestedWorld {
        rank: wire.rank,
        pid: wire.pid,
        launcher: text(&format!("{field}.launcher"), wire.launcher, NAME_MAX)?,
        world_size: wire.world_size,
    })
}

fn leftovers_from_wire(field: &str, wire: Vec<v1::Leftover>) -> Result<Vec<Leftover>, Malformed> {
    count(field, wire.len(), LEFTOVERS_MAX)?;
    let read = |(i, leftover): (usize, v1::Leftover)| {
        Ok(Leftover {
            pid: leftover.pid,
            program: text(&format!("{field}[{i}].program"), leftover.program, NAME_MAX)?,
            killed: leftover.killed,
        })
    };
    wire.into_iter().enumerate().map(read).collect()
}

fn rank_from_wire(
    field: &str,
    wire: v1::RankReport,
    now: Timestamp,
) -> Result<RankReport, Malformed> {
    Ok(RankReport {
        rank: wire.rank,
        local_rank: wire.local_rank,
        attempt: wire.attempt.max(1),
        pid: wire.pid,
        started_at: at(wire.started_age_us, now),
        exit: wire
            .exit
            .map(|exit| exit_from_wire(&format!("{field}.exit"), exit))
            .transpose()?,
        exited_at: at(wire.exited_age_us, now),
        killed_after: wire
            .killed_after_ms
            .map(|ms| period_from_wire(&format!("{field}.killed_after_ms"), ms))
            .transpose()?,
        first_error: optional_text(
            &format!("{field}.first_error"),
            wire.first_error,
            SENTENCE_MAX,
        )?,
        exception: wire
            .exception
            .map(|exception| exception_from_wire(&format!("{field}.exception"), exception))
            .transpose()?,
        tail: texts(&format!("{field}.tail"), wire.tail, TAIL_MAX, SENTENCE_MAX)?,
        first_step: wire.first_step,
        first_step_at: at(wire.first_step_age_us, now),
        last_step: wire.last_step,
        last_step_at: at(wire.last_step_age_us, now),
        steps: StepsShown {
            total: wire.total_steps,
            loss: optional_text(&format!("{field}.loss"), wire.loss, NAME_MAX)?,
            rate: optional_text(&format!("{field}.rate"), wire.rate, NAME_MAX)?,
            format: optional_text(&format!("{field}.step_format"), wire.step_format, NAME_MAX)?,
            stepless_lines: wire.stepless_lines,
        },
        still: wire.still.map(|still| Still {
            since: at(Some(still.age_us), now).unwrap_or(now),
            idle_since: at(still.idle_age_us, now),
        }),
        arrivals: { wire.arrivals }
            .map(|arrivals| arrivals_from_wire(&format!("{field}.arrivals"), arrivals))
            .transpose()?
            .map(Box::new),
    })
}

fn exit_from_wire(field: &str, wire: v1::Exit) -> Result<Exit, Malformed> {
    match wire.how {
        Some(How::Code(code)) => Ok(Exit::Code(code)),
        // signal(7): the last real-time signal is 64.
        Some(How::Signal(signal)) if (1..=64).contains(&signal) => Ok(Exit::Signal(signal)),
        Some(How::Signal(signal)) => Err(malformed(
            format!("{field}.signal"),
            format!("{signal} is not a signal"),
        )),
        None => Err(malformed(field, "has neither a code nor a signal")),
    }
}

/// A secret of a run. Empty: there is none. The error does not repeat it.
pub(super) fn key_from_wire(field: &str, wire: String) -> Result<Option<Key>, Malformed> {
    match &*wire {
        "" => Ok(None),
        hex if hex.len() == KEY_DIGITS && hex.bytes().all(|c| c.is_ascii_hexdigit()) => {
            Ok(Some(Key(wire)))
        }
        _ => {
            let message = format!("is no key of {KEY_DIGITS} hexadecimal digits");
            Err(malformed(field.to_owned(), message))
        }
    }
}

pub(super) fn endpoint_from_wire(field: &str, wire: v1::Endpoint) -> Result<Endpoint, Malformed> {
    let port = u16::try_from(wire.port).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| {
        malformed(
            format!("{field}.port"),
            format!("{} is not a port", wire.port),
        )
    })?;
    Ok(Endpoint {
        host: required_text(&format!("{field}.host"), wire.host, NAME_MAX)?,
        port,
    })
}

/// Allows only letters, digits and `-` in a uid, because the run's name becomes a directory on the
/// node.
pub(in crate::convert) fn run_id_from_wire(
    field: &str,
    job_uid: String,
    generation: u64,
) -> Result<RunId, Malformed> {
    let uid_field = format!("{field}.job_uid");
    let job = required_text(&uid_field, job_uid, 64)?;
    if let Some(bad) = job
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && *c != '-')
    {
        return Err(malformed(
            uid_field,
            format!("has {bad:?}: only letters, digits and '-' are allowed"),
        ));
    }
    if generation == 0 {
        return Err(malformed(
            format!("{field}.generation"),
            "is 0, the first is 1",
        ));
    }
    let generation = numbered(&format!("{field}.generation"), generation)?;
    Ok(RunId {
        job: JobUid::from(job),
        generation: Generation(generation),
    })
}
