//! The wire format: what a torch client sends and what it expects back. No state of the store, no
//! sockets.
//!
//! Source: `torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp` (opcodes), `TCPStore.cpp` (what
//! the client writes and reads), `TCPStoreLibUvBackend.cpp` (what the server answers), torch 2.15.
//! The part that existed in 2.4 is unchanged since; newer opcodes took new numbers. The first 2.x
//! clients did not validate. They are refused, because they cannot be distinguished from garbage.
//!
//! A connection begins with VALIDATE and a magic number, which get no answer. Then come requests:
//! one byte for the opcode, then fields. Integers are 64-bit little-endian (the magic and the
//! ping's nonce 32-bit). Strings and values are a length and bytes; lists are a count and items.
//! SET, MULTI_SET, APPEND and QUEUE_PUSH get no answer.

mod client;
mod decoder;

use crate::Key;
pub use crate::meter::Value;

pub use client::hello;
pub use decoder::{Decoder, Fault};

/// What a client sends after VALIDATE.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// The opcodes, numbered as in torch's `QueryType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Opcode {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    NumKeys = 7,
    DeleteKey = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
}

impl Opcode {
    /// All opcodes, in the order of their numbers.
    pub const ALL: [Opcode; 19] = [
        Opcode::Validate,
        Opcode::Set,
        Opcode::CompareSet,
        Opcode::Get,
        Opcode::Add,
        Opcode::Check,
        Opcode::Wait,
        Opcode::NumKeys,
        Opcode::DeleteKey,
        Opcode::Append,
        Opcode::MultiGet,
        Opcode::MultiSet,
        Opcode::CancelWait,
        Opcode::Ping,
        Opcode::QueuePush,
        Opcode::QueuePop,
        Opcode::QueueLen,
        Opcode::ListKeys,
        Opcode::Barrier,
    ];

    /// The opcode with this number, if torch has one.
    pub fn of(byte: u8) -> Option<Opcode> {
        Opcode::ALL.get(usize::from(byte)).copied()
    }
}

/// One whole request. Its lengths are already checked against the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request {
    Set {
        key: Key,
        value: Vec<u8>,
    },
    CompareSet {
        key: Key,
        expected: Vec<u8>,
        desired: Vec<u8>,
    },
    Get {
        key: Key,
    },
    Add {
        key: Key,
        by: i64,
    },
    Check {
        keys: Vec<Key>,
    },
    Wait {
        keys: Vec<Key>,
    },
    NumKeys,
    DeleteKey {
        key: Key,
    },
    Append {
        key: Key,
        value: Vec<u8>,
    },
    MultiGet {
        keys: Vec<Key>,
    },
    MultiSet {
        pairs: Vec<(Key, Vec<u8>)>,
    },
    CancelWait,
    Ping {
        nonce: u32,
    },
    QueuePush {
        key: Key,
        value: Vec<u8>,
    },
    QueuePop {
        key: Key,
    },
    QueueLen {
        key: Key,
    },
    ListKeys,
    Barrier {
        key: Key,
        world_size: i64,
    },
}

/// One answer. A missing value is sent as an empty one, as torch's server does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// PING: the client's own number.
    Nonce(u32),
    /// ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN.
    Number(i64),
    /// CHECK: whether all keys exist.
    Ready(bool),
    /// WAIT and BARRIER: the awaited keys have come.
    StopWaiting,
    /// CANCEL_WAIT. The client always gets it, even if the wait had already ended.
    WaitCanceled,
    /// GET, COMPARE_SET.
    Value(Option<Value>),
    /// COMPARE_SET on a missing key with an expected value: the expected value comes back, though
    /// the key has no such value (torch calls this a lie).
    Echo(Vec<u8>),
    /// MULTI_GET, in the order of the request.
    Values(Vec<Option<Value>>),
    /// QUEUE_POP: the length before the pop and, if it was not 0, the oldest item.
    Popped(i64, Option<Value>),
    /// LIST_KEYS.
    Keys(Vec<Key>),
}

/// The target for an answer's bytes. Values and keys are passed by reference count, because they
/// may be large and thousands of clients may want them at once.
pub trait Sink {
    /// A few bytes: numbers, lengths.
    fn bytes(&mut self, bytes: &[u8]);
    /// A value's bytes, without its length.
    fn value(&mut self, value: Value);
    /// A key's bytes, without its length.
    fn key(&mut self, key: Key);
}

impl Reply {
    /// Bytes on the wire. They are known before anything is encoded.
    pub fn wire_len(&self) -> usize {
        const LENGTH: usize = 8;
        let value = |v: &Option<Value>| LENGTH + v.as_ref().map_or(0, |v| v.len());
        match self {
            Reply::Nonce(_) => 4,
            Reply::Number(_) => 8,
            Reply::Ready(_) | Reply::StopWaiting | Reply::WaitCanceled => 1,
            Reply::Value(v) => value(v),
            Reply::Echo(bytes) => LENGTH + bytes.len(),
            Reply::Values(values) => values.iter().map(value).sum(),
            Reply::Popped(_, item) => 8 + item.as_ref().map_or(0, |v| LENGTH + v.len()),
            Reply::Keys(keys) => 8 + keys.iter().map(|k| LENGTH + k.len()).sum::<usize>(),
        }
    }

    /// Writes the answer as the client reads it.
    pub fn encode(self, out: &mut impl Sink) {
        match self {
            Reply::Nonce(nonce) => out.bytes(&nonce.to_le_bytes()),
            Reply::Number(n) => out.bytes(&n.to_le_bytes()),
            // CheckResponseType: READY = 0, NOT_READY = 1.
            Reply::Ready(ready) => out.bytes(&[u8::from(!ready)]),
            // WaitResponseType: STOP_WAITING = 0, WAIT_CANCELED = 1.
            Reply::StopWaiting => out.bytes(&[0]),
            Reply::WaitCanceled => out.bytes(&[1]),
            Reply::Value(value) => encode_value(value, out),
            Reply::Echo(bytes) => {
                encode_len(bytes.len(), out);
                out.bytes(&bytes);
            }
            Reply::Values(values) => values.into_iter().for_each(|v| encode_value(v, out)),
            Reply::Popped(len, item) => {
                out.bytes(&len.to_le_bytes());
                if item.is_some() {
                    encode_value(item, out);
                }
            }
            Reply::Keys(keys) => {
                encode_len(keys.len(), out);
                for key in keys {
                    encode_len(key.len(), out);
                    out.key(key);
                }
            }
        }
    }
}

fn encode_len(len: usize, out: &mut impl Sink) {
    out.bytes(&(len as u64).to_le_bytes());
}

fn encode_value(value: Option<Value>, out: &mut impl Sink) {
    encode_len(value.as_ref().map_or(0, |v| v.len()), out);
    if let Some(value) = value {
        out.value(value);
    }
}

#[cfg(test)]
mod tests;
