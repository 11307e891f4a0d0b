//! Who has how many connections, and the end of the connections of one that may have none any more.
//!
//! A connection counts for the identity that it has proven, and for its address. One identity is a node
//! with its agent, or a person or a program with some commands. Nobody needs hundreds of connections, and
//! whoever opens thousands takes them from all others. Callers who have proven nothing are counted by
//! their address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::identity::Identity;

/// Connections of one identity. An agent has one, and a second while it reconnects; a script that runs a
/// command for each of its jobs at a time has some dozens.
const OF_IDENTITY: usize = 256;

/// Connections of one address, whoever they are of: more than the 10,000 agents of a fleet behind one
/// address translation, and three quarters of all, so that no address takes the last ones.
const OF_ADDRESS: usize = 12_000;

/// Connections of one address that have proven nothing: half of all such connections.
const ANONYMOUS_OF_ADDRESS: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Limits {
    of_identity: usize,
    of_address: usize,
    anonymous_of_address: usize,
}

/// The connections that are held now.
#[derive(Clone, Debug)]
pub struct Guests {
    limits: Limits,
    book: Arc<Mutex<Book>>,
}

impl Default for Guests {
    fn default() -> Self {
        Self {
            limits: Limits {
                of_identity: OF_IDENTITY,
                of_address: OF_ADDRESS,
                anonymous_of_address: ANONYMOUS_OF_ADDRESS,
            },
            book: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    /// By identity: what ends each connection.
    identities: BTreeMap<String, BTreeMap<u64, Arc<Notify>>>,
    addresses: BTreeMap<IpAddr, usize>,
}

/// One connection. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    of: Guests,
    id: u64,
    identity: String,
    address: IpAddr,
}

/// Why a connection is one too many, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    #[error(
        "{identity} has {most} connections already, as many as one name may have; close some and call again: does a program open one for each \
         call, or has somebody copied the credentials?"
    )]
    OfIdentity { identity: String, most: usize },
    #[error(
        "{address} has {most} connections already, as many as one address may have; close some and call again"
    )]
    OfAddress { address: IpAddr, most: usize },
}

impl Guests {
    /// Notes a connection. `end` is notified when it must end.
    pub(crate) fn enter(
        &self,
        identity: &Identity,
        address: IpAddr,
        end: Arc<Notify>,
    ) -> Result<Seat, TooMany> {
        let (name, most) = match identity {
            Identity::Anonymous => (
                format!("{identity} at {address}"),
                self.limits.anonymous_of_address,
            ),
            known => (known.to_string(), self.limits.of_identity),
        };
        let mut book = self.book();
        if book
            .identities
            .get(&name)
            .is_some_and(|all| all.len() >= most)
        {
            return Err(TooMany::OfIdentity {
                identity: name,
                most,
            });
        }
        let most = self.limits.of_address;
        let of_address = book.addresses.entry(address).or_default();
        if *of_address >= most {
            return Err(TooMany::OfAddress { address, most });
        }
        *of_address += 1;
        let id = book.next;
        book.next += 1;
        let all = book.identities.entry(name.clone()).or_default();
        all.insert(id, end);
        Ok(Seat {
            of: self.clone(),
            id,
            identity: name,
            address,
        })
    }

    /// Ends all connections of these identities, written as `host/NAME` or `user/NAME`.
    pub fn end(&self, identities: &BTreeSet<String>) {
        let book = self.book();
        let all = identities
            .iter()
            .filter_map(|name| book.identities.get(name));
        all.flat_map(BTreeMap::values)
            .for_each(|end| end.notify_one());
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut book = self.of.book();
        if let Some(all) = book.identities.get_mut(&self.identity) {
            all.remove(&self.id);
            if all.is_empty() {
                book.identities.remove(&self.identity);
            }
        }
        if let Some(count) = book.addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                book.addresses.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn guests(of_identity: usize, of_address: usize) -> Guests {
        Guests {
            limits: Limits {
                of_identity,
                of_address,
                anonymous_of_address: 1,
            },
            book: Arc::default(),
        }
    }

    fn host(name: &str) -> Identity {
        Identity::Certified(format!("host/{name}").parse().unwrap())
    }

    #[test]
    fn an_identity_and_an_address_take_room_from_themselves_only() {
        let all = guests(2, 3);
        let enter = |identity: &Identity, address| all.enter(identity, address, Arc::default());
        let _one = enter(&host("n1"), A).unwrap();
        let two = enter(&host("n1"), B).unwrap();
        let refused = enter(&host("n1"), B).unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("host/n1 has 2 connections already"),
            "{refused}"
        );
        let _other = enter(&host("n2"), A).unwrap();
        let _stranger = enter(&Identity::Anonymous, A).unwrap();
        let full = enter(&host("n3"), A).unwrap_err();
        assert_eq!(
            full,
            TooMany::OfAddress {
                address: A,
                most: 3
            }
        );
        let stranger = enter(&Identity::Anonymous, B).unwrap();
        assert!(enter(&Identity::Anonymous, B).is_err());
        drop((two, stranger));
        drop(enter(&host("n1"), B).unwrap());
        let book = all.book();
        assert_eq!((book.identities.len(), book.addresses.len()), (3, 1));
    }

    #[test]
    fn all_connections_of_a_name_end_and_no_others() {
        let all = guests(9, 9);
        let ends: Vec<Arc<Notify>> = (0..3).map(|_| Arc::default()).collect();
        let seats: Vec<Seat> = (["n1", "n1", "n2"].iter().zip(&ends))
            .map(|(name, end)| all.enter(&host(name), A, end.clone()).unwrap())
            .collect();
        all.end(&["host/n1".to_owned(), "user/n2".to_owned()].into());
        let ended: Vec<bool> = (ends.iter())
            .map(|end| end.notified().now_or_never().is_some())
            .collect();
        assert_eq!(ended, [true, true, false]);
        drop(seats);
        assert!(all.book().identities.is_empty());
    }
}
