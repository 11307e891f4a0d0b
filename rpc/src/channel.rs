//! A connection to a coordinator, as the generated clients use it. If the caller has a token, every
//! call shows it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, header::AUTHORIZATION};
use tonic::{Status, body::Body, transport};
use tower_service::Service;

use crate::bearer::Bearer;

/// Says which token to show. Is asked before every call, because tokens live for minutes.
#[derive(Clone)]
pub struct Tokens(Arc<dyn Fn() -> Result<Bearer, String> + Send + Sync>);

impl Tokens {
    /// An error is told to whoever makes the call, and the call is not sent.
    pub fn new(next: impl Fn() -> Result<Bearer, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(next))
    }

    /// The same one for every call.
    pub fn one(token: Bearer) -> Self {
        Self::new(move || Ok(token.clone()))
    }
}

/// Never shows a token.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

/// A connection to a coordinator. Cheap to clone; every call of every clone goes over it.
#[derive(Clone, Debug)]
pub struct Channel {
    inner: transport::Channel,
    /// Only with TLS.
    tokens: Option<Tokens>,
}

impl Channel {
    pub(crate) fn new(inner: transport::Channel, tokens: Option<Tokens>) -> Self {
        Self { inner, tokens }
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, transport::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), transport::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.tokens.as_ref().map(|tokens| (tokens.0)()) {
            None => {}
            Some(Ok(token)) => {
                request.headers_mut().insert(AUTHORIZATION, token.header());
            }
            Some(Err(why)) => {
                let status = Status::unauthenticated(why);
                return Box::pin(async move { Ok(status.into_http()) });
            }
        }
        Box::pin(self.inner.call(request))
    }
}
