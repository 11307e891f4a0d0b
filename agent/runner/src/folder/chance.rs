//! Names that nobody can foresee.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// 64 bits that no other process knows.
pub(super) fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}
