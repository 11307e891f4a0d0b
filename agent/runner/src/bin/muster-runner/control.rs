//! `control.sock`: the connections of agents. This module reads requests, holds answers that could
//! not be sent yet, and knows which clients want pushes. Its caller carries the requests out.
//!
//! Bounds: [`CLIENTS`] connections; 1 MiB for a request line. It reads no request from a client
//! that leaves more than [`BACKLOG`] bytes of answers unread. A client gets a push only once it has
//! read everything before it, so only the latest push is ever held.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use muster_runner::wire::{
    MAX_REQUEST, Refusal, RefusalKind, Refused, Reply, Request, parse_request,
};

use crate::poll::{Interest, Poll, Source};
use crate::sys;

/// Room for one agent, its successor during a hand-over, and a person with a debugger.
const CLIENTS: usize = 8;

/// A client with more unread answers than this gets no further request read. It is enough for a few
/// dozen short answers.
const BACKLOG: usize = 64 << 10;

pub(crate) struct Control {
    listener: UnixListener,
    clients: BTreeMap<u32, Client>,
    next: u32,
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    subscribed: bool,
    /// A push is due: the client has not got the latest status yet.
    behind: bool,
    /// Nothing more is read. The connection closes once the client has read all output.
    closing: bool,
    interest: Interest,
}

impl Control {
    /// Listens on the socket in the current directory.
    pub(crate) fn listen(poll: &Poll) -> io::Result<Self> {
        let listener = muster_runner::socket::listen(muster_runner::socket::CONTROL)?;
        listener.set_nonblocking(true)?;
        poll.add(&listener, Source::ControlListener, Interest::Read)?;
        Ok(Self {
            listener,
            clients: BTreeMap::new(),
            next: 0,
        })
    }

    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Whether a client still has an answer to read.
    pub(crate) fn unsent(&self) -> bool {
        self.clients.values().any(|c| !c.output.is_empty())
    }

    /// Accepts one connection, or says why not.
    pub(crate) fn accept(&mut self, poll: &Poll) {
        let Ok((mut stream, _)) = self.listener.accept() else {
            return;
        };
        let Ok(peer) = sys::peer(&stream) else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let refusal = if peer.uid != rustix::process::geteuid().as_raw() && peer.uid != 0 {
            Some(format!("uid {} may not control this runner", peer.uid))
        } else if self.clients.len() >= CLIENTS {
            Some(format!(
                "{CLIENTS} clients are connected, the most there may be"
            ))
        } else {
            None
        };
        if let Some(text) = refusal {
            // A fresh socket has room for one line. If the peer has gone, nobody misses the line.
            let _ = stream.write_all(&line(&Reply::refused(
                None,
                Refusal::new(RefusalKind::Busy, text),
            )));
            return;
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        if poll
            .add(&stream, Source::Client(id), Interest::Read)
            .is_ok()
        {
            let client = Client {
                stream,
                input: Vec::new(),
                output: Vec::new(),
                subscribed: false,
                behind: false,
                closing: false,
                interest: Interest::Read,
            };
            self.clients.insert(id, client);
        }
    }

    /// Reads and writes. Afterwards the caller takes requests with [`Control::next_request`] until
    /// there are none.
    pub(crate) fn ready(&mut self, id: u32, poll: &Poll) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if !(client.send() && (client.closing || client.receive())) {
            self.remove(id, poll);
        }
    }

    /// The next whole request of a client. If the line is not a request, this is the answer to
    /// give.
    pub(crate) fn next_request(&mut self, id: u32) -> Option<Result<Request, Refused>> {
        let client = self.clients.get_mut(&id)?;
        if client.closing || client.output.len() > BACKLOG {
            return None;
        }
        let Some(end) = client.input.iter().position(|b| *b == b'\n') else {
            if client.input.len() <= MAX_REQUEST {
                return None;
            }
            client.input = Vec::new();
            let text = format!("a request is longer than {MAX_REQUEST} bytes");
            let error = Refusal::new(RefusalKind::Malformed, text);
            return Some(Err(Refused {
                id: None,
                close: true,
                error,
            }));
        };
        let rest = client.input.split_off(end + 1);
        let request = std::mem::replace(&mut client.input, rest);
        Some(parse_request(&request[..end]))
    }

    pub(crate) fn answer(&mut self, id: u32, reply: &Reply) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.output.extend(line(reply));
        }
    }

    /// Takes no more requests from this client.
    pub(crate) fn close(&mut self, id: u32) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.closing = true;
        }
    }

    /// Sends every push to this client from now on, and one immediately.
    pub(crate) fn subscribe(&mut self, id: u32) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.subscribed = true;
            client.behind = true;
        }
    }

    /// Marks that every subscriber must hear of a change.
    pub(crate) fn changed(&mut self) {
        for client in self.clients.values_mut() {
            client.behind = client.subscribed;
        }
    }

    /// Sends what the sockets take. A subscriber that has read everything gets the latest status.
    pub(crate) fn flush(&mut self, poll: &Poll, status: impl Fn() -> Reply) {
        let mut latest = None;
        let ids: Vec<u32> = self.clients.keys().copied().collect();
        for id in ids {
            let Some(client) = self.clients.get_mut(&id) else {
                continue;
            };
            let mut here = client.send();
            if here && client.behind && client.output.is_empty() && !client.closing {
                client.behind = false;
                client
                    .output
                    .extend_from_slice(latest.get_or_insert_with(|| line(&status())));
                here = client.send();
            }
            if !here || (client.closing && client.output.is_empty()) {
                self.remove(id, poll);
                continue;
            }
            let interest = match (
                client.output.is_empty(),
                client.closing || client.output.len() > BACKLOG,
            ) {
                (true, _) => Interest::Read,
                (false, false) => Interest::Both,
                (false, true) => Interest::Write,
            };
            if interest != client.interest {
                client.interest = interest;
                let _ = poll.change(&client.stream, Source::Client(id), interest);
            }
        }
    }

    fn remove(&mut self, id: u32, poll: &Poll) {
        if let Some(client) = self.clients.remove(&id) {
            poll.remove(&client.stream);
        }
    }
}

impl Client {
    /// Reads once, with a bounded size. False: the client is gone.
    fn receive(&mut self) -> bool {
        if self.output.len() > BACKLOG || self.input.len() > MAX_REQUEST {
            return true;
        }
        let mut bytes = [0u8; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(n) => {
                self.input.extend_from_slice(&bytes[..n]);
                true
            }
            Err(e) => matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ),
        }
    }

    /// Sends what the socket takes. False: the client is gone.
    fn send(&mut self) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(n) if n == self.output.len() => self.output = Vec::new(),
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

fn line(reply: &Reply) -> Vec<u8> {
    let mut line = serde_json::to_vec(reply).expect("numbers and strings always serialize");
    line.push(b'\n');
    line
}
