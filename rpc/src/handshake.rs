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
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use crate::{
    tls::ServerTls,
    unproven::{Limits, Place, Unproven},
};

/// Handshakes at a time.
const AT_ONCE: usize = 64;
/// Of these from one address.
const AT_ONCE_OF_ADDRESS: usize = 32;
/// From the connection to the end of its handshake, with waiting. A caller that is not served by
/// then comes again.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a begun handshake may take. It is one round trip.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A caller whose certificate is refused has begun to send already. A connection that is closed
/// before that was read is reset, and the reset overtakes the reason. So it is read, and thrown away,
/// for so long and so many bytes.
const LINGER: (Duration, u64) = (Duration::from_secs(1), 64 << 10);

/// Connections whose handshake is not done. One address has at most half of them.
const LIMITS: Limits = Limits {
    silent: 2_048,
    spoken: 2_048,
    of_address: 1_024,
};

/// Lets a caller read why it was refused.
async fn linger(mut stream: TcpStream) {
    let (time, bytes) = LINGER;
    let read = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(bytes), &mut tokio::io::sink()).await
    };
    // Whatever happens, the connection ends now.
    let _ = timeout(time, read).await;
}

/// Whoever has one IPv6 address usually has a whole network of 2^64.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let mut parts = address.segments();
            parts[4..].fill(0);
            IpAddr::from(parts)
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Handshakes {
    unproven: Unproven,
    tls: ServerTls,
    turns: Arc<Semaphore>,
    of_address: Arc<Mutex<BTreeMap<IpAddr, Arc<Semaphore>>>>,
}

impl Handshakes {
    pub(crate) fn new(tls: ServerTls) -> Self {
        Self {
            unproven: Unproven::new(LIMITS),
            tls,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            of_address: Arc::default(),
        }
    }

    pub(crate) fn tls(&self) -> &ServerTls {
        &self.tls
    }

    /// Performs one handshake.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        mut place: Place,
    ) -> io::Result<TlsStream<TcpStream>> {
        let address = network(stream.peer_addr()?.ip().to_canonical());
        let of_address = self.turns_of(address);
        let done = timeout(ACCEPT_TIMEOUT, async {
            let begun = tokio::select! {
                begun = LazyConfigAcceptor::new(Acceptor::default(), stream) => begun?,
                () = place.closed() => {
                    return Err(io::Error::other("it said nothing, and others need its place"));
                }
            };
            if !place.speak() {
                return Err(io::Error::other("too many handshakes"));
            }
            let closed = "semaphores here are never closed";
            let _of_address = of_address.acquire().await.expect(closed);
            let _turn = self.turns.acquire().await.expect(closed);
            let done = begun.into_stream(self.tls.config()).into_fallible();
            Ok::<_, io::Error>(timeout(HANDSHAKE_TIMEOUT, done).await?)
        });
        let done = done.await;
        drop(of_address);
        self.forget(address);
        match done?? {
            Ok(stream) => Ok(stream),
            Err((why, stream)) => {
                linger(stream).await;
                Err(why)
            }
        }
    }

    /// Notes a connection just accepted. `None`: its address has too many already.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Place> {
        self.unproven.enter(network(address.to_canonical()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_counts_as_one_address_and_an_ipv4_address_as_itself() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
