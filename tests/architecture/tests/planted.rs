//! Mistakes planted for tests must not reach a program that is shipped.

use muster_architecture::{expect_none, workspace};

/// The mistakes are in `muster-planted`, a copy of core. Only the world uses it, and only with a
/// feature that is not on by default. So a build of everything, from which programs are taken,
/// leaves them out.
#[test]
fn only_the_world_plants_mistakes_and_only_when_told() {
    let metadata = workspace();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        for dependency in &package.dependencies {
            let by_the_world = package.name == "muster-world" && dependency.optional;
            if dependency.name == "muster-planted" && !by_the_world {
                wrong.push(format!("{} always has the mistakes in it", package.name));
            }
            if dependency.name == "muster-world" {
                wrong.push(format!("{} uses muster-world", package.name));
            }
        }
        for (name, includes) in &package.features {
            let brings = |feature: &String| feature.contains("planted");
            let told = package.name == "muster-world" && name == "planted";
            if includes.iter().any(brings) && !told {
                wrong.push(format!("{}: feature {name} has mistakes", package.name));
            }
        }
    }
    expect_none(
        &wrong,
        "mistakes are for `cargo test -p muster-world --features planted` alone",
    );
}
