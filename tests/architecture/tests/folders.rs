//! A job can put anything in the place of a file that it can write: a link to what only the agent may read,
//! a FIFO that nobody reads, a file without end. So agent and runner open files through
//! `muster_runner::Folder` alone, which expects that (decision 77).

use muster_architecture::{Source, expect_none, sources};

/// Calls that take a path and follow it wherever a job lets it lead, or wait for what is there.
const CALLS: [&str; 31] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::copy(",
    "fs::rename(",
    "fs::remove_",
    "fs::read_dir(",
    "fs::create_dir",
    "fs::metadata(",
    "fs::canonicalize(",
    "fs::read_link(",
    "fs::set_permissions(",
    "fs::hard_link(",
    "fs::open(",
    "File::open(",
    "File::create",
    "File::options(",
    "OpenOptions",
    "DirBuilder::",
    "openat(",
    "openat2(",
    "renameat(",
    "unlinkat(",
    "mkdirat(",
    "symlink(",
    "Dir::read_from(",
    "UnixStream::connect(",
    "UnixListener::bind(",
    ".exists()",
    ".is_file()",
    ".is_dir()",
];

/// Where such calls are right, and why. A folder stands for all files in it.
const ELSEWHERE: [(&str, &str); 39] = [
    (
        "agent/src/containers/found.rs",
        "whether directories and devices are there that a container sees; none is opened",
    ),
    (
        "agent/runner/src/bin/muster-runner/phases.rs",
        "the kernel's lists of open files",
    ),
    (
        "agent/src/prove",
        "a trial's own folder in the state directory, where only the suite's scripts run",
    ),
    (
        "agent/src/trial_process.rs",
        "the folders of trials, by name",
    ),
    (
        "agent/src/in_session.rs",
        "the agent's own state directory, which no worker has",
    ),
    ("agent/runner/src/oom.rs", "the kernel's files of a cgroup"),
    (
        "agent/runner/src/descendants.rs",
        "removes an outdated list when no descriptor is left",
    ),
    (
        "agent/runner/src/bin/muster-runner/ask.rs",
        "opens /dev/null",
    ),
    ("agent/runner/src/folder", "this is the door"),
    ("agent/src/config", "the operator's flags name these files"),
    ("agent/src/join.rs", "the operator's flags name these files"),
    (
        "agent/runner/src/bin/muster-runner/user.rs",
        "cgroups, before it is a user",
    ),
    ("agent/src/accounts.rs", "the machine's login.defs"),
    (
        "agent/src/daemon.rs",
        "makes the state directory one that users can pass through",
    ),
    ("agent/src/lock.rs", "makes the operator's state directory"),
    (
        "agent/src/probe/kernel_log.rs",
        "the kernel's log, or the operator's stand-in for it; opened without waiting",
    ),
    (
        "agent/src/probe/machine.rs",
        "whether the operator's notice is there; it is not opened",
    ),
    ("agent/src/probe/pci.rs", "sysfs"),
    ("agent/src/probe/roots.rs", "proc and sysfs"),
    (
        "agent/src/probe/settings.rs",
        "the operator's flags name this file",
    ),
    (
        "agent/src/proof.rs",
        "the operator's flags name these files",
    ),
    (
        "agent/src/run_dir.rs",
        "counts what is below a folder that is held open, and opens no file",
    ),
    (
        "agent/src/step_formats.rs",
        "the operator's flags name this file",
    ),
    (
        "agent/runner/src/leftovers.rs",
        "the kernel's files of a cgroup; opened without waiting",
    ),
    (
        "agent/runner/src/place/files.rs",
        "looks where the job's own user would find its programs, and opens none",
    ),
    (
        "agent/runner/src/place/saved.rs",
        "lists folders that the job itself names, with its own rights",
    ),
    ("agent/runner/src/procfs.rs", "proc"),
    (
        "agent/runner/src/socket.rs",
        "makes a socket in the runner's current directory; neither call follows a link",
    ),
    (
        "agent/runner/src/bin/muster-runner/hold.rs",
        "/dev/null, and names in the current directory, none through a link",
    ),
    (
        "agent/runner/src/bin/muster-runner/logs.rs",
        "names in a folder that is held open, none through a link",
    ),
    (
        "agent/runner/src/bin/muster-runner/main.rs",
        "copies the program in an init container, before any job",
    ),
    (
        "agent/runner/src/bin/muster-runner/missing.rs",
        "whether the job's folder is there; it is not opened",
    ),
    (
        "agent/runner/src/bin/muster-runner/mouth.rs",
        "the standard output of the container; opened without waiting",
    ),
    (
        "agent/runner/src/bin/muster-runner/mpi.rs",
        "links to its own program, and the machine's hosts",
    ),
    ("agent/runner/src/bin/muster-runner/mpi/ranks.rs", "proc"),
    (
        "agent/runner/src/bin/muster-runner/mpi/rsh.rs",
        "whether a program of the job is there; it is not opened",
    ),
    (
        "agent/runner/src/bin/muster-runner/pod.rs",
        "the kubelet's file for last words, and whether its own notice is there",
    ),
    (
        "agent/runner/src/bin/muster-runner/register.rs",
        "removes a name in the current directory",
    ),
    (
        "agent/runner/src/bin/muster-runner/tree.rs",
        "the kernel's files of a cgroup",
    ),
];

/// The calls of a file, but not those whose path is the kernel's own.
fn calls(source: &Source) -> Vec<String> {
    let lines = source.production().into_iter();
    let found = lines.filter(|(_, line)| {
        let is_kernels = line.contains("\"/proc") || line.contains("\"/sys");
        !is_kernels && CALLS.iter().any(|call| line.contains(call))
    });
    found
        .map(|(at, line)| format!("{}:{at}: {}", source.path, line.trim()))
        .collect()
}

#[test]
fn files_that_a_job_can_touch_are_opened_through_the_door() {
    let (mut wrong, mut used) = (Vec::new(), vec![false; ELSEWHERE.len()]);
    for source in sources() {
        if !["agent/src/", "agent/runner/src/"]
            .iter()
            .any(|room| source.path.starts_with(room))
        {
            continue;
        }
        let found = calls(&source);
        match { ELSEWHERE.iter() }.position(|(place, _)| source.path.starts_with(place)) {
            Some(at) => used[at] |= !found.is_empty(),
            None => wrong.extend(found),
        }
    }
    for ((place, _), _) in { ELSEWHERE.iter() }.zip(used).filter(|(_, used)| !used) {
        wrong.push(format!(
            "{place} makes no such call any more: take it off the list"
        ));
    }
    expect_none(
        &wrong,
        "go through muster_runner::Folder, or say in ELSEWHERE why no job can touch this file",
    );
}
