//! The wire: `muster.v1` as generated from the .proto files, the transport limits both sides keep,
//! and the one place where wire messages become core's types and back.
//!
//! No rules and no defaults live here: what a message means is core's business, whether it is
//! well-formed is [`convert`]'s.
#![forbid(unsafe_code)]

pub mod codec;
pub mod convert;
pub mod limits;

/// Generated from `muster/v1/*.proto`.
#[allow(clippy::all, unreachable_pub, missing_docs)]
pub mod v1 {
    tonic::include_proto!("muster.v1");
}
