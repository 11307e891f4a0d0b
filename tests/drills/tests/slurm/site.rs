//! Where an allocation of three nodes is: by the stand-ins beside this file, or by Slurm itself, with three daemons for three nodes on this
//! machine.

use std::{
    ffi::OsStr,
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use muster_drills::{kill, lives, processes_of, program, programs, python, until};
use rustix::process::Signal;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// An allocation of the stand-ins. Slurm itself chooses number and nodes.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) job: &'static str,
    pub(crate) nodes: u32,
    /// The number of its first node.
    pub(crate) first: u32,
}

const WHOLE: Place = Place {
    job: "4711",
    nodes: 3,
    first: 1,
};

pub(crate) struct Site {
    folder: tempfile::TempDir,
    python: String,
    is_real: bool,
    daemons: Vec<Child>,
}

impl Site {
    fn new(script: &str, is_real: bool) -> Site {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.py"), script).unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::create_dir(folder.path().join("local")).unwrap();
        Site {
            folder,
            python: python(),
            is_real,
            daemons: Vec::new(),
        }
    }

    pub(crate) fn stand_in(script: &str) -> Site {
        let site = Site::new(script, false);
        let programs = [
            ("srun", include_str!("srun")),
            ("scancel", include_str!("scancel")),
            ("scontrol", include_str!("scontrol")),
            ("squeue", include_str!("squeue")),
        ];
        for (name, text) in programs {
            let path = site.folder().join("bin").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        site
    }

    pub(crate) fn real(script: &str) -> Site {
        let mut site = Site::new(script, true);
        site.start_slurm();
        site
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn python(&self) -> &str {
        &self.python
    }

    fn slurm(&self, name: &str) -> PathBuf {
        self.folder().join("slurm-itself").join(name)
    }

    /// A command with what all need: the paths, and no coordinator of the caller.
    fn with_paths(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let bin = self.folder().join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(self.folder())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("TMPDIR", self.folder().join("local"))
            .env("MUSTER_BIN_DIR", programs())
            .env("MUSTER_SLURM_DIR", self.folder().join("clusters"))
            .env("MUSTER_CONFIG", self.folder().join("config.yaml"))
            .env("OF_THE_BATCH_SCRIPT", "1")
            // Defaults of srun's flags, by which it would label lines and bind a task to one processor.
            .env("SLURM_LABELIO", "1")
            .env("SRUN_CPUS_PER_TASK", "1")
            .env_remove("MUSTER_SERVER")
            .env_remove("MUSTER_CONTEXT");
        if self.is_real {
            command.env("SLURM_CONF", self.slurm("slurm.conf"));
        }
        command
    }

    /// A program that runs in an allocation of three nodes.
    pub(crate) fn command(&self, name: impl AsRef<OsStr>, words: &[&str]) -> Command {
        self.command_in(WHOLE, name, words)
    }

    pub(crate) fn command_in(
        &self,
        place: Place,
        name: impl AsRef<OsStr>,
        words: &[&str],
    ) -> Command {
        if self.is_real {
            let mut command = self.with_paths("salloc");
            let nodes = format!("--nodes={}", place.nodes);
            command.args([&nodes, "--exclusive", "--no-kill", "--quiet"]);
            command.arg(name).args(words);
            return command;
        }
        let mut command = self.with_paths(name);
        command
            .args(words)
            .env("SLURM_JOB_ID", place.job)
            .env("SLURM_JOB_NUM_NODES", place.nodes.to_string())
            .env("STAND_IN_FIRST", place.first.to_string())
            .env("STAND_IN", self.folder());
        command
    }

    pub(crate) fn muster(&self, words: &[&str]) -> Command {
        self.command(program("muster"), words)
    }

    /// Gives a batch script to Slurm. Returns its number.
    pub(crate) fn sbatch(&self, flags: &[&str], script: &str) -> String {
        fs::write(self.folder().join("job.sbatch"), script).unwrap();
        let mut sbatch = self.with_paths("sbatch");
        sbatch.args(["--parsable", "--open-mode=append", "--output=batch.out"]);
        let said = sbatch.args(flags).arg("job.sbatch").output().unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn scontrol(&self, words: &[&str]) -> String {
        let said = self.with_paths("scontrol").args(words).output().unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// The command of ours that this child runs.
    pub(crate) fn command_of(&self, child: &Child) -> u64 {
        let own = u64::from(child.id());
        if !self.is_real {
            return own;
        }
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        let mut children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        children.next().unwrap()
    }

    /// Kills all that runs on a node: its task, and what that has started.
    pub(crate) fn cut(&self, node: &str) {
        let folders = fs::read_dir(self.folder().join("local")).unwrap();
        let own = folders
            .map(|entry| entry.unwrap().path())
            .find(|path| path.to_string_lossy().ends_with(&format!("-{node}")))
            .unwrap();
        let name = format!("SLURMD_NODENAME={node}");
        let is_task = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == name.as_bytes())
        };
        let tasks = processes_of(self.folder()).into_iter().map(|(pid, _)| pid);
        let mut all: Vec<u32> = tasks.filter(is_task).collect();
        all.extend(processes_of(&own).into_iter().map(|(pid, _)| pid));
        // None of them must see another's end and act on it.
        for pid in all.iter().filter(|pid| lives(u64::from(**pid))) {
            kill(u64::from(*pid), Signal::STOP);
        }
        for pid in all.iter().filter(|pid| lives(u64::from(**pid))) {
            kill(u64::from(*pid), Signal::KILL);
        }
        fs::remove_dir_all(own).unwrap();
    }

    /// No process, no directory of a node and none of the cluster.
    pub(crate) fn expect_nothing_left(&self) {
        let ours = || {
            let mut all = processes_of(self.folder());
            all.retain(|(_, words)| !words.contains("slurm-itself"));
            all
        };
        assert!(
            until(|| ours().is_empty().then_some(())).is_some(),
            "{:?}",
            ours()
        );
        for folder in ["local", "clusters"] {
            let left: Vec<_> = fs::read_dir(self.folder().join(folder))
                .into_iter()
                .flatten()
                .map(|entry| entry.unwrap().path())
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }

    fn start_slurm(&mut self) {
        for folder in ["state", "n1", "n2", "n3"] {
            fs::create_dir_all(self.slurm(folder)).unwrap();
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let (host, folder) = (host.trim(), self.slurm("").display().to_string());
        // Taken together, so that they differ.
        let listeners: Vec<_> = (0..=NODES.len())
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let ports: Vec<u16> = listeners
            .iter()
            .map(|it| it.local_addr().unwrap().port())
            .collect();
        drop(listeners);
        let nodes: String = NODES
            .iter()
            .zip(&ports[1..])
            .map(|(node, port)| format!("NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"))
            .collect();
        let user = if rustix::process::geteuid().is_root() {
            "root".to_owned()
        } else {
            rustix::process::geteuid().as_raw().to_string()
        };
        let configuration = format!(
            "ClusterName=try\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\nCryptoType=crypto/munge\n\
             AuthInfo=socket={folder}/munge.socket\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/%n\nSlurmctldPidFile={folder}/ctld.pid\n\
             SlurmdPidFile={folder}/%n.pid\nSlurmctldLogFile={folder}/ctld.log\nSlurmdLogFile={folder}/%n.log\nSlurmctldPort={}\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nMpiDefault=none\n\
             ReturnToService=2\nKillWait=30\n{nodes}PartitionName=all Nodes=ALL Default=YES State=UP\n",
            ports[0]
        );
        fs::write(self.slurm("slurm.conf"), configuration).unwrap();
        fs::write(
            self.slurm("munge.key"),
            (0..=255).cycle().take(1024).collect::<Vec<u8>>(),
        )
        .unwrap();
        fs::set_permissions(self.slurm("munge.key"), fs::Permissions::from_mode(0o400)).unwrap();
        let munge = ["--foreground", "--force", "--num-threads=2"]
            .map(String::from)
            .into_iter();
        let files = ["socket", "key-file", "pid-file", "log-file", "seed-file"];
        let names = [
            "munge.socket",
            "munge.key",
            "munge.pid",
            "munge.log",
            "munge.seed",
        ];
        let files = files
            .iter()
            .zip(names)
            .map(|(flag, name)| format!("--{flag}={folder}/{name}"));
        let munge: Vec<String> = munge.chain(files).collect();
        self.daemon("munged", &munge);
        assert!(until(|| self.slurm("munge.socket").exists().then_some(())).is_some());
        let configuration = self.slurm("slurm.conf").display().to_string();
        let with = |more: &[&str]| -> Vec<String> {
            let all = ["-D", "-f", &configuration]
                .into_iter()
                .chain(more.iter().copied());
            all.map(String::from).collect()
        };
        self.daemon("slurmctld", &with(&["-i"]));
        for node in NODES {
            self.daemon("slurmd", &with(&["-N", node]));
        }
        let idle = until(|| {
            let listed = self
                .with_paths("sinfo")
                .args(["--noheader", "--format=%D %t"])
                .output()
                .unwrap();
            (listed.stdout.trim_ascii() == b"3 idle").then_some(())
        });
        assert!(
            idle.is_some(),
            "{}",
            fs::read_to_string(self.slurm("ctld.log")).unwrap_or_default()
        );
    }

    fn daemon(&mut self, name: &str, words: &[String]) {
        let child = Command::new(name)
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|e| panic!("{name}: {e}; Debian has it in slurm-wlm"));
        self.daemons.push(child);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for (pid, _) in processes_of(self.folder()) {
            if lives(u64::from(pid)) {
                kill(u64::from(pid), Signal::KILL);
            }
        }
        for daemon in &mut self.daemons {
            // It may have been killed above.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
