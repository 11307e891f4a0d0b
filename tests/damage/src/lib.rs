//! Every decoder of Muster, fed with what nobody meant to write.
//!
//! A *target* takes any bytes, and panics if what it tries does not keep its word: not merely "no
//! crash", but "what was read, written again, is read the same". `tests/decoders.rs` runs all of
//! them on stable Rust over seeds and their mutations; `fuzz/` at the root of the repository has
//! the same targets for cargo-fuzz.

pub mod mutate;
pub mod targets;
