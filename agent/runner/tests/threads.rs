//! A process whose first thread has ended still lives, and its environment identifies it.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use muster_runner::procfs::{self, Stat};

#[test]
fn the_environment_is_read_through_a_thread_that_lives() {
    let python = std::env::var("MUSTER_TEST_PYTHON")
        .expect("MUSTER_TEST_PYTHON names a Python; `make test` sets it");
    // exit(2) ends only the calling thread.
    let program = format!(
        "import ctypes, threading, time\n\
         threading.Thread(target=time.sleep, args=(60,)).start()\n\
         print('started', flush=True)\n\
         ctypes.CDLL(None).syscall({}, 0)\n",
        libc::SYS_exit
    );
    let mut child = Command::new(python)
        .args(["-c", &program])
        .env("MUSTER_MARK", "here")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id() as i32;
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut String::new())
        .unwrap();
    while Stat::of(pid).unwrap().state != b'Z' {
        std::thread::yield_now();
    }
    assert!(!Stat::of(pid).unwrap().is_dead());
    let environment = procfs::environment(pid);
    let of_the_first = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(of_the_first, b"", "else this test shows nothing");
    assert!(
        environment
            .unwrap()
            .split(|b| *b == 0)
            .any(|entry| entry == b"MUSTER_MARK=here")
    );
}
