//! `muster_core` with the mistakes of `mistakes.txt` in it, for `tests/world` alone. Each can be
//! switched on while the program runs; without one on, it decides as `muster_core` does.
//!
//! `src/build.rs` makes it from core's own source at each build, so the rules that are shipped know
//! nothing of mistakes.
#![forbid(unsafe_code)]
// A mistake may make a rule clumsy.
#![allow(clippy::all)]

include!(concat!(env!("OUT_DIR"), "/core/lib.rs"));
