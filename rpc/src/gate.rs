//! Asks the listener's owner about every call, before any service sees it, and tells it how the call
//! was answered.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response, header::AUTHORIZATION};
use tonic::{Code, Status};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    bearer::{BadBearer, Bearer},
    listen::Caller,
};

/// Decides which calls go on.
pub trait Gate: Clone + Send + Sync + 'static {
    /// What is kept of a call that goes on, until it is answered.
    type Call: Call;

    /// May take its time, as long as somebody else is asked about the caller.
    fn admit(
        &self,
        asked: Asked,
    ) -> impl Future<Output = Result<Admitted<Self::Call>, Refused>> + Send;

    /// Is told of every call that does not go on: those that `admit` refuses, and those of callers
    /// whom the listener does not serve.
    fn refused(&self, caller: &Caller, method: &str, status: &Status);
}

/// A call that asks to be let in.
#[derive(Debug)]
pub struct Asked {
    /// Who calls, as the connection proves it.
    pub caller: Caller,
    /// The call's path, as `/muster.v1.JobService/Submit`.
    pub method: String,
    /// The token that the call shows. No service sees it.
    pub bearer: Option<Bearer>,
}

/// A call that goes on.
#[derive(Debug)]
pub struct Admitted<C> {
    pub call: C,
    /// Who calls, as the connection or the token proves it.
    pub caller: Caller,
    /// What the services shall know of the caller.
    pub extensions: http::Extensions,
}

/// A call that does not go on.
#[derive(Debug)]
pub struct Refused {
    /// Who called, as far as it is known.
    pub caller: Caller,
    pub status: Status,
}

/// A call that goes on. It is dropped without an answer if the caller leaves before.
pub trait Call: Send + 'static {
    /// `failure` is the status of a unary call that has failed. A stream is answered when it begins.
    fn answered(self, failure: Option<&Status>);
}

impl Call for () {
    fn answered(self, _: Option<&Status>) {}
}

/// Lets every served caller call everything. For programs with one user, such as test doubles.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Gate for Open {
    type Call = ();

    async fn admit(&self, asked: Asked) -> Result<Admitted<()>, Refused> {
        Ok(Admitted {
            call: (),
            caller: asked.caller,
            extensions: http::Extensions::new(),
        })
    }

    fn refused(&self, _: &Caller, _: &str, _: &Status) {}
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
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    G: Gate,
    B: Send + 'static,
    R: Default + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Answer<R, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let gate = self.gate.clone();
        // The one that was ready is used, and its clone waits for the next call.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            match admit(&gate, &mut request).await {
                Ok(call) => {
                    let answer = inner.call(request).await;
                    call.answered(failure(&answer).as_ref());
                    answer
                }
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}

async fn admit<G: Gate, B>(gate: &G, request: &mut Request<B>) -> Result<G::Call, Status> {
    let Some(caller) = request.extensions().get::<Caller>().cloned() else {
        return Err(Status::internal("a request without a caller"));
    };
    let method = request.uri().path().to_owned();
    let bearer = Bearer::of_headers(request.headers());
    request.headers_mut().remove(AUTHORIZATION);
    let admitted = match asked(caller.clone(), &method, bearer) {
        Ok(asked) => gate.admit(asked).await,
        Err(status) => Err(Refused { caller, status }),
    };
    match admitted {
        Ok(admitted) => {
            let extensions = request.extensions_mut();
            extensions.extend(admitted.extensions);
            extensions.insert(admitted.caller);
            Ok(admitted.call)
        }
        Err(Refused { caller, status }) => {
            gate.refused(&caller, &method, &status);
            Err(status)
        }
    }
}

fn asked(
    caller: Caller,
    method: &str,
    bearer: Result<Option<Bearer>, BadBearer>,
) -> Result<Asked, Status> {
    caller.refuse_stranger()?;
    let bearer =
        bearer.map_err(|e| Status::unauthenticated(format!("the token of the call: {e}")))?;
    Ok(Asked {
        caller,
        method: method.to_owned(),
        bearer,
    })
}

/// A call that has failed says so in the head of its answer. Any other head begins messages.
fn failure<R, E>(answer: &Answer<R, E>) -> Option<Status> {
    let status = match answer {
        Ok(response) => Status::from_header_map(response.headers())?,
        Err(_) => Status::unknown("the service did not answer"),
    };
    (status.code() != Code::Ok).then_some(status)
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::{Arc, Mutex},
    };

    use futures::FutureExt;

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
            asked: Asked,
        ) -> impl Future<Output = Result<Admitted<Noted>, Refused>> + Send {
            let notes = self.clone();
            ready(match asked.method.as_str() {
                "/no" => Err(Refused {
                    caller: asked.caller,
                    status: Status::permission_denied("no"),
                }),
                _ => Ok(Admitted {
                    call: Noted(notes),
                    caller: asked.caller,
                    extensions: http::Extensions::new(),
                }),
            })
        }

        fn refused(&self, _: &Caller, method: &str, status: &Status) {
            self.say(format!("{method} refused {:?}", status.code()));
        }
    }

    impl Call for Noted {
        fn answered(self, failure: Option<&Status>) {
            let code = failure.map_or(Code::Ok, Status::code);
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
                "/token" => {
                    let sees_it = request.headers().contains_key(AUTHORIZATION);
                    assert!(!sees_it, "no service sees a token");
                    Box::pin(ready(Ok(Response::new(()))))
                }
                _ => Box::pin(ready(Ok(Response::new(())))),
            }
        }
    }

    fn call(notes: &Notes, path: &str, is_served: bool) -> Option<Response<()>> {
        let mut gated = GateLayer(notes.clone()).layer(Answers);
        let mut request = Request::new(());
        *request.uri_mut() = path.parse().unwrap();
        let scheme = if path == "/basic" { "Basic" } else { "Bearer" };
        let token = format!("{scheme} a.b.c").parse().unwrap();
        request.headers_mut().insert(AUTHORIZATION, token);
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
        for path in ["/yes", "/lost", "/no", "/hang", "/token", "/basic"] {
            call(&notes, path, true);
        }
        let answer = call(&notes, "/yes", false).unwrap();
        let refused = failure::<(), ()>(&Ok(answer)).unwrap();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert_eq!(
            *notes.0.lock().unwrap(),
            [
                "answered Ok",
                "dropped",
                "answered NotFound",
                "dropped",
                "/no refused PermissionDenied",
                "dropped",
                "answered Ok",
                "dropped",
                "/basic refused Unauthenticated",
                "/yes refused PermissionDenied"
            ]
        );
    }
}
