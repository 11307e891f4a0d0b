//! The real torch client uses every method that it has against the store.

mod wire;

use std::process::Command;

use muster_tcpstore::{Event, Limits};
use wire::Served;

#[test]
fn every_method_of_torchs_client_works() {
    let python = std::env::var_os("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON is not set: this test needs a Python with torch; run `make test`, which prepares one");
    let served = Served::new(Limits::default());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch_client.py");
    let ran = Command::new(&python)
        .arg(script)
        .arg(served.addr.to_string())
        .output()
        .expect("start MUSTER_TEST_PYTHON");
    let out = String::from_utf8_lossy(&ran.stdout);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}\n{out}\n{err}", ran.status);

    // This torch names the methods that it lacks, so that no part is left out unnoticed.
    let passed: Vec<&str> = out
        .lines()
        .filter_map(|line| line.strip_prefix("ok "))
        .collect();
    assert_eq!(passed.len(), 18, "{out}");
    let absent: Vec<&str> = out
        .lines()
        .filter_map(|line| line.strip_prefix("absent "))
        .collect();
    assert!(
        absent
            .iter()
            .all(|part| ["queue", "list_keys", "barrier", "clone"].contains(part)),
        "{out}"
    );

    let refused: Vec<String> = served
        .events
        .try_iter()
        .filter_map(|event| match event {
            Event::Refused { why, .. } => Some(why.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(
        refused,
        ["/text is not a number"],
        "torch was refused nothing else"
    );
}
