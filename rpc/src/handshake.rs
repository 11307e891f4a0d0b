//! TLS handshakes of callers: each in a task of its own, so many at a time, and none for long.
//!
//! A handshake costs a millisecond of processor time, so thousands of agents that reconnect at once
//! must not hold up the heartbeats of the others. A caller that has not sent its whole first message
//! costs no turn; one that stops after it holds a turn, so an address has only some of them.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::server::Acceptor;
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use crate::tls::ServerTls;

/// Handshakes at a time.
const AT_ONCE: usize = 64;
/// Of these from one address.
const AT_ONCE_OF_ADDRESS: usize = 32;
/// From the connection to the end of its handshake, with waiting. A caller that is not served by
/// then comes again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a begun handshake may take. It is one round trip.
const LASTS: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Handshakes {
    tls: ServerTls,
    turns: Arc<Semaphore>,
    of_address: Arc<Mutex<BTreeMap<IpAddr, Arc<Semaphore>>>>,
}

impl Handshakes {
    pub(crate) fn new(tls: ServerTls) -> Self {
        Self {
            tls,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            of_address: Arc::default(),
        }
    }

    pub(crate) fn tls(&self) -> &ServerTls {
        &self.tls
    }

    /// Performs one handshake.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let address = stream.peer_addr()?.ip().to_canonical();
        let of_address = self.turns_of(address);
        let done = timeout(PATIENCE, async {
            let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let closed = "semaphores here are never closed";
            let _of_address = of_address.acquire().await.expect(closed);
            let _turn = self.turns.acquire().await.expect(closed);
            timeout(LASTS, begun.into_stream(self.tls.current())).await?
        });
        let done = done.await;
        drop(of_address);
        self.forget(address);
        done?
    }

    fn turns_of(&self, address: IpAddr) -> Arc<Semaphore> {
        self.of_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(address)
            .or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE_OF_ADDRESS)))
            .clone()
    }

    /// Forgets an address without handshakes.
    fn forget(&self, address: IpAddr) {
        let mut of_address = self
            .of_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if of_address
            .get(&address)
            .is_some_and(|turns| Arc::strong_count(turns) == 1)
        {
            of_address.remove(&address);
        }
    }
}
