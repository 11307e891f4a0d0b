//! What `make bench` counts and reports, checked without a race.

use std::{path::Path, process::Command};

#[test]
fn the_race_counts_and_reports_what_it_should() {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/drills lies in the repository")
        .join("bench");
    let output = Command::new(muster_drills::python())
        .args(["-m", "unittest", "discover", "--start-directory"])
        .arg(bench)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python can be executed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("Ran 0 tests"), "{text}");
}
