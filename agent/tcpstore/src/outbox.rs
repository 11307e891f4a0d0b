//! The bytes that a client's socket has not taken yet, in order. Small pieces are copied together
//! and large values are held by reference, so a value that thousands of clients want at once is in
//! memory once. This module never touches a socket.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::Key;
use crate::meter::Value;
use crate::protocol::Sink;

/// Pieces up to this size are copied. Holding one by reference would cost about as much.
const COPY_BYTES: usize = 64;

/// How many pieces one `sendmsg` gets. Linux takes up to 1,024 (UIO_MAXIOV), but far fewer give the
/// whole gain.
pub(crate) const SLICES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// How many bytes of the first piece are sent.
    sent: usize,
    pending: usize,
    owned: usize,
}

#[derive(Debug)]
enum Piece {
    Copied(Vec<u8>),
    Value(Value),
    Key(Key),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Copied(bytes) => bytes,
            Piece::Value(value) => value,
            Piece::Key(key) => key,
        }
    }
}

impl Outbox {
    /// Bytes still to be sent.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// Memory that only this outbox uses: copied bytes and the pieces themselves, without the
    /// shared values.
    pub(crate) fn held(&self) -> usize {
        self.owned + self.pieces.len() * size_of::<Piece>()
    }

    /// The next pieces, for one vectored write.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.sent;
        self.pieces
            .iter()
            .take(SLICES)
            .map(|piece| IoSlice::new(&piece.bytes()[std::mem::take(&mut skip)..]))
            .collect()
    }

    /// Drops the first `n` bytes, which the socket has taken.
    pub(crate) fn advance(&mut self, n: usize) {
        self.pending -= n;
        self.sent += n;
        while let Some(first) = self.pieces.front().map(|p| p.bytes().len()) {
            if self.sent < first {
                break;
            }
            self.sent -= first;
            if let Some(Piece::Copied(bytes)) = self.pieces.pop_front() {
                self.owned -= bytes.len();
            }
        }
        if self.pieces.is_empty() {
            // The buffer of a burst is freed: thousands of idle clients should hold no memory.
            self.pieces = VecDeque::new();
        }
    }

    fn push(&mut self, piece: Piece) {
        self.pending += piece.bytes().len();
        self.pieces.push_back(piece);
    }
}

impl Sink for Outbox {
    fn bytes(&mut self, bytes: &[u8]) {
        self.owned += bytes.len();
        if let Some(Piece::Copied(last)) = self.pieces.back_mut() {
            self.pending += bytes.len();
            last.extend_from_slice(bytes);
        } else if !bytes.is_empty() {
            self.push(Piece::Copied(bytes.to_vec()));
        }
    }

    fn value(&mut self, value: Value) {
        match value.len() {
            0..=COPY_BYTES => self.bytes(&value),
            _ => self.push(Piece::Value(value)),
        }
    }

    fn key(&mut self, key: Key) {
        match key.len() {
            0..=COPY_BYTES => self.bytes(&key),
            _ => self.push(Piece::Key(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Meter;

    #[test]
    fn any_split_of_the_writes_gives_the_same_bytes() {
        let meter = Meter::default();
        let large = Value::new(vec![7; 300], &meter);
        let mut want = Vec::new();
        want.extend_from_slice(b"head");
        want.extend_from_slice(&large);
        want.extend_from_slice(b"tail");
        want.extend_from_slice(&large);

        for step in 1..want.len() {
            let mut outbox = Outbox::default();
            outbox.bytes(b"he");
            outbox.bytes(b"ad");
            outbox.value(large.clone());
            outbox.bytes(b"tail");
            outbox.value(large.clone());
            let mut got = Vec::new();
            while outbox.pending() > 0 {
                let flat: Vec<u8> = outbox.slices().iter().flat_map(|s| s.to_vec()).collect();
                let n = step.min(flat.len());
                got.extend_from_slice(&flat[..n]);
                outbox.advance(n);
            }
            assert_eq!(got, want, "in steps of {step}");
            assert_eq!(outbox.held(), 0);
        }
    }
}
