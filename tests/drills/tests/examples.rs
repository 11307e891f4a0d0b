//! The examples run unchanged under plain torchrun: resume, checkpoint on SIGTERM, accuracy.

use std::{path::Path, process::Command};

#[test]
fn examples_run_under_plain_torchrun() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/drills lies in the repository");
    let output = Command::new(muster_drills::python())
        .arg("examples/check.py")
        .current_dir(root)
        .output()
        .expect("python can be executed");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
}
