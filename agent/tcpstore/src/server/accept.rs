//! The listening socket, and which connections are accepted as clients. A connection without room
//! is accepted and closed, so that it neither waits in vain nor keeps the epoll set readable.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::client::Client;
use super::{Store, StoreError};
use crate::{Closed, Event, RefusedReason};

/// How many connections the kernel may hold until they are accepted: every rank of a 4,096-member
/// job at the same moment. The kernel limits it to `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;

/// How many connections one turn accepts, so that a storm of them does not starve existing clients.
const ACCEPTS: usize = 256;

/// The meaning of a failed accept(2).
#[derive(Debug, PartialEq, Eq)]
enum Failed {
    /// One connection failed before it was accepted, or a signal came. The next one may succeed.
    /// Linux passes on network errors of the new socket, and accept(2) says to treat them like
    /// EAGAIN.
    Connection,
    /// The process, or the machine, has no descriptor left.
    Descriptors,
    /// There is nothing to accept, or no memory for it. Try again later.
    Now,
    /// The descriptor is not a listener.
    Listener,
}

impl Failed {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::BADF | Errno::NOTSOCK | Errno::INVAL | Errno::FAULT => Failed::Listener,
            Errno::MFILE | Errno::NFILE => Failed::Descriptors,
            Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS => Failed::Now,
            _ => Failed::Connection,
        }
    }
}

impl Store {
    pub(super) fn accept(
        &mut self,
        now: Duration,
        on: &mut dyn FnMut(Event),
    ) -> Result<(), StoreError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for _ in 0..ACCEPTS {
            match rustix::net::acceptfrom_with(&self.listener, flags) {
                Ok((socket, peer)) => {
                    let peer = peer
                        .and_then(|p| SocketAddr::try_from(p).ok())
                        .unwrap_or(self.local);
                    self.admit(socket, peer, now, on)?;
                }
                Err(source) => match Failed::of(source) {
                    Failed::Connection => {}
                    Failed::Descriptors if self.turn_one_away() => {
                        self.refuse_new(RefusedReason::NoDescriptors, on);
                    }
                    Failed::Descriptors | Failed::Now => break,
                    Failed::Listener => return Err(StoreError::Accept { source }),
                },
            }
        }
        Ok(())
    }

    /// Takes one connection off the kernel's queue and closes it. Otherwise the epoll set would
    /// stay readable without need.
    fn turn_one_away(&mut self) -> bool {
        if self.spare.take().is_none() {
            return false;
        }
        let turned_away =
            rustix::net::acceptfrom_with(&self.listener, SocketFlags::CLOEXEC).is_ok();
        self.spare = spare(&self.listener);
        turned_away
    }

    fn admit(
        &mut self,
        socket: OwnedFd,
        peer: SocketAddr,
        now: Duration,
        on: &mut dyn FnMut(Event),
    ) -> Result<(), StoreError> {
        if peer.ip() != self.local.ip() && is_stranger(&self.peers, peer.ip()) {
            let address = peer.ip().to_canonical();
            self.refuse_new(RefusedReason::Stranger { address }, on);
            return Ok(());
        }
        if self.clients.len() >= self.limits.clients {
            self.refuse_new(
                RefusedReason::TooManyClients {
                    limit: self.limits.clients,
                },
                on,
            );
            return Ok(());
        }
        let client = self.fresh_id();
        // Answers are a few bytes that a client waits for.
        sockopt::set_tcp_nodelay(&socket, true).ok();
        if let Err(errno) = self.watch(&socket, client.0) {
            // The kernel limits how many descriptors a user may watch (fs.epoll.max_user_watches).
            self.refuse_new(
                RefusedReason::Unwatched {
                    errno: errno.raw_os_error(),
                },
                on,
            );
            return Ok(());
        }
        self.clients.insert(client, Client::new(socket));
        self.handshakes
            .push_back((now + self.limits.handshake, client));
        if self.handshakes.len() == 1 {
            self.arm(now)?;
        }
        on(Event::Connected { client, peer });
        Ok(())
    }
}

impl Store {
    /// Reports a connection that was closed before it became a client.
    fn refuse_new(&mut self, why: RefusedReason, on: &mut dyn FnMut(Event)) {
        let client = self.fresh_id();
        on(Event::Refused { client, why });
        on(Event::Closed {
            client,
            why: Closed::Refused,
        });
    }
}

/// Whether no client has this address. A socket for both families shows IPv4 clients as mapped
/// addresses.
fn is_stranger(clients: &BTreeSet<IpAddr>, address: IpAddr) -> bool {
    let address = address.to_canonical();
    !(clients.is_empty() || address.is_loopback() || clients.contains(&address))
}

pub(super) fn listener(addr: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // A store must be able to take a port whose last store has just closed its connections.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &addr)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(super) fn spare(listener: &OwnedFd) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(listener, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_clients_and_of_this_machine_are_taken() {
        let of = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let clients: BTreeSet<IpAddr> = of(&["10.0.0.1", "fd00::1"]);
        let stranger = |text: &str| is_stranger(&clients, text.parse().unwrap());
        assert!(!stranger("10.0.0.1") && !stranger("fd00::1") && !stranger("::ffff:10.0.0.1"));
        assert!(!stranger("127.0.0.1") && !stranger("::1"));
        assert!(stranger("10.0.0.2") && stranger("fd00::2") && stranger("::ffff:10.0.0.2"));
        assert!(!is_stranger(&BTreeSet::new(), "10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn only_a_listener_that_is_none_ends_a_store() {
        // The errors that accept(2) says are passed on from the network, and those of a client that
        // gave up.
        let passed_on = [
            Errno::NETDOWN,
            Errno::PROTO,
            Errno::NOPROTOOPT,
            Errno::HOSTDOWN,
            Errno::NONET,
            Errno::HOSTUNREACH,
            Errno::OPNOTSUPP,
            Errno::NETUNREACH,
            Errno::CONNABORTED,
            Errno::INTR,
            Errno::PERM,
            Errno::TIMEDOUT,
        ];
        assert!(
            passed_on
                .into_iter()
                .all(|errno| Failed::of(errno) == Failed::Connection)
        );
        assert!(
            [Errno::MFILE, Errno::NFILE]
                .into_iter()
                .all(|errno| Failed::of(errno) == Failed::Descriptors)
        );
        assert!(
            [Errno::AGAIN, Errno::NOMEM, Errno::NOBUFS]
                .into_iter()
                .all(|errno| Failed::of(errno) == Failed::Now)
        );
        assert!(
            [Errno::BADF, Errno::NOTSOCK, Errno::INVAL]
                .into_iter()
                .all(|errno| Failed::of(errno) == Failed::Listener)
        );
    }
}
