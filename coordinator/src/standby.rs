//! A coordinator that stands by: another one decides, and this one waits until it may.
//!
//! It answers nobody itself. Who calls it is led on to the coordinator that decides: a node learns only some
//! time after a change where the Service leads now (41 s were seen after an outage of the API server), and until
//! then agents and users call the one that decided before. The bytes are passed on as they are, so TLS is between
//! the caller and the one that decides. While nobody decides, every connection is closed at once.
//!
//! Its port is open while it can take its turn, so that a probe can see that. Without the right to the Lease it
//! never could.

use std::{
    convert::Infallible,
    future::{Future, pending},
    io,
    net::SocketAddr,
    time::Duration,
};

use muster_rpc::listen::ACCEPT_PAUSE;
use muster_runtime::shutdown::Signals;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::{Mutex, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    kubernetes::Leader,
    store::kubernetes::{Candidate, KubernetesStore},
};

/// Connections that are led on at the same time. Each node has one. More would need more open files than
/// systems give.
const LED_ON_MAX: usize = 16_384;

/// For so long what was asked about the leader counts. A thousand agents may dial within a second.
const KNOWN: Duration = Duration::from_secs(1);

/// How long the leader may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until this process may decide. `None`: it was told to end before.
pub async fn wait(
    address: SocketAddr,
    candidate: Candidate,
    leader: Option<&Leader>,
) -> io::Result<Option<KubernetesStore>> {
    let mut signals = Signals::catch()?;
    let may_lead = candidate.may_lead();
    let known = Mutex::new(None);
    let to = || async {
        let mut known = known.lock().await;
        match &*known {
            Some((to, at)) if Instant::now() < *at + KNOWN => *to,
            _ => {
                let to = find(leader, address.port()).await;
                *known = Some((to, Instant::now()));
                to
            }
        }
    };
    tokio::select! {
        store = candidate.lead() => Ok(Some(store)),
        () = signals.first() => {
            info!("told to end before its turn");
            Ok(None)
        }
        Err(why) = open_while(address, may_lead, to) => Err(why),
    }
}

/// Where the coordinator that decides is, as far as it is known.
async fn find(leader: Option<&Leader>, port: u16) -> Option<SocketAddr> {
    let found = timeout(CONNECT_TIMEOUT, leader?.other_address()).await;
    let address = found.ok()?.unwrap_or_else(|why| {
        warn!("nobody can be led on to the coordinator that decides: {why}");
        None
    });
    address.map(|address| SocketAddr::new(address, port))
}

/// Has the port open while `open` says so.
async fn open_while<F: Future<Output = Option<SocketAddr>>>(
    address: SocketAddr,
    mut open: watch::Receiver<bool>,
    to: impl Fn() -> F,
) -> io::Result<Infallible> {
    loop {
        if open.wait_for(|open| *open).await.is_err() {
            // It is about to lead, or to end.
            return pending().await;
        }
        let port = TcpListener::bind(address).await?;
        tokio::select! {
            closed = open.wait_for(|open| !*open) => drop(closed),
            never = lead_on(&port, &to) => match never {},
        }
    }
}

/// Passes on every connection to where `to` says. The callers wait for each other while that is found out.
async fn lead_on<F: Future<Output = Option<SocketAddr>>>(
    port: &TcpListener,
    to: &impl Fn() -> F,
) -> Infallible {
    let mut led = JoinSet::new();
    loop {
        let caller = tokio::select! {
            caller = port.accept() => caller,
            Some(_) = led.join_next() => continue,
        };
        match caller {
            Ok((caller, _)) if led.len() < LED_ON_MAX => {
                if let Some(to) = to().await {
                    led.spawn(pass(caller, to));
                }
            }
            Ok(_) => {}
            // An error concerns only that caller, or passes.
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn pass(mut caller: TcpStream, to: SocketAddr) {
    let dialled = timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await;
    let Ok(Ok(mut leader)) = dialled else {
        return;
    };
    for end in [&caller, &leader] {
        let _ = end.set_nodelay(true);
    }
    // Whichever end breaks, the other one is closed, too, and its program knows what to do.
    let _ = copy_bidirectional(&mut caller, &mut leader).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn callers_are_led_on_while_somebody_decides_and_the_port_is_open_while_it_may_lead() {
        let leader = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = leader.local_addr().unwrap();
        let echo = async {
            loop {
                let (mut caller, _) = leader.accept().await.unwrap();
                let mut word = [0; 4];
                caller.read_exact(&mut word).await.unwrap();
                caller.write_all(&word).await.unwrap();
            }
        };
        // A port that this test has to itself: another address of loopback.
        let own = SocketAddr::from(([127, 0, 0, 2], at.port()));
        let (may, open) = watch::channel(false);
        let to = std::sync::Mutex::new(None);
        let standby = open_while(own, open, || async { *to.lock().unwrap() });
        let caller = async {
            let closed = TcpStream::connect(own).await.unwrap_err();
            assert_eq!(closed.kind(), io::ErrorKind::ConnectionRefused);
            may.send_replace(true);
            let mut caller = loop {
                match TcpStream::connect(own).await {
                    Ok(caller) => break caller,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            let mut word = [0; 4];
            assert_eq!(caller.read(&mut word).await.unwrap(), 0, "nobody decides");
            *to.lock().unwrap() = Some(at);
            let mut caller = TcpStream::connect(own).await.unwrap();
            caller.write_all(b"word").await.unwrap();
            caller.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"word");
            may.send_replace(false);
            while TcpStream::connect(own).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = caller => {}
            () = echo => {}
            ended = standby => panic!("{ended:?}"),
        }
    }
}
