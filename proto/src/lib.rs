//! The wire: the messages of `muster.v1` as generated from the .proto files, the transport limits
//! that both sides keep, and the one place where wire messages become core's types and back.
//!
//! [`kubelet`] is the part of the kubelet's own API that agents read.
//!
//! This crate has no rules and no defaults: core decides what a message means, and [`convert`]
//! decides whether it is well-formed.
#![forbid(unsafe_code)]

pub mod codec;
pub mod convert;
pub mod limits;

/// The compiled .proto files, a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Generated from `muster/v1/*.proto`.
#[allow(clippy::all, unreachable_pub, missing_docs)]
pub mod v1 {
    tonic::include_proto!("muster.v1");
}

/// Generated from `kubelet/podresources.proto`.
#[allow(clippy::all, unreachable_pub, missing_docs)]
pub mod kubelet {
    tonic::include_proto!("v1");
}
