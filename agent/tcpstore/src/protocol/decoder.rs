//! Turns bytes into requests, in whatever pieces the bytes come.
//!
//! States: unvalidated (only VALIDATE and the magic are understood); between requests; inside a
//! request (the fields read so far are kept, so a request that comes byte by byte is not read again
//! from its start); broken (a fault was found, so the stream has no next request and the caller
//! closes it). A length is checked against the limits as soon as its eight bytes have arrived.
//! Memory is only taken for bytes that have arrived.

use super::{MAGIC, Opcode, Request};
use crate::{Key, Limits};

/// Why a byte stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("not a torch client: it did not begin with VALIDATE")]
    NotValidated,
    #[error("not a torch client: magic number {got:#010x}")]
    BadMagic { got: u32 },
    #[error("unknown opcode {opcode}")]
    UnknownOpcode { opcode: u8 },
    #[error("{opcode:?}: a key of {bytes} bytes, at most {limit}")]
    KeyTooLong {
        opcode: Opcode,
        bytes: u64,
        limit: usize,
    },
    #[error("{opcode:?}: a value of {bytes} bytes, at most {limit}")]
    ValueTooLong {
        opcode: Opcode,
        bytes: u64,
        limit: usize,
    },
    #[error("{opcode:?}: {keys} keys in one request, at most {limit}")]
    TooManyKeys {
        opcode: Opcode,
        keys: u64,
        limit: usize,
    },
    #[error("{opcode:?}: a request of more than {limit} bytes")]
    RequestTooLong { opcode: Opcode, limit: usize },
}

/// One client's byte stream.
#[derive(Debug, Default)]
pub struct Decoder {
    buf: Vec<u8>,
    /// How many bytes of `buf` are already read.
    read: usize,
    validated: bool,
    partial: Option<Partial>,
    fault: Option<Fault>,
}

/// A request that still lacks fields.
#[derive(Debug)]
struct Partial {
    opcode: Opcode,
    /// How many keys or pairs the list has, once that is known.
    count: Option<usize>,
    keys: Vec<Key>,
    values: Vec<Vec<u8>>,
    /// Bytes of the fields read so far, including the cost of keeping them.
    bytes: usize,
}

/// The cost of keeping one field besides its bytes: pointer, length, reference count, allocator.
const FIELD_BYTES: usize = 48;

/// A buffer that has grown beyond this is freed once it is mostly empty. Most requests are below 1
/// KiB, and thousands of idle clients should hold no memory.
const KEEP_BYTES: usize = 4096;

/// While requests follow each other closely, up to this many read bytes stay before the unread
/// ones. Dropping them then moves at most the bytes of one socket read.
const BEHIND_BYTES: usize = 64 * 1024;

impl Decoder {
    /// Takes bytes from the socket.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.fault.is_none() {
            self.buf.extend_from_slice(bytes);
        }
    }

    /// The next whole request, or `None` until more bytes come.
    ///
    /// # Errors
    /// The stream is broken. Every later call returns the same error.
    pub fn next(&mut self, limits: &Limits) -> Result<Option<Request>, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let next = self.advance(limits);
        if let Err(fault) = next {
            *self = Decoder {
                fault: Some(fault),
                ..Decoder::default()
            };
        }
        next
    }

    /// Whether the client has shown the magic number.
    pub fn validated(&self) -> bool {
        self.validated
    }

    /// Memory held for bytes and fields of an incomplete request.
    pub fn held(&self) -> usize {
        self.buf.capacity() + self.partial.as_ref().map_or(0, |p| p.bytes)
    }

    fn advance(&mut self, limits: &Limits) -> Result<Option<Request>, Fault> {
        if !self.validated && !self.validate()? {
            return Ok(None);
        }
        let mut partial = match self.partial.take() {
            Some(partial) => partial,
            None => match self.opcode()? {
                Some(opcode) => Partial {
                    opcode,
                    count: None,
                    keys: Vec::new(),
                    values: Vec::new(),
                    bytes: 0,
                },
                None => {
                    self.compact();
                    return Ok(None);
                }
            },
        };
        let request = self.fields(&mut partial, limits)?;
        let torn = request.is_none();
        if torn {
            self.partial = Some(partial);
        }
        if torn || self.read > BEHIND_BYTES {
            self.compact();
        }
        Ok(request)
    }

    fn validate(&mut self) -> Result<bool, Fault> {
        let rest = &self.buf[self.read..];
        if rest.first().is_some_and(|&b| b != Opcode::Validate as u8) {
            return Err(Fault::NotValidated);
        }
        let Some(magic) = rest.get(1..5) else {
            return Ok(false);
        };
        let got = u32::from_le_bytes(magic.try_into().expect("four bytes were asked for"));
        if got != MAGIC {
            return Err(Fault::BadMagic { got });
        }
        self.read += 5;
        self.validated = true;
        Ok(true)
    }

    fn opcode(&mut self) -> Result<Option<Opcode>, Fault> {
        let Some(&byte) = self.buf.get(self.read) else {
            return Ok(None);
        };
        match Opcode::of(byte) {
            None | Some(Opcode::Validate) => Err(Fault::UnknownOpcode { opcode: byte }),
            Some(opcode) => {
                self.read += 1;
                Ok(Some(opcode))
            }
        }
    }

    /// Continues where the last bytes ended. `None` if the bytes end again.
    fn fields(&mut self, p: &mut Partial, limits: &Limits) -> Result<Option<Request>, Fault> {
        match p.opcode {
            Opcode::Validate => unreachable!("refused as an opcode"),
            Opcode::NumKeys => Ok(Some(Request::NumKeys)),
            Opcode::CancelWait => Ok(Some(Request::CancelWait)),
            Opcode::ListKeys => Ok(Some(Request::ListKeys)),
            Opcode::Ping => Ok(self.array().map(|b| Request::Ping {
                nonce: u32::from_le_bytes(b),
            })),
            Opcode::Get | Opcode::DeleteKey | Opcode::QueuePop | Opcode::QueueLen => {
                if !self.keys(p, 1, limits)? {
                    return Ok(None);
                }
                let key = p.key();
                Ok(Some(match p.opcode {
                    Opcode::Get => Request::Get { key },
                    Opcode::DeleteKey => Request::DeleteKey { key },
                    Opcode::QueuePop => Request::QueuePop { key },
                    _ => Request::QueueLen { key },
                }))
            }
            Opcode::Set | Opcode::Append | Opcode::QueuePush => {
                if !self.keys(p, 1, limits)? || !self.values(p, 1, limits)? {
                    return Ok(None);
                }
                let (key, value) = (p.key(), p.value());
                Ok(Some(match p.opcode {
                    Opcode::Set => Request::Set { key, value },
                    Opcode::Append => Request::Append { key, value },
                    _ => Request::QueuePush { key, value },
                }))
            }
            Opcode::CompareSet => {
                if !self.keys(p, 1, limits)? || !self.values(p, 2, limits)? {
                    return Ok(None);
                }
                let desired = p.value();
                Ok(Some(Request::CompareSet {
                    key: p.key(),
                    expected: p.value(),
                    desired,
                }))
            }
            Opcode::Add | Opcode::Barrier => {
                if !self.keys(p, 1, limits)? {
                    return Ok(None);
                }
                let Some(number) = self.array().map(i64::from_le_bytes) else {
                    return Ok(None);
                };
                let key = p.key();
                Ok(Some(match p.opcode {
                    Opcode::Add => Request::Add { key, by: number },
                    _ => Request::Barrier {
                        key,
                        world_size: number,
                    },
                }))
            }
            Opcode::Check | Opcode::Wait | Opcode::MultiGet => {
                let Some(count) = self.count(p, limits)? else {
                    return Ok(None);
                };
                if !self.keys(p, count, limits)? {
                    return Ok(None);
                }
                let keys = std::mem::take(&mut p.keys);
                Ok(Some(match p.opcode {
                    Opcode::Check => Request::Check { keys },
                    Opcode::Wait => Request::Wait { keys },
                    _ => Request::MultiGet { keys },
                }))
            }
            Opcode::MultiSet => {
                let Some(count) = self.count(p, limits)? else {
                    return Ok(None);
                };
                while p.values.len() < count {
                    let at = p.values.len() + 1;
                    if !self.keys(p, at, limits)? || !self.values(p, at, limits)? {
                        return Ok(None);
                    }
                }
                let (keys, values) = (std::mem::take(&mut p.keys), std::mem::take(&mut p.values));
                Ok(Some(Request::MultiSet {
                    pairs: keys.into_iter().zip(values).collect(),
                }))
            }
        }
    }

    /// Reads the count of a list, unless it is known already.
    fn count(&mut self, p: &mut Partial, limits: &Limits) -> Result<Option<usize>, Fault> {
        if p.count.is_none() {
            let Some(keys) = self.array().map(u64::from_le_bytes) else {
                return Ok(None);
            };
            let limit = limits.request_keys;
            p.count = Some(within(keys, limit).ok_or(Fault::TooManyKeys {
                opcode: p.opcode,
                keys,
                limit,
            })?);
        }
        Ok(p.count)
    }

    /// Reads keys until the request has `want` of them. False if the bytes end earlier.
    fn keys(&mut self, p: &mut Partial, want: usize, limits: &Limits) -> Result<bool, Fault> {
        let limit = limits.key_bytes;
        while p.keys.len() < want {
            let Some(bytes) = self.length() else {
                return Ok(false);
            };
            let len = within(bytes, limit).ok_or(Fault::KeyTooLong {
                opcode: p.opcode,
                bytes,
                limit,
            })?;
            p.grow(len, limits)?;
            let Some(field) = self.field(len) else {
                return Ok(false);
            };
            p.keys.push(field.into());
            p.bytes += len + FIELD_BYTES;
        }
        Ok(true)
    }

    /// Reads values until the request has `want` of them. False if the bytes end earlier.
    fn values(&mut self, p: &mut Partial, want: usize, limits: &Limits) -> Result<bool, Fault> {
        let limit = limits.value_bytes;
        while p.values.len() < want {
            let Some(bytes) = self.length() else {
                return Ok(false);
            };
            let len = within(bytes, limit).ok_or(Fault::ValueTooLong {
                opcode: p.opcode,
                bytes,
                limit,
            })?;
            p.grow(len, limits)?;
            let Some(field) = self.field(len) else {
                return Ok(false);
            };
            p.values.push(field.to_vec());
            p.bytes += len + FIELD_BYTES;
        }
        Ok(true)
    }

    /// The length before the next field. It is not consumed, so it is read again until the field's
    /// bytes have arrived.
    fn length(&self) -> Option<u64> {
        let bytes = self.buf.get(self.read..self.read + 8)?;
        Some(u64::from_le_bytes(
            bytes.try_into().expect("eight bytes were asked for"),
        ))
    }

    /// Takes a length and its `len` bytes, if all have arrived.
    fn field(&mut self, len: usize) -> Option<&[u8]> {
        let start = self.read + 8;
        let field = self.buf.get(start..start + len)?;
        self.read = start + len;
        Some(field)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.buf.get(self.read..self.read + N)?;
        self.read += N;
        Some(bytes.try_into().expect("N bytes were asked for"))
    }

    /// Drops the bytes that were read.
    fn compact(&mut self) {
        self.buf.drain(..self.read);
        self.read = 0;
        let (len, room) = (self.buf.len(), self.buf.capacity());
        if room > KEEP_BYTES && room > 4 * len {
            self.buf.shrink_to(len);
        }
    }
}

impl Partial {
    /// Refuses a field that would make the request too long, before its bytes arrive.
    fn grow(&self, len: usize, limits: &Limits) -> Result<(), Fault> {
        let limit = limits.request_bytes;
        if self.bytes + len > limit {
            return Err(Fault::RequestTooLong {
                opcode: self.opcode,
                limit,
            });
        }
        Ok(())
    }

    fn key(&mut self) -> Key {
        self.keys.pop().expect("the key was read before")
    }

    fn value(&mut self) -> Vec<u8> {
        self.values.pop().expect("the value was read before")
    }
}

fn within(wire: u64, limit: usize) -> Option<usize> {
    usize::try_from(wire).ok().filter(|&n| n <= limit)
}
