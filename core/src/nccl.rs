//! The environment NCCL, Gloo and torch are given: a pure function of what the members of a
//! generation are.
//!
//! It has two halves. What must be the same on every rank is decided once per generation for all
//! members ([`profile::decide`]), from the weakest of them, and travels with the generation under a
//! [`profile::Profile::hash`] that every agent checks. What names a node's own hardware is filled
//! in by that node ([`environment::environment`]). A user's value wins wherever it may and is
//! looked at first ([`lint`]). Every variable says where it came from and why. Which nodes go
//! together at all is [`mixture`]'s, which interpreters [`stack`]'s.
//!
//! NCCL itself checks three things across ranks (library version, a GPU used twice, the number of
//! network devices); whatever else differs ends as a hang or as a slow run, which is why this is
//! decided and not left to each node. Facts about NCCL are of 2.30 and torch 2.15.

pub mod affinity;
pub mod environment;
pub mod lint;
pub mod mixture;
pub mod profile;
pub mod stack;
