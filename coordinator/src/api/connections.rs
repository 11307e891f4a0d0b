//! The agents that are connected, and what is asked of them beside their desired state: log reads,
//! signals and where ranks are, through their sessions.
//!
//! A reader has credit: the agent may send that many chunks, and then waits until the reader has
//! taken some. So a slow reader slows only its own read. The session that carries it, with its
//! heartbeats, never waits for somebody's terminal.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use muster_core::id::{NodeName, SessionId};
use muster_proto::v1;
use tokio::sync::{mpsc, oneshot, watch};

/// Commands that wait for a session's task. The task takes them as fast as it can send them on.
pub(crate) const COMMANDS: usize = 64;

/// Credit of one read, in chunks of at most 64 KiB. 1 MiB keeps a fast network busy.
const WINDOW: u32 = 16;
/// Credit of all reads of one client together: 4 MiB, divided among the logs that are read at the
/// same time.
const WINDOW_SHARED: u32 = 64;

/// What a session's task must send to its agent beside its desired state.
#[derive(Debug)]
pub(crate) enum LogCommand {
    /// Boxed, because the queue of every session has room for 32 commands from the start.
    Read(Box<(v1::LogRead, mpsc::Sender<v1::LogChunk>)>),
    Credit(v1::LogCredit),
    Cancel {
        id: u64,
    },
    /// Boxed as above.
    Signal(Box<(v1::SignalRanks, oneshot::Sender<v1::RanksSignalled>)>),
    /// Boxed as above.
    Locate(Box<(v1::LocateRanks, oneshot::Sender<v1::RanksLocated>)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Connection {
    session: SessionId,
    commands: mpsc::Sender<LogCommand>,
}

impl Connection {
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }
}

/// The agents that are connected now. Written by their sessions, followed by readers.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_node: watch::Sender<BTreeMap<NodeName, Connection>>,
    last_read: AtomicU64,
    last_signal: AtomicU64,
    last_locate: AtomicU64,
}

impl Connections {
    /// Makes a session known until the returned guard is dropped. A newer session of a node
    /// replaces the older one.
    pub(crate) fn announce(
        &self,
        node: NodeName,
        session: SessionId,
        commands: mpsc::Sender<LogCommand>,
    ) -> Announced<'_> {
        self.by_node
            .send_modify(|all| drop(all.insert(node.clone(), Connection { session, commands })));
        Announced {
            connections: self,
            node,
            session,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.by_node.borrow().len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn follow(&self) -> watch::Receiver<BTreeMap<NodeName, Connection>> {
        self.by_node.subscribe()
    }

    /// Starts a read of one log. The client reads `shared` logs at the same time. `None`: the
    /// session has just ended.
    pub(crate) async fn read(
        &self,
        connection: &Connection,
        read: v1::LogRead,
        shared: usize,
    ) -> Option<Reading> {
        let window =
            (WINDOW_SHARED / u32::try_from(shared.max(1)).unwrap_or(u32::MAX)).clamp(2, WINDOW);
        let id = self.last_read.fetch_add(1, Ordering::Relaxed) + 1;
        // The end of a log needs no credit, so leave room for it behind all chunks that do.
        let (sender, chunks) = mpsc::channel(window as usize + 1);
        let read = v1::LogRead { id, window, ..read };
        connection
            .commands
            .send(LogCommand::Read(Box::new((read, sender))))
            .await
            .ok()?;
        Some(Reading {
            id,
            commands: connection.commands.clone(),
            chunks,
            window,
            taken: 0,
        })
    }
}

impl Connections {
    /// Has an agent send a signal to ranks. `None`: the session ended before it answered.
    pub(crate) async fn signal(
        &self,
        connection: &Connection,
        signal: v1::SignalRanks,
    ) -> Option<v1::RanksSignalled> {
        let id = self.last_signal.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        let signal = v1::SignalRanks { id, ..signal };
        connection
            .commands
            .send(LogCommand::Signal(Box::new((signal, answer))))
            .await
            .ok()?;
        answered.await.ok()
    }
}

impl Connections {
    /// Has an agent find out where ranks are. `None`: the session ended before it answered.
    pub(crate) async fn locate(
        &self,
        connection: &Connection,
        asked: v1::LocateRanks,
    ) -> Option<v1::RanksLocated> {
        let id = self.last_locate.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        let asked = v1::LocateRanks { id, ..asked };
        connection
            .commands
            .send(LogCommand::Locate(Box::new((asked, answer))))
            .await
            .ok()?;
        answered.await.ok()
    }
}

pub(crate) struct Announced<'a> {
    connections: &'a Connections,
    node: NodeName,
    session: SessionId,
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.connections.by_node.send_if_modified(|all| {
            let mine = all
                .get(&self.node)
                .is_some_and(|connection| connection.session == self.session);
            mine && all.remove(&self.node).is_some()
        });
    }
}

/// A log read that is going on. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Reading {
    id: u64,
    commands: mpsc::Sender<LogCommand>,
    chunks: mpsc::Receiver<v1::LogChunk>,
    window: u32,
    taken: u32,
}

impl Reading {
    /// The next chunk. `None`: the session broke before the agent had sent the end.
    pub(crate) async fn next(&mut self) -> Option<v1::LogChunk> {
        // Gives credit back by halves of the window, so that most chunks cost no message.
        if self.taken >= self.window / 2 {
            let credit = v1::LogCredit {
                id: self.id,
                chunks: self.taken,
            };
            self.commands.send(LogCommand::Credit(credit)).await.ok()?;
            self.taken = 0;
        }
        let chunk = self.chunks.recv().await?;
        self.taken += 1;
        Some(chunk)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // If there is no room now, the session cancels the read at the next chunk, which nobody
        // takes.
        let _ = self.commands.try_send(LogCommand::Cancel { id: self.id });
    }
}
