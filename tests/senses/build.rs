//! Generates the code for the kubelet's API for device plugins, with protox, as `proto/build.rs` does.

use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("proto");
    let file = root.join("deviceplugin.proto");
    println!("cargo:rerun-if-changed={}", file.display());
    let descriptors = protox::compile([file], [root])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
