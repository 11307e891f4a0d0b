//! One question over one connection to the worker server of a rank.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use muster_inspect::{Answer, Question};

use crate::poll::{Interest, Poll, Source};

/// The most bytes of one turn.
const CHUNK: usize = 64 << 10;

pub(crate) struct Ask {
    pub(crate) rank: u32,
    pub(crate) question: Question,
    stream: UnixStream,
    heard: Vec<u8>,
    /// Nothing more comes, or nothing more is wanted.
    ended: bool,
}

/// What became of a question.
pub(crate) enum Heard {
    Body(Vec<u8>),
    NoHandler,
    /// Why there is nothing.
    Nothing(String),
}

impl Ask {
    /// Sends the question. A new connection has room for it.
    pub(crate) fn begin(
        mut stream: UnixStream,
        rank: u32,
        question: Question,
        request: &[u8],
        id: u32,
        poll: &Poll,
    ) -> io::Result<Self> {
        stream.write_all(request)?;
        poll.add(&stream, Source::WorkerServer(id), Interest::Read)?;
        Ok(Ask {
            rank,
            question,
            stream,
            heard: Vec::new(),
            ended: false,
        })
    }

    /// Reads once, with a bounded size.
    pub(crate) fn read(&mut self, poll: &Poll) {
        let mut bytes = vec![0u8; CHUNK];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.ended = true,
            Ok(n) => self.heard.extend_from_slice(&bytes[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.ended = true,
        }
        if Answer::read(&self.heard, self.ended) != Answer::Partial {
            self.ended = true;
        }
        if self.ended {
            poll.remove(&self.stream);
        }
    }

    /// Nothing of it is wanted any more.
    pub(crate) fn end(&mut self, poll: &Poll) {
        if !self.ended {
            self.ended = true;
            poll.remove(&self.stream);
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ended
    }

    pub(crate) fn answer(&self) -> Heard {
        match Answer::read(&self.heard, true) {
            Answer::Whole(body) => Heard::Body(body.to_vec()),
            Answer::NoHandler => Heard::NoHandler,
            Answer::Refused(why) => Heard::Nothing(why),
            Answer::Partial => Heard::Nothing("the answer is not complete".into()),
        }
    }
}
