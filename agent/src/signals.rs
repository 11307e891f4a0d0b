//! Signals to ranks. Each is sent once, when the coordinator asks, through the control socket of the runner.
//! A rank that does not run now gets none: nothing is kept for later.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use muster_core::run::RunId;
use muster_proto::v1::{AgentMessage, RanksSignalled, SignalRanks, agent_message::Message};
use muster_runner::wire::{Command, MAX_RANKS, Reply, Request};
use muster_runtime::tasks::Scope;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{host::RunnerHost, logs::run_of, run_dir::Runs};

/// How long a runner may take. It answers at its next turn.
const ANSWER: Duration = Duration::from_secs(3);
/// The longest answer: a sentence. Jobs can answer in the runner's place.
const ANSWER_MAX: u64 = 64 << 10;

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
    Ok(through(stream, &order.ranks, signal).await)
}

/// Sends the signal through a runner, and says which ranks have not got it. Of a rank for which the
/// runner has not answered nobody knows.
async fn through(stream: UnixStream, ranks: &[u32], signal: i32) -> BTreeMap<u32, String> {
    // The answers outlive a conversation that takes too long: whoever repeats a signal must know who
    // has got it.
    let mut answers = Answers::new();
    let spoken = timeout(ANSWER, converse(stream, ranks, signal, &mut answers)).await;
    let broken = match spoken {
        Ok(Ok(())) => None,
        Ok(Err(e)) => Some(format!("its runner broke off: {e}")),
        Err(_) => Some(format!("its runner did not answer within {ANSWER:?}")),
    };
    if let Some(end) = broken {
        let unknown = format!("{end}, so it is not known whether the signal was sent");
        for rank in ranks {
            let answer = answers.entry(*rank);
            answer.or_insert_with(|| Err(unknown.clone()));
        }
    }
    { answers.into_iter() }
        .filter_map(|(rank, answer)| Some((rank, answer.err()?)))
        .collect()
}

/// What a runner has answered for each rank: it has sent the signal, or why it has not.
type Answers = BTreeMap<u32, Result<(), String>>;

/// Asks for one rank after the other. The id of each request is its place.
async fn converse(
    mut stream: UnixStream,
    ranks: &[u32],
    signal: i32,
    answers: &mut Answers,
) -> io::Result<()> {
    let (input, mut output) = stream.split();
    let mut input = BufReader::new(input);
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
        (&mut input).take(ANSWER_MAX).read_line(&mut answer).await?;
        if !answer.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let reply: Reply = serde_json::from_str(&answer)?;
        let refused = reply.error.map(|refusal| refusal.text);
        answers.insert(*rank, refused.map_or(Ok(()), Err));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A runner that answers for some ranks and then hangs, or ends.
    async fn after(answers: &[&str], hangs: bool) -> BTreeMap<u32, String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let runner = async {
            let mut theirs = BufReader::new(theirs);
            for answer in answers {
                theirs.read_line(&mut String::new()).await.unwrap();
                let line = format!("{answer}\n");
                theirs.get_mut().write_all(line.as_bytes()).await.unwrap();
            }
            theirs.read_line(&mut String::new()).await.unwrap();
            hangs.then_some(theirs)
        };
        let (missed, _held) = tokio::join!(through(ours, &[3, 4, 5, 6], 10), runner);
        missed
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_runner_has_answered_stands_though_it_answers_no_more() {
        let answers = [
            r#"{"v":1,"id":1}"#,
            r#"{"v":1,"id":2,"error":{"kind":"conflict","text":"rank 4 has ended"}}"#,
        ];
        for (hangs, end) in [
            (true, "its runner did not answer within 3s"),
            (false, "its runner broke off: unexpected end of file"),
        ] {
            let unknown = format!("{end}, so it is not known whether the signal was sent");
            let missed = after(&answers, hangs).await;
            let expected = [
                (4, "rank 4 has ended".to_owned()),
                (5, unknown.clone()),
                (6, unknown),
            ];
            assert_eq!(missed, expected.into());
        }
    }
}
