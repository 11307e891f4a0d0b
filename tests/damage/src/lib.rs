//! Feeds every decoder of Muster with bytes that no program meant to write.
//!
//! A *target* takes any bytes, and panics if the decoder breaks its promise. The promise is more
//! than "no crash": what was read, written and read again is the same. `tests/decoders.rs` runs all
//! targets on stable Rust over seeds and their mutations. `fuzz/` at the root of the repository has
//! the same targets for cargo-fuzz.

pub mod mutate;
pub mod targets;
