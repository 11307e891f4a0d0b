//! Calling a server of gRPC on this machine that listens on a Unix socket. Its file's owner and mode say
//! who may call, so there is neither TLS nor a token.

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::dial::DialError;

/// Connects to the server at this socket, for one call or a few. `within`: how long each may take.
pub async fn dial(socket: &Path, within: Duration) -> Result<Channel, DialError> {
    // HTTP/2 asks for a name. Nobody looks it up.
    let channel = Endpoint::from_static("http://localhost")
        .connect_timeout(within)
        .timeout(within)
        .connect_with_connector(Connector(socket.to_owned()))
        .await?;
    Ok(channel)
}

#[derive(Debug)]
struct Connector(PathBuf);

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = self.0.clone();
        Box::pin(async move { UnixStream::connect(socket).await.map(TokioIo::new) })
    }
}
