//! A rank that the kernel kills at a memory limit.
#![allow(clippy::unwrap_used)]

mod rig;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use muster_runner::wire::{Exit, OUT_OF_MEMORY};
use rig::{RUNNER, Rig};

/// A cgroup of v1 with a memory limit. Removed when dropped.
struct Limited(PathBuf);

impl Limited {
    /// None: this machine has no cgroup v1 for memory, or does not let us make one.
    fn new() -> Option<Self> {
        let name = format!("/sys/fs/cgroup/memory/muster-test-{}", std::process::id());
        let it = Self(name.into());
        fs::create_dir(&it.0).ok()?;
        fs::write(it.0.join("memory.limit_in_bytes"), "67108864").ok()?;
        Some(it)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let until = std::time::Instant::now() + rig::PATIENCE;
        while fs::remove_dir(&self.0).is_err() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_rank_that_the_kernel_kills_for_memory_says_so() {
    let Some(limited) = Limited::new() else {
        // The parser has tests of its own, and with cgroup v2 only that differs.
        return eprintln!("no cgroup v1 with a memory limit can be made here");
    };
    let rig = Rig::new();
    rig.write_hold();
    let enter = format!(
        "echo $$ > {}/cgroup.procs && exec {RUNNER} hold --dir {}",
        limited.0.display(),
        rig.dir.display()
    );
    let started = Command::new("/bin/sh").args(["-c", &enter]).status();
    assert!(started.unwrap().success());
    let mut client = rig.client();
    // One grows without end, one is killed by a person, and one ends by itself.
    let script = "case $RANK in 0) exec tail /dev/zero;; 1) kill -9 $$;; *) echo last words >&2; exit 3;; esac";
    client.start(rig.ranks(3, script));
    let ranks = client.until_dead().ranks;
    let killed = Exit::Signal {
        signal: 9,
        core: false,
    };
    assert_eq!((ranks[0].exit, ranks[1].exit), (Some(killed), Some(killed)));
    let why = ranks[0].first_error.clone().unwrap_or_default();
    assert!(why.starts_with(OUT_OF_MEMORY), "{:?}", ranks[0]);
    assert!(why.contains(limited.0.to_str().unwrap()), "{why}");
    assert_eq!(ranks[1].first_error, None);
    assert_eq!(ranks[2].exit, Some(Exit::Code { code: 3 }));
}
