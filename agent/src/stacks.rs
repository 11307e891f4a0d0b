//! Where ranks are. Each question goes to the runner, which asks the ranks; the answer is complete in a few
//! seconds whatever they do.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use muster_core::{
    id::NodeName,
    run::RunId,
    stacks::{Frame, Position, Process, RankStack},
};
use muster_proto::{
    convert::stacks::located_to_wire,
    v1::{AgentMessage, LocateRanks, RanksLocated, agent_message::Message},
};
use muster_runner::wire::{self, Command, MAX_RANKS, RankStacks, RefusalKind, Reply, Request};
use muster_runtime::tasks::Scope;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{host::RunnerHost, logs::run_of, run_dir::Runs};

/// How long a runner may take. It gives its ranks three seconds.
const ANSWER: Duration = Duration::from_secs(4);
/// The longest answer for one rank: 64 KiB of names, with what JSON adds to them. Jobs can answer in the
/// runner's place.
const RANK_MAX: u64 = 256 << 10;
/// How many questions a node answers at the same time. Each holds one answer in memory.
const AT_A_TIME: usize = 4;

pub(crate) struct Stacks {
    host: Arc<dyn RunnerHost>,
    runs: Runs,
    scope: Scope,
    places: Arc<tokio::sync::Semaphore>,
}

impl Stacks {
    pub(crate) fn new(host: Arc<dyn RunnerHost>, runs: Runs, shutdown: CancellationToken) -> Self {
        Self {
            host,
            runs,
            scope: Scope::new(shutdown),
            places: Arc::new(tokio::sync::Semaphore::new(AT_A_TIME)),
        }
    }

    /// Asks where ranks are, and answers on `out`, if the session still has it then.
    pub(crate) fn locate(&self, asked: LocateRanks, out: mpsc::WeakSender<AgentMessage>) {
        let (host, runs) = (self.host.clone(), self.runs.clone());
        let place = self.places.clone().try_acquire_owned();
        self.scope.spawn("stacks", async move {
            let outcome = match (&place, run_of(&asked.job_uid, asked.generation)) {
                (Err(_), _) => {
                    Err("others are asking where ranks of this node are: ask again".into())
                }
                (Ok(_), Err(why)) => Err(why),
                (Ok(_), Ok(run)) => ask(&*host, &runs, &run, &asked.ranks).await,
            };
            let answer = match outcome {
                Ok(ranks) => located_to_wire(asked.id, &ranks),
                Err(error) => RanksLocated {
                    id: asked.id,
                    ranks: Vec::new(),
                    error,
                },
            };
            if let Some(out) = out.upgrade() {
                let message = Some(Message::Located(answer));
                let _ = out.send(AgentMessage { message }).await;
            }
        });
    }
}

async fn ask(
    host: &dyn RunnerHost,
    runs: &Runs,
    run: &RunId,
    ranks: &[u32],
) -> Result<Vec<RankStack>, String> {
    if ranks.len() > MAX_RANKS as usize {
        return Err(format!("a node has at most {MAX_RANKS} ranks"));
    }
    let stream = host.reach(&runs.dir(run)).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "it does not run on this node now".to_owned()
        }
        _ => format!("its runner cannot be reached: {e}"),
    })?;
    let spoken = timeout(ANSWER, converse(stream, ranks)).await;
    let reply = match spoken {
        Ok(Ok(reply)) => reply,
        Ok(Err(e)) => return Err(format!("its runner broke off: {e}")),
        Err(_) => return Err(format!("its runner did not answer within {ANSWER:?}")),
    };
    match (reply.stacks, reply.error) {
        (_, Some(refusal)) if refusal.kind == RefusalKind::UnknownCommand => {
            Err("its runner is of an older version, which cannot tell".into())
        }
        (_, Some(refusal)) => Err(refusal.text),
        (Some(stacks), None) => Ok(stacks
            .into_iter()
            .map(|rank| read(rank, unix_us()))
            .collect()),
        (None, None) => Err("its runner answered something else".into()),
    }
}

async fn converse(mut stream: UnixStream, ranks: &[u32]) -> io::Result<Reply> {
    let command = Command::Stacks {
        ranks: ranks.to_vec(),
    };
    let mut line = serde_json::to_vec(&Request::new(1, command))?;
    line.push(b'\n');
    let (input, mut output) = stream.split();
    output.write_all(&line).await?;
    let mut answer = String::new();
    let limit = RANK_MAX.saturating_mul(ranks.len().max(1) as u64);
    BufReader::new(input.take(limit))
        .read_line(&mut answer)
        .await?;
    if !answer.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&answer)?)
}

/// `now_us`: microseconds of Unix time, the clock of torch's recorder.
fn read(rank: RankStacks, now_us: u64) -> RankStack {
    let frame = |frame: wire::Frame| Frame {
        file: frame.file,
        line: frame.line,
        function: frame.function,
    };
    let position = |position: wire::Position| Position {
        group: position.group,
        description: position.description,
        ranks: position.ranks,
        called: position.called,
        completed: position.completed,
        call: position.call,
        waiting: { position.since_us }
            .map(|since| Duration::from_micros(now_us.saturating_sub(since))),
    };
    RankStack {
        rank: rank.rank,
        // The coordinator knows whom it has asked.
        node: NodeName::from(""),
        threads: { rank.threads.into_iter() }
            .map(|thread| thread.frames.into_iter().map(frame).collect())
            .collect(),
        positions: rank.positions.into_iter().map(position).collect(),
        process: rank.process.map(|process| Process {
            pid: process.pid,
            state: process.state,
            wchan: process.wchan,
            cpu: Duration::from_micros(process.cpu_us),
            over: Duration::from_micros(process.over_us),
            threads: process.threads,
            children: process.children,
        }),
        error: rank.why,
    }
}

pub(crate) fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
