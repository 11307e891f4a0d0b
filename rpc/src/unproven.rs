//! Connections whose handshake is not done, and their bounds: callers who never begin one must not
//! keep out those who do.
//!
//! An honest caller speaks at once, so where there is no room the connection that has been silent
//! the longest is closed, never the new one. A caller that has spoken is never closed for another.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections that have said nothing yet.
    pub(crate) silent: usize,
    /// Connections that have begun their handshake.
    pub(crate) spoken: usize,
    /// Connections of one address, silent or not.
    pub(crate) of_address: usize,
}

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct Unproven {
    limits: Limits,
    book: Arc<Mutex<Book>>,
}

/// One of them. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    id: u64,
    address: IpAddr,
    has_spoken: bool,
    closed: oneshot::Receiver<()>,
    of: Unproven,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    /// By age: the oldest has the smallest number. A caller that is taken out is told.
    silent: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
    spoken: usize,
    addresses: BTreeMap<IpAddr, Address>,
}

#[derive(Debug, Default)]
struct Address {
    silent: BTreeSet<u64>,
    spoken: usize,
}

impl Unproven {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            book: Arc::default(),
        }
    }

    /// Notes a new connection. `None`: its address has too many that have begun a handshake.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Place> {
        let mut book = self.book();
        let of = book.addresses.entry(address).or_default();
        let oldest = if of.silent.len() + of.spoken >= self.limits.of_address {
            Some(*of.silent.first()?)
        } else if book.silent.len() >= self.limits.silent {
            book.silent.keys().next().copied()
        } else {
            None
        };
        if let Some(oldest) = oldest {
            book.take_silent(oldest);
        }
        let id = book.next;
        book.next += 1;
        let (close, closed) = oneshot::channel();
        book.silent.insert(id, (address, close));
        book.addresses.entry(address).or_default().silent.insert(id);
        Some(Place {
            id,
            address,
            has_spoken: false,
            closed,
            of: self.clone(),
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits until another took this place.
    pub(crate) async fn closed(&mut self) {
        // An error: the sender is gone, which is the same.
        let _ = (&mut self.closed).await;
    }

    /// The handshake has begun. `false`: there is no room, or another took this place.
    pub(crate) fn speak(&mut self) -> bool {
        let mut book = self.of.book();
        if book.spoken >= self.of.limits.spoken || !book.take_silent(self.id) {
            return false;
        }
        book.spoken += 1;
        book.addresses.entry(self.address).or_default().spoken += 1;
        self.has_spoken = true;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut book = self.of.book();
        if !self.has_spoken {
            book.take_silent(self.id);
            return;
        }
        book.spoken -= 1;
        if let Some(of) = book.addresses.get_mut(&self.address) {
            of.spoken -= 1;
        }
        book.forget(self.address);
    }
}

impl Book {
    /// `false`: it is not among the silent.
    fn take_silent(&mut self, id: u64) -> bool {
        let Some((address, _told)) = self.silent.remove(&id) else {
            return false;
        };
        if let Some(of) = self.addresses.get_mut(&address) {
            of.silent.remove(&id);
        }
        self.forget(address);
        true
    }

    fn forget(&mut self, address: IpAddr) {
        let is_empty = |of: &Address| of.silent.is_empty() && of.spoken == 0;
        if self.addresses.get(&address).is_some_and(is_empty) {
            self.addresses.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn unproven(silent: usize, of_address: usize) -> Unproven {
        Unproven::new(Limits {
            silent,
            spoken: 2,
            of_address,
        })
    }

    fn is_closed(place: &mut Place) -> bool {
        place.closed.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_longest_silent_makes_room_and_who_has_spoken_stays() {
        let all = unproven(2, 9);
        let (mut first, mut second) = (all.enter(A).unwrap(), all.enter(A).unwrap());
        assert!(first.speak());
        let mut third = all.enter(B).unwrap();
        assert!(!is_closed(&mut second));
        let mut fourth = all.enter(B).unwrap();
        assert!(is_closed(&mut second) && !is_closed(&mut third) && !is_closed(&mut fourth));
        assert!(!second.speak(), "its place is another's");
        assert!(third.speak());
        assert!(!fourth.speak(), "two handshakes have begun");
        drop(first);
        assert!(fourth.speak());
        drop((second, third, fourth));
        let book = all.book();
        assert!(book.addresses.is_empty() && book.silent.is_empty() && book.spoken == 0);
    }

    #[test]
    fn an_address_takes_room_from_itself_only() {
        let all = unproven(9, 2);
        let mut other = all.enter(B).unwrap();
        let (mut first, mut second) = (all.enter(A).unwrap(), all.enter(A).unwrap());
        let mut third = all.enter(A).unwrap();
        assert!(is_closed(&mut first) && !is_closed(&mut other));
        assert!(second.speak() && third.speak());
        assert!(all.enter(A).is_none(), "none of its own is silent");
        drop(second);
        assert!(all.enter(A).is_some());
    }
}
