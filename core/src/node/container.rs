//! The container of a job whose ranks run in an image, on a host without Kubernetes: the commands with which each
//! runtime starts and removes it, whose doing a failure is, and how long the node keeps it.
//!
//! A job has one container on a node. Its first process is `muster-runner pod`, as in a worker pod, and starts all
//! runners of the job there. The container changes nothing but the files: it has the network, the IPC and the PID
//! namespace of the host. Ranks meet, share memory and open GPUs as without an image, and the process numbers in all
//! records are the host's. So a group in an image is proven dead as any other: by its runner, its keeper, or the sweep
//! of the host's processes. The end of the container is never taken for such a proof.
//!
//! Flags: podman-run(1) of 4.3, apptainer's `cmd/internal/cli/action_flags.go`, enroot's `doc/cmd/` and `src/runtime.sh`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    container::{Runtime, Source},
    id::JobUid,
    node::launcher::LINGER,
    run::{Assignment, DueTo},
    time::Timestamp,
};

/// How long a command may take that removes a container.
pub const REMOVE_MAX: Duration = Duration::from_secs(60);
/// How many mounts an operator may add. The command line of a runtime has room for far more.
pub const MOUNTS_MAX: usize = 64;
/// The program that a container starts, in its directory.
pub const PROGRAM: &str = "muster-runner";
/// The file in a container's directory that enroot runs in place of the image's entrypoint.
const RC: &str = "rc";
/// The image that enroot has imported, in a container's directory.
const IMPORTED: &str = "image.sqsh";

/// A directory or file of the host that containers see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub from: String,
    pub to: String,
    pub read_only: bool,
}

impl Mount {
    /// The same path inside as outside.
    fn same(path: &str) -> Self {
        Self {
            from: path.to_owned(),
            to: path.to_owned(),
            read_only: false,
        }
    }

    /// Reads `SRC`, `SRC:DST` or `SRC:DST:ro`. The error is a clause after the text.
    pub fn read(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let (from, to, read_only) = match parts[..] {
            [from] => (from, from, false),
            [from, to] => (from, to, false),
            [from, to, "ro"] => (from, to, true),
            _ => return Err("is not SRC, SRC:DST or SRC:DST:ro".to_owned()),
        };
        for path in [from, to] {
            if !path.starts_with('/') {
                return Err(format!("has {path:?}, must have absolute paths"));
            }
            if let Some(why) = unmountable(path) {
                return Err(why);
            }
        }
        Ok(Self {
            from: from.to_owned(),
            to: to.to_owned(),
            read_only,
        })
    }
}

/// Why no runtime's command line can name this path.
fn unmountable(path: &str) -> Option<String> {
    let strange = |c: char| matches!(c, ':' | ',') || c.is_whitespace() || c.is_control();
    path.contains(strange)
        .then(|| format!("has {path:?}: a path that is mounted has no white space, colon or comma"))
}

/// What a job asks of its container on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub image: String,
    /// The directories in which its members start. Those that the host has are mounted, unless they would hide
    /// the image's own programs.
    pub work_dirs: BTreeSet<String>,
    pub gpus: bool,
}

impl Asked {
    /// `None`: the job runs on the host itself.
    pub fn of(assignment: &Assignment) -> Option<Self> {
        let of_members = assignment.programs.iter().map(|one| &one.working_dir);
        let dirs = of_members.chain([&assignment.working_dir]).flatten();
        Some(Self {
            image: assignment.image.clone()?,
            work_dirs: dirs.cloned().collect(),
            gpus: !assignment.gpus.is_empty(),
        })
    }

    /// Whether a container that was started for this serves another generation, too.
    pub fn serves(&self, other: &Asked) -> bool {
        self.image == other.image
            && self.work_dirs.is_superset(&other.work_dirs)
            && (self.gpus || !other.gpus)
    }
}

/// Whether a directory of the host takes the place of the image's.
pub fn is_mounted(dir: &str) -> bool {
    const OF_IMAGES: [&str; 12] = [
        "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr",
    ];
    let mut parts = dir.split('/').filter(|part| !matches!(*part, "" | "."));
    // Where it leads is not to be seen from its name.
    if parts.clone().any(|part| part == "..") {
        return false;
    }
    match (parts.next(), parts.next()) {
        (None, _) | (Some("opt"), None) => false,
        (Some(top), _) => !OF_IMAGES.contains(&top),
    }
}

/// All that the commands of a container depend on.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub runtime: Runtime,
    /// The runtime's program.
    pub program: &'a str,
    pub image: &'a str,
    /// The container's name, which no other container of this machine has.
    pub name: &'a str,
    /// The container's directory, with the socket of its first process and [`PROGRAM`].
    pub volume: &'a str,
    /// The directory of all runs.
    pub runs: &'a str,
    /// Directories in which members start, of those that are mounted.
    pub work_dirs: &'a [String],
    /// What the operator mounts into every container.
    pub mounts: &'a [Mount],
    /// All GPUs of the host are visible. Each rank is told which are its own.
    pub gpus: bool,
    /// Device files that podman would hide, such as `/dev/infiniband`.
    pub devices: &'a [String],
}

/// What is executed for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// Files that are written into its directory before.
    pub files: Vec<(&'static str, &'static str)>,
    /// Commands that must succeed before it can be started.
    pub before: Vec<Vec<String>>,
    /// Starts it.
    pub start: Vec<String>,
    /// The command that starts it has ended when it runs. Otherwise that command is the container.
    pub detaches: bool,
    /// Commands that remove what is left of it. They may fail.
    pub remove: Vec<Vec<String>>,
}

/// The commands for a container. The error is for the user.
pub fn commands(wanted: &Wanted<'_>) -> Result<Commands, String> {
    let own = [wanted.volume, wanted.runs].map(Mount::same);
    let dirs = wanted.work_dirs.iter().map(|dir| Mount::same(dir));
    let mut mounts: Vec<Mount> = own.into_iter().chain(dirs).collect();
    mounts.extend_from_slice(wanted.mounts);
    // The operator's word stands where a member starts in one of his mounts.
    for at in (0..mounts.len()).rev() {
        if mounts[at + 1..]
            .iter()
            .any(|later| later.to == mounts[at].to)
        {
            mounts.remove(at);
        }
    }
    if let Some(why) = mounts.iter().find_map(|mount| unmountable(&mount.from)) {
        return Err(format!("a mount {why}"));
    }
    let program = format!("{}/{PROGRAM}", wanted.volume);
    Ok(match wanted.runtime {
        Runtime::Podman => podman(wanted, &mounts, &program),
        Runtime::Apptainer => apptainer(wanted, &mounts, &program),
        Runtime::Enroot => enroot(wanted, &mounts, &program),
    })
}

fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}

fn podman(wanted: &Wanted<'_>, mounts: &[Mount], program: &str) -> Commands {
    let mut start = line([wanted.program, "run", "--detach", "--rm", "--pull=missing"]);
    start.push(format!("--name={}", wanted.name));
    start.extend(line([
        "--network=host",
        "--ipc=host",
        "--pid=host",
        "--uts=host",
        // The agent's user: root of the container is this user, unless the agent is root. An image's own user could
        // not write what the agent reads.
        "--user=0:0",
        // As many processes, open files and locked pages as without an image. Podman's default is 2,048 processes.
        "--pids-limit=-1",
        "--ulimit=host",
        // Labels of SELinux would have to be changed on the user's own files.
        "--security-opt=label=disable",
        "--no-healthcheck",
    ]));
    let of_mount = |mount: &Mount| {
        let Mount { from, to, .. } = mount;
        let mode = if mount.read_only { "ro" } else { "rw" };
        format!("--volume={from}:{to}:{mode},rslave")
    };
    start.extend(mounts.iter().map(of_mount));
    if wanted.gpus {
        start.push("--device=nvidia.com/gpu=all".to_owned());
    }
    let devices = wanted.devices.iter();
    start.extend(devices.map(|device| format!("--device={device}")));
    start.push(format!("--entrypoint={program}"));
    let image = match Source::of(wanted.image) {
        Source::Registry(name) => name,
        Source::File(name) | Source::Uri(name) => name.to_owned(),
    };
    start.extend(line(["--", &image, "pod", "--dir", wanted.volume]));
    Commands {
        start,
        detaches: true,
        remove: vec![line([
            wanted.program,
            "rm",
            "--force",
            "--ignore",
            "--time=0",
            wanted.name,
        ])],
        ..Commands::default()
    }
}

fn apptainer(wanted: &Wanted<'_>, mounts: &[Mount], program: &str) -> Commands {
    // `exec` runs no runscript. Packages in the user's home directory are not the image's.
    let mut start = line([
        wanted.program,
        "exec",
        "--cleanenv",
        "--no-home",
        "--writable-tmpfs",
    ]);
    let of_mount = |mount: &Mount| {
        let Mount { from, to, .. } = mount;
        let mode = if mount.read_only { "ro" } else { "rw" };
        format!("--bind={from}:{to}:{mode}")
    };
    start.extend(mounts.iter().map(of_mount));
    if wanted.gpus {
        start.push("--nv".to_owned());
    }
    let image = match Source::of(wanted.image) {
        Source::Registry(name) => format!("docker://{name}"),
        Source::File(name) | Source::Uri(name) => name.to_owned(),
    };
    start.extend(line([&image, program, "pod", "--dir", wanted.volume]));
    Commands {
        start,
        ..Commands::default()
    }
}

fn enroot(wanted: &Wanted<'_>, mounts: &[Mount], program: &str) -> Commands {
    let imported = format!("{}/{IMPORTED}", wanted.volume);
    let mut before = Vec::new();
    let file = match Source::of(wanted.image) {
        Source::File(file) => file.to_owned(),
        Source::Uri(uri) => uri.to_owned(),
        Source::Registry(name) => {
            // The first part is a registry if it looks like a host, as for every client of registries.
            let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
            let uri = match name.split_once('/') {
                Some((host, rest)) if is_host(host) => format!("docker://{host}#{rest}"),
                _ => format!("docker://{name}"),
            };
            before.push(line([
                wanted.program,
                "import",
                "--output",
                &imported,
                &uri,
            ]));
            imported
        }
    };
    before.push(line([
        wanted.program,
        "create",
        "--force",
        "--name",
        wanted.name,
        &file,
    ]));
    let rc = format!("{}/{RC}", wanted.volume);
    let mut start = line([wanted.program, "start", "--rw", "--rc", &rc]);
    for Mount {
        from,
        to,
        read_only,
    } in mounts
    {
        let mode = if *read_only { "ro" } else { "rw" };
        start.push("--mount".to_owned());
        start.push(format!("{from}:{to}:none:x-create=auto,rbind,{mode}"));
    }
    // enroot's hook reads it; `void` is its word for none.
    let devices = if wanted.gpus { "all" } else { "void" };
    start.push("--env".to_owned());
    start.push(format!("NVIDIA_VISIBLE_DEVICES={devices}"));
    start.extend(line([
        "--",
        wanted.name,
        program,
        "pod",
        "--dir",
        wanted.volume,
    ]));
    Commands {
        files: vec![(RC, "exec \"$@\"\n")],
        before,
        start,
        detaches: false,
        remove: vec![line([wanted.program, "remove", "--force", wanted.name])],
    }
}

/// Whose doing it is that a container could not be started, by what the runtime has said. What is not known to be the
/// job's is the node's: another node may do.
pub fn due_to(said: &str) -> DueTo {
    // Registries' own words (opencontainers/distribution-spec, error codes), and those of the runtimes for a wrong name.
    const OF_JOBS: [&str; 8] = [
        "manifest unknown",
        "manifest_unknown",
        "name unknown",
        "name_unknown",
        "repository name not known",
        "requested access to the resource is denied",
        "invalid reference format",
        "short-name",
    ];
    let said = said.to_lowercase();
    // What one node may lack, as a login or a mount, and what all lack if the job names it wrongly.
    const OF_EITHER: [&str; 4] = [
        "unauthorized",
        "authentication required",
        "could not open image",
        "no such image",
    ];
    let has = |words: &[&str]| words.iter().any(|words| said.contains(words));
    match (has(&OF_JOBS), has(&OF_EITHER)) {
        (true, _) => DueTo::Job,
        (_, true) => DueTo::Unknown,
        _ => DueTo::Node,
    }
}

/// The line of a runtime's output that says why it failed: its last that is not empty.
pub fn last_line(said: &str) -> &str {
    let mut lines = said.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty()).unwrap_or_default()
}

/// The containers that are not needed any more, and when to look again. A container is kept while its job has anything
/// here, and [`LINGER`] longer, because a restart follows within that time. `containers`: when the job of each last had
/// anything here.
pub fn over(
    now: Timestamp,
    containers: &BTreeMap<JobUid, Timestamp>,
    here: &BTreeSet<JobUid>,
) -> (Vec<JobUid>, Option<Timestamp>) {
    let left = containers.iter().filter(|(job, _)| !here.contains(*job));
    let (over, later): (Vec<_>, Vec<_>) = left.partition(|(_, last)| **last + LINGER <= now);
    let again = later.into_iter().map(|(_, last)| *last + LINGER).min();
    (
        over.into_iter().map(|(job, _)| job.clone()).collect(),
        again,
    )
}

#[cfg(test)]
mod tests;
