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

/// Interpreters that are remembered: twice as many as a pool may hold, so that one that comes back
/// is known.
const USED_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    limit: usize,
    members: BTreeMap<u32, Member>,
    /// What jobs here were started with, the newest first, and how a launcher for it is started.
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

    /// For people; nothing where there is none.
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

    /// Gives up a launcher that is ready, to a job.
    pub(crate) fn take(&mut self, key: &Key) -> Option<Kept> {
        let fits = |member: &Member| member.key == *key && member.kept.is_some();
        let number = self
            .members
            .iter()
            .find(|(_, member)| fits(member))
            .map(|(number, _)| *number)?;
        self.members.remove(&number)?.kept
    }

    /// Removes those that have ended by themselves, to be cleared away.
    pub(crate) fn gone(&mut self) -> Vec<Kept> {
        let is_gone =
            |_: &u32, member: &mut Member| member.kept.as_ref().is_some_and(Kept::is_gone);
        self.members
            .extract_if(.., is_gone)
            .filter_map(|(_, member)| member.kept)
            .collect()
    }

    /// What is to be done now.
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

    /// Notes that one is being started, and says how.
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

    /// Takes in one that is ready. Returned is one of no use, to be ended.
    pub(crate) fn ready(&mut self, number: u32, kept: Kept) -> Option<Kept> {
        match self.members.get_mut(&number) {
            Some(member) => {
                member.kept = Some(kept);
                None
            }
            None => Some(kept),
        }
    }

    /// One could not be started. None is tried with this interpreter before another job uses it.
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

    /// Removes one. None if it is starting: it is ended when it is ready.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Kept> {
        self.members.remove(&number)?.kept
    }
}
