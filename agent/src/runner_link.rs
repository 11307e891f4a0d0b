//! One runner, over its control socket: orders in, status out.
//!
//! Orders are a state, not a queue. After a broken connection the link sends all of them again, and
//! the runner takes an order that it has already obeyed as obeyed. A link reconnects as long as its
//! runner lives. Once the runner is gone, the link says the last word: the recorded outcome, or
//! `Lost` with the proof that nothing is left.

use std::{io, path::Path, sync::Arc, time::Duration};

use muster_core::{
    node::{GroupStatus, SeenExit},
    run::{Disobedience, RunId},
    time::Timestamp,
};
use muster_runner::{
    Record, RunnerIdentity, Salvage,
    place::{Left, Remains},
    procfs,
    wire::{Command, RefusalKind, Reply, Status},
};
use muster_runtime::{chain::chain, clock::Clock};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{debug, error, warn};

use crate::{boot, host::RunnerHost, last_words, run_dir, run_dir::Runs, translate};

mod obedience;
mod orders;

use obedience::Watch;
pub(crate) use orders::RunnerOrders;
use orders::{RELEASE, RESTART, START, STATUS, SUBSCRIBE, line, send_orders};

/// What a link says about its run.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The status, and the processes that still live a minute after they were killed.
    Status(GroupStatus, Vec<i32>),
    /// The launcher failed by itself, and torchrun was executed in its place.
    FellBack,
    /// Processes of a runner that is gone which still live a minute after they were killed.
    Unkillable(Vec<i32>),
    /// The runner is gone and nothing of its group was found. It cannot be proven that nothing
    /// lives, for this reason.
    Unproven(String),
    /// The start was refused and nothing runs. The reason is for the user.
    Refused(String),
    /// The runner does not do what it was ordered to, and is being killed.
    Disobeyed(Disobedience),
    /// A rank was not started again. The rest of its group lives.
    RestartRefused(String),
    /// The runner is gone without a record. Nothing of it was left at time `at`.
    Lost { exits: Vec<SeenExit>, at: Timestamp },
    /// The TCPStore that this run serves has refused connections: how many, and the last one's
    /// reason. Told again each time their number has doubled.
    StoreRefused(String),
    /// A file of the job's `checkpointPattern` has changed.
    Saved(Timestamp),
}

/// A runner, and the receiver of its events.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) run: RunId,
    pub(crate) runs: Runs,
    pub(crate) host: Arc<dyn RunnerHost>,
    pub(crate) events: mpsc::Sender<(RunId, LinkEvent)>,
}

/// The longest line of a runner. All tails of a status have at most 256 KiB, so even 256 ranks need
/// far less than this. A longer line is a fault.
const LINE_MAX: usize = 10 << 20;
/// Time between attempts to reach a living runner. Its socket exists as soon as it is ready.
const RETRY: Duration = Duration::from_millis(100);
/// A process that still lives this long after its first SIGKILL waits in the kernel. A runner
/// applies the same limit to its own processes.
const UNKILLABLE_AFTER: Duration = Duration::from_secs(60);
/// Time between looks for survivors of a lost runner: at first, and after a while.
const SWEEP: Duration = Duration::from_millis(20);
const SWEEP_MAX: Duration = Duration::from_secs(1);

impl Link {
    /// Runs until the runner's last event is told.
    pub(crate) async fn attend(self, mut orders: watch::Receiver<RunnerOrders>) {
        let dir = self.runs.dir(&self.run);
        let (watch, judged) = (Watch::new(), orders.clone());
        loop {
            let fate = tokio::select! {
                // What the runner has said is read before it is judged. No arm leaves anything half
                // done that the next turn does not do again.
                biased;
                fate = self.accompany(&dir, &mut orders, &watch) => fate,
                why = watch.until_disobeyed(judged.clone()) => {
                    watch.forget();
                    self.enforce(&dir, why).await;
                    continue;
                }
            };
            match fate {
                None => return,
                Some(Fate::Alive) => {}
                Some(Fate::Over(status)) => {
                    return self.tell(LinkEvent::Status(status, Vec::new())).await;
                }
                Some(Fate::Lost { exits, runner }) => {
                    let at = self.prove_dead(runner).await;
                    return self.tell(LinkEvent::Lost { exits, at }).await;
                }
            }
        }
    }

    /// Uses one connection, and says what has become of the runner then. `None`: nobody listens any
    /// more.
    async fn accompany(
        &self,
        dir: &Path,
        orders: &mut watch::Receiver<RunnerOrders>,
        watch: &Watch,
    ) -> Option<Fate> {
        match self.host.reach(dir) {
            Ok(stream) => {
                if let Err(e) = self.converse(stream, orders, watch).await {
                    debug!(run = %self.name(), "runner: {e}");
                }
            }
            Err(e) => debug!(run = %self.name(), "connect to the runner: {e}"),
        }
        if self.events.is_closed() {
            return None;
        }
        let fate = self.fate(dir).await;
        if let Fate::Alive = fate {
            tokio::time::sleep(RETRY).await;
        }
        Some(fate)
    }

    /// Kills a runner that does not obey, and what it holds. Returns once the runner is gone.
    async fn enforce(&self, dir: &Path, why: Disobedience) {
        error!(run = %self.name(), "the runner does not obey, so it is killed: {why:?}");
        self.tell(LinkEvent::Disobeyed(why)).await;
        let runner = self.runs.runner(&self.run);
        let was = self
            .runs
            .accepted(&self.run)
            .and_then(|accepted| accepted.was);
        let remains = Remains {
            dir,
            was,
            runner: runner.as_ref(),
            with_runner: true,
        };
        self.until_nothing_lives(&remains).await;
    }

    fn name(&self) -> String {
        self.run.to_string()
    }

    async fn tell(&self, event: LinkEvent) {
        // Nobody listens any more while the agent shuts down.
        let _ = self.events.send((self.run.clone(), event)).await;
    }

    /// Uses one connection until it ends.
    async fn converse(
        &self,
        mut stream: UnixStream,
        orders: &mut watch::Receiver<RunnerOrders>,
        watch: &Watch,
    ) -> io::Result<()> {
        let (mut input, mut output) = stream.split();
        output
            .write_all(&line(SUBSCRIBE, Command::Subscribe))
            .await?;
        let mut sent = Sent::default();
        let mut buffer = Vec::new();
        let mut more_orders = true;
        loop {
            let wanted = orders.borrow_and_update().clone();
            send_orders(&mut output, &wanted, &mut sent.orders).await?;
            tokio::select! {
                // Cancel safe: all bytes read so far are in the buffer.
                read = input.read_buf(&mut buffer) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    for reply in take_lines(&mut buffer)? {
                        watch.heard(&reply);
                        self.hear(reply, &mut sent).await?;
                    }
                }
                // Cancel safe by contract.
                () = watch.ask.notified() => output.write_all(&line(STATUS, Command::Status)).await?,
                // Cancel safe by contract.
                changed = orders.changed(), if more_orders => more_orders = changed.is_ok(),
            }
        }
    }

    async fn hear(&self, reply: Reply, sent: &mut Sent) -> io::Result<()> {
        if let Some(status) = reply.status {
            if let Some(refused) = self.refusals(&status, &mut sent.refused) {
                self.tell(LinkEvent::StoreRefused(refused)).await;
            }
            if status.fell_back {
                self.tell(LinkEvent::FellBack).await;
            }
            self.tell(LinkEvent::Status(self.group(&status, true), status.stuck))
                .await;
            return Ok(());
        }
        let Some(refusal) = reply.error else {
            return Ok(());
        };
        match (reply.id, refusal.kind) {
            (Some(START), RefusalKind::Spawn | RefusalKind::Invalid) => {
                self.tell(LinkEvent::Refused(refusal.text)).await
            }
            (Some(RESTART), kind) if kind != RefusalKind::Stopped => {
                self.tell(LinkEvent::RestartRefused(refusal.text)).await
            }
            // The status tells it in more detail.
            (Some(START | RESTART), RefusalKind::Stopped) => {}
            // The order is repeated after the next status, which may report the death.
            (Some(RELEASE), RefusalKind::NotDead) => sent.orders.release = false,
            (_, RefusalKind::Busy) => return Err(io::Error::other(refusal.text)),
            (id, kind) => {
                error!(run = %self.name(), ?id, ?kind, "the runner refuses an order: {}", refusal.text)
            }
        }
        Ok(())
    }

    /// Logs and returns refusals of the TCPStore once per connection to the runner, and then each time
    /// their number has doubled.
    fn refusals(&self, status: &Status, said: &mut u64) -> Option<String> {
        let store = status
            .store
            .as_ref()
            .filter(|store| store.refused >= (*said * 2).max(1))?;
        let why = store.refused_why.as_deref().unwrap_or_default();
        warn!(run = %self.name(), clients = store.clients, "the TCPStore has refused {} connections, the last: {why}", store.refused);
        *said = store.refused;
        Some(format!(
            "{} connections refused, the last one: {why}",
            store.refused
        ))
    }

    fn group(&self, status: &Status, this_boot: bool) -> GroupStatus {
        let mut group = translate::group_status(status, this_boot);
        let rank_failed = group
            .ranks
            .iter()
            .any(|rank| rank.exit.is_some_and(|exit| !exit.is_success()));
        if group.torchrun_exit.is_some_and(|exit| !exit.is_success()) && !rank_failed {
            // A log that cannot be read gives no error line.
            group.torchrun_error = last_words::of(&self.runs.dir(&self.run))
                .unwrap_or_default()
                .map(|line| translate::cut(&line));
        }
        group
    }

    /// What has become of the runner in `dir`. Its host is asked before anything is read: a runner
    /// writes until its last moment, so its files are complete only once it is gone.
    async fn fate(&self, dir: &Path) -> Fate {
        let runner = self.runs.runner(&self.run);
        if self.host.lives(dir, runner.as_ref()).await {
            return Fate::Alive;
        }
        let left = match Record::read(dir) {
            Ok(Record {
                runner,
                exits,
                outcome,
                ..
            }) => Salvage {
                runner,
                exits,
                outcome,
            },
            Err(e) => {
                error!(run = %self.name(), "the runner's record cannot be read: {}", chain(&e));
                // Damaged records are lost. Each undamaged record proves itself by its checksum.
                Salvage::of(dir)
            }
        };
        let this_boot = left
            .runner
            .as_ref()
            .is_some_and(|runner| procfs::boot_id().is_ok_and(|now| runner.boot_id == now));
        match (left.runner, &left.outcome) {
            // The runner began after the first check.
            (Some(runner), None) if self.host.lives(dir, Some(&runner)).await => Fate::Alive,
            (_, Some(outcome)) => Fate::Over(self.group(outcome, this_boot)),
            (runner, None) => Fate::Lost {
                exits: translate::seen_exits(&left.exits, this_boot),
                runner,
            },
        }
    }

    /// Kills what is left of the run, however long that takes. Returns since when nothing is left.
    async fn prove_dead(&self, runner: Option<RunnerIdentity>) -> Timestamp {
        let boot_id = boot::of_now().await;
        if let Some(noted) = self.runs.lost(&self.run) {
            return Timestamp(if noted.boot_id == boot_id {
                noted.at_us
            } else {
                0
            });
        }
        let other_boot = runner
            .as_ref()
            .is_some_and(|runner| runner.boot_id != boot_id);
        if !other_boot {
            let was = self
                .runs
                .accepted(&self.run)
                .and_then(|accepted| accepted.was);
            let dir = self.runs.dir(&self.run);
            let remains = Remains {
                dir: &dir,
                was,
                runner: runner.as_ref(),
                with_runner: false,
            };
            self.until_nothing_lives(&remains).await;
        }
        let at_us = if other_boot { 0 } else { Clock::Boot.now_us() };
        if let Err(e) = self
            .runs
            .note_lost(&self.run, &run_dir::Lost { boot_id, at_us })
        {
            warn!(run = %self.name(), "the time of death cannot be noted: {e}");
        }
        Timestamp(at_us)
    }

    async fn until_nothing_lives(&self, remains: &Remains<'_>) {
        let (begun, mut told, mut stuck) = (Instant::now(), String::new(), false);
        loop {
            let left = match self.host.sweep(remains).await {
                Ok(Left::Nothing) => return,
                Ok(Left::Living(pids)) => {
                    // Said only once: a process that is left after a minute usually stays.
                    if !stuck && begun.elapsed() >= UNKILLABLE_AFTER {
                        stuck = true;
                        self.tell(LinkEvent::Unkillable(pids.clone())).await;
                    }
                    format!("killing what it left: processes {pids:?}")
                }
                Ok(Left::Unproven(why)) => {
                    let left = format!("that nothing of it lives cannot be proven: {why}");
                    if left != told {
                        self.tell(LinkEvent::Unproven(why)).await;
                    }
                    left
                }
                Err(e) => format!("what it left cannot be told: {e}"),
            };
            if left != told {
                warn!(run = %self.name(), "the runner is gone, {left}");
                told = left;
            }
            // The rest is proven as for any runner that is gone.
            if remains.with_runner && !self.host.lives(remains.dir, remains.runner).await {
                return;
            }
            // A process that survived many kills will survive the next, and a look at all processes
            // is not free.
            tokio::time::sleep((begun.elapsed() / 4).clamp(SWEEP, SWEEP_MAX)).await;
        }
    }
}

/// What was sent and logged over one connection.
#[derive(Default)]
struct Sent {
    orders: RunnerOrders,
    /// How many refusals of the TCPStore were logged.
    refused: u64,
}

/// The fate of a runner that cannot be reached.
enum Fate {
    Alive,
    Over(GroupStatus),
    Lost {
        exits: Vec<SeenExit>,
        runner: Option<RunnerIdentity>,
    },
}

fn take_lines(buffer: &mut Vec<u8>) -> io::Result<Vec<Reply>> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let Some(last) = buffer.iter().rposition(|b| *b == b'\n') else {
        if buffer.len() > LINE_MAX {
            return Err(invalid(format!(
                "a line of the runner is longer than {LINE_MAX} bytes"
            )));
        }
        return Ok(Vec::new());
    };
    let rest = buffer.split_off(last + 1);
    let lines = std::mem::replace(buffer, rest);
    let texts = lines.split(|b| *b == b'\n').filter(|text| !text.is_empty());
    texts
        .map(|text| {
            serde_json::from_slice(text)
                .map_err(|e| invalid(format!("a line of the runner is not a reply: {e}")))
        })
        .collect()
}

#[cfg(test)]
mod tests;
