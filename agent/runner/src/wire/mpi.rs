//! What a member of an MPI job does: the launcher starts programs on the hosts of the others, and the
//! others let it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One member's part in an MPI job. It is written into the run's directory, for the programs that
/// read it there. It holds keys, so it has no `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum MpiSpec {
    Launcher(LauncherSpec),
    Lender(LenderSpec),
}

/// The member that runs the job's command.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherSpec {
    /// The name of the machine for its processes. None: its own.
    #[serde(default)]
    pub own_name: Option<String>,
    /// The IP address to which that name resolves. None: an agent of the previous version says nothing.
    #[serde(default)]
    pub own_address: Option<String>,
    pub hosts: Vec<HostSpec>,
    /// Files to write into the run's directory, by name. One that begins with `#!` is a program.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// A host on which the launcher may start programs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    pub name: String,
    /// `ADDRESS:PORT`.
    pub at: String,
    pub key: String,
}

/// A member that runs only what the launcher asks for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LenderSpec {
    #[serde(default)]
    pub own_name: Option<String>,
    /// `ADDRESS:PORT`.
    pub listen: String,
    pub key: String,
}
