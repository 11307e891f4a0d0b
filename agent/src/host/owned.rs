//! Runners on the agent's machine as the owners of their jobs. The agent is root, and root does nothing
//! that a job names: everything of a job is started, looked for and killed by a process that is its owner
//! (`muster-runner as`).
//!
//! Whoever holds only the host of the node, and not that of a job, can start nothing. It finds runners that
//! live, and sweeps as the user whose the run's directory is.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use muster_core::node::account::Account;
use muster_runner::{
    Folder, RunnerIdentity, alive,
    as_user::ask_as,
    connect, held,
    place::{self, Become, Left, Output, Program, Remains, Wanted},
    pod::{Question, Written},
};
use tokio::net::UnixStream;

use super::{Asked, RunnerHost, local};

/// The longest name of a cgroup that is asked for.
const CGROUP_MAX: usize = 150;

#[derive(Clone, Debug)]
pub(crate) struct OwnedHost {
    /// The runner's program.
    runner: PathBuf,
    /// None: this is the host of the node, which belongs to nobody.
    account: Option<Account>,
}

impl OwnedHost {
    pub(crate) fn new(runner: PathBuf) -> Self {
        let account = None;
        Self { runner, account }
    }

    /// The host of the jobs that run as this account.
    pub(crate) fn of(runner: PathBuf, account: Account) -> Self {
        let account = Some(account);
        Self { runner, account }
    }

    fn user(&self) -> Result<Become, String> {
        let account = self.account.as_ref();
        let account = account.ok_or("nothing runs as root here, and whose this is is not known")?;
        Ok(Become {
            numbers: account.numbers(),
            cgroup: None,
        })
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, question: &Question) -> Result<T, String> {
        ask_as(&self.runner, &self.user()?, question)
    }
}

impl RunnerHost for OwnedHost {
    fn start<'a>(&'a self, dir: &'a Path) -> Asked<'a, Result<(), String>> {
        Box::pin(async move {
            let user = Become {
                cgroup: Some(cgroup(dir)),
                ..self.user()?
            };
            self.give(dir)
                .map_err(|e| format!("give the directory to its user: {e}"))?;
            let program = Program::runner(&self.runner, dir).as_user(&user);
            place::started(&local::run(&program).await?)
        })
    }

    fn reach(&self, dir: &Path) -> io::Result<UnixStream> {
        let stream = connect(dir)?;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    fn lives<'a>(&'a self, dir: &'a Path, runner: Option<&'a RunnerIdentity>) -> Asked<'a, bool> {
        Box::pin(async move { runner.map_or_else(|| held(dir), alive) })
    }

    fn sweep<'a>(&'a self, remains: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
        let owner = match Folder::of_run(remains.dir) {
            Ok(folder) => Ok(folder.owner()),
            // Somebody has checked it and moved the directory away. What its records said is a user's word.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Box::pin(async { Ok(Left::Nothing) });
            }
            Err(e) => Err(e),
        };
        let (uid, gid) = match owner {
            Ok(Some(owner)) => owner,
            // It was given to nobody, so nothing was started in it by a job.
            Ok(None) => return Box::pin(async { remains.kill_all() }),
            Err(e) => return Box::pin(async { Err(e) }),
        };
        let user = Become {
            numbers: format!("{uid}:{gid}:"),
            cgroup: None,
        };
        let question = Question::Sweep {
            dir: remains.dir.into(),
            was: remains.was.clone(),
            runner: remains.runner.cloned(),
            with_runner: remains.with_runner,
        };
        let runner = self.runner.clone();
        Box::pin(async move {
            let ask = move || ask_as(&runner, &user, &question).map_err(io::Error::other);
            let answer = tokio::task::spawn_blocking(ask).await;
            answer.unwrap_or_else(|e| Err(io::Error::other(e)))
        })
    }

    fn retire(&self, _: String) -> Asked<'_, Result<(), String>> {
        // Only worker pods are told to.
        Box::pin(async { Err("this node is no pod".to_owned()) })
    }

    fn memory(&self, dir: &Path) -> Option<u64> {
        place::memory(dir)
    }

    fn find(&self, wanted: &Wanted) -> Result<PathBuf, String> {
        self.ask(&Question::Find {
            wanted: wanted.clone(),
        })
    }

    fn run<'a>(&'a self, program: &'a Program) -> Asked<'a, Result<Output, String>> {
        Box::pin(async move {
            let user = self.user()?;
            local::ask(&self.runner, program, Some(&user)).await
        })
    }

    fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>> {
        let question = Question::Modified {
            files: files.to_vec(),
        };
        let times: Result<Vec<Written>, String> = self.ask(&question);
        match times {
            Ok(times) if times.len() == files.len() => times,
            _ => vec![None; files.len()],
        }
    }

    fn saved(&self, dir: &Path, pattern: &str) -> Option<BTreeMap<PathBuf, u64>> {
        let question = Question::Saved {
            dir: dir.into(),
            pattern: pattern.into(),
        };
        self.ask(&question).ok()
    }

    fn give(&self, dir: &Path) -> io::Result<()> {
        let account = self.account.as_ref();
        let account = account.ok_or_else(|| io::Error::other("whose this is is not known"))?;
        Folder::give(dir, account.uid, account.gid)
    }

    fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }
}

/// The name of the cgroup in which the processes of this directory begin.
fn cgroup(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let safe = |c: char| match c.is_ascii_alphanumeric() || c == '-' {
        true => c,
        false => '_',
    };
    let name: String = name.chars().take(CGROUP_MAX).map(safe).collect();
    format!("musterowner-{name}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use std::{os::unix::fs::PermissionsExt, process::Command};

    use muster_runner::{procfs::Stat, record};

    use super::*;
    use crate::host::tests::runner;

    /// A folder that every user can enter, with the runner's program in it. None: this is not root.
    fn bench() -> Option<(tempfile::TempDir, PathBuf)> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT TESTED: only root can become another user");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let program = dir.path().join("muster-runner");
        std::fs::copy(runner(), &program).unwrap();
        Some((dir, program))
    }

    fn ann() -> Account {
        Account {
            name: "ann".into(),
            uid: 72_001,
            gid: 72_001,
            groups: Vec::new(),
            home: "/".into(),
            shell: "/bin/sh".into(),
        }
    }

    #[tokio::test]
    async fn a_forged_record_kills_nothing_that_is_not_its_users() {
        let Some((bench, program)) = bench() else {
            return;
        };
        let host = OwnedHost::of(program, ann());
        let dir = bench.path().join("runs/a-g1");
        std::fs::create_dir_all(&dir).unwrap();
        // Any daemon of the machine, or the rank of another user.
        let mut daemon = Command::new("sleep").arg("1000000").spawn().unwrap();
        let stat = Stat::of(daemon.id() as i32).unwrap();
        let mut forged = RunnerIdentity::own("forged".into()).unwrap();
        (forged.pid, forged.start_time, forged.keeper) = (stat.pid, stat.start_time, None);
        record::write_atomic(&dir, record::RUNNER, &forged).unwrap();
        host.give(&dir).unwrap();
        let remains = Remains {
            dir: &dir,
            was: None,
            runner: Some(&forged),
            with_runner: true,
        };
        // By its list of descendants, too.
        let list = muster_runner::Descendants {
            v: 1,
            boot_id: forged.boot_id.clone(),
            cut: false,
            processes: vec![muster_runner::descendants::Descendant {
                pid: stat.pid,
                start_time: stat.start_time,
                session: 0,
            }],
        };
        list.write(&dir).unwrap();
        for _ in 0..3 {
            let left = host.sweep(&remains).await;
            assert_eq!(daemon.try_wait().unwrap(), None, "{left:?}");
        }
        let node = OwnedHost::new(host.runner.clone());
        let _ = node.sweep(&remains).await;
        assert_eq!(
            daemon.try_wait().unwrap(),
            None,
            "nor if nobody knows whose job it was"
        );
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    #[tokio::test]
    async fn the_host_of_the_node_starts_nothing_as_root() {
        let Some((bench, program)) = bench() else {
            return;
        };
        let host = OwnedHost::new(program);
        let dir = bench.path().join("runs/a-g1");
        std::fs::create_dir_all(&dir).unwrap();
        let question = Program {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), format!("echo > {}/done", dir.display())],
            env: BTreeMap::new(),
            dir: "/".into(),
            timeout_ms: 60_000,
        };
        let not_as_root = "nothing runs as root here, and whose this is is not known";
        assert_eq!(host.start(&dir).await, Err(not_as_root.into()));
        assert_eq!(host.run(&question).await, Err(not_as_root.into()));
        assert!(host.give(&dir).is_err() && !dir.join("done").exists());
    }
}
