//! The environment that NCCL, Gloo and torch get: a pure function of the members of a generation.
//!
//! It has two halves. Values that must be the same on every rank are decided once for each
//! generation, from its weakest member ([`profile::decide`]). They travel with the generation under
//! a [`profile::Profile::hash`] that every agent checks. Values that name a node's own hardware are
//! filled in by that node ([`environment::environment`]). A user's value wins wherever it may, and
//! is checked first ([`lint`]). Every variable says where it came from and why. [`mixture`] decides
//! which nodes go together, and [`stack`] which interpreters do.
//!
//! NCCL itself compares three things across ranks: its version, a GPU that is used twice, and the
//! number of network devices. Any other difference ends in a hang or in a slow run. So these values
//! are decided centrally and not left to each node. Facts about NCCL are those of 2.30 and torch
//! 2.15.

pub mod affinity;
pub mod environment;
pub mod lint;
pub mod log;
pub mod mixture;
pub mod profile;
pub mod stack;
