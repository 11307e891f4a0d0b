//! The API as its users see it: every part of it is explained, `docs/api.md` says what the .proto
//! files say, and nothing that was released has changed.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::path::{Path, PathBuf};

mod made_up;
mod reference;
mod released;
mod schema;

/// A path from the repository's folder.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join(path)
}
