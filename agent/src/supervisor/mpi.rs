//! A member of an MPI job, described to its runner.

use std::collections::BTreeMap;

use muster_core::{
    node::{mpi, torchrun::Site},
    run::{Assignment, Key, Start},
};
use muster_runner::wire::{HostSpec, LauncherSpec, LenderSpec, MpiSpec};

/// The part of this node's member, if the job is of MPI. Adds to the variables of a launcher. `key` is
/// the one that this node has chosen. The error is for the user.
pub(super) fn part(
    assignment: &Assignment,
    start: &Start,
    key: Option<Key>,
    site: &Site,
    env: &mut BTreeMap<String, String>,
) -> Result<Option<MpiSpec>, String> {
    let part = mpi::part(assignment, &start.peers, &start.keys, site)?;
    Ok(match part {
        None => None,
        Some(mpi::Part::Launcher(launcher)) => {
            let told = mpi::environment(env, site);
            env.extend(told);
            let host = |host: mpi::Host| HostSpec {
                at: host.at.to_string(),
                name: host.name,
                key: host.key.0,
            };
            Some(MpiSpec::Launcher(LauncherSpec {
                own_name: launcher.own_name,
                own_address: Some(launcher.own_address),
                hosts: launcher.hosts.into_iter().map(host).collect(),
                files: launcher.files,
            }))
        }
        Some(mpi::Part::Lender(lender)) => Some(MpiSpec::Lender(LenderSpec {
            own_name: lender.own_name,
            listen: lender.listen.to_string(),
            key: key.ok_or("the key of this run is not known any more")?.0,
        })),
    })
}
