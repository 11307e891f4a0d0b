//! A port for plain HTTP, for programs that only read, as a Prometheus that scrapes. Nobody is asked who he
//! is, so its owner serves nothing there that not everybody may read.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{service::Routes, transport::Server};
use tracing::warn;

use crate::{
    Caller, Identity,
    connection::{Connection, Stream},
    listen::{ACCEPT_PAUSE, ServerError},
};

/// Connections held at a time, unless the owner says another number: some scrapers keep one each, and a probe needs one
/// for a moment. More wait in the kernel.
const CONNECTIONS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
#[error(
    "{flag}: {address} cannot be listened on; take another address or port, or stop what uses it"
)]
pub struct HttpPortError {
    flag: &'static str,
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// An open port. Callers wait in the kernel until it serves.
#[derive(Debug)]
pub struct HttpPort {
    listener: TcpListener,
    address: SocketAddr,
    connections_max: usize,
}

impl HttpPort {
    /// Opens the port that this flag names. Must run in a tokio runtime.
    pub fn open(flag: &'static str, address: SocketAddr) -> Result<Self, HttpPortError> {
        let open = || {
            let listener = StdListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            Ok(Self {
                address: listener.local_addr()?,
                listener,
                connections_max: CONNECTIONS_MAX,
            })
        };
        open().map_err(|source| HttpPortError {
            flag,
            address,
            source,
        })
    }

    /// Holds so many connections at a time.
    pub fn with_room_for(self, connections_max: usize) -> Self {
        Self {
            connections_max,
            ..self
        }
    }

    /// Where it listens, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `ended` resolves. A caller that sends nothing, or not its whole request, is hung up on.
    /// Returns two futures, and both must run: the first accepts connections as long as the second, the
    /// server, takes them.
    pub fn serve(
        self,
        services: Routes,
        ended: impl Future<Output = ()>,
    ) -> (
        impl Future<Output = ()>,
        impl Future<Output = Result<(), ServerError>>,
    ) {
        // The server takes what was accepted at once.
        let (accepted, connections) = mpsc::channel(1);
        let accepting = accept(self.listener, self.connections_max, accepted);
        let server = Server::builder()
            .accept_http1(true)
            .add_routes(services)
            .serve_with_incoming_shutdown(ReceiverStream::new(connections), ended);
        (accepting, async move { Ok(server.await?) })
    }
}

async fn accept(
    listener: TcpListener,
    connections_max: usize,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let room = Arc::new(Semaphore::new(connections_max));
    loop {
        let permit = room.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            () = accepted.closed() => return,
        };
        match stream {
            Ok((stream, address)) => {
                let caller = Caller::new(Identity::Anonymous, address, true);
                let connection = Connection::new(Stream::Plain(stream), Some(permit), caller, None);
                if accepted.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            Err(e) => {
                warn!("accept a connection: {e}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
