//! The stream to the coordinator. Reports and heartbeats go before log lines, so that a user who
//! reads a log never makes a node look silent.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use muster_proto::v1::{AgentMessage, LogChunk, agent_message::Message as Up};
use tokio::sync::mpsc;
use tokio_stream::Stream;

use super::up;

pub(super) struct Outgoing {
    control: mpsc::Receiver<AgentMessage>,
    chunks: mpsc::Receiver<LogChunk>,
}

impl Outgoing {
    pub(super) fn new(
        control: mpsc::Receiver<AgentMessage>,
        chunks: mpsc::Receiver<LogChunk>,
    ) -> Self {
        Self { control, chunks }
    }
}

impl Stream for Outgoing {
    type Item = AgentMessage;

    /// The stream ends with the session, which owns the sender of `control`.
    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<AgentMessage>> {
        if let Poll::Ready(message) = self.control.poll_recv(context) {
            return Poll::Ready(message);
        }
        match self.chunks.poll_recv(context) {
            Poll::Ready(Some(chunk)) => Poll::Ready(Some(up(Up::Log(chunk)))),
            // No reader of logs is left. The session may continue.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
