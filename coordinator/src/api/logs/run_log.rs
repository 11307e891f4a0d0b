//! One log of one generation, on its way to one client.
//!
//! A followed log ends in one of two ways. Its agent says that the run is over and that this was
//! all. Or the fleet knows that the run is proven dead, and a last read brings what was written
//! until then. So agent and coordinator may hear of a run, and of its end, in any order.

use std::{sync::Arc, time::Duration};

use muster_core::{
    fleet::{job::GenerationRecord, view::JobView},
    id::{Generation, JobName, JobUid, NodeName},
};
use muster_handle::board::Jobs;
use muster_proto::v1;
use tokio::sync::watch;

use super::{Logs, Source};
use crate::api::{connections::Connection, context::Context, feed::Out};

/// If a read broke with its session, the session's end is known within this time. Otherwise the
/// session lives and has ended the read itself.
const SESSION_END: Duration = Duration::from_secs(2);

pub(super) struct RunLog {
    context: Context,
    job: JobName,
    uid: JobUid,
    generation: Generation,
    source: Source,
    node: NodeName,
    pub(super) tail: Option<u32>,
    follow: bool,
    raw: bool,
    /// The node's agent cannot send bytes, which was said.
    is_text: bool,
    /// All bytes before this position were sent.
    at: Option<u64>,
    /// The client has the whole log already.
    ended: bool,
    /// How many reads share the client's credit.
    shared: usize,
    out: Out<v1::LogsResponse>,
}

impl RunLog {
    pub(super) fn new(
        logs: &Logs,
        generation: &GenerationRecord,
        source: Source,
        shared: usize,
        out: Out<v1::LogsResponse>,
    ) -> Self {
        let node = match &source {
            Source::Rank(rank) => generation
                .node_of(*rank)
                .expect("the rank was checked against this generation")
                .clone(),
            Source::Launcher(node) => node.clone(),
        };
        let position = logs.positions.get(&(generation.number, source.clone()));
        Self {
            context: logs.context.clone(),
            job: logs.name.clone(),
            uid: logs.uid.clone(),
            generation: generation.number,
            at: position.map(|position| position.at).filter(|at| *at > 0),
            ended: position.is_some_and(|position| position.ended),
            source,
            node,
            tail: logs.tail,
            follow: logs.follow,
            raw: logs.raw,
            is_text: false,
            shared,
            out,
        }
    }

    pub(super) async fn copy(mut self) {
        if self.ended {
            return;
        }
        let mut connections = self.context.connections.follow();
        let mut jobs = self.context.handle.jobs();
        let mut missing = false;
        loop {
            let connection = connections.borrow_and_update().get(&self.node).cloned();
            jobs.mark_unchanged();
            let grows = self.follow && self.may_grow();
            if let Some(connection) = connection {
                missing = false;
                match self.read(&connection, grows, &mut jobs).await {
                    ReadEnd::Done => return,
                    ReadEnd::Proven => continue,
                    ReadEnd::Broken => {}
                }
                // The session that carried the read has ended, or is about to.
                let session = connection.session();
                let ended = connections.wait_for(|all| {
                    all.get(&self.node)
                        .is_none_or(|now| now.session() != session)
                });
                if tokio::time::timeout(SESSION_END, ended).await.is_err() {
                    let notice = format!(
                        "the log of {} is cut off here: {} serves too many log readers",
                        self.source, self.node
                    );
                    self.send(v1::LogsResponse {
                        notice,
                        ended: true,
                        ..self.blank()
                    })
                    .await;
                    return;
                }
            } else {
                let waits = grows && !self.is_job_over();
                if !std::mem::replace(&mut missing, true) && !self.say_missing(waits).await {
                    return;
                }
                if !waits {
                    return;
                }
                tokio::select! {
                    changed = connections.changed() => if changed.is_err() { return },
                    changed = jobs.changed() => if changed.is_err() { return },
                    () = self.out.closed() => return,
                }
            }
        }
    }

    /// Reads through one session: up to the present end, or up to the final end if the log may
    /// grow.
    async fn read(
        &mut self,
        connection: &Connection,
        grows: bool,
        jobs: &mut watch::Receiver<Jobs>,
    ) -> ReadEnd {
        let read = v1::LogRead {
            job_uid: self.uid.to_string(),
            generation: self.generation.0,
            rank: self.rank(),
            launcher: matches!(self.source, Source::Launcher(_)),
            follow: grows,
            from: self.at,
            tail: self.tail.filter(|_| self.at.is_none()),
            raw: self.raw,
            ..v1::LogRead::default()
        };
        let Some(mut reading) = self
            .context
            .connections
            .read(connection, read, self.shared)
            .await
        else {
            return ReadEnd::Broken;
        };
        loop {
            let chunk = tokio::select! {
                chunk = reading.next() => chunk,
                changed = jobs.changed(), if grows => match changed {
                    Ok(()) if self.may_grow() => continue,
                    Ok(()) => return ReadEnd::Proven,
                    Err(_) => return ReadEnd::Done,
                },
                () = self.out.closed() => return ReadEnd::Done,
            };
            let Some(v1::LogChunk {
                mut lines,
                mut raw,
                end,
                error,
                at,
                lost,
                ..
            }) = chunk
            else {
                return ReadEnd::Broken;
            };
            let over = end || !error.is_empty();
            let mut notice = String::new();
            if !error.is_empty() && self.expects_a_log() {
                notice = format!(
                    "{} of generation {} on {}: {error}",
                    self.source, self.generation, self.node
                );
            } else if lost > 0 {
                let place = if self.at.unwrap_or(0) == 0 {
                    "at its beginning"
                } else {
                    "here"
                };
                notice = format!(
                    "{} of generation {} on {}: {lost} bytes of the log are missing {place}: a node keeps a log's newest part",
                    self.source, self.generation, self.node
                );
            }
            if self.raw && !lines.is_empty() {
                // An older agent sends text whatever it is asked for.
                raw = lines.drain(..).map(String::into_bytes).collect();
                if !std::mem::replace(&mut self.is_text, true) && notice.is_empty() {
                    notice = format!(
                        "{} of generation {}: the agent on {} is older and sends text only: bytes that are no UTF-8 are replaced",
                        self.source, self.generation, self.node
                    );
                }
            }
            let moves = at > 0 && self.at != Some(at);
            if moves {
                self.at = Some(at);
            }
            let is_empty = lines.is_empty() && raw.is_empty();
            let is_news = moves || over || !is_empty || !notice.is_empty();
            let response = v1::LogsResponse {
                lines,
                raw,
                notice,
                ended: over,
                ..self.blank()
            };
            if (is_news && !self.send(response).await) || over {
                return ReadEnd::Done;
            }
        }
    }

    fn job(&self) -> Option<Arc<JobView>> {
        self.context
            .handle
            .job(&self.job)
            .filter(|view| view.record.uid == self.uid)
    }

    /// Whether this node's share of the generation may still write: nothing has proven it dead.
    fn may_grow(&self) -> bool {
        self.job().is_some_and(|view| {
            view.record.unproven_generations().any(|generation| {
                generation.number == self.generation && !generation.dead.contains(&self.node)
            })
        })
    }

    fn is_job_over(&self) -> bool {
        self.job().is_none_or(|view| view.record.phase.is_over())
    }

    /// A client that follows a job expects no log of a generation that was given up before it was
    /// started.
    fn expects_a_log(&self) -> bool {
        let view = self.job();
        let generation = view
            .as_ref()
            .and_then(|view| view.record.generation(self.generation));
        !self.follow || generation.is_none_or(|generation| generation.started)
    }

    async fn say_missing(&self, waits: bool) -> bool {
        let what = if self.at.is_none() {
            "is missing"
        } else {
            "is cut off here"
        };
        let then = if waits {
            "; it goes on when the node is back"
        } else {
            ""
        };
        let notice = format!(
            "{} is not connected: the log of {} {what}{then}",
            self.node, self.source
        );
        self.send(v1::LogsResponse {
            notice,
            ended: !waits,
            ..self.blank()
        })
        .await
    }

    /// The rank; 0 for a launcher, which has none.
    fn rank(&self) -> u32 {
        match self.source {
            Source::Rank(rank) => rank,
            Source::Launcher(_) => 0,
        }
    }

    fn blank(&self) -> v1::LogsResponse {
        v1::LogsResponse {
            rank: self.rank(),
            at: self.at.unwrap_or(0),
            node: self.node.to_string(),
            generation: self.generation.0,
            ..v1::LogsResponse::default()
        }
    }

    async fn send(&self, response: v1::LogsResponse) -> bool {
        self.out.send(Ok(response)).await.is_ok()
    }
}

/// How a read through one session ended.
enum ReadEnd {
    /// There are no more lines, or nobody reads them.
    Done,
    /// The run is proven dead: its log is complete now and can be read to the end.
    Proven,
    /// The session broke.
    Broken,
}
