//! The chains that a launcher has forked: the keepers of generations, and all that is below them.
//!
//! A keeper is forked through a process that ends at once, and the kernel then gives it to the
//! launcher's runner. It is no part of the launcher: its generation goes on when the launcher ends, and proves its own death.
//! A chain that stands by belongs to no generation, and ends with the launcher.

use std::fs;
use std::path::Path;

use crate::procfs::Stat;

/// The name of a keeper, and of the program that is a runner.
const NAMES: [&str; 2] = ["muster-keeper", "muster-runner"];

/// Whether a process is the keeper of a generation, or a runner that has lost its keeper.
pub fn is_head(stat: &Stat) -> bool {
    let words = fs::read(format!("/proc/{}/cmdline", stat.pid)).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    let name = words.next().and_then(|name| std::str::from_utf8(name).ok());
    let name = name.and_then(|name| Path::new(name).file_name()?.to_str());
    name.is_some_and(|name| NAMES.contains(&name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_head_of_a_chain_is_known_by_its_name() {
        for (name, head) in [
            ("muster-keeper", true),
            ("/opt/muster/muster-runner", true),
            ("muster-standby", false),
            ("python3", false),
        ] {
            let mut sleep = Command::new("/bin/sleep")
                .arg0(name)
                .arg("600")
                .spawn()
                .unwrap();
            let pid = sleep.id() as i32;
            // Until then it is a copy of this process, or has no words yet.
            let words = || fs::read(format!("/proc/{pid}/cmdline")).unwrap();
            while !words().starts_with(name.as_bytes()) {
                std::thread::yield_now();
            }
            assert_eq!(is_head(&Stat::of(pid).unwrap()), head, "{name}");
            sleep.kill().unwrap();
            sleep.wait().unwrap();
        }
    }
}
