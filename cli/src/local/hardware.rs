//! Nodes of a local cluster that look like GPU machines. `muster-hardware` makes a machine for each
//! node below the node's directory, and breaks it.
//!
//! The CLI knows no faults and no machines. It passes on the text with which `muster-hardware`
//! refuses a request.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{Inject, cluster, daemon};
use crate::{context::Context, fail::Failure};

fn machine_dir(home: &Path) -> PathBuf {
    home.join("hardware")
}

/// Makes the machine, unless the node has one from an earlier start. Returns the agent's flags for
/// it.
pub(super) fn flags(
    bin_dir: Option<&Path>,
    home: &Path,
    name: &str,
    scenario: &str,
) -> Result<Vec<OsString>, Failure> {
    let dir = machine_dir(home);
    if !dir.exists() {
        ask(
            bin_dir,
            &[
                "make".as_ref(),
                scenario.as_ref(),
                dir.as_os_str(),
                "--seed".as_ref(),
                name.as_ref(),
            ],
        )?;
    }
    let sysroot = [OsString::from("--sysroot"), dir.join("sysroot").into()];
    let library = [
        OsString::from("--nvml-library"),
        dir.join("libnvidia-ml.so.1").into(),
    ];
    Ok(sysroot.into_iter().chain(library).collect())
}

pub(super) fn inject(cx: &Context, dir: &Path, args: &Inject) -> Result<(), Failure> {
    let cluster = cluster::Cluster::existing(dir)?;
    if cluster.node(&args.name)?.hardware.is_none() {
        let name = &args.name;
        return Err(Failure::request(format!(
            "{name} is this machine itself; faults can be injected after `local up --hardware`"
        )));
    }
    let machine = machine_dir(&cluster::node_dir(dir, &args.name));
    ask(
        args.bin_dir.as_deref(),
        &[
            "inject".as_ref(),
            machine.as_os_str(),
            args.target.as_ref(),
            args.fault.as_ref(),
        ],
    )?;
    cx.print(&format!("{}: {} {}\n", args.name, args.target, args.fault))
}

fn ask(bin_dir: Option<&Path>, args: &[&OsStr]) -> Result<(), Failure> {
    let program = daemon::binary(bin_dir, "muster-hardware")?;
    let Output { status, stderr, .. } = Command::new(&program)
        .args(args)
        .output()
        .map_err(|error| Failure::request(format!("{}: {error}", program.display())))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::request(
            String::from_utf8_lossy(&stderr).trim().to_owned(),
        ))
    }
}
