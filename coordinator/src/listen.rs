//! The port: which addresses may be listened on, and how many connections are held at a time.

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
use tonic::transport::server::Connected;
use tracing::{debug, warn};

/// Connections held at a time: 10,000 agents, some thousand users, and those whose end has not been noticed yet. More wait in the
/// kernel. An idle one costs some 40 KiB.
const CONNECTIONS_MAX: usize = 16_000;

/// A client that has said nothing for this long after it connected is no gRPC client.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// Accepted connections the server has not taken yet; it takes them at once.
const ACCEPTED: usize = 16;

/// After an error of accept(2) that is not one connection's own, such as too many open files.
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
    let refuse = || format!("{text:?} is not an IP address and a port; write for example 127.0.0.1:7070 or [::1]:7070");
    match text.strip_prefix("localhost:") {
        Some(port) => port.parse().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).map_err(|_| refuse()),
        None => text.parse().map_err(|_| refuse()),
    }
}

/// Opens the port. Refused beyond loopback: whoever reaches it can run programs on every node.
pub fn open(address: SocketAddr) -> Result<TcpListener, ListenError> {
    if !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    let other = |source| ListenError::Other { address, source };
    let listener = StdListener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(address),
        _ => other(source),
    })?;
    listener.set_nonblocking(true).map_err(other)?;
    TcpListener::from_std(listener).map_err(other)
}

/// Raises this process's limit of open files, whose usual 1,024 would end the accepting of agents far below [`CONNECTIONS_MAX`].
pub fn raise_open_files() {
    // Connections, and some for the store, the logs and the runtime.
    let wanted = CONNECTIONS_MAX as u64 + 200;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(now.maximum.map_or(wanted, |maximum| maximum.min(wanted))), maximum: now.maximum };
        if let Err(e) = setrlimit(Resource::Nofile, raised) {
            warn!("raise the limit of open files: {e}");
        }
    }
}

/// Accepts connections until nobody takes them any more. Returns the stream for the server and the loop to run.
pub fn accept(listener: TcpListener) -> (mpsc::Receiver<io::Result<Connection>>, impl Future<Output = ()>) {
    let (accepted, connections) = mpsc::channel(ACCEPTED);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let accepting = async move {
        loop {
            let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = accepted.closed() => return,
            };
            match stream {
                Ok((stream, peer)) => {
                    debug!(%peer, "connection");
                    if let Err(e) = stream.set_nodelay(true) {
                        debug!(%peer, "connection ended before it began: {e}");
                    } else if accepted.send(Ok(Connection::new(stream, permit))).await.is_err() {
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

/// One client's connection. Ends by itself if the client never says anything.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Until the first byte has come.
    silent: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        Self { stream, silent: Some(Box::pin(tokio::time::sleep(FIRST_BYTE))), _permit: permit }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.silent = None;
        } else if let Some(silent) = &mut self.silent
            && silent.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client said nothing")));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
        assert_eq!(parse_address("localhost:0").unwrap().to_string(), "127.0.0.1:0");
        assert_eq!(parse_address("[::1]:7070").unwrap().to_string(), "[::1]:7070");
        for bad in ["", "7070", "127.0.0.1", "127.0.0.1:99999", "example.org:7070", "localhost:"] {
            let expected = format!("{bad:?} is not an IP address and a port; write for example 127.0.0.1:7070 or [::1]:7070");
            assert_eq!(parse_address(bad).unwrap_err(), expected);
        }
    }

    #[tokio::test]
    async fn only_loopback_is_listened_on() {
        for address in ["0.0.0.0:0", "[::]:0", "10.1.2.3:0"] {
            let error = open(address.parse().unwrap()).unwrap_err();
            assert!(matches!(error, ListenError::NotLoopback(_)), "{error}");
        }
        let error = open("0.0.0.0:7070".parse().unwrap()).unwrap_err().to_string();
        assert_eq!(
            error,
            "--listen: 0.0.0.0:7070 can be reached from other machines, and there is no TLS and no authentication yet; use a loopback \
             address, as 127.0.0.1:7070"
        );
        open("127.0.0.1:0".parse().unwrap()).unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_is_said_to_be() {
        let first = open("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = open(address).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("--listen: port {} of 127.0.0.1 is in use; stop what uses it or take another port", address.port())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_hung_up_on() {
        use tokio::io::AsyncReadExt;

        let listener = open("127.0.0.1:0".parse().unwrap()).unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let mut connection = Connection::new(stream, permit);
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
