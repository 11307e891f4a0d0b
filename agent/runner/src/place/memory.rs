//! How much memory a launcher takes.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use super::RUN_DIR;
use crate::procfs;

/// The memory in bytes that the launcher of `dir` takes with all its copies, as proportional set
/// size (Pss), because ranks share its pages. None if it is gone.
///
/// A copy that stands by for the next generation is no descendant of the launcher, but it shares
/// the launcher's pages. So its processes are those that show its directory.
pub fn memory(dir: &Path) -> Option<u64> {
    let of_dir: Vec<i32> = procfs::all()
        .ok()?
        .iter()
        .map(|stat| stat.pid)
        .filter(|pid| shows(*pid, dir))
        .collect();
    let bytes = of_dir.into_iter().filter_map(share).sum();
    (bytes > 0).then_some(bytes)
}

/// Whether a process shows this directory as its own. A launcher that came from the pool shows it
/// with slashes behind, as room for longer names. Comparing paths ignores them.
fn shows(pid: i32, dir: &Path) -> bool {
    let is_mark = |entry: &[u8]| {
        let shown = entry
            .strip_prefix(RUN_DIR.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="));
        shown.is_some_and(|shown| Path::new(OsStr::from_bytes(shown)) == dir)
    };
    procfs::environment(pid).is_ok_and(|environment| environment.split(|b| *b == 0).any(is_mark))
}

fn share(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = pss.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn a_launcher_takes_what_all_processes_of_its_directory_take() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(memory(dir), None);
        let start = |shown: String| {
            let mut sleep = Command::new("/bin/sleep");
            sleep.arg("600").env_clear().env(RUN_DIR, shown);
            sleep.spawn().unwrap()
        };
        let name = dir.to_str().unwrap();
        let mut ours = [start(name.to_owned()), start(format!("{name}///"))];
        let mut other = start(format!("{name}2"));
        // Before its exec a child has this process's environment.
        let each = |child: &Child| loop {
            let pid = child.id() as i32;
            if let Some(bytes) = shows(pid, dir).then(|| share(pid)).flatten() {
                break bytes;
            }
        };
        // Pages of the program and its libraries are shared with processes that come and go, so two
        // looks one after the other may differ.
        let mut seen = Vec::new();
        let agrees = (0..100).any(|_| {
            let sum: u64 = ours.iter().map(each).sum();
            let all = memory(dir).unwrap();
            seen.push((all, sum));
            all > sum * 3 / 4 && all < sum * 4 / 3
        });
        for child in ours.iter_mut().chain([&mut other]) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(agrees, "bytes, and what they should be: {seen:?}");
    }
}
