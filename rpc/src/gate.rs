//! Asks the listener's owner about every call, before any service sees it.

use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tower_layer::Layer;
use tower_service::Service;

use crate::listen::Caller;

/// Decides which calls go on.
pub trait Gate: Clone + Send + Sync + 'static {
    /// `method` is the call's path, as `/muster.v1.JobService/Submit`. What the services shall know
    /// of the caller is put into `extensions`.
    fn admit(
        &self,
        caller: &Caller,
        method: &str,
        extensions: &mut http::Extensions,
    ) -> Result<(), Status>;
}

/// Lets every served caller call everything. For programs with one user, such as test doubles.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Gate for Open {
    fn admit(&self, _: &Caller, _: &str, _: &mut http::Extensions) -> Result<(), Status> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct GateLayer<G>(pub(crate) G);

impl<S, G: Clone> Layer<S> for GateLayer<G> {
    type Service = Gated<S, G>;

    fn layer(&self, inner: S) -> Gated<S, G> {
        Gated {
            inner,
            gate: self.0.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Gated<S, G> {
    inner: S,
    gate: G,
}

impl<S, G, B, R> Service<Request<B>> for Gated<S, G>
where
    S: Service<Request<B>, Response = Response<R>>,
    G: Gate,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future =
        futures::future::Either<std::future::Ready<Result<Response<R>, S::Error>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.admit(&mut request) {
            Ok(()) => futures::future::Either::Right(self.inner.call(request)),
            Err(status) => {
                let answer = Ok(status.into_http());
                futures::future::Either::Left(std::future::ready(answer))
            }
        }
    }
}

impl<S, G: Gate> Gated<S, G> {
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
        let Some(caller) = request.extensions().get::<Caller>().cloned() else {
            return Err(Status::internal("a request without a caller"));
        };
        caller.refuse_stranger()?;
        let method = request.uri().path().to_owned();
        self.gate.admit(&caller, &method, request.extensions_mut())
    }
}
