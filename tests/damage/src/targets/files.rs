//! Files and lines of agent and runner: the ledger, a runner's records, and its control socket.

use std::{collections::BTreeMap, path::PathBuf};

use muster_core::{
    id::{Generation, JobUid, NodeEpoch, Term},
    node::Ledger,
    run::Endpoint,
};
use muster_runner::{
    Descendants, RunnerIdentity,
    descendants::Descendant,
    identity::Keeper,
    journal,
    place::{Program, Wanted},
    pod::Question,
    procfs::Stat,
    record::{self, Swept},
    wire::{
        Command, Exit, ExitRecord, Hold, NestedWorld, Phase, Reply, Request, StartSpec, Status,
        StoreSpec, parse_request,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::json_again;

/// The content of `ledger.json`, as in `agent/src/ledger_file.rs`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct LedgerFile {
    v: u32,
    ledger: Ledger,
}

/// A sealed file. What is read must survive being written and read again. A damaged file is an
/// error that names a place in the file.
fn sealed<T>(input: &[u8]) -> Option<T>
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    match record::parse::<T>(input) {
        Ok(value) => {
            let text = muster_sealed::seal(
                serde_json::to_vec(&value).expect("what was read can be written"),
            );
            assert_eq!(
                record::parse::<T>(&text).expect("what was written can be read"),
                value
            );
            Some(value)
        }
        Err((offset, what)) => {
            assert!(
                offset <= input.len() && !what.is_empty(),
                "{offset} of {}: {what}",
                input.len()
            );
            None
        }
    }
}

pub(super) fn ledger(input: &[u8]) {
    sealed::<LedgerFile>(input);
}

pub(super) fn ledger_seeds() -> Vec<Vec<u8>> {
    let mut ledger = Ledger {
        term: Term(3),
        epoch: NodeEpoch(9),
        ..Ledger::new("node-1".into())
    };
    let seen = muster_core::node::Seen {
        generation: Generation(4),
        digest: None,
        store: Some(Endpoint {
            host: "127.0.0.1".into(),
            port: 4711,
        }),
        over: true,
        at: 7,
    };
    ledger.jobs.insert(JobUid::from("0192-ab"), seen);
    seal_all(&[
        &LedgerFile { v: 1, ledger },
        &LedgerFile {
            v: 1,
            ledger: Ledger::new("n".into()),
        },
    ])
}

fn seal_all<T: Serialize>(values: &[&T]) -> Vec<Vec<u8>> {
    values
        .iter()
        .map(|value| muster_sealed::seal(serde_json::to_vec(value).expect("a seed can be written")))
        .collect()
}

pub(super) fn hold(input: &[u8]) {
    if let Some(hold) = sealed::<Hold>(input)
        && hold.check().is_ok()
    {
        assert!(hold.node_rank < hold.nnodes && hold.nnodes <= hold.world_size);
    }
}

fn a_hold() -> Hold {
    Hold {
        v: 1,
        job: "0192-ab".into(),
        name: "digits".into(),
        namespace: "default".into(),
        generation: 3,
        node: "node-a".into(),
        node_rank: 1,
        nnodes: 2,
        world_size: 4,
        store: Some(StoreSpec {
            bind: "127.0.0.1:0".into(),
            ports: None,
            run_id: "0192-ab.g3".into(),
            clients: Vec::new(),
        }),
        log_bytes: 64 << 20,
        step_pattern: Some("step (\\d+)".into()),
        step_formats: None,
        idle_timeout_ms: 300_000,
        term_grace_ms: 10_000,
        fence_after_ms: Some(60_000),
        launcher: false,
        echo: Some("/proc/1/fd/1".into()),
    }
}

pub(super) fn hold_seeds() -> Vec<Vec<u8>> {
    seal_all(&[
        &a_hold(),
        &Hold {
            store: None,
            launcher: true,
            ..a_hold()
        },
    ])
}

/// `runner.json` and `outcome.json`.
pub(super) fn runner_record(input: &[u8]) {
    if let Some(runner) = sealed::<RunnerIdentity>(input) {
        // This asks the kernel about the pid in the record, whatever it is.
        let _ = muster_runner::alive(&runner);
        let _ = muster_runner::kept(&runner);
    }
    sealed::<Status>(input);
    sealed::<Swept>(input);
    if let Some(list) = sealed::<Descendants>(input) {
        let stat = |pid| Stat {
            pid,
            state: b'S',
            ppid: 1,
            session: pid,
            threads: 1,
            start_time: 5,
        };
        assert!(list.living(&[stat(6), stat(7)], |_| false).len() <= 2);
    }
}

fn a_status() -> Status {
    Status {
        v: 1,
        job: "0192-ab".into(),
        generation: 3,
        phase: Phase::Dead,
        now_us: 12,
        launcher: None,
        ranks: Vec::new(),
        store: None,
        stop: None,
        dead: None,
        leftovers: vec![muster_runner::wire::Leftover {
            pid: 78,
            program: "python3 export.py".into(),
            killed: true,
        }],
        stuck: vec![7],
        fell_back: true,
        nested: Some(NestedWorld {
            rank: 1,
            pid: 8,
            launcher: "torchrun".into(),
            world_size: 2,
        }),
        step_pattern_fault: Some(muster_runner::wire::StepPatternFault::TooSlow),
        phases: None,
    }
}

pub(super) fn runner_seeds() -> Vec<Vec<u8>> {
    let runner = RunnerIdentity {
        v: 1,
        pid: 4711,
        start_time: 99,
        boot_id: "b".into(),
        version: "0.1.0".into(),
        control_version: 1,
        store_port: Some(29_500),
        cgroup: Some("/sys/fs/cgroup/muster-x".into()),
        keeper: Some(Keeper {
            pid: 4710,
            start_time: 98,
        }),
        lists_descendants: true,
        init_start: Some(3),
    };
    let process = |pid, session| Descendant {
        pid,
        start_time: 5,
        session,
    };
    let list = Descendants {
        v: 1,
        boot_id: "b".into(),
        cut: false,
        processes: vec![process(6, 0), process(8, 7)],
    };
    let swept = Swept {
        v: 1,
        boot_id: "b".into(),
        at_us: 12,
    };
    [
        seal_all(&[&runner]),
        seal_all(&[&a_status()]),
        seal_all(&[&list]),
        seal_all(&[&swept]),
    ]
    .concat()
}

/// Complete lines are read as written. Only a last line without its end is left out.
pub(super) fn exits(input: &[u8]) {
    match journal::read(input) {
        Ok(found) => {
            assert!(found.torn <= input.len());
            let whole = &input[..input.len() - found.torn];
            assert!(whole.is_empty() || whole.ends_with(b"\n"));
            assert_eq!(
                whole.iter().filter(|byte| **byte == b'\n').count(),
                found.records.len()
            );
            let text: String = found.records.iter().map(journal::line).collect();
            let again = journal::read(text.as_bytes()).expect("what was written can be read");
            assert_eq!(
                again,
                journal::Journal {
                    records: found.records,
                    torn: 0
                }
            );
        }
        Err(damage) => assert!(damage.offset <= input.len() && !damage.what.is_empty()),
    }
}

pub(super) fn exits_seeds() -> Vec<Vec<u8>> {
    let record = |rank, exit| ExitRecord {
        v: 1,
        rank,
        pid: 9,
        start_time: 3,
        started_us: 1,
        exit,
        exited_us: 2,
        attempt: 2,
        restarted: false,
    };
    let lines = [
        record(Some(0), Exit::Code { code: 1 }),
        record(
            None,
            Exit::Signal {
                signal: 9,
                core: false,
            },
        ),
    ];
    let text: String = lines.iter().map(journal::line).collect();
    vec![
        text.clone().into_bytes(),
        text.as_bytes()[..text.len() - 5].to_vec(),
    ]
}

/// What an agent asks the init process of another container.
pub(super) fn pod_question(input: &[u8]) {
    if let Ok(question) = serde_json::from_slice::<Question>(input) {
        let line = serde_json::to_vec(&question).expect("what was read can be written");
        let again: Question = serde_json::from_slice(&line).expect("what was written can be read");
        assert_eq!(again, question);
        assert!(!line.contains(&b'\n'), "a question is one line");
    }
}

pub(super) fn question_seeds() -> Vec<Vec<u8>> {
    let (dir, env) = (
        PathBuf::from("/muster/run/runs/a-g1"),
        [("PATH".to_owned(), "/bin".to_owned())],
    );
    let questions = [
        Question::Look,
        Question::Start { dir: dir.clone() },
        Question::Lives {
            dir: dir.clone(),
            runner: RunnerIdentity::own("0.1.0".into()).ok(),
        },
        Question::Find {
            wanted: Wanted {
                dir: dir.clone(),
                env_files: env.clone().into(),
                path: Some("/bin".into()),
                program: "python3".into(),
                script: Some("train.py".into()),
                ranks: None,
            },
        },
        Question::Run {
            program: Program {
                program: "/bin/sh".into(),
                args: vec!["-c".into()],
                env: env.into(),
                dir,
                timeout_ms: 60_000,
            },
        },
    ];
    questions
        .iter()
        .map(|question| serde_json::to_vec(question).expect("a question is JSON"))
        .collect()
}

pub(super) fn runner_request(input: &[u8]) {
    match parse_request(input) {
        Ok(request) => {
            let line = serde_json::to_vec(&request).expect("what was read can be written");
            assert_eq!(
                parse_request(&line).expect("what was written can be read"),
                request
            );
            assert!(!line.contains(&b'\n'), "a request is one line");
        }
        Err(refused) => assert!(!refused.error.text.is_empty()),
    }
}

pub(super) fn request_seeds() -> Vec<Vec<u8>> {
    let start = StartSpec {
        env_files: BTreeMap::new(),
        program: "/usr/bin/python3".into(),
        args: vec!["-m".into(), "torch.distributed.run".into()],
        env: BTreeMap::from([("A".into(), "b".into())]),
        cwd: "/w".into(),
        ranks: 2,
        first_rank: 4,
        order: None,
        mpi: None,
        members: Vec::new(),
        restartable: true,
    };
    let commands = [
        Command::Start(Box::new(start)),
        Command::Restart {
            rank: 4,
            attempt: 2,
        },
        Command::Stop {
            grace_ms: 10_000,
            reason: "cancelled".into(),
        },
        Command::Status,
        Command::Subscribe,
        Command::StoreSet {
            key: "k".into(),
            value: "v".into(),
        },
        Command::CompleteExitBarrier { node_rank: 3 },
        Command::Fork {
            dir: "/runs/0192-ab-g3".into(),
        },
        Command::Preload,
        Command::Release,
    ];
    let line = |(id, command)| {
        serde_json::to_vec(&Request::new(id, command)).expect("a seed can be written")
    };
    (1..).zip(commands).map(line).collect()
}

pub(super) fn runner_reply(input: &[u8]) {
    json_again::<Reply>(input);
}

pub(super) fn reply_seeds() -> Vec<Vec<u8>> {
    let replies = [Reply::ok(3), Reply::status(None, a_status())];
    replies
        .iter()
        .map(|reply| serde_json::to_vec(reply).expect("a seed can be written"))
        .collect()
}
