//! One accepted connection, with or without TLS.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};
use tokio_rustls::server::TlsStream;
use tonic::{Status, transport::server::Connected};

use crate::listen::Caller;

/// A client that has sent nothing for this long after it connected is not a gRPC client.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// How long a caller without a certificate may stay. To join takes a second, and so does a token's
/// review.
const ANONYMOUS_LIFE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    /// Boxed: most of its size is the state of the session.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls a method of the stream, whichever it is.
macro_rules! of_stream {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            Stream::Tls($inner) => $call,
        }
    };
}

/// What a connection that proves nothing counts as. It is shared by the connection and its calls.
#[derive(Debug)]
pub(crate) struct Stay {
    room: Arc<Semaphore>,
    counts_as: Mutex<CountsAs>,
}

#[derive(Debug)]
struct CountsAs {
    /// A call has proven who is there.
    known: bool,
    _permit: OwnedSemaphorePermit,
}

impl Stay {
    /// `room`: that of the connections that may stay.
    pub(crate) fn new(anonymous: OwnedSemaphorePermit, room: Arc<Semaphore>) -> Self {
        Self {
            room,
            counts_as: Mutex::new(CountsAs {
                known: false,
                _permit: anonymous,
            }),
        }
    }

    /// Lets the connection stay, and gives its place to another caller.
    pub(crate) fn extend(&self) -> Result<(), Status> {
        let mut counts_as = self
            .counts_as
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !counts_as.known {
            let permit = self.room.clone().try_acquire_owned();
            let full = |_| Status::unavailable("the coordinator has too many connections");
            *counts_as = CountsAs {
                known: true,
                _permit: permit.map_err(full)?,
            };
        }
        Ok(())
    }

    fn is_extended(&self) -> bool {
        let counts_as = self.counts_as.lock();
        counts_as.unwrap_or_else(PoisonError::into_inner).known
    }
}

/// One client's connection. It ends by itself if the client never sends anything.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// The deadline for the first byte. `None`: the byte has come.
    silent: Option<Pin<Box<Sleep>>>,
    /// When a caller without a certificate is hung up on.
    ends: Option<Pin<Box<Sleep>>>,
    stay: Option<Arc<Stay>>,
    caller: Caller,
    /// `None`: `stay` holds it.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    pub(crate) fn new(
        stream: Stream,
        permit: Option<OwnedSemaphorePermit>,
        caller: Caller,
        stay: Option<Arc<Stay>>,
    ) -> Self {
        Self {
            stream,
            ends: (stay.is_some()).then(|| Box::pin(tokio::time::sleep(ANONYMOUS_LIFE))),
            stay,
            silent: Some(Box::pin(tokio::time::sleep(FIRST_BYTE))),
            caller,
            _permit: permit,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(ends) = &mut self.ends
            && ends.as_mut().poll(context).is_ready()
        {
            if !self.stay.as_ref().is_some_and(|stay| stay.is_extended()) {
                let why = "a caller without a certificate has had its time";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            self.ends = None;
        }
        let read =
            of_stream!(&mut self.stream, stream => Pin::new(stream).poll_read(context, buffer));
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
        of_stream!(&mut self.stream, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        of_stream!(&mut self.stream, stream => Pin::new(stream).poll_write_vectored(context, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        of_stream!(&self.stream, stream => stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_stream!(&mut self.stream, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_stream!(&mut self.stream, stream => Pin::new(stream).poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::timeout,
    };

    use super::*;
    use crate::identity::Identity;

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_proves_nothing_is_hung_up_on_and_gives_its_place_back() {
        for proves in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_u8(7).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let (room, anonymous) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
            let permit = anonymous.clone().acquire_owned().await.unwrap();
            let stay = Arc::new(Stay::new(permit, room.clone()));
            let caller = Caller::new(Identity::Anonymous, address, true);
            let stream = Stream::Plain(stream);
            let mut connection = Connection::new(stream, None, caller, Some(stay.clone()));
            assert_eq!(connection.read_u8().await.unwrap(), 7);
            if proves {
                stay.extend().unwrap();
                stay.extend().unwrap();
                assert_eq!(
                    (room.available_permits(), anonymous.available_permits()),
                    (0, 1),
                    "it counts as one of those that may stay"
                );
            }
            let ended = timeout(ANONYMOUS_LIFE * 2, connection.read_u8()).await;
            match ended {
                Ok(read) => {
                    assert!(!proves);
                    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
                }
                Err(_) => assert!(proves, "nothing ends it"),
            }
            drop((connection, stay));
            assert_eq!(room.available_permits() + anonymous.available_permits(), 2);
        }
    }

    #[tokio::test]
    async fn a_full_house_is_said_to_be_full() {
        let anonymous = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let stay = Stay::new(anonymous, Arc::new(Semaphore::new(0)));
        assert_eq!(stay.extend().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(!stay.is_extended());
    }
}
