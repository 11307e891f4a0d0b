//! The sockets: one listener, its clients and a timer in one epoll set. This module moves bytes and
//! keeps the bounds. The table decides what a request means.
//!
//! A client is new (accepted but not validated, closed at its handshake deadline), served, or full
//! (its unsent replies exceed [`HIGH_WATER`], so nothing is read from it until it reads). Each turn
//! looks at every ready client once and reads at most [`READ_BYTES`] from it, so no client can keep
//! the others waiting. Unread bytes keep the epoll set readable, so the next turn follows at once.
//!
//! There are no keep-alive probes. A client behind a broken network must find its connection alive
//! when the network comes back, because its training may not have noticed. Silence does not prove
//! death.

mod accept;
mod client;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use self::accept::{listener, spare};
use self::client::{Client, READ_BYTES};
use crate::meter::Meter;
use crate::protocol::Reply;
use crate::table::{Outcome, Table};
use crate::{ClientId, Closed, Event, Key, Limits, RefusedReason};

/// How many ready descriptors one turn handles.
const EVENTS: usize = 1024;

/// A client that holds no more than this is not closed for a full store: it only reads, or has an
/// ordinary request. In the worst case 16,384 clients hold 128 MiB beyond [`Limits::total_bytes`].
const INNOCENT_BYTES: usize = 8 * 1024;

const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// The store itself failed. No client can cause this.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StoreError {
    #[error("listen on {addr}")]
    Listen {
        addr: SocketAddr,
        #[source]
        source: Errno,
    },
    #[error("{what} the store's epoll set")]
    Epoll {
        what: &'static str,
        #[source]
        source: Errno,
    },
    #[error("set the store's timer")]
    Timer {
        #[source]
        source: Errno,
    },
    #[error("accept a connection")]
    Accept {
        #[source]
        source: Errno,
    },
}

impl StoreError {
    /// Another socket has the address.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if *source == Errno::ADDRINUSE)
    }
}

/// A TCPStore server. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct Store {
    limits: Limits,
    /// The addresses that clients have. Empty: anyone may be a client.
    peers: BTreeSet<IpAddr>,
    table: Table,
    meter: Meter,
    clients: BTreeMap<ClientId, Client>,
    next_client: u64,
    /// When clients must have validated, the soonest first. All have the same time, so this is the
    /// order of arrival.
    handshakes: VecDeque<(Duration, ClientId)>,
    /// Clients that have got something to send since their last flush.
    unsent: BTreeSet<ClientId>,
    local: SocketAddr,
    listener: OwnedFd,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// This descriptor is closed to accept, and so to refuse, one more connection when the process
    /// has no other descriptor left.
    spare: Option<OwnedFd>,
    scratch: Box<[u8]>,
}

impl Store {
    /// Listens on `addr`. Port 0 asks for a free port.
    ///
    /// # Errors
    /// The address is not available, or the process has no descriptors left.
    pub fn bind(addr: SocketAddr, limits: Limits) -> Result<Store, StoreError> {
        let listen = |source| StoreError::Listen { addr, source };
        let listener = listener(addr).map_err(listen)?;
        let local = rustix::net::getsockname(&listener).map_err(listen)?;
        let local = SocketAddr::try_from(local).map_err(listen)?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|source| StoreError::Epoll {
                what: "make",
                source,
            })?;
        let timer = rustix::time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )
        .map_err(|source| StoreError::Timer { source })?;
        let meter = Meter::default();
        let store = Store {
            table: Table::metered(limits.clone(), meter.clone()),
            limits,
            peers: BTreeSet::new(),
            meter,
            clients: BTreeMap::new(),
            next_client: 0,
            handshakes: VecDeque::new(),
            unsent: BTreeSet::new(),
            local,
            spare: spare(&listener),
            listener,
            epoll,
            timer,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
        };
        store.register(&store.listener, LISTENER)?;
        store.register(&store.timer, TIMER)?;
        Ok(store)
    }

    /// Refuses every connection that comes from another address than these or from this machine's
    /// loopback. An empty list refuses nobody.
    #[must_use]
    pub fn only_from(mut self, peers: impl IntoIterator<Item = IpAddr>) -> Store {
        self.peers = peers.into_iter().map(|peer| peer.to_canonical()).collect();
        self
    }

    /// The address that it listens on, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// A descriptor that is readable when [`Store::turn`] has work, including its own deadlines. It
    /// is for the caller's epoll set or `poll`.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does the work that is ready and returns. It never blocks. `now` is the caller's monotonic
    /// clock.
    ///
    /// # Errors
    /// The store cannot continue. No client can cause this.
    pub fn turn(&mut self, now: Duration, on: &mut dyn FnMut(Event)) -> Result<(), StoreError> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let (ready, _) = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) {
            Err(Errno::INTR) => return Ok(()),
            other => other.map_err(|source| StoreError::Epoll {
                what: "read",
                source,
            })?,
        };
        let mut rung = false;
        for event in ready.iter() {
            match event.data.u64() {
                LISTENER => self.accept(now, on)?,
                TIMER => rung = true,
                id => self.serve(ClientId(id), event.flags, on),
            }
        }
        if self.expire(now, on) || rung {
            self.arm(now)?;
        }
        self.flush(on);
        Ok(())
    }

    /// Writes a key for the host, and releases the clients that waited for it.
    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        let mut out = Vec::new();
        self.table.set(key, value, &mut out);
        self.deliver_from_host(out);
    }

    /// Adds to a counter for the host. A missing key, or one that is not a number, counts as 0.
    pub fn add(&mut self, key: &[u8], by: i64) -> i64 {
        let mut out = Vec::new();
        let sum = self.table.add(key, by, &mut out);
        self.deliver_from_host(out);
        sum
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.table.get(key)
    }

    /// How many connections there are.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The waiting clients, each with its missing keys.
    pub fn waiting(&self) -> impl Iterator<Item = (ClientId, Vec<Key>)> {
        self.table.waiting()
    }

    /// How many bytes are held now, as counted against [`Limits::total_bytes`].
    pub fn held_bytes(&self) -> usize {
        self.meter.used()
    }

    /// Reads from one ready client and obeys its requests.
    fn serve(&mut self, id: ClientId, flags: epoll::EventFlags, on: &mut dyn FnMut(Event)) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        self.unsent.insert(id);
        if let Err(errno) = client.flush() {
            return self.close(id, Closed::Failed(errno.raw_os_error()), on);
        }
        if client.is_full() {
            if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                self.close(id, Closed::ByPeer, on);
            }
            return;
        }
        // Requests that were read earlier and held back come first.
        if let Err(why) = self.obey(id, on) {
            return self.refuse(id, why, on);
        }
        let Some(client) = self.clients.get_mut(&id).filter(|c| !c.held_back) else {
            return;
        };
        match client.read(&mut self.scratch) {
            Ok(0) => return self.close(id, Closed::ByPeer, on),
            Ok(n) => client.decoder.push(&self.scratch[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(Errno::CONNRESET) => return self.close(id, Closed::ByPeer, on),
            Err(errno) => return self.close(id, Closed::Failed(errno.raw_os_error()), on),
        }
        if let Err(why) = self.obey(id, on) {
            self.refuse(id, why, on);
        }
    }

    /// Obeys a client's whole requests, as long as there is room for their replies.
    fn obey(&mut self, id: ClientId, on: &mut dyn FnMut(Event)) -> Result<(), RefusedReason> {
        let mut out = Vec::new();
        let done = loop {
            let Some(client) = self.clients.get_mut(&id) else {
                break Ok(());
            };
            client.held_back = client.is_full();
            if client.held_back {
                break Ok(());
            }
            match client.decoder.next(&self.limits) {
                Err(fault) => break Err(fault.into()),
                Ok(None) => break Ok(()),
                Ok(Some(request)) => {
                    let applied = self.table.apply(id, request, &mut out);
                    self.deliver(id, &mut out, on);
                    if let Err(denied) = applied {
                        break Err(denied.into());
                    }
                }
            }
        };
        let Some(client) = self.clients.get_mut(&id) else {
            return done;
        };
        let held = client.settle(&self.meter);
        let limit = self.limits.total_bytes;
        if self.meter.used() > limit && held > INNOCENT_BYTES {
            return done.and(Err(RefusedReason::StoreFull { limit }));
        }
        done
    }

    fn deliver(&mut self, by: ClientId, out: &mut Vec<Outcome>, on: &mut dyn FnMut(Event)) {
        for outcome in out.drain(..) {
            match outcome {
                Outcome::Reply(to, reply) => self.queue(to, reply),
                Outcome::Set(key) => on(Event::Set { client: by, key }),
                Outcome::Added(key, value) => on(Event::Added {
                    client: by,
                    key,
                    value,
                }),
                Outcome::Waiting(keys) => on(Event::Waiting { client: by, keys }),
            }
        }
    }

    fn deliver_from_host(&mut self, out: Vec<Outcome>) {
        for outcome in out {
            if let Outcome::Reply(to, reply) = outcome {
                self.queue(to, reply);
            }
        }
        // If a client's socket fails here, the next turn sees it and closes the client.
        for id in std::mem::take(&mut self.unsent) {
            if let Some(client) = self.clients.get_mut(&id) {
                let _ = client.flush();
                client.settle(&self.meter);
                let _ = client.watch(&self.epoll, id);
            }
        }
    }

    fn queue(&mut self, to: ClientId, reply: Reply) {
        if let Some(client) = self.clients.get_mut(&to) {
            reply.encode(&mut client.outbox);
            self.unsent.insert(to);
        }
    }

    /// Sends this turn's replies, once per client however many replies it has.
    fn flush(&mut self, on: &mut dyn FnMut(Event)) {
        for id in std::mem::take(&mut self.unsent) {
            let Some(client) = self.clients.get_mut(&id) else {
                continue;
            };
            let sent = client.flush().and_then(|()| client.watch(&self.epoll, id));
            client.settle(&self.meter);
            if let Err(errno) = sent {
                let why = match errno {
                    Errno::PIPE | Errno::CONNRESET => Closed::ByPeer,
                    errno => Closed::Failed(errno.raw_os_error()),
                };
                self.close(id, why, on);
            }
        }
    }

    /// Closes clients that did not validate in time. True if the soonest deadline has changed.
    fn expire(&mut self, now: Duration, on: &mut dyn FnMut(Event)) -> bool {
        let mut moved = false;
        while let Some(&(at, id)) = self.handshakes.front() {
            let settled = self.clients.get(&id).is_none_or(|c| c.decoder.validated());
            if !settled && now < at {
                break;
            }
            self.handshakes.pop_front();
            moved = true;
            if !settled {
                self.refuse(
                    id,
                    RefusedReason::Handshake {
                        after: self.limits.handshake,
                    },
                    on,
                );
            }
        }
        moved
    }

    /// Sets the timer to the soonest deadline, or unsets it if there is none. This also cancels an
    /// expiry that was not read yet.
    fn arm(&self, now: Duration) -> Result<(), StoreError> {
        let wait = self
            .handshakes
            .front()
            .map(|(at, _)| at.saturating_sub(now).max(Duration::from_nanos(1)));
        let wait = wait.unwrap_or_default();
        let it_value = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let it = Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &it)
            .map(|_| ())
            .map_err(|source| StoreError::Timer { source })
    }

    fn refuse(&mut self, client: ClientId, why: RefusedReason, on: &mut dyn FnMut(Event)) {
        on(Event::Refused { client, why });
        self.close(client, Closed::Refused, on);
    }

    fn close(&mut self, id: ClientId, why: Closed, on: &mut dyn FnMut(Event)) {
        self.table.leave(id);
        self.unsent.remove(&id);
        if let Some(client) = self.clients.remove(&id) {
            client.leave(&self.meter);
            on(Event::Closed { client: id, why });
        }
        if self.spare.is_none() {
            self.spare = spare(&self.listener);
        }
    }

    fn fresh_id(&mut self) -> ClientId {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        id
    }

    fn register(&self, fd: &OwnedFd, data: u64) -> Result<(), StoreError> {
        self.watch(fd, data).map_err(|source| StoreError::Epoll {
            what: "add to",
            source,
        })
    }

    fn watch(&self, fd: &OwnedFd, data: u64) -> rustix::io::Result<()> {
        epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(data),
            epoll::EventFlags::IN,
        )
    }
}
