//! Where there is a Helm, it renders the chart, too: to the same objects.

use std::{
    env,
    io::{self, Write},
    process::{Command, Stdio},
};

use muster_architecture::kustomize::by_name;

use crate::{
    chart, choices, expect_equal,
    generate::{Component, NAMESPACE},
    of_the_base_and,
};

#[test]
fn helm_renders_the_same() {
    for chosen in choices() {
        if !helm_renders(&chosen) {
            return;
        }
    }
}

/// False: there is no Helm.
fn helm_renders(components: &[&Component]) -> bool {
    let named = env::var("MUSTER_HELM").ok();
    let helm = named.clone().unwrap_or_else(|| "helm".into());
    let mut command = Command::new(&helm);
    command
        .args(["template", "muster"])
        .arg(chart())
        .args(["--namespace", NAMESPACE])
        .stdin(Stdio::null());
    for component in components {
        command.arg(format!("--set={}=true", component.value));
    }
    let output = match command.output() {
        Err(_) if named.is_none() => {
            // Not `eprintln!`, which the test runner hides.
            let _ = writeln!(
                io::stderr(),
                "!!! NOT CHECKED: the chart by Helm itself (there is no helm on PATH, and no $MUSTER_HELM)"
            );
            return false;
        }
        result => result.unwrap_or_else(|e| panic!("{helm}: {e}")),
    };
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{why}");
    let text = String::from_utf8(output.stdout).unwrap();
    expect_equal(&by_name(&text), &of_the_base_and(components));
    true
}
