//! Leads callers of one port on to another process, byte by byte. TLS stays between the caller and that process.

use std::{
    convert::Infallible,
    future::{Future, pending},
    io,
    net::SocketAddr,
    pin::pin,
    time::Duration,
};

use tokio::{
    io::copy,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::listen::ACCEPT_PAUSE;

/// Connections that are led on at the same time. Each node has one. More would need more open files than
/// systems give.
const LED_ON_MAX: usize = 16_384;

/// How long the other process may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one direction may go on after the other one has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Has the port open while `open` says so, and leads every caller on. Ends only with an error of
/// the port itself.
pub async fn while_open<F: Future<Output = Option<SocketAddr>>>(
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
    // When one end is done, the other one gets a moment for its last words. Its program knows what to do.
    let (mut from_caller, mut to_caller) = caller.split();
    let (mut from_leader, mut to_leader) = leader.split();
    let mut there = pin!(copy(&mut from_caller, &mut to_leader));
    let mut back = pin!(copy(&mut from_leader, &mut to_caller));
    tokio::select! {
        _ = &mut there => drop(timeout(LAST_WORDS, back).await),
        _ = &mut back => drop(timeout(LAST_WORDS, there).await),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

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
        let standby = while_open(own, open, || async { *to.lock().unwrap() });
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
