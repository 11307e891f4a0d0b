//! `Dockerfile.agent` and `Dockerfile.coordinator` build for another platform with every builder,
//! and with the compiler that builds everything else.

use std::fs;

use muster_architecture::{expect_none, root};

const DOCKERFILES: [&str; 2] = ["Dockerfile.agent", "Dockerfile.coordinator"];

/// The instructions of a Dockerfile, without comments. A continued line is one instruction.
fn instructions(dockerfile: &str) -> Vec<String> {
    let text =
        fs::read_to_string(root().join(dockerfile)).unwrap_or_else(|e| panic!("{dockerfile}: {e}"));
    let lines = text.replace("\\\n", " ");
    lines
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// Buildah 1.28, 1.33 and 1.39 put the programs for arm64 beside the C library for amd64, and
/// called the image arm64, until the last `FROM` named its platform. They read the name only if it
/// is declared before the first `FROM`.
#[test]
fn every_base_image_names_its_platform() {
    let mut wrong = Vec::new();
    for dockerfile in DOCKERFILES {
        let instructions = instructions(dockerfile);
        let global = instructions.iter().take_while(|i| !i.starts_with("FROM "));
        if !global.into_iter().any(|i| i == "ARG TARGETPLATFORM") {
            wrong.push(format!("{dockerfile}: no ARG TARGETPLATFORM before FROM"));
        }
        let from = instructions.iter().filter(|i| i.starts_with("FROM "));
        for stage in from.filter(|stage| !stage.starts_with("FROM scratch ")) {
            if !stage.starts_with("FROM --platform=$") {
                wrong.push(format!("{dockerfile}: {stage}"));
            }
        }
    }
    expect_none(
        &wrong,
        "a base image of another platform holds a C library that the programs cannot use",
    );
}

/// Another compiler would have to download this one first, within each build.
#[test]
fn the_images_are_built_with_the_pinned_compiler() {
    let pinned = fs::read_to_string(root().join("rust-toolchain.toml")).expect("it is there");
    let channel = pinned
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .expect("a compiler is pinned")
        .trim_matches('"');
    let (release, _patch) = channel.rsplit_once('.').expect("a whole version is pinned");
    for dockerfile in DOCKERFILES {
        let instructions = instructions(dockerfile);
        let mut compilers = instructions.iter().filter(|i| i.starts_with("ARG RUST="));
        let compiler = compilers.next().expect("a Dockerfile names its compiler");
        assert!(
            compiler.contains(&format!("/rust:{release}-")),
            "{dockerfile}: {compiler}, but rust-toolchain.toml has {channel}"
        );
    }
}
