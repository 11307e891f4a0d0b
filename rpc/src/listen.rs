//! The port: the addresses that may be listened on, the callers that are served, and the bound of
//! connections.
//!
//! The caller brings the services. Nothing in here knows what they do.
//!
//! Without TLS only loopback is listened on, and the coordinator serves its own user and root, as
//! the kernel knows them ([`peer`]). It tells every other user of this machine that it does not
//! serve them. With TLS everybody is heard, and certificates say who they are.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, service::Routes, transport::Server};
use tracing::{debug, warn};

use crate::{
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT,
    connection::{Connection, Place, Stay, Stream},
    gate::{Gate, GateLayer},
    guests::Guests,
    handshake::{Handshakes, network},
    identity::Identity,
    peer::{self, Peer},
    tls::{ServerTls, Shown},
};

/// Connections held at a time: 10,000 agents, some thousand users, and dead ones that nobody has
/// noticed yet. More connections wait in the kernel. An idle one costs some 40 KiB.
const CONNECTIONS_MAX: usize = 16_000;

/// Concurrent streams of one connection: a session, log streams and a user's watches.
const STREAMS_MAX: u32 = 64;

/// Connections of users who are not served, and those that are one too many of their name or address,
/// held only to tell them so. They do not count as connections above.
const STRANGERS_MAX: usize = 16;

/// Connections with TLS but without a certificate. They can show tokens. Each ends after half a
/// minute, unless a call on it has shown a token of Kubernetes; then it counts as all others.
const ANONYMOUS_MAX: usize = 512;

/// Accepted connections that the server has not taken yet. It takes them at once.
const ACCEPTED: usize = 16;

/// Pause after an error of accept(2) that concerns more than one connection, such as too many open
/// files.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "--listen: {0} can be reached from other machines, and there is no TLS; run `muster-coordinator init` first, or use a \
         loopback address, as 127.0.0.1:{port}", port = .0.port()
    )]
    NotLoopback(SocketAddr),
    #[error("--listen: port {port} of {address} is in use; stop what uses it or take another port", port = .0.port(), address = .0.ip())]
    InUse(SocketAddr),
    #[error("--listen: {address} cannot be listened on")]
    Other {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Reads an address; `localhost` means 127.0.0.1.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let refuse = || {
        format!(
            "{text:?} is not an IP address and a port; write for example 127.0.0.1:7070 or [::1]:7070"
        )
    };
    match text.strip_prefix("localhost:") {
        Some(port) => port
            .parse()
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            .map_err(|_| refuse()),
        None => text.parse().map_err(|_| refuse()),
    }
}

/// What a listener may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Every connection speaks TLS, and certificates say who callers are. The kernel is not asked.
    pub tls: Option<ServerTls>,
    /// Serve also callers whose user the kernel cannot tell. This is insecure, because anybody can
    /// become such a caller.
    pub accept_unknown: bool,
    /// With TLS: who has how many connections. Its owner can end those of one.
    pub guests: Guests,
}

/// Why a server has ended. Its sources say what went wrong.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ServerError(#[from] tonic::transport::Error);

/// An open port. Callers wait in the kernel until it serves.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Opens the port. Must run in a tokio runtime. Without TLS it refuses addresses beyond
    /// loopback, because everybody who reaches the port could run programs on every node.
    pub fn open(address: SocketAddr, with_tls: bool) -> Result<Self, ListenError> {
        if !with_tls && !address.ip().is_loopback() {
            return Err(ListenError::NotLoopback(address));
        }
        let other = |source| ListenError::Other { address, source };
        let listener = StdListener::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(address),
            _ => other(source),
        })?;
        listener.set_nonblocking(true).map_err(other)?;
        let listener = TcpListener::from_std(listener).map_err(other)?;
        Ok(Self {
            address: listener.local_addr().map_err(other)?,
            listener,
        })
    }

    /// Where it listens, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `ended` resolves. `gate` is asked about every call. Returns two futures, and
    /// both must run: the first accepts connections as long as the second, the server, takes them.
    pub fn serve(
        self,
        options: Options,
        gate: impl Gate,
        services: Routes,
        ended: impl Future<Output = ()>,
    ) -> (
        impl Future<Output = ()>,
        impl Future<Output = Result<(), ServerError>>,
    ) {
        let (connections, accepting) = accept(self.listener, options);
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_concurrent_streams(STREAMS_MAX)
            .concurrency_limit_per_connection(STREAMS_MAX as usize)
            .layer(GateLayer(gate))
            .add_routes(services)
            .serve_with_incoming_shutdown(ReceiverStream::new(connections), ended);
        (accepting, async move { Ok(server.await?) })
    }
}

/// Raises this process's limit of open files as far as it may. The usual limit of 1,024 would refuse
/// agents far below [`CONNECTIONS_MAX`], and a standby has two descriptors for each caller.
pub fn raise_open_files() {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        let raised = Rlimit {
            current: now.maximum,
            ..now
        };
        if let Err(e) = setrlimit(Resource::Nofile, raised) {
            warn!("raise the limit of open files: {e}");
        }
    }
}

/// Who is at the other end of a connection, carried by the extensions of its every request.
#[derive(Clone, Debug)]
pub struct Caller {
    identity: Identity,
    shown: Option<Shown>,
    address: SocketAddr,
    is_served: bool,
    /// Why the connection is one too many.
    too_many: Option<Arc<str>>,
    /// Of a connection that has proven nothing.
    stay: Option<Arc<Stay>>,
}

impl Caller {
    pub(crate) fn new(identity: Identity, address: SocketAddr, is_served: bool) -> Self {
        Self {
            identity,
            shown: None,
            address,
            is_served,
            too_many: None,
            stay: None,
        }
    }

    /// The same caller after its call has proven who it is. Its connection may stay from now on.
    pub fn proven(self, identity: Identity) -> Result<Self, Status> {
        if let Some(stay) = &self.stay {
            stay.extend(&identity)?;
        }
        Ok(Self { identity, ..self })
    }

    fn showing(self, shown: Option<Shown>) -> Self {
        Self { shown, ..self }
    }

    /// The certificate that the connection began with.
    pub fn shown(&self) -> Option<&Shown> {
        self.shown.as_ref()
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether its connection is held only to say why nothing is answered.
    pub(crate) fn is_one_too_many(&self) -> bool {
        self.too_many.is_some()
    }

    pub(crate) fn refuse_stranger(&self) -> Result<(), Status> {
        if let Some(why) = &self.too_many {
            return Err(Status::resource_exhausted(&**why));
        }
        if self.is_served {
            return Ok(());
        }
        let own = match peer::own_user() {
            0 => "root".to_owned(),
            own => format!("user {own} and root"),
        };
        Err(Status::permission_denied(match self.identity {
            Identity::Local { uid } => {
                format!("this coordinator serves {own} only, and you are user {uid}")
            }
            _ => format!("this coordinator serves {own} only, and it cannot be told who you are"),
        }))
    }
}

/// Accepts connections until the server takes no more of them. Returns the stream for the server,
/// and the loop to run.
fn accept(
    listener: TcpListener,
    options: Options,
) -> (
    mpsc::Receiver<io::Result<Connection>>,
    impl Future<Output = ()>,
) {
    let (accepted, connections) = mpsc::channel(ACCEPTED);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let accepting = async move {
        let mut door = Door::new(options, accepted.clone(), room.clone());
        loop {
            let permit = room
                .clone()
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = accepted.closed() => return,
            };
            match stream {
                Ok((stream, address)) => {
                    debug!(%address, "connection");
                    if let Err(e) = door.take(stream, address, permit).await {
                        debug!(%address, "connection ended before it began: {e}");
                    }
                }
                Err(e) => {
                    warn!("accept a connection: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    (connections, accepting)
}

/// Learns who is at the other end of a connection just accepted, and hands it to the server.
struct Door {
    accepted: mpsc::Sender<io::Result<Connection>>,
    accept_unknown: bool,
    handshakes: Option<Handshakes>,
    /// All connections but those that have proven nothing.
    room: Arc<Semaphore>,
    guests: Guests,
    anonymous: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// The stranger that was logged last. One who keeps calling is logged once, not a thousand
    /// times.
    told: Option<Peer>,
}

impl Door {
    fn new(
        options: Options,
        accepted: mpsc::Sender<io::Result<Connection>>,
        room: Arc<Semaphore>,
    ) -> Self {
        Self {
            accepted,
            room,
            accept_unknown: options.accept_unknown,
            guests: options.guests,
            handshakes: options.tls.map(Handshakes::new),
            anonymous: Arc::new(Semaphore::new(ANONYMOUS_MAX)),
            strangers: Arc::new(Semaphore::new(STRANGERS_MAX)),
            told: None,
        }
    }

    async fn take(
        &mut self,
        stream: TcpStream,
        address: SocketAddr,
        permit: OwnedSemaphorePermit,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let Some(handshakes) = &self.handshakes else {
            return self.take_local(stream, address, permit).await;
        };
        let Some(place) = handshakes.enter(address.ip()) else {
            return Err(io::Error::other("too many handshakes"));
        };
        // The loop that accepts must not wait for a handshake.
        let (handshakes, anonymous, room, accepted) = (
            handshakes.clone(),
            self.anonymous.clone(),
            self.room.clone(),
            self.accepted.clone(),
        );
        let (guests, strangers) = (self.guests.clone(), self.strangers.clone());
        tokio::spawn(async move {
            let stream = match handshakes.accept(stream, place).await {
                Ok(stream) => stream,
                Err(e) => return debug!(%address, "no TLS handshake: {e}"),
            };
            let chain = stream.get_ref().1.peer_certificates();
            let identity = handshakes.tls().identity(chain);
            let shown = handshakes.tls().shown(chain);
            let mut caller = Caller::new(identity, address, true).showing(shown);
            let mut permit = Some(permit);
            let place = Place {
                guests,
                address: network(address.ip().to_canonical()),
                end: Arc::default(),
            };
            let end = place.end.clone();
            let seat = match place.take(caller.identity()) {
                Ok(seat) => Some(seat),
                Err(why) => {
                    debug!(%address, "{why}");
                    let Ok(other) = strangers.try_acquire_owned() else {
                        return;
                    };
                    permit = Some(other);
                    caller.too_many = Some(why.to_string().into());
                    None
                }
            };
            let mut held = seat;
            if *caller.identity() == Identity::Anonymous
                && let Some(seat) = held.take()
            {
                let Ok(other) = anonymous.try_acquire_owned() else {
                    return debug!(%address, "too many callers without a certificate");
                };
                permit = None;
                caller.stay = Some(Arc::new(Stay::new(other, seat, room, place)));
            }
            let stay = caller.stay.clone();
            let stream = Stream::Tls(Box::new(stream));
            let connection = Connection::new(stream, permit, caller, stay).seated(held, end);
            // An error means that the server has ended.
            let _ = accepted.send(Ok(connection)).await;
        });
        Ok(())
    }

    /// Without TLS the kernel says at once which user of this machine it is.
    async fn take_local(
        &mut self,
        stream: TcpStream,
        address: SocketAddr,
        permit: OwnedSemaphorePermit,
    ) -> io::Result<()> {
        let peer = peer::ask(address, stream.local_addr()?)?;
        let identity = match peer {
            Peer::User(uid) => Identity::Local { uid },
            Peer::Unknown => Identity::Unknown,
        };
        let is_served = peer.is_trusted() || self.accept_unknown && peer == Peer::Unknown;
        let caller = Caller::new(identity, address, is_served);
        if !caller.is_served && self.told != Some(peer) {
            warn!(%address, ?peer, "refused: only the coordinator's own user and root are served");
            self.told = Some(peer);
        }
        let permit = if caller.is_served {
            permit
        } else {
            let too_many = |_| io::Error::other("too many strangers");
            self.strangers
                .clone()
                .try_acquire_owned()
                .map_err(too_many)?
        };
        let connection = Connection::new(Stream::Plain(stream), Some(permit), caller, None);
        // An error means that the server has ended.
        let _ = self.accepted.send(Ok(connection)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        assert_eq!(
            parse_address("localhost:0").unwrap().to_string(),
            "127.0.0.1:0"
        );
        assert_eq!(
            parse_address("[::1]:7070").unwrap().to_string(),
            "[::1]:7070"
        );
        for bad in [
            "",
            "7070",
            "127.0.0.1",
            "127.0.0.1:99999",
            "example.org:7070",
            "localhost:",
        ] {
            let expected = format!(
                "{bad:?} is not an IP address and a port; write for example 127.0.0.1:7070 or [::1]:7070"
            );
            assert_eq!(parse_address(bad).unwrap_err(), expected);
        }
    }

    #[tokio::test]
    async fn only_loopback_is_listened_on() {
        for address in ["0.0.0.0:0", "[::]:0", "10.1.2.3:0"] {
            let error = Listener::open(address.parse().unwrap(), false).unwrap_err();
            assert!(matches!(error, ListenError::NotLoopback(_)), "{error}");
        }
        let error = Listener::open("0.0.0.0:7070".parse().unwrap(), false)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "--listen: 0.0.0.0:7070 can be reached from other machines, and there is no TLS; run `muster-coordinator init` first, or \
             use a loopback address, as 127.0.0.1:7070"
        );
        Listener::open("127.0.0.1:0".parse().unwrap(), false).unwrap();
        Listener::open("0.0.0.0:0".parse().unwrap(), true).unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_is_said_to_be() {
        let first = Listener::open("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = first.address();
        let error = Listener::open(address, false).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "--listen: port {} of 127.0.0.1 is in use; stop what uses it or take another port",
                address.port()
            )
        );
    }

    #[test]
    fn a_stranger_is_told_why_nothing_is_answered() {
        let answer = |identity, is_served| {
            let address = "127.0.0.1:1".parse().unwrap();
            let caller = Caller::new(identity, address, is_served);
            caller
                .refuse_stranger()
                .map_err(|status| status.message().to_owned())
        };
        assert_eq!(answer(Identity::Local { uid: 7 }, true), Ok(()));
        let refusal = answer(Identity::Local { uid: 7 }, false).unwrap_err();
        assert!(
            refusal.starts_with("this coordinator serves ")
                && refusal.ends_with("root only, and you are user 7"),
            "{refusal}"
        );
        assert!(
            answer(Identity::Unknown, false)
                .unwrap_err()
                .ends_with("it cannot be told who you are")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_hung_up_on() {
        use tokio::io::AsyncReadExt;

        let listener = Listener::open("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let _silent = TcpStream::connect(listener.address()).await.unwrap();
        let (stream, _) = listener.listener.accept().await.unwrap();
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let own = Identity::Local {
            uid: peer::own_user(),
        };
        let caller = Caller::new(own, listener.address(), true);
        let mut connection = Connection::new(Stream::Plain(stream), Some(permit), caller, None);
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
