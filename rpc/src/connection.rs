//! One accepted connection, with or without TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::Sleep,
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::{identity::Identity, listen::Caller};

/// A client that has sent nothing for this long after it connected is not a gRPC client.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// How long a caller without a certificate may stay. To join takes a second.
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

/// One client's connection. It ends by itself if the client never sends anything.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// The deadline for the first byte. `None`: the byte has come.
    silent: Option<Pin<Box<Sleep>>>,
    /// When a caller without a certificate is hung up on.
    ends: Option<Pin<Box<Sleep>>>,
    caller: Caller,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(crate) fn new(stream: Stream, permit: OwnedSemaphorePermit, caller: Caller) -> Self {
        Self {
            stream,
            ends: (*caller.identity() == Identity::Anonymous)
                .then(|| Box::pin(tokio::time::sleep(ANONYMOUS_LIFE))),
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
            let why = "a caller without a certificate has had its time";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
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
