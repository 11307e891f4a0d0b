//! The client's side of the wire format, for tests and benchmarks: it writes what torch's
//! `TCPStore.cpp` writes.

use super::{MAGIC, Opcode, Request};
use crate::Key;

/// The first bytes of a client: VALIDATE and the magic number, which get no answer.
pub fn hello() -> Vec<u8> {
    let mut out = vec![Opcode::Validate as u8];
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out
}

impl Request {
    /// Appends the request as a client sends it.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        let mut wire = Wire(out);
        match self {
            Request::Set { key, value } => wire.op(Opcode::Set).field(key).field(value),
            Request::CompareSet {
                key,
                expected,
                desired,
            } => wire
                .op(Opcode::CompareSet)
                .field(key)
                .field(expected)
                .field(desired),
            Request::Get { key } => wire.op(Opcode::Get).field(key),
            Request::Add { key, by } => wire.op(Opcode::Add).field(key).bytes(&by.to_le_bytes()),
            Request::Check { keys } => wire.op(Opcode::Check).keys(keys),
            Request::Wait { keys } => wire.op(Opcode::Wait).keys(keys),
            Request::NumKeys => wire.op(Opcode::NumKeys),
            Request::DeleteKey { key } => wire.op(Opcode::DeleteKey).field(key),
            Request::Append { key, value } => wire.op(Opcode::Append).field(key).field(value),
            Request::MultiGet { keys } => wire.op(Opcode::MultiGet).keys(keys),
            Request::MultiSet { pairs } => {
                wire.op(Opcode::MultiSet).len(pairs.len());
                pairs.iter().for_each(|(key, value)| {
                    wire.field(key).field(value);
                });
                &mut wire
            }
            Request::CancelWait => wire.op(Opcode::CancelWait),
            Request::Ping { nonce } => wire.op(Opcode::Ping).bytes(&nonce.to_le_bytes()),
            Request::QueuePush { key, value } => wire.op(Opcode::QueuePush).field(key).field(value),
            Request::QueuePop { key } => wire.op(Opcode::QueuePop).field(key),
            Request::QueueLen { key } => wire.op(Opcode::QueueLen).field(key),
            Request::ListKeys => wire.op(Opcode::ListKeys),
            Request::Barrier { key, world_size } => wire
                .op(Opcode::Barrier)
                .field(key)
                .bytes(&world_size.to_le_bytes()),
        };
    }
}

struct Wire<'a>(&'a mut Vec<u8>);

impl Wire<'_> {
    fn op(&mut self, opcode: Opcode) -> &mut Self {
        self.bytes(&[opcode as u8])
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn len(&mut self, len: usize) -> &mut Self {
        self.bytes(&(len as u64).to_le_bytes())
    }

    fn field(&mut self, bytes: &[u8]) -> &mut Self {
        self.len(bytes.len()).bytes(bytes)
    }

    fn keys(&mut self, keys: &[Key]) -> &mut Self {
        self.len(keys.len());
        for key in keys {
            self.field(key);
        }
        self
    }
}
