use std::{
    io::Read,
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::*;

/// A child process. When the test ends, it dies with everything that it started.
struct Ended(Child);

impl Ended {
    fn start(command: &mut Command) -> Ended {
        Ended(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    /// Waits for the first byte of the child's output.
    fn has_spoken(mut self) -> Ended {
        self.0
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 1])
            .unwrap();
        self
    }

    fn identity(&self) -> Identity {
        Identity::of(self.0.id() as i32).unwrap()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let below = Identity::of(self.0.id() as i32)
            .map(|me| descendants(&[me]))
            .unwrap_or_default();
        below
            .iter()
            .for_each(|process| process.signal(Signal::KILL));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn marked(dir: &Path, script: &str) -> Ended {
    Ended::start(Command::new("sh").args(["-c", script]).env(MARK, dir))
}

/// Looks until the condition holds. A process that is starting takes milliseconds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{what} does not come true"
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_name_with_brackets_is_read() {
    let text = b"42 (a) b (c) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
    let stat = Stat::parse(text).unwrap();
    assert_eq!((stat.state, stat.parent, stat.start_time), (b'S', 7, 12345));
    assert!(Stat::parse(b"42 (a").is_none());
}

#[test]
fn a_process_lives_until_its_last_thread_has_ended() {
    // The first thread of a killed daemon may be gone while another still holds its socket, so that
    // one can still connect to it.
    let with = |threads: u32| {
        let text =
            format!("42 (a) Z 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 12345 0 0");
        Stat::parse(text.as_bytes()).unwrap().is_alive()
    };
    assert!(with(2) && !with(1) && !with(0));
}

#[test]
fn another_process_with_the_same_pid_is_not_meant() {
    let mut child = marked(Path::new("/none"), "exec sleep 60");
    let me = child.identity();
    assert!(me.is_alive());
    for other in [
        Identity {
            start_time: me.start_time + 1,
            ..me.clone()
        },
        Identity {
            boot_id: "x".into(),
            ..me.clone()
        },
    ] {
        assert!(!other.is_alive());
        other.signal(Signal::KILL);
    }
    assert!(
        me.is_alive(),
        "a signal for another process must not arrive"
    );
    me.signal(Signal::KILL);
    child.0.wait().unwrap();
    assert!(!me.is_alive());
}

#[test]
fn what_names_the_directory_is_ours_and_what_only_reads_it_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let runner = dir.path().join(RUNNER);
    std::os::unix::fs::symlink("/bin/sh", &runner).unwrap();
    let run = dir.path().join("runs/x");
    let ours = [
        marked(&dir.path().join("part"), "exec sleep 60"),
        Ended::start(
            Command::new(&runner)
                .args(["-c", "sleep 60; :", "hold", "--dir"])
                .arg(&run),
        ),
        Ended::start(
            Command::new("sleep")
                .arg("60")
                .env_clear()
                .env("PYTHON_EXEC", run.join("muster-shim")),
        ),
    ];
    let strangers = [
        Ended::start(
            Command::new("sh")
                .args(["-c", "sleep 60; :", "tail", "-f"])
                .arg(&run),
        ),
        Ended::start(
            Command::new("sleep")
                .arg("60")
                .env(MARK, format!("{}2", dir.path().display())),
        ),
    ];
    let found = |child: &Ended| tree(dir.path(), &[]).contains(&child.identity());
    for (i, child) in ours.iter().enumerate() {
        until(&format!("our process {i} is found"), || found(child));
    }
    assert!(!strangers.iter().any(found));
}

#[tokio::test]
async fn a_tree_is_cut_with_its_orphans_and_strangers_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let stranger_dir = tempfile::tempdir().unwrap();
    // Grandchildren: one in its own session, one that is an orphan, one without the mark.
    let root = marked(
        dir.path(),
        "setsid sleep 60 & (sleep 60 &) ; env -i sleep 60 & echo; wait",
    )
    .has_spoken();
    let stranger = marked(stranger_dir.path(), "echo; sleep 60").has_spoken();
    let find = || tree(dir.path(), &[]);
    until("the tree has grown", || find().len() == 4);
    assert_eq!(cut(find).await, Ok(4));
    assert!(find().is_empty() && !root.identity().is_alive());
    assert!(stranger.identity().is_alive());
}
