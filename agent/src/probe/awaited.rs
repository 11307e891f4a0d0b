//! What a node waits for before it takes work: interfaces that must have an address, and peers that
//! must answer. It also watches for the notice that the node must leave. Until then the node is in
//! the fleet and says what it waits for. The judge makes a finding of it that keeps work away.
//!
//! An interface is checked for as long as the agent lives, because without it the ranks of this
//! node cannot be reached. A peer must answer only once: that shows that the mesh is up, and the
//! peer may be rebooted later. Peers have their own thread, since resolving a name or waiting for
//! an answer may take long.

use std::{
    fmt,
    io::{ErrorKind, Read as _},
    net::{TcpStream, ToSocketAddrs},
    path::Path,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::Duration,
};

use muster_core::health::{Reading, Subject, TERMINATION_NOTICE, Value};
use muster_runner::folder::open_named;
use tracing::warn;

use super::{network, roots::Roots, sense::Sense};

/// How long a peer may take to answer. A mesh needs a round trip, and one that is being built may
/// need a resend of TCP's first segment (1 s).
const ANSWER: Duration = Duration::from_secs(2);
/// The longest notice, which is one sentence. A cloud's metadata describes an interruption in about
/// 60 bytes.
const NOTICE_MAX: u64 = 200;
/// The port to try if none is given. Nobody listens there (RFC 863), so a living host refuses.
const DISCARD: u16 = 9;

/// `HOST` or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    host: String,
    /// None: a refusal by the host counts as an answer too.
    port: Option<u16>,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not HOST or HOST:PORT");
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (
                host,
                port.strip_prefix(':').or(port.is_empty().then_some("")),
            ),
            // An IPv6 address has more than one colon.
            None if text.matches(':').count() == 1 => text
                .split_once(':')
                .map_or((text, None), |(host, port)| (host, Some(port))),
            None => (text, Some("")),
        };
        let port = match port.ok_or_else(wrong)? {
            "" if !text.ends_with(':') => None,
            port => Some(port.parse().map_err(|_| wrong())?),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
        if host.is_empty() || !host.chars().all(plain) {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl Peer {
    /// Why the peer does not answer, if it does not.
    fn ask(&self) -> Result<(), String> {
        let addresses = (self.host.as_str(), self.port.unwrap_or(DISCARD))
            .to_socket_addrs()
            .map_err(|e| e.to_string())?;
        let mut last = "its name has no address".to_owned();
        for address in addresses {
            match TcpStream::connect_timeout(&address, ANSWER) {
                Ok(_) => return Ok(()),
                Err(e)
                    if e.kind() == std::io::ErrorKind::ConnectionRefused && self.port.is_none() =>
                {
                    return Ok(());
                }
                Err(e) => last = e.to_string(),
            }
        }
        Err(last)
    }
}

/// Whether each of these interfaces exists, is up and has an address.
pub(super) fn interfaces(roots: &Roots, names: &[String]) -> Vec<Reading> {
    let reading = |name: &String| {
        let wanting = network::wanting(roots, name);
        let words = format!(
            "waits for interface {name}, which {}",
            wanting.unwrap_or("is up")
        );
        Reading {
            check: "awaited-interface",
            subject: Subject::Nic(name.clone()),
            value: Value::Flag(wanting.is_some()),
            words,
            runs: Vec::new(),
        }
    };
    names.iter().map(reading).collect()
}

/// Whether a notice says that this machine will be taken away. Its text is shown.
pub(super) fn notice(file: &Path) -> Reading {
    let mut said = Vec::new();
    let read = open_named(file).and_then(|file| file.take(NOTICE_MAX).read_to_end(&mut said));
    // What exists but cannot be read counts as a notice too, also if it is no file.
    let given = read
        .as_ref()
        .map_or_else(|e| e.kind() != ErrorKind::NotFound, |_| true);
    let said = String::from_utf8_lossy(&said);
    let line: String = said
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    let words = if line.trim().is_empty() {
        "this machine will be taken away".to_owned()
    } else {
        line.trim().to_owned()
    };
    Reading {
        check: TERMINATION_NOTICE,
        subject: Subject::Node,
        value: Value::Flag(given),
        words,
        runs: Vec::new(),
    }
}

/// The readings for peers that have not answered yet.
pub(super) fn unanswered<'a>(peers: impl IntoIterator<Item = &'a (Peer, String)>) -> Vec<Reading> {
    let silent: Vec<String> = peers
        .into_iter()
        .map(|(peer, why)| format!("{peer} ({why})"))
        .collect();
    let words = format!("waits for an answer of {}", silent.join(", "));
    vec![Reading {
        check: "awaited-peer",
        subject: Subject::Node,
        value: Value::Flag(!silent.is_empty()),
        words,
        runs: Vec::new(),
    }]
}

/// The readings at the start, before any peer was asked.
pub(super) fn unasked(peers: &[Peer]) -> Vec<Reading> {
    unanswered(
        &peers
            .iter()
            .map(|peer| (peer.clone(), "not asked yet".to_owned()))
            .collect::<Vec<_>>(),
    )
}

/// Asks the peers until all have answered.
pub(super) fn start(
    peers: Vec<Peer>,
    pace: Duration,
    out: SyncSender<Sense>,
    over: Arc<AtomicBool>,
) {
    if peers.is_empty() {
        return;
    }
    let ask = move || ask_for_ever(peers, pace, &out, &over);
    if let Err(e) = thread::Builder::new().name("peers".into()).spawn(ask) {
        warn!("peers are not asked: no thread: {e}");
    }
}

fn ask_for_ever(mut peers: Vec<Peer>, pace: Duration, out: &SyncSender<Sense>, over: &AtomicBool) {
    while !peers.is_empty() && !over.load(Ordering::Relaxed) {
        let silent: Vec<(Peer, String)> = peers
            .into_iter()
            .filter_map(|peer| peer.ask().err().map(|why| (peer, why)))
            .collect();
        if out.send(Sense::Peers(unanswered(&silent))).is_err() {
            return;
        }
        peers = silent.into_iter().map(|(peer, _)| peer).collect();
        if !peers.is_empty() {
            thread::sleep(pace);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn peers_are_written_as_people_write_hosts() {
        for text in [
            "hub",
            "hub.mesh:51820",
            "10.8.0.1",
            "10.8.0.1:22",
            "fd00::1",
            "[fd00::1]:22",
        ] {
            assert_eq!(text.parse::<Peer>().unwrap().to_string(), text);
        }
        for text in [
            "",
            ":1",
            "hub:",
            "hub:x",
            "hub:70000",
            "a b",
            "[fd00::1",
            "[fd00::1]x",
        ] {
            assert!(text.parse::<Peer>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_host_that_refuses_is_there_and_a_port_that_does_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let peer = |text: String| text.parse::<Peer>().unwrap();
        assert_eq!(peer(format!("127.0.0.1:{port}")).ask(), Ok(()));
        assert_eq!(peer("127.0.0.1".into()).ask(), Ok(()));
        drop(listener);
        assert!(peer(format!("127.0.0.1:{port}")).ask().is_err());
        let said = &unanswered(&[(peer("hub:1".into()), "refused".into())])[0];
        assert_eq!(
            (said.value, said.words.as_str()),
            (Value::Flag(true), "waits for an answer of hub:1 (refused)")
        );
        assert_eq!(unanswered(&[])[0].value, Value::Flag(false));
    }
}
