//! The keys and the clients that wait for them: one request goes in, answers come out. No sockets,
//! no time.
//!
//! The semantics are those of torch's libuv server (`TCPStoreLibUvBackend.cpp`, torch 2.15), with
//! which torch's clients are tested. One mistake is corrected: there a client that a queue's item
//! has released stays in the list of waiters for the queue, and a later item or wait miscounts it.
//!
//! A client is either free or waiting. A WAIT with missing keys, or a BARRIER that is not full,
//! makes it wait. The arrival of the last missing key, CANCEL_WAIT, another WAIT or its departure
//! makes it free. A key has arrived once it was written, even if it is deleted before the other
//! keys of the same wait have come.

mod waits;

use std::collections::{BTreeMap, VecDeque};

use self::waits::{WAIT_BYTES, Waits};
use crate::meter::{ENTRY_BYTES, Meter, Value};
use crate::protocol::{Reply, Request};
use crate::{ClientId, Key, Limits};

/// The keys, the queues and the waiters of one store.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    meter: Meter,
    values: BTreeMap<Key, Value>,
    queues: BTreeMap<Key, VecDeque<Value>>,
    queued: usize,
    waits: Waits,
}

/// One effect of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This client gets this reply. Replies keep their order.
    Reply(ClientId, Reply),
    /// A key was written.
    Set(Key),
    /// A counter changed to this value.
    Added(Key, i64),
    /// The client waits for these keys.
    Waiting(Vec<Key>),
}

/// Why a request cannot be obeyed. The client is closed, as torch's server does when it throws.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Denied {
    #[error("{} is not a number", .key.escape_ascii())]
    NotANumber { key: Key },
    #[error("the store holds {limit} keys, its limit")]
    TooManyKeys { limit: usize },
    #[error("the store holds {limit} bytes, its limit")]
    StoreFull { limit: usize },
    #[error("an answer of {bytes} bytes, at most {limit}")]
    ReplyTooLong { bytes: usize, limit: usize },
}

impl Table {
    /// An empty table.
    pub fn new(limits: Limits) -> Table {
        Table::metered(limits, Meter::default())
    }

    pub(crate) fn metered(limits: Limits, meter: Meter) -> Table {
        Table {
            limits,
            meter,
            values: BTreeMap::new(),
            queues: BTreeMap::new(),
            queued: 0,
            waits: Waits::default(),
        }
    }

    /// Obeys one request of `client` and appends its effects to `out`.
    ///
    /// # Errors
    /// The request is refused. Except for earlier keys of a MULTI_SET, it had no effect.
    pub fn apply(
        &mut self,
        client: ClientId,
        request: Request,
        out: &mut Vec<Outcome>,
    ) -> Result<(), Denied> {
        match request {
            Request::Ping { nonce } => out.push(Outcome::Reply(client, Reply::Nonce(nonce))),
            Request::Set { key, value } => self.store(key, value, out)?,
            Request::MultiSet { pairs } => {
                for (key, value) in pairs {
                    self.store(key, value, out)?;
                }
            }
            Request::CompareSet {
                key,
                expected,
                desired,
            } => {
                let reply = self.compare_set(key, expected, desired, out)?;
                out.push(Outcome::Reply(client, reply));
            }
            Request::Get { key } => {
                let reply = Reply::Value(self.values.get(&key).cloned());
                out.push(Outcome::Reply(client, reply));
            }
            Request::MultiGet { keys } => {
                let values = keys
                    .iter()
                    .map(|key| self.values.get(key).cloned())
                    .collect();
                self.reply_within(client, Reply::Values(values), out)?;
            }
            Request::Add { key, by } => {
                let sum = number(&key, self.values.get(&key))?.wrapping_add(by);
                self.room_for(&key, sum.to_string().len())?;
                self.put(key, sum, true, out);
                out.push(Outcome::Reply(client, Reply::Number(sum)));
            }
            Request::Append { key, value } => {
                self.room_for(&key, value.len())?;
                self.append(key, value, out)?;
            }
            Request::DeleteKey { key } => {
                let deleted = self.delete(&key);
                out.push(Outcome::Reply(client, Reply::Number(i64::from(deleted))));
            }
            Request::Check { keys } => {
                let ready = keys.iter().all(|key| self.has(key));
                out.push(Outcome::Reply(client, Reply::Ready(ready)));
            }
            Request::Wait { keys } => self.wait(client, keys, out)?,
            Request::CancelWait => {
                self.waits.end(client, &self.meter);
                out.push(Outcome::Reply(client, Reply::WaitCanceled));
            }
            Request::NumKeys => out.push(Outcome::Reply(
                client,
                Reply::Number(self.values.len() as i64),
            )),
            Request::ListKeys => {
                let keys = self.values.keys().cloned().collect();
                self.reply_within(client, Reply::Keys(keys), out)?;
            }
            Request::QueuePush { key, value } => self.push(key, value, out)?,
            Request::QueuePop { key } => {
                let reply = self.pop(&key);
                out.push(Outcome::Reply(client, reply));
            }
            Request::QueueLen { key } => {
                let len = self.queues.get(&key).map_or(0, |q| q.len() as i64);
                out.push(Outcome::Reply(client, Reply::Number(len)));
            }
            Request::Barrier { key, world_size } => self.barrier(client, key, world_size, out)?,
        }
        Ok(())
    }

    /// Writes a key for the host, which is not limited.
    pub fn set(&mut self, key: &[u8], value: &[u8], out: &mut Vec<Outcome>) {
        let value = Value::new(value.to_vec(), &self.meter);
        self.insert(key.into(), value);
        self.arrived(key, out);
    }

    /// Adds to a counter for the host. A value that is not a number counts as 0.
    pub fn add(&mut self, key: &[u8], by: i64, out: &mut Vec<Outcome>) -> i64 {
        let key = Key::from(key);
        let sum = number(&key, self.values.get(&key))
            .unwrap_or(0)
            .wrapping_add(by);
        self.put(key, sum, true, out);
        sum
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(|value| &**value)
    }

    /// The waiting clients, each with its missing keys.
    pub fn waiting(&self) -> impl Iterator<Item = (ClientId, Vec<Key>)> {
        self.waits.all()
    }

    /// Forgets a client that has left.
    pub fn leave(&mut self, client: ClientId) {
        self.waits.end(client, &self.meter);
    }

    /// Bytes counted against [`Limits::total_bytes`].
    pub fn held(&self) -> usize {
        self.meter.used()
    }

    fn store(&mut self, key: Key, value: Vec<u8>, out: &mut Vec<Outcome>) -> Result<(), Denied> {
        self.room_for(&key, value.len())?;
        let value = Value::new(value, &self.meter);
        self.insert(key.clone(), value);
        self.arrived(&key, out);
        out.push(Outcome::Set(key));
        Ok(())
    }

    /// A missing key is written only if nothing was expected; otherwise the expected value comes
    /// back and nothing is written. A present key is written only if it has the expected value. Its
    /// value after that comes back.
    fn compare_set(
        &mut self,
        key: Key,
        expected: Vec<u8>,
        desired: Vec<u8>,
        out: &mut Vec<Outcome>,
    ) -> Result<Reply, Denied> {
        match self.values.get(&key) {
            None if !expected.is_empty() => return Ok(Reply::Echo(expected)),
            Some(now) if **now != *expected => return Ok(Reply::Value(Some(now.clone()))),
            _ => {}
        }
        self.store(key.clone(), desired, out)?;
        Ok(Reply::Value(self.values.get(&key).cloned()))
    }

    fn append(&mut self, key: Key, more: Vec<u8>, out: &mut Vec<Outcome>) -> Result<(), Denied> {
        match self.values.get_mut(&key) {
            Some(value) => {
                // A value that could never be read again must not grow.
                let (bytes, limit) = (value.len() + more.len(), self.limits.pending_out_bytes);
                if bytes > limit {
                    return Err(Denied::ReplyTooLong { bytes, limit });
                }
                value.append(&more);
            }
            None => self.insert(key.clone(), Value::new(more, &self.meter)),
        }
        self.arrived(&key, out);
        out.push(Outcome::Set(key));
        Ok(())
    }

    fn wait(
        &mut self,
        client: ClientId,
        mut keys: Vec<Key>,
        out: &mut Vec<Outcome>,
    ) -> Result<(), Denied> {
        self.waits.end(client, &self.meter);
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| !self.has(key));
        if keys.is_empty() {
            out.push(Outcome::Reply(client, Reply::StopWaiting));
            return Ok(());
        }
        self.enroll(client, keys, out)
    }

    /// Counts the client in. The client that fills the barrier releases all. The counter is an
    /// ordinary key.
    fn barrier(
        &mut self,
        client: ClientId,
        key: Key,
        size: i64,
        out: &mut Vec<Outcome>,
    ) -> Result<(), Denied> {
        self.waits.end(client, &self.meter);
        let count = number(&key, self.values.get(&key))?.wrapping_add(1);
        self.room_for(&key, count.to_string().len() + WAIT_BYTES)?;
        let full = count >= size;
        self.put(key.clone(), count, full, out);
        if full {
            out.push(Outcome::Reply(client, Reply::StopWaiting));
            return Ok(());
        }
        self.enroll(client, vec![key], out)
    }

    fn push(&mut self, key: Key, value: Vec<u8>, out: &mut Vec<Outcome>) -> Result<(), Denied> {
        self.room(value.len() + key.len() + 2 * ENTRY_BYTES)?;
        if self.keys_held() >= self.limits.keys {
            return Err(Denied::TooManyKeys {
                limit: self.limits.keys,
            });
        }
        let value = Value::new(value, &self.meter);
        if !self.queues.contains_key(&key) {
            self.meter.charge(key.len() + ENTRY_BYTES);
        }
        self.queues.entry(key.clone()).or_default().push_back(value);
        self.queued += 1;
        self.waits
            .one_came(&key, &self.meter)
            .into_iter()
            .for_each(|waiter| out.push(Outcome::Reply(waiter, Reply::StopWaiting)));
        Ok(())
    }

    fn pop(&mut self, key: &Key) -> Reply {
        let Some(queue) = self.queues.get_mut(key) else {
            return Reply::Popped(0, None);
        };
        let len = queue.len() as i64;
        let item = queue.pop_front();
        self.queued -= usize::from(item.is_some());
        if queue.is_empty() {
            self.queues.remove(key);
            self.meter.release(key.len() + ENTRY_BYTES);
        }
        Reply::Popped(len, item)
    }

    fn delete(&mut self, key: &Key) -> bool {
        let deleted = self.values.remove(key).is_some();
        if deleted {
            self.meter.release(key.len() + ENTRY_BYTES);
        }
        deleted
    }

    fn has(&self, key: &Key) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn put(&mut self, key: Key, number: i64, wake: bool, out: &mut Vec<Outcome>) {
        let value = Value::new(number.to_string().into_bytes(), &self.meter);
        self.insert(key.clone(), value);
        if wake {
            self.arrived(&key, out);
        }
        out.push(Outcome::Added(key, number));
    }

    fn insert(&mut self, key: Key, value: Value) {
        let bytes = key.len() + ENTRY_BYTES;
        if self.values.insert(key, value).is_none() {
            self.meter.charge(bytes);
        }
    }

    /// Notes that a key was written, and releases the clients that waited only for it.
    fn arrived(&mut self, key: &[u8], out: &mut Vec<Outcome>) {
        for client in self.waits.came(key, &self.meter) {
            out.push(Outcome::Reply(client, Reply::StopWaiting));
        }
    }

    fn enroll(
        &mut self,
        client: ClientId,
        keys: Vec<Key>,
        out: &mut Vec<Outcome>,
    ) -> Result<(), Denied> {
        self.room(Waits::cost(&keys))?;
        out.push(Outcome::Waiting(self.waits.begin(
            client,
            keys,
            &self.meter,
        )));
        Ok(())
    }

    fn keys_held(&self) -> usize {
        self.values.len() + self.queued
    }

    /// Checks that there is room for a value of `bytes` under this key.
    fn room_for(&self, key: &Key, bytes: usize) -> Result<(), Denied> {
        if !self.values.contains_key(key) && self.keys_held() >= self.limits.keys {
            return Err(Denied::TooManyKeys {
                limit: self.limits.keys,
            });
        }
        self.room(key.len() + bytes + 2 * ENTRY_BYTES)
    }

    fn room(&self, bytes: usize) -> Result<(), Denied> {
        let limit = self.limits.total_bytes;
        if self.meter.used().saturating_add(bytes) > limit {
            return Err(Denied::StoreFull { limit });
        }
        Ok(())
    }

    fn reply_within(
        &self,
        client: ClientId,
        reply: Reply,
        out: &mut Vec<Outcome>,
    ) -> Result<(), Denied> {
        let (bytes, limit) = (reply.wire_len(), self.limits.pending_out_bytes);
        if bytes > limit {
            return Err(Denied::ReplyTooLong { bytes, limit });
        }
        out.push(Outcome::Reply(client, reply));
        Ok(())
    }
}

/// The number at the start of a value, read as C++'s `std::stoll` does: white space, a sign,
/// digits, and anything after them. A missing key counts as 0.
fn number(key: &Key, value: Option<&Value>) -> Result<i64, Denied> {
    let Some(value) = value else { return Ok(0) };
    let text: &[u8] = value;
    let start = text
        .iter()
        .position(|b| !matches!(b, b' ' | b'\t'..=b'\r'))
        .unwrap_or(text.len());
    let text = &text[start..];
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[sign..]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    std::str::from_utf8(&text[..sign + digits])
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Denied::NotANumber { key: key.clone() })
}

#[cfg(test)]
mod tests;
