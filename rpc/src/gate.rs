//! Asks the listener's owner about every call, before any service sees it, and tells it how the call
//! was answered.

use std::task::{Context, Poll};

use futures::{
    FutureExt,
    future::{Either, Map, Ready, ready},
};
use http::{Request, Response};
use tonic::{Code, Status};
use tower_layer::Layer;
use tower_service::Service;

use crate::listen::Caller;

/// Decides which calls go on.
pub trait Gate: Clone + Send + Sync + 'static {
    /// What is kept of a call that goes on, until it is answered.
    type Call: Call;

    /// `method` is the call's path, as `/muster.v1.JobService/Submit`. What the services shall know
    /// of the caller is put into `extensions`.
    fn admit(
        &self,
        caller: &Caller,
        method: &str,
        extensions: &mut http::Extensions,
    ) -> Result<Self::Call, Status>;

    /// Is told of every call that does not go on: those that `admit` refuses, and those of callers
    /// whom the listener does not serve.
    fn refused(&self, caller: &Caller, method: &str, code: Code);
}

/// A call that goes on. It is dropped without an answer if the caller leaves before.
pub trait Call: Send + 'static {
    /// `code` is the status of a unary call. A stream is answered when it begins.
    fn answered(self, code: Code);
}

impl Call for () {
    fn answered(self, _: Code) {}
}

/// Lets every served caller call everything. For programs with one user, such as test doubles.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Gate for Open {
    type Call = ();

    fn admit(&self, _: &Caller, _: &str, _: &mut http::Extensions) -> Result<(), Status> {
        Ok(())
    }

    fn refused(&self, _: &Caller, _: &str, _: Code) {}
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

type Answer<R, E> = Result<Response<R>, E>;

impl<S, G, B, R> Service<Request<B>> for Gated<S, G>
where
    S: Service<Request<B>, Response = Response<R>>,
    G: Gate,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<
        Ready<Answer<R, S::Error>>,
        Map<S::Future, Box<dyn FnOnce(Answer<R, S::Error>) -> Answer<R, S::Error> + Send>>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.admit(&mut request) {
            Ok(call) => Either::Right(self.inner.call(request).map(Box::new(|answer| {
                call.answered(code(&answer));
                answer
            }))),
            Err(status) => Either::Left(ready(Ok(status.into_http()))),
        }
    }
}

impl<S, G: Gate> Gated<S, G> {
    fn admit<B>(&self, request: &mut Request<B>) -> Result<G::Call, Status> {
        let Some(caller) = request.extensions().get::<Caller>().cloned() else {
            return Err(Status::internal("a request without a caller"));
        };
        let method = request.uri().path().to_owned();
        let admitted = caller
            .refuse_stranger()
            .and_then(|()| self.gate.admit(&caller, &method, request.extensions_mut()));
        if let Err(status) = &admitted {
            self.gate.refused(&caller, &method, status.code());
        }
        admitted
    }
}

/// A call that has failed says so in the head of its answer. Any other head begins messages.
fn code<R, E>(answer: &Answer<R, E>) -> Code {
    match answer {
        Ok(response) => {
            let status = Status::from_header_map(response.headers());
            status.map_or(Code::Ok, |status| status.code())
        }
        Err(_) => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, pending},
        pin::Pin,
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::Identity;

    /// Notes what it is told, and refuses the path `/no`.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<String>>>);

    struct Noted(Notes);

    impl Notes {
        fn say(&self, text: String) {
            self.0.lock().unwrap().push(text);
        }
    }

    impl Gate for Notes {
        type Call = Noted;

        fn admit(
            &self,
            _: &Caller,
            method: &str,
            _: &mut http::Extensions,
        ) -> Result<Noted, Status> {
            match method {
                "/no" => Err(Status::permission_denied("no")),
                _ => Ok(Noted(self.clone())),
            }
        }

        fn refused(&self, _: &Caller, method: &str, code: Code) {
            self.say(format!("{method} refused {code:?}"));
        }
    }

    impl Call for Noted {
        fn answered(self, code: Code) {
            self.0.say(format!("answered {code:?}"));
        }
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.say("dropped".into());
        }
    }

    /// Answers by the path of the call.
    #[derive(Clone)]
    struct Answers;

    impl Service<Request<()>> for Answers {
        type Response = Response<()>;
        type Error = std::convert::Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<()>, Self::Error>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            match request.uri().path() {
                "/hang" => Box::pin(pending()),
                "/lost" => Box::pin(ready(Ok(Status::not_found("lost").into_http()))),
                _ => Box::pin(ready(Ok(Response::new(())))),
            }
        }
    }

    fn call(notes: &Notes, path: &str, is_served: bool) -> Option<Response<()>> {
        let mut gated = GateLayer(notes.clone()).layer(Answers);
        let mut request = Request::new(());
        *request.uri_mut() = path.parse().unwrap();
        let caller = Caller::new(
            Identity::Local { uid: 7 },
            "127.0.0.1:1".parse().unwrap(),
            is_served,
        );
        request.extensions_mut().insert(caller);
        gated.call(request).now_or_never().map(Result::unwrap)
    }

    #[test]
    fn the_gate_learns_how_every_call_was_answered() {
        let notes = Notes::default();
        for path in ["/yes", "/lost", "/no", "/hang"] {
            call(&notes, path, true);
        }
        let answer = call(&notes, "/yes", false).unwrap();
        assert_eq!(code::<(), ()>(&Ok(answer)), Code::PermissionDenied);
        assert_eq!(
            *notes.0.lock().unwrap(),
            [
                "answered Ok",
                "dropped",
                "answered NotFound",
                "dropped",
                "/no refused PermissionDenied",
                "dropped",
                "/yes refused PermissionDenied"
            ]
        );
    }
}
