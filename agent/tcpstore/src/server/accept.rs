//! The way in: the listening socket, and who is let through. A connection there is no room for is taken and closed, so
//! that it neither waits in vain nor keeps the epoll set readable.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::client::Client;
use super::{Store, StoreError};
use crate::{Closed, Event, RefusedReason};

/// Connections the kernel may hold until they are accepted: every rank of a 4,096-member job at the same moment. The
/// kernel cuts it to `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;

/// Connections accepted in one turn, so that a storm of them does not starve those that are there.
const ACCEPTS: usize = 256;

impl Store {
    pub(super) fn accept(&mut self, now: Duration, on: &mut dyn FnMut(Event)) -> Result<(), StoreError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for _ in 0..ACCEPTS {
            match rustix::net::acceptfrom_with(&self.listener, flags) {
                Ok((socket, peer)) => {
                    let peer = peer.and_then(|p| SocketAddr::try_from(p).ok()).unwrap_or(self.local);
                    self.admit(socket, peer, now, on)?;
                }
                Err(Errno::AGAIN) => break,
                // The client gave up before it was accepted, or a signal came.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::PERM) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.turn_one_away() => {
                    let client = self.fresh_id();
                    on(Event::Refused { client, why: RefusedReason::NoDescriptors });
                    on(Event::Closed { client, why: Closed::Refused });
                }
                Err(Errno::MFILE | Errno::NFILE) => break,
                Err(Errno::NOMEM | Errno::NOBUFS) => break,
                Err(source) => return Err(StoreError::Accept { source }),
            }
        }
        Ok(())
    }

    /// Takes one connection off the kernel's queue and closes it, or the epoll set would stay readable for nothing.
    fn turn_one_away(&mut self) -> bool {
        if self.spare.take().is_none() {
            return false;
        }
        let turned_away = rustix::net::acceptfrom_with(&self.listener, SocketFlags::CLOEXEC).is_ok();
        self.spare = spare(&self.listener);
        turned_away
    }

    fn admit(&mut self, socket: OwnedFd, peer: SocketAddr, now: Duration, on: &mut dyn FnMut(Event)) -> Result<(), StoreError> {
        let client = self.fresh_id();
        if self.clients.len() >= self.limits.clients {
            on(Event::Refused { client, why: RefusedReason::TooManyClients { limit: self.limits.clients } });
            on(Event::Closed { client, why: Closed::Refused });
            return Ok(());
        }
        // Answers are a few bytes that somebody waits for.
        sockopt::set_tcp_nodelay(&socket, true).ok();
        self.register(&socket, client.0)?;
        self.clients.insert(client, Client::new(socket));
        self.handshakes.push_back((now + self.limits.handshake, client));
        if self.handshakes.len() == 1 {
            self.arm(now)?;
        }
        on(Event::Connected { client, peer });
        Ok(())
    }
}

pub(super) fn listener(addr: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // A store must be able to take a port whose last store closed its connections a moment ago.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &addr)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(super) fn spare(listener: &OwnedFd) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(listener, 0).ok()
}
