//! The port: the addresses that may be listened on, the callers that are served, and the bound of
//! connections.
//!
//! The caller brings the services. Nothing in here knows what they do.
//!
//! The coordinator serves its own user and root, as the kernel knows them ([`peer`]). It tells every
//! other user of this machine that it does not serve them.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::Sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Extensions, Request, Status,
    service::{InterceptorLayer, Routes},
    transport::{Server, server::Connected},
};
use tracing::{debug, warn};

use crate::{
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT,
    peer::{self, Peer},
};

/// Connections held at a time: 10,000 agents, some thousand users, and dead ones that nobody has
/// noticed yet. More connections wait in the kernel. An idle one costs some 40 KiB.
const CONNECTIONS_MAX: usize = 16_000;

/// Concurrent streams of one connection: a session, log streams and a user's watches.
const STREAMS_MAX: u32 = 64;

/// Connections of users who are not served, held only to tell them so. They do not count as
/// connections above.
const STRANGERS_MAX: usize = 16;

/// A client that has sent nothing for this long after it connected is not a gRPC client.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// Accepted connections that the server has not taken yet. It takes them at once.
const ACCEPTED: usize = 16;

/// Pause after an error of accept(2) that concerns more than one connection, such as too many open
/// files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "--listen: {0} can be reached from other machines, and there is no TLS and no authentication yet; use a loopback address, \
         as 127.0.0.1:{port}", port = .0.port()
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
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Serve also callers whose user the kernel cannot tell. This is insecure, because anybody can
    /// become such a caller.
    pub accept_unknown: bool,
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
    /// Opens the port. Must run in a tokio runtime. Refuses addresses beyond loopback, because
    /// everybody who reaches the port can run programs on every node.
    pub fn open(address: SocketAddr) -> Result<Self, ListenError> {
        if !address.ip().is_loopback() {
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

    /// Serves until `ended` resolves. Returns two futures, and both must run: the first accepts
    /// connections as long as the second, the server, takes them.
    pub fn serve(
        self,
        options: Options,
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
            .layer(InterceptorLayer::new(admit))
            .add_routes(services)
            .serve_with_incoming_shutdown(ReceiverStream::new(connections), ended);
        (accepting, async move { Ok(server.await?) })
    }
}

/// Raises this process's limit of open files. The usual limit of 1,024 would refuse agents far
/// below [`CONNECTIONS_MAX`].
pub fn raise_open_files() {
    // The connections, and some files for the store, the logs and the runtime.
    let wanted = CONNECTIONS_MAX as u64 + 200;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(now.maximum.map_or(wanted, |maximum| maximum.min(wanted))),
            maximum: now.maximum,
        };
        if let Err(e) = setrlimit(Resource::Nofile, raised) {
            warn!("raise the limit of open files: {e}");
        }
    }
}

/// The user at the other end, carried by the extensions of every request of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    peer: Peer,
    is_served: bool,
}

impl Caller {
    pub fn peer(&self) -> Peer {
        self.peer
    }
}

/// Lets a request through if its caller is served.
fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    refuse_strangers(request.extensions())?;
    Ok(request)
}

fn refuse_strangers(extensions: &Extensions) -> Result<(), Status> {
    let own = match peer::own_user() {
        0 => "root".to_owned(),
        own => format!("user {own} and root"),
    };
    match extensions.get::<Caller>() {
        Some(caller) if caller.is_served => Ok(()),
        Some(Caller {
            peer: Peer::User(uid),
            ..
        }) => Err(Status::permission_denied(format!(
            "this coordinator serves {own} only, and you are user {uid}"
        ))),
        Some(Caller {
            peer: Peer::Unknown,
            ..
        }) => Err(Status::permission_denied(format!(
            "this coordinator serves {own} only, and it cannot be told who you are"
        ))),
        None => Err(Status::internal("a request without a caller")),
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
    let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
    let mut told = None;
    let accepting = async move {
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
                    let caller = match authenticate(&stream, address, options) {
                        Ok(caller) => caller,
                        Err(e) => {
                            debug!(%address, "connection ended before it began: {e}");
                            continue;
                        }
                    };
                    // Log a stranger who keeps calling once, not a thousand times.
                    if !caller.is_served && told != Some(caller.peer) {
                        warn!(%address, peer = ?caller.peer, "refused: only the coordinator's own user and root are served");
                        told = Some(caller.peer);
                    }
                    let permit = if caller.is_served {
                        Ok(permit)
                    } else {
                        strangers.clone().try_acquire_owned()
                    };
                    let Ok(permit) = permit else { continue };
                    if accepted
                        .send(Ok(Connection::new(stream, permit, caller)))
                        .await
                        .is_err()
                    {
                        return;
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

/// Learns who is at the other end of a connection just accepted. This is where a server's side of
/// TLS belongs, in a task of the connection's own: the loop that accepts must not wait for a
/// handshake. Today it is the kernel's word, which is there at once.
fn authenticate(stream: &TcpStream, address: SocketAddr, options: Options) -> io::Result<Caller> {
    stream.set_nodelay(true)?;
    let peer = peer::ask(address, stream.local_addr()?)?;
    Ok(Caller {
        peer,
        is_served: peer.is_trusted() || options.accept_unknown && peer == Peer::Unknown,
    })
}

/// One client's connection. It ends by itself if the client never sends anything.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// The deadline for the first byte. `None`: the byte has come.
    silent: Option<Pin<Box<Sleep>>>,
    caller: Caller,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit, caller: Caller) -> Self {
        Self {
            stream,
            silent: Some(Box::pin(tokio::time::sleep(FIRST_BYTE))),
            caller,
            _permit: permit,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.silent = None;
        } else if let Some(silent) = &mut self.silent
            && silent.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client said nothing",
            )));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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
            let error = Listener::open(address.parse().unwrap()).unwrap_err();
            assert!(matches!(error, ListenError::NotLoopback(_)), "{error}");
        }
        let error = Listener::open("0.0.0.0:7070".parse().unwrap())
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "--listen: 0.0.0.0:7070 can be reached from other machines, and there is no TLS and no authentication yet; use a loopback \
             address, as 127.0.0.1:7070"
        );
        Listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_is_said_to_be() {
        let first = Listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.address();
        let error = Listener::open(address).unwrap_err().to_string();
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
        let answer = |peer, is_served| {
            let mut request = Request::new(());
            request.extensions_mut().insert(Caller { peer, is_served });
            admit(request)
                .map(drop)
                .map_err(|status| status.message().to_owned())
        };
        assert_eq!(answer(Peer::User(7), true), Ok(()));
        let refusal = answer(Peer::User(7), false).unwrap_err();
        assert!(
            refusal.starts_with("this coordinator serves ")
                && refusal.ends_with("root only, and you are user 7"),
            "{refusal}"
        );
        assert!(
            answer(Peer::Unknown, false)
                .unwrap_err()
                .ends_with("it cannot be told who you are")
        );
        assert!(
            admit(Request::new(())).is_err(),
            "who is not known at all is not served"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_hung_up_on() {
        use tokio::io::AsyncReadExt;

        let listener = Listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let _silent = TcpStream::connect(listener.address()).await.unwrap();
        let (stream, _) = listener.listener.accept().await.unwrap();
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let caller = Caller {
            peer: Peer::User(peer::own_user()),
            is_served: true,
        };
        let mut connection = Connection::new(stream, permit, caller);
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
