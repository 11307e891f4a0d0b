//! Reads the logs of ranks and launchers for users: a whole log or its last lines, then everything
//! that is written later.
//!
//! Each read is its own task. The number of tasks is bounded ([`share`]), and each holds one chunk of 64 KiB. A
//! task sends only as many chunks as it has credit for, so a slow reader stops only its own task.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use muster_core::{
    id::{Generation, JobUid},
    run::RunId,
};
use muster_proto::v1::{LogChunk, LogRead};
use muster_runner::record;
use muster_runtime::tasks::Scope;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{keep::KEPT_PER_JOB, run_dir::Runs, supervisor::Reports};

mod file;
mod share;
mod tail;

use file::RunLog;
use share::{Admission, READS_MAX, admit};

/// How many chunks a reader may leave unread on the way: 64 MiB, more than anybody asks for by
/// mistake.
const CREDIT_MAX: usize = 1_024;
/// How often a followed file is looked at. A file cannot be waited for as a socket can, and a
/// person does not notice a tenth of a second.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct Logs {
    runs: Runs,
    reports: watch::Receiver<Option<Reports>>,
    scope: Scope,
    reads: BTreeMap<u64, Open>,
}

/// A read that has not ended.
struct Open {
    job: JobUid,
    token: CancellationToken,
    /// How many chunks may be sent.
    credit: Arc<Semaphore>,
}

impl Logs {
    pub(crate) fn new(
        runs: Runs,
        reports: watch::Receiver<Option<Reports>>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            runs,
            reports,
            scope: Scope::new(shutdown),
            reads: BTreeMap::new(),
        }
    }

    /// Answers with chunks until one is marked as the end.
    pub(crate) fn read(&mut self, read: LogRead, chunks: mpsc::Sender<LogChunk>) {
        self.reads.retain(|_, open| !open.token.is_cancelled());
        let refusal = match run_of(&read.job_uid, read.generation) {
            _ if self.reads.contains_key(&read.id) => {
                Err(format!("read {} is open already", read.id))
            }
            Ok(run) => self.make_room(&run.job, &chunks).map(|()| run),
            wrong => wrong,
        };
        let token = CancellationToken::new();
        let id = read.id;
        let reader = match refusal {
            Ok(run) => {
                let credit = Arc::new(Semaphore::new(CREDIT_MAX.min(read.window as usize)));
                self.reads.insert(
                    id,
                    Open {
                        job: run.job.clone(),
                        token: token.clone(),
                        credit: credit.clone(),
                    },
                );
                let name = if read.launcher {
                    record::LAUNCHER_LOG.to_owned()
                } else {
                    record::rank_log(read.rank)
                };
                let log = RunLog::new(self.runs.dir(&run).join(record::LOGS).join(name));
                let (runs, reports) = (self.runs.clone(), self.reports.clone());
                Reader {
                    read,
                    runs,
                    run,
                    log,
                    reports,
                    credit,
                    chunks,
                }
            }
            Err(error) => return self.refuse(id, error, chunks),
        };
        self.scope.spawn("log read", async move {
            token.run_until_cancelled(reader.run()).await;
            // The id is free again from here on.
            token.cancel();
        });
    }

    /// Ends a read of another job, if all places are taken and it has more than its share.
    fn make_room(&mut self, job: &JobUid, chunks: &mpsc::Sender<LogChunk>) -> Result<(), String> {
        let open = self.reads.iter().map(|(id, open)| (*id, &open.job));
        match admit(open, job, READS_MAX) {
            Admission::Yes => Ok(()),
            Admission::InsteadOf(id) => {
                self.cancel(id);
                let why = format!(
                    "{READS_MAX} logs are being read from this node, the most there may be, and another job's reader needs a place: ask again, for fewer logs at a time"
                );
                self.refuse(id, why, chunks.clone());
                Ok(())
            }
            Admission::No => Err(format!(
                "{READS_MAX} logs are being read from this node, the most there may be, and no job has more readers than this one: end one of them, or ask for fewer logs at a time"
            )),
        }
    }

    /// Answers with an end.
    fn refuse(&self, id: u64, error: String, chunks: mpsc::Sender<LogChunk>) {
        let end = LogChunk {
            id,
            end: true,
            error,
            ..LogChunk::default()
        };
        self.scope
            .spawn("log refusal", async move { drop(chunks.send(end).await) });
    }

    /// The reader has taken this many chunks, so it may be sent as many more.
    pub(crate) fn credit(&mut self, id: u64, chunks: u32) {
        if let Some(open) = self.reads.get(&id) {
            let room = CREDIT_MAX.saturating_sub(open.credit.available_permits());
            open.credit.add_permits(room.min(chunks as usize));
        }
    }

    pub(crate) fn cancel(&mut self, id: u64) {
        if let Some(open) = self.reads.remove(&id) {
            open.token.cancel();
        }
    }

    pub(crate) fn cancel_all(&mut self) {
        for (_, open) in std::mem::take(&mut self.reads) {
            open.token.cancel();
        }
    }
}

/// The run that a message names. Its name is part of a path.
pub(crate) fn run_of(job_uid: &str, generation: u64) -> Result<RunId, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if job_uid.is_empty() || !job_uid.chars().all(is_part) {
        return Err(format!("{job_uid:.64?} is not the uid of a job"));
    }
    Ok(RunId {
        job: JobUid::from(job_uid),
        generation: Generation(generation),
    })
}

struct Reader {
    read: LogRead,
    runs: Runs,
    run: RunId,
    log: RunLog,
    reports: watch::Receiver<Option<Reports>>,
    credit: Arc<Semaphore>,
    chunks: mpsc::Sender<LogChunk>,
}

/// Nobody takes chunks any more.
struct Unwanted;

impl Reader {
    async fn run(mut self) {
        let error = match self.read().await {
            Ok(true) => String::new(),
            Ok(false) => self.why_absent(),
            Err(e) => format!("{}: {e}", self.log.name()),
        };
        // The end needs no credit, because it is a single short chunk.
        let end = LogChunk {
            id: self.read.id,
            at: self.log.at(),
            end: true,
            error,
            ..LogChunk::default()
        };
        let _ = self.chunks.send(end).await;
    }

    /// False: no such log ever existed.
    async fn read(&mut self) -> std::io::Result<bool> {
        match (self.read.from, self.read.tail) {
            (Some(at), _) => self.log.seek(at),
            (None, Some(tail)) => {
                self.log.seek_tail(tail).await?;
                // If this read breaks before the next line comes, another read can continue from
                // here.
                if self.log.is_open()
                    && self
                        .send(file::Lines {
                            at: self.log.at(),
                            ..file::Lines::default()
                        })
                        .await
                        .is_err()
                {
                    return Ok(true);
                }
            }
            (None, None) => {}
        }
        loop {
            // Ask this before reading the file to its end. Everything that was written before the
            // run's end is then certainly seen.
            let over = self.is_over();
            loop {
                let lines = self.log.next_lines().await?;
                if lines.lines.is_empty() && lines.lost == 0 {
                    break;
                }
                if self.send(lines).await.is_err() {
                    return Ok(true);
                }
            }
            if over || !self.read.follow {
                return Ok(self.log.is_open());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn send(&self, file::Lines { lines, at, lost }: file::Lines) -> Result<(), Unwanted> {
        self.credit.acquire().await.map_err(|_| Unwanted)?.forget();
        let (lines, raw) = match self.read.raw {
            true => (Vec::new(), lines),
            false => {
                let text = |line: &Vec<u8>| String::from_utf8_lossy(line).into_owned();
                (lines.iter().map(text).collect(), Vec::new())
            }
        };
        let chunk = LogChunk {
            id: self.read.id,
            lines,
            raw,
            at,
            lost,
            ..LogChunk::default()
        };
        self.chunks.send(chunk).await.map_err(|_| Unwanted)
    }

    /// Tells the user why there is no such log.
    fn why_absent(&self) -> String {
        let (name, run) = (self.log.name(), &self.run);
        if let Some(emptied) = self.runs.emptied(run) {
            return format!(
                "the logs of this generation were removed at {} to make room: the node keeps {} MiB of logs of runs that are over (muster-agent --logs-max)",
                muster_runner::cri::stamp(emptied.unix_us / 1_000_000, 0).replace(".000000000", ""),
                emptied.limit >> 20,
            );
        }
        let kept = self.runs.generations(&run.job).unwrap_or_default();
        if kept.contains(&run.generation) {
            return format!("{name} is not there: nothing was started that would have written it");
        }
        match &kept[..] {
            [.., newest] if *newest > run.generation => {
                let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
                format!(
                    "{name} was removed to make room: of a job a node keeps its {KEPT_PER_JOB} newest generations and the first that failed, of this one {}",
                    kept.join(", ")
                )
            }
            _ => format!("{name} is not on this node"),
        }
    }

    /// Whether nothing more will be written. A node cannot know that for an unknown run, because
    /// the order to start it may be on its way. Such a read ends when the coordinator, which knows,
    /// cancels it.
    fn is_over(&self) -> bool {
        let reports = self.reports.borrow();
        let run = reports
            .as_ref()
            .and_then(|reports| reports.runs.iter().find(|report| report.run == self.run));
        run.map_or_else(
            || self.runs.is_released(&self.run),
            |report| report.phase.is_over(),
        )
    }
}
