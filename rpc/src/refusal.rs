//! Why a coordinator has ended a TLS connection that seemed to stand. In TLS 1.3 the calling side is
//! ready before the other one has looked at its certificate. So a refusal comes as an alert, at any
//! moment after that, and the call that waits for an answer only learns that it was canceled.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls::explain;

/// What a person can do about it, once it was heard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal(Arc<Mutex<Option<&'static str>>>);

impl Refusal {
    pub(crate) fn get(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, why: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Listens to a new connection. It forgets everything about the connection before.
    pub(crate) fn watch<S>(&self, stream: S) -> Watched<S> {
        self.set(None);
        Watched {
            stream,
            refusal: self.clone(),
        }
    }
}

/// A TLS connection whose alerts are noted.
pub(crate) struct Watched<S> {
    stream: S,
    refusal: Refusal,
}

impl<S: AsyncRead + Unpin> Watched<S> {
    fn note(&self, error: &io::Error) {
        if let Some(why) = explain(error) {
            self.refusal.set(Some(why));
        }
    }

    /// A connection that cannot be written to may hold an alert that nobody has read.
    fn hear_out(&mut self, context: &mut Context<'_>) {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        if let Poll::Ready(Err(e)) = Pin::new(&mut self.stream).poll_read(context, &mut byte) {
            self.note(&e);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, into));
        if let Err(e) = &read {
            self.note(e);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        if written.is_err() {
            self.hear_out(context);
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        if flushed.is_err() {
            self.hear_out(context);
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
