//! Puts the commit into the build. A tree without git (a source archive, a container build) names it
//! in `MUSTER_COMMIT`, or builds without.

use std::{env, path::Path, process::Command};

#[allow(unreachable_pub, reason = "the runner's build script runs this one")]
pub fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MUSTER_COMMIT");
    let named = env::var("MUSTER_COMMIT")
        .ok()
        .filter(|name| !name.is_empty());
    let commit = named.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    println!(
        "cargo:rustc-env=MUSTER_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );

    // HEAD changes with a checkout, and the branch's own file with a commit. After a `git gc` the
    // packed refs hold the branch.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        // cargo would run this at every build for a path that does not exist.
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", name])
            .filter(|path| Path::new(path).exists())
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
