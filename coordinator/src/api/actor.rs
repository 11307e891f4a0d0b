//! Who asks, as the connection says. What a message says of its sender counts only where the
//! connection says nothing.

use muster_core::fleet::Actor;
use muster_rpc::{Caller, peer::Peer};
use tonic::Request;

/// `claimed` is the name that the message gives, if it gives one.
pub(crate) fn actor<T>(request: &Request<T>, claimed: &str) -> Actor {
    match request.extensions().get::<Caller>().map(Caller::peer) {
        Some(Peer::User(uid)) => Actor::Local { uid },
        Some(Peer::Unknown) | None => Actor::Unknown {
            claimed: claimed.to_owned(),
        },
    }
}
