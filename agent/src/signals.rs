//! RankSignals to ranks, sent once when the coordinator asks, through the control socket of their runner.
//! A rank that does not run now gets none: nothing is kept for later.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use muster_core::run::RunId;
use muster_proto::v1::{AgentMessage, RanksSignalled, SignalRanks, agent_message::Message};
use muster_runner::wire::{Command, MAX_RANKS, Reply, Request};
use muster_runtime::tasks::Scope;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{host::RunnerHost, logs::run_of, run_dir::Runs};

/// How long a runner may take. It answers at its next turn.
const ANSWER: Duration = Duration::from_secs(3);

pub(crate) struct RankSignals {
    host: Arc<dyn RunnerHost>,
    runs: Runs,
    scope: Scope,
}

impl RankSignals {
    pub(crate) fn new(host: Arc<dyn RunnerHost>, runs: Runs, shutdown: CancellationToken) -> Self {
        Self {
            host,
            runs,
            scope: Scope::new(shutdown),
        }
    }

    /// Sends a signal and answers on `out`, if the session still has it then.
    pub(crate) fn send(&self, order: SignalRanks, out: mpsc::WeakSender<AgentMessage>) {
        let (host, runs) = (self.host.clone(), self.runs.clone());
        self.scope.spawn("signal", async move {
            let answer = answer(&*host, &runs, order).await;
            if let Some(out) = out.upgrade() {
                let message = Some(Message::Signalled(answer));
                let _ = out.send(AgentMessage { message }).await;
            }
        });
    }
}

/// Sends the signal to each rank, and says which have not got it.
async fn answer(host: &dyn RunnerHost, runs: &Runs, order: SignalRanks) -> RanksSignalled {
    let outcome = match run_of(&order.job_uid, order.generation) {
        Ok(run) => ask(host, runs, &run, &order).await,
        Err(why) => Err(why),
    };
    let missed = match outcome {
        Ok(missed) => missed,
        Err(why) => order
            .ranks
            .iter()
            .map(|rank| (*rank, why.clone()))
            .collect(),
    };
    RanksSignalled {
        id: order.id,
        missed,
    }
}

async fn ask(
    host: &dyn RunnerHost,
    runs: &Runs,
    run: &RunId,
    order: &SignalRanks,
) -> Result<BTreeMap<u32, String>, String> {
    let signal = i32::try_from(order.signal).unwrap_or(i32::MAX);
    if order.ranks.len() > MAX_RANKS as usize {
        return Err(format!("a node has at most {MAX_RANKS} ranks"));
    }
    let stream = host.reach(&runs.dir(run)).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "it does not run on this node now".to_owned()
        }
        _ => format!("its runner cannot be reached: {e}"),
    })?;
    match timeout(ANSWER, converse(stream, &order.ranks, signal)).await {
        Ok(Ok(missed)) => Ok(missed),
        Ok(Err(e)) => Err(format!("its runner broke off: {e}")),
        Err(_) => Err("its runner did not answer".to_owned()),
    }
}

/// Asks for one rank after the other. The id of each request is its place.
async fn converse(
    mut stream: UnixStream,
    ranks: &[u32],
    signal: i32,
) -> io::Result<BTreeMap<u32, String>> {
    let (input, mut output) = stream.split();
    let mut input = BufReader::new(input);
    let mut missed = BTreeMap::new();
    for (id, rank) in (1..).zip(ranks) {
        let request = Request::new(
            id,
            Command::Signal {
                rank: *rank,
                signal,
            },
        );
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        output.write_all(&line).await?;
        let mut answer = String::new();
        if input.read_line(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let reply: Reply = serde_json::from_str(&answer)?;
        if let Some(refusal) = reply.error {
            missed.insert(*rank, refusal.text);
        }
    }
    Ok(missed)
}
