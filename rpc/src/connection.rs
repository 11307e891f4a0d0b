//! One accepted connection, with or without TLS.

use std::{
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;
use tonic::{Status, transport::server::Connected};

use crate::{
    guests::{Guests, Seat, TooMany},
    identity::Identity,
    listen::Caller,
};

/// A client that has sent nothing for this long after it connected is not a gRPC client.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// How long a caller without a certificate may stay. To join takes a second, and so does a token's
/// review.
const ANONYMOUS_LIFE: Duration = Duration::from_secs(30);

/// How long a connection that must end may go on, so that its streams can say why.
const LAST_WORDS: Duration = Duration::from_secs(1);

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

/// Where a connection counts.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) guests: Guests,
    pub(crate) address: IpAddr,
    pub(crate) end: Arc<Notify>,
}

impl Place {
    pub(crate) fn take(&self, identity: &Identity) -> Result<Seat, TooMany> {
        let end = self.end.clone();
        self.guests.enter(identity, self.address, end)
    }
}

/// What a connection that proves nothing counts as. It is shared by the connection and its calls.
#[derive(Debug)]
pub(crate) struct Stay {
    room: Arc<Semaphore>,
    place: Place,
    counts_as: Mutex<CountsAs>,
}

#[derive(Debug)]
struct CountsAs {
    /// A call has proven who is there.
    known: bool,
    _permit: OwnedSemaphorePermit,
    _seat: Seat,
}

impl Stay {
    /// `room`: that of the connections that may stay.
    pub(crate) fn new(
        anonymous: OwnedSemaphorePermit,
        seat: Seat,
        room: Arc<Semaphore>,
        place: Place,
    ) -> Self {
        Self {
            room,
            place,
            counts_as: Mutex::new(CountsAs {
                known: false,
                _permit: anonymous,
                _seat: seat,
            }),
        }
    }

    /// Lets the connection stay as one of this identity, and gives its place to another caller.
    pub(crate) fn extend(&self, identity: &Identity) -> Result<(), Status> {
        let mut counts_as = self
            .counts_as
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !counts_as.known {
            let permit = self.room.clone().try_acquire_owned();
            let full = |_| Status::unavailable("the coordinator has too many connections");
            let permit = permit.map_err(full)?;
            let too_many = |why: TooMany| Status::resource_exhausted(why.to_string());
            *counts_as = CountsAs {
                known: true,
                _seat: self.place.take(identity).map_err(too_many)?,
                _permit: permit,
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
    /// Comes when nobody may have the connection any more.
    must_end: Option<MustEnd>,
    is_over: bool,
    _seat: Option<Seat>,
    caller: Caller,
    /// `None`: `stay` holds it.
    _permit: Option<OwnedSemaphorePermit>,
}

struct MustEnd(Pin<Box<dyn Future<Output = ()> + Send>>);

impl fmt::Debug for MustEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MustEnd")
    }
}

impl Connection {
    /// Counts as this seat, and ends a moment after `end` is notified.
    pub(crate) fn seated(self, seat: Option<Seat>, end: Arc<Notify>) -> Self {
        let must_end = async move {
            end.notified().await;
            sleep(LAST_WORDS).await;
        };
        Self {
            must_end: Some(MustEnd(Box::pin(must_end))),
            _seat: seat,
            ..self
        }
    }

    pub(crate) fn new(
        stream: Stream,
        permit: Option<OwnedSemaphorePermit>,
        caller: Caller,
        stay: Option<Arc<Stay>>,
    ) -> Self {
        Self {
            stream,
            ends: (stay.is_some() || caller.is_one_too_many())
                .then(|| Box::pin(sleep(ANONYMOUS_LIFE))),
            stay,
            must_end: None,
            is_over: false,
            _seat: None,
            silent: Some(Box::pin(sleep(FIRST_BYTE))),
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
        if let Some(must_end) = &mut self.must_end
            && must_end.0.as_mut().poll(context).is_ready()
        {
            (self.must_end, self.is_over) = (None, true);
        }
        if self.is_over {
            let why = "the caller may have no connection any more";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, why)));
        }
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

    fn place() -> Place {
        Place {
            guests: Guests::default(),
            address: [127, 0, 0, 1].into(),
            end: Arc::default(),
        }
    }

    fn stay(permit: OwnedSemaphorePermit, room: Arc<Semaphore>) -> Stay {
        let place = place();
        let seat = place.take(&Identity::Anonymous).unwrap();
        Stay::new(permit, seat, room, place)
    }

    fn host() -> Identity {
        Identity::Certified("host/n1".parse().unwrap())
    }

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
            let stay = Arc::new(stay(permit, room.clone()));
            let caller = Caller::new(Identity::Anonymous, address, true);
            let stream = Stream::Plain(stream);
            let mut connection = Connection::new(stream, None, caller, Some(stay.clone()));
            assert_eq!(connection.read_u8().await.unwrap(), 7);
            if proves {
                stay.extend(&host()).unwrap();
                stay.extend(&host()).unwrap();
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
        let stay = stay(anonymous, Arc::new(Semaphore::new(0)));
        let full = stay.extend(&host()).unwrap_err();
        assert_eq!(full.code(), tonic::Code::Unavailable);
        assert!(!stay.is_extended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_must_end_does_so_although_nothing_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_u8(7).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let place = place();
        let seat = place.take(&host()).unwrap();
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let caller = Caller::new(host(), address, true);
        let connection = Connection::new(Stream::Plain(stream), Some(permit), caller, None);
        let mut connection = connection.seated(Some(seat), place.end.clone());
        assert_eq!(connection.read_u8().await.unwrap(), 7);
        let idle = timeout(ANONYMOUS_LIFE * 10, connection.read_u8()).await;
        assert!(idle.is_err(), "nobody has said that it must end");
        place.guests.end(&["host/n1".to_owned()].into());
        for _ in 0..2 {
            let ended = timeout(LAST_WORDS * 2, connection.read_u8()).await.unwrap();
            let kind = ended.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::ConnectionAborted);
        }
    }
}
