//! The examples run unchanged: under plain torchrun (resume, checkpoint on SIGTERM, accuracy), and by the commands of their page under
//! Muster, through a killed rank. Those of frameworks that the tests' interpreter has not are run by `make examples`.

use std::{env, path::Path, process::Command};

fn ran(script: &str, names: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/drills lies in the repository");
    let programs = muster_drills::programs();
    let own = env::var_os("PATH").expect("the tests have a PATH");
    let path = env::join_paths([programs.clone()].into_iter().chain(env::split_paths(&own)))
        .expect("a folder's name has no colon");
    let output = Command::new(muster_drills::python())
        .arg(script)
        .args(names)
        .current_dir(root)
        .env("PATH", path)
        .env("MUSTER_BIN_DIR", programs)
        .output()
        .expect("python can be executed");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
}

#[test]
fn examples_run_under_plain_torchrun() {
    ran("examples/check.py", &[]);
}

#[test]
fn the_commands_of_their_page_survive_a_killed_rank() {
    ran("examples/survive.py", &["digits", "fsdp2", "titan"]);
}
