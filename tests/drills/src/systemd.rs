//! A machine with a real systemd, if this one permits it: namespaces of its own, and this machine's files
//! below a layer that goes with it.

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use crate::{programs, scripts, text, until};

pub struct Systemd {
    /// `unshare`, with which all of it ends.
    outer: Child,
    /// The first process, as this machine counts.
    first: u32,
    cgroup: PathBuf,
    _folder: tempfile::TempDir,
}

impl Systemd {
    /// Every user there can read these paths. `None`, with a clear message, if none can be started: the user
    /// is not root, or something is missing.
    pub fn boot(reachable: &[&str]) -> Option<Systemd> {
        let booted = Self::try_boot(reachable);
        if let Err(why) = &booted {
            eprintln!("\n!!! NO SYSTEMD here ({why}): this drill shows nothing.\n");
        }
        booted.ok()
    }

    fn try_boot(reachable: &[&str]) -> Result<Systemd, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("it needs root".into());
        }
        if !Path::new("/lib/systemd/systemd").exists() {
            return Err("it is not installed".into());
        }
        let mounts = fs::read_to_string("/proc/mounts").map_err(|e| e.to_string())?;
        let hierarchy = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[2] == "cgroup2").then(|| PathBuf::from(fields[1]))
        });
        let hierarchy = hierarchy.ok_or("there is no cgroup2")?;
        let cgroup = hierarchy.join(format!("muster-drill-{}", std::process::id()));
        fs::create_dir(&cgroup).map_err(|e| format!("{}: {e}", cgroup.display()))?;
        let folder = tempfile::Builder::new()
            .prefix("muster-drill-")
            .tempdir()
            .expect("a temporary folder");
        let said = folder.path().join("said");
        // A cgroup namespace has the process's own cgroup as its root.
        let outer = Command::new("/bin/sh")
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec unshare \"$@\""])
            .arg(&cgroup)
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--ipc",
                "--uts",
                "--net",
                "--cgroup",
            ])
            .arg(scripts().join("systemd.sh"))
            .arg(folder.path())
            .arg(programs())
            .args(reachable)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said).expect("the folder is new"))
            .spawn()
            .expect("a shell can be executed");
        let mut machine = Systemd {
            outer,
            first: 0,
            cgroup,
            _folder: folder,
        };
        let booted = until(|| {
            if let Ok(Some(_)) = machine.outer.try_wait() {
                return Some(false);
            }
            machine.first = first_child(machine.outer.id())?;
            let state = machine.run(&["systemctl", "is-system-running"], "");
            let state = String::from_utf8_lossy(&state.stdout).into_owned();
            ["running", "degraded"]
                .contains(&state.trim())
                .then_some(true)
        });
        match booted {
            Some(true) => Ok(machine),
            _ => Err(fs::read_to_string(&said)
                .unwrap_or_default()
                .trim()
                .replace('\n', "; ")),
        }
    }

    /// Runs a command there, as root.
    pub fn run<S: AsRef<OsStr>>(&self, line: &[S], input: &str) -> Output {
        let mut child = Command::new("nsenter")
            .args(["--all", "--root", "--target", &self.first.to_string()])
            .args([
                "/usr/bin/env",
                "-i",
                "-C",
                "/tmp",
                "HOME=/tmp",
                "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            ])
            .args(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nsenter can be executed");
        // A program that does not read is fine.
        let _ = child
            .stdin
            .take()
            .expect("it is piped")
            .write_all(input.as_bytes());
        child.wait_with_output().expect("it ends")
    }

    /// The same: it must succeed. Returns what it printed.
    pub fn ran(&self, line: &str, input: &str) -> String {
        let output = self.run(&line.split(' ').collect::<Vec<_>>(), input);
        assert!(output.status.success(), "{line}: {}", text(&output));
        String::from_utf8(output.stdout).expect("our programs print UTF-8")
    }

    /// The same: it must fail. Returns all that it printed.
    pub fn refused(&self, line: &str) -> String {
        let output = self.run(&line.split(' ').collect::<Vec<_>>(), "");
        assert!(!output.status.success(), "{line}: {}", text(&output));
        text(&output)
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // All processes there end with the first one, and that one with this.
        let _ = self.outer.kill();
        let _ = self.outer.wait();
        let gone = until(|| remove(&self.cgroup).then_some(()));
        if !std::thread::panicking() {
            assert!(
                gone.is_some(),
                "{} still has processes",
                self.cgroup.display()
            );
        }
    }
}

fn first_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Removes a cgroup with those below it.
fn remove(cgroup: &Path) -> bool {
    let below = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let folders = below.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    for folder in folders {
        remove(&folder.path());
    }
    fs::remove_dir(cgroup).is_ok() || !cgroup.exists()
}
