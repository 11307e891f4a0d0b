//! The TCPStore of this generation, if this runner serves it, and what its traffic says about the
//! ranks.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use muster_runner::wire::{Hold, Refusal, RefusalKind, StoreSpec, StoreStatus};
use muster_tcpstore::{Event, Sensor, Store, StoreError};

use crate::limits;
use crate::time::{self, micros};

pub(crate) struct Served {
    store: Store,
    sensor: Sensor,
    run_id: String,
    joined: usize,
    all_joined: Option<Duration>,
    communicator: Option<Duration>,
    refused: u64,
    refused_why: Option<String>,
}

/// What has changed in a turn of the TCPStore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    None,
    /// Connections came or went.
    Clients,
    /// A rank has joined.
    Joined,
}

impl Served {
    pub(crate) fn bind(
        addr: SocketAddr,
        spec: &StoreSpec,
        hold: &Hold,
    ) -> Result<Self, StoreError> {
        let store = Store::bind(addr, limits::of_store(hold))?.only_from(spec.clients.clone());
        let sensor = Sensor::new(hold.world_size, hold.nnodes);
        Ok(Self {
            store,
            sensor,
            run_id: spec.run_id.clone(),
            joined: 0,
            all_joined: None,
            communicator: None,
            refused: 0,
            refused_why: None,
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.store.local_addr()
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.store.poll_fd()
    }

    pub(crate) fn clients(&self) -> usize {
        self.store.clients()
    }

    pub(crate) fn turn(&mut self, now: Duration) -> Result<News, StoreError> {
        let before = (self.store.clients(), self.refused);
        let Self {
            store,
            sensor,
            refused,
            refused_why,
            ..
        } = self;
        store.turn(now, &mut |event| {
            if let Event::Refused { why, .. } = &event {
                *refused += 1;
                *refused_why = Some(why.to_string());
            }
            sensor.observe(&event);
        })?;
        self.say_refusals(before.1);
        let joined = self.sensor.joined_ranks().len();
        let complete = self.all_joined.is_none() && self.sensor.all_joined();
        if complete {
            self.all_joined = Some(now);
        }
        let first = self.communicator.is_none() && self.sensor.communicator();
        if first {
            self.communicator = Some(now);
        }
        let news = match () {
            () if complete || joined != self.joined => News::Joined,
            () if first || (self.store.clients(), self.refused) != before => News::Clients,
            () => News::None,
        };
        self.joined = joined;
        Ok(news)
    }

    /// Logs the first refusal, and then each time their number has doubled, so that a flood of them
    /// does not fill the log.
    fn say_refusals(&self, before: u64) {
        if self.refused.checked_ilog2() != before.checked_ilog2()
            && let Some(why) = &self.refused_why
        {
            say!(
                "{} TCPStore: connections refused so far: {}; the last: {why}",
                time::stamp(),
                self.refused
            );
        }
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.store.set(key.as_bytes(), value.as_bytes());
    }

    pub(crate) fn complete_exit_barrier(
        &mut self,
        node_rank: u32,
        nnodes: u32,
    ) -> Result<(), Refusal> {
        if node_rank >= nnodes {
            let text = format!("node_rank: {node_rank} is not below nnodes {nnodes}");
            return Err(Refusal::new(RefusalKind::Invalid, text));
        }
        if self.run_id.is_empty() {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                "store.run_id of hold.json is empty",
            ));
        }
        self.sensor
            .complete_exit_barrier(&mut self.store, &self.run_id, node_rank);
        Ok(())
    }

    pub(crate) fn status(&self) -> StoreStatus {
        StoreStatus {
            addr: self.store.local_addr().to_string(),
            clients: self.store.clients(),
            joined_ranks: self.sensor.joined_ranks().iter().copied().collect(),
            missing_ranks: self.sensor.missing_ranks(),
            announced: Some(self.sensor.announced()),
            all_joined_us: self.all_joined.map(micros),
            communicator_us: self.communicator.map(micros),
            refused: self.refused,
            refused_why: self.refused_why.clone(),
        }
    }
}
