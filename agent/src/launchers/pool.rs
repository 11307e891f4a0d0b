//! The books of the warm pool: which launchers it has, and for which interpreters.
//! `core::node::pool` decides.

use std::collections::BTreeMap;

use muster_core::{
    node::pool::{self, Held, Key, Plan},
    node_report::WarmPool,
    run::Assignment,
    time::Timestamp,
    usage::Space,
};
use tracing::info;

use super::Kept;

/// How many interpreters are remembered: twice as many as a pool may hold, so that an interpreter
/// that comes back is known.
const USED_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    limit: usize,
    members: BTreeMap<u32, Member>,
    /// What jobs here were started with, the newest first, and how to start a launcher for each.
    used: Vec<(Key, Assignment)>,
    busy_at: Option<Timestamp>,
    size: u64,
}

#[derive(Debug)]
struct Member {
    key: Key,
    started_at: Timestamp,
    /// None while it is starting.
    kept: Option<Kept>,
}

impl Pool {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.limit == 0
    }

    /// The pool's state, for people. None if there is no pool.
    pub(crate) fn shown(&self) -> Option<WarmPool> {
        let ready = || {
            self.members
                .values()
                .filter_map(|member| member.kept.as_ref())
        };
        let (limit, bytes) = (self.limit as u32, ready().map(|kept| kept.bytes).sum());
        (!self.is_off()).then(|| WarmPool {
            limit,
            ready: ready().count() as u32,
            bytes,
        })
    }

    /// Notes that a job uses this interpreter.
    pub(crate) fn note_use(&mut self, key: Key, bare: Assignment) {
        self.used.retain(|(known, _)| *known != key);
        self.used.insert(0, (key, bare));
        self.used.truncate(USED_MAX);
    }

    /// Gives a ready launcher up for a job.
    pub(crate) fn take(&mut self, key: &Key) -> Option<Kept> {
        let fits = |member: &Member| member.key == *key && member.kept.is_some();
        let number = self
            .members
            .iter()
            .find(|(_, member)| fits(member))
            .map(|(number, _)| *number)?;
        self.members.remove(&number)?.kept
    }

    /// Removes the launchers that have ended by themselves, for the caller to clear away.
    pub(crate) fn gone(&mut self) -> Vec<Kept> {
        let is_gone =
            |_: &u32, member: &mut Member| member.kept.as_ref().is_some_and(Kept::is_gone);
        self.members
            .extract_if(.., is_gone)
            .filter_map(|(_, member)| member.kept)
            .collect()
    }

    /// What the pool must do now.
    pub(crate) fn plan(
        &mut self,
        now: Timestamp,
        busy: bool,
        memory: Space,
        bytes_max: Option<u64>,
        bytes_of_jobs: u64,
    ) -> Plan {
        if busy {
            self.busy_at = Some(now);
        }
        let used: Vec<Key> = self.used.iter().map(|(key, _)| key.clone()).collect();
        let member = |(number, member): (&u32, &Member)| pool::Member {
            number: *number,
            key: member.key.clone(),
            started_at: member.started_at,
            bytes: member.kept.as_ref().map(|kept| kept.bytes),
        };
        let launchers: Vec<pool::Member> = self.members.iter().map(member).collect();
        let (limit, busy_at, size) = (self.limit, self.busy_at, self.size);
        pool::plan(
            now,
            &Held {
                limit,
                launchers: &launchers,
                used: &used,
                busy_at,
                memory,
                size,
                bytes_max,
                bytes_of_jobs,
            },
        )
    }

    /// Notes that a launcher is being started. Returns how to start it.
    pub(crate) fn begin(&mut self, number: u32, key: Key, now: Timestamp) -> Option<Assignment> {
        let bare = self.used.iter().find(|(known, _)| *known == key)?.1.clone();
        self.members.insert(
            number,
            Member {
                key,
                started_at: now,
                kept: None,
            },
        );
        Some(bare)
    }

    /// Notes that a launcher is ready. Returns it if it is not needed, for the caller to end.
    pub(crate) fn ready(&mut self, number: u32, kept: Kept) -> Option<Kept> {
        match self.members.get_mut(&number) {
            Some(member) => {
                member.kept = Some(kept);
                None
            }
            None => Some(kept),
        }
    }

    /// Notes that a launcher could not be started. The pool does not try this interpreter again
    /// until another job uses it.
    pub(crate) fn failed(&mut self, number: u32, why: &str) {
        if let Some(member) = self.members.remove(&number) {
            info!("no launcher for the warm pool: {why}");
            self.used.retain(|(known, _)| *known != member.key);
        }
    }

    pub(crate) fn weigh(&mut self, number: u32, bytes: u64) {
        self.size = bytes;
        if let Some(kept) = self
            .members
            .get_mut(&number)
            .and_then(|member| member.kept.as_mut())
        {
            kept.bytes = bytes;
        }
    }

    /// Removes a launcher. None if it is still starting; it is then ended once it is ready.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Kept> {
        self.members.remove(&number)?.kept
    }
}
