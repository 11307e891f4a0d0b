//! Generates the wire code from the .proto files, with protox: no protoc is needed to build Muster.

use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let files = [
        "hardware",
        "usage",
        "phases",
        "time",
        "stacks",
        "stall",
        "jobs",
        "nodes",
        "events",
        "session",
        "access",
        "audit",
        "history",
        "notifications",
        "queues",
    ]
    .map(|name| root.join(format!("muster/v1/{name}.proto")));
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
    }
    let descriptors = protox::compile(files, [&root])?;
    // Tests walk all methods by this.
    let set = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    std::fs::write(set, prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure()
        .codec_path("crate::codec::SmallBuffers")
        .btree_map(".")
        .compile_fds(descriptors)?;
    // The API of another program. It is no part of ours, so it is not in the set above.
    let kubelet = root.join("kubelet/podresources.proto");
    println!("cargo:rerun-if-changed={}", kubelet.display());
    let descriptors = protox::compile([kubelet], [root.join("kubelet")])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
