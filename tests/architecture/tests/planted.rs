//! Mistakes planted for tests must not reach a program that is shipped.

use muster_architecture::{expect_none, workspace};

/// The mistakes are behind a feature of core. Only the world has a feature that enables it, and
/// neither is on by default. So a build of everything, from which programs are taken, leaves them
/// out.
#[test]
fn only_the_world_plants_mistakes_and_only_when_told() {
    let metadata = workspace();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let plants = |feature: &String| feature.contains("planted");
        for dependency in &package.dependencies {
            if dependency.features.iter().any(plants) {
                wrong.push(format!(
                    "{} asks for the mistakes of {}",
                    package.name, dependency.name
                ));
            }
            if dependency.name == "muster-world" {
                wrong.push(format!("{} uses muster-world", package.name));
            }
        }
        let may = |name: &str| {
            name == "planted" && matches!(package.name.as_str(), "muster-core" | "muster-world")
        };
        let all = package.features.iter().filter(|(name, _)| !may(name));
        let carried = all.filter(|(name, includes)| plants(name) || includes.iter().any(plants));
        wrong.extend(
            carried.map(|(name, _)| format!("{}: feature {name} carries mistakes", package.name)),
        );
    }
    expect_none(
        &wrong,
        "mistakes are for `cargo test -p muster-world --features planted` alone",
    );
}
