//! One connection: its socket, its bytes that are not a whole request yet, and the bytes that it
//! has not taken yet.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::ClientId;
use crate::meter::Meter;
use crate::outbox::Outbox;
use crate::protocol::Decoder;

/// How much is read from one client in one turn. Most requests are below 1 KiB, and the largest one
/// still arrives in a thousand turns.
pub(super) const READ_BYTES: usize = 64 * 1024;

/// A client with this many unsent bytes is not read from. It is one socket buffer more than the
/// kernel already holds. Together with one reply it bounds what a client that does not read can
/// make the store keep.
const HIGH_WATER: usize = 64 * 1024;

/// How many writes one client gets in one turn.
const WRITES: usize = 16;

#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    pub(super) decoder: Decoder,
    pub(super) outbox: Outbox,
    /// It was full while the decoder still had whole requests.
    pub(super) held_back: bool,
    /// The last interest given to the epoll set.
    interest: EventFlags,
    /// The last charge given to the meter.
    charged: usize,
}

impl Client {
    pub(super) fn new(socket: OwnedFd) -> Client {
        Client {
            socket,
            decoder: Decoder::default(),
            outbox: Outbox::default(),
            held_back: false,
            interest: EventFlags::IN,
            charged: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.outbox.pending() > HIGH_WATER
    }

    pub(super) fn read(&self, into: &mut [u8]) -> rustix::io::Result<usize> {
        rustix::net::recv(&self.socket, into, RecvFlags::empty()).map(|(n, _)| n)
    }

    /// Sends what the socket takes now.
    pub(super) fn flush(&mut self) -> rustix::io::Result<()> {
        for _ in 0..WRITES {
            if self.outbox.pending() == 0 {
                break;
            }
            let mut control: [MaybeUninit<u8>; 0] = [];
            let mut control = SendAncillaryBuffer::new(&mut control);
            let slices = self.outbox.slices();
            match rustix::net::sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL) {
                Ok(n) => self.outbox.advance(n),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Tells the epoll set what to watch for: room to send while bytes wait for it, and more
    /// requests unless requests are held back.
    pub(super) fn watch(&mut self, epoll: &OwnedFd, id: ClientId) -> rustix::io::Result<()> {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, !self.is_full() && !self.held_back);
        interest.set(EventFlags::OUT, self.outbox.pending() > 0 || self.held_back);
        if interest != self.interest {
            epoll::modify(
                epoll,
                &self.socket,
                epoll::EventData::new_u64(id.0),
                interest,
            )?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Charges the meter with what this connection holds now, and returns it.
    pub(super) fn settle(&mut self, meter: &Meter) -> usize {
        let held = self.decoder.held() + self.outbox.held();
        meter.recharge(self.charged, held);
        self.charged = held;
        held
    }

    pub(super) fn leave(self, meter: &Meter) {
        meter.release(self.charged);
    }
}
