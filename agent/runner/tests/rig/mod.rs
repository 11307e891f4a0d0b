//! A runner in its own directory, the agent's side of its socket, and a stand-in for torchrun
//! written in bash.
//!
//! Every wait is for a state and has the same limit: [`PATIENCE`]. Dropping a rig leaves no process
//! behind.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output};
use std::time::{Duration, Instant};

use muster_runner::procfs::Stat;
use muster_runner::wire::{
    Command, Hold, Lane, MemberSpec, Order, Phase, RankStacks, Refusal, Reply, Request, StartSpec,
    Status,
};
use muster_runner::{Record, RunnerIdentity, alive, connect};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The limit of every wait. It is long because a loaded machine is slow, not broken.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub const RUNNER: &str = env!("CARGO_BIN_EXE_muster-runner");

/// Does what torchrun does, as far as a runner sees it: it starts each rank's shim in its own
/// session, passes TERM on, and writes each exit status down. `$RANKS` and `$SCRIPT` come from the
/// environment.
const LAUNCHER: &str = r#"
pids=
trap 'for q in $pids; do kill -TERM -$q 2>/dev/null; done; touch $DIR/termed' TERM
r=0
while [ $r -lt $RANKS ]; do
  RANK=$r LOCAL_RANK=$r setsid "$SHIM" -c "$SCRIPT" &
  pids="$pids $!"
  r=$((r+1))
done
r=0
for p in $pids; do
  # A TERM interrupts wait; the status of a child that has ended is remembered.
  while kill -0 $p 2>/dev/null; do wait $p; done
  wait $p; code=$?
  echo "rank $r ended as $code"
  r=$((r+1))
done
"#;

pub struct Rig {
    _root: tempfile::TempDir,
    pub dir: PathBuf,
    pub hold: Hold,
    pub cgroup: bool,
}

impl Rig {
    pub fn new() -> Rig {
        Self::below("runner")
    }

    /// A rig whose directory has this name, which may be a path.
    pub fn below(name: &str) -> Rig {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let hold = Hold {
            v: 1,
            job: "0192-job".into(),
            name: "digits".into(),
            namespace: "default".into(),
            generation: 3,
            node: "node-a".into(),
            node_rank: 0,
            nnodes: 1,
            world_size: 8,
            store: None,
            log_bytes: 64 << 20,
            step_pattern: None,
            step_formats: None,
            idle_timeout_ms: 300_000,
            term_grace_ms: 10_000,
            fence_after_ms: None,
            launcher: false,
            echo: None,
        };
        Rig {
            _root: root,
            dir,
            hold,
            cgroup: true,
        }
    }

    pub fn write_hold(&self) {
        muster_runner::record::write_atomic(&self.dir, muster_runner::record::HOLD, &self.hold)
            .unwrap();
    }

    /// Runs `muster-runner hold` until it exits, which means that the runner is ready or has
    /// failed.
    pub fn hold(&self) -> Output {
        let without = (!self.cgroup).then_some("--no-cgroup");
        Process::new(RUNNER)
            .arg("hold")
            .arg("--dir")
            .arg(&self.dir)
            .args(without)
            .output()
            .unwrap()
    }

    /// Starts a runner, waits until it is ready, and returns a client of it.
    pub fn ready(&self) -> Client {
        self.write_hold();
        let output = self.hold();
        assert!(output.status.success(), "{output:?}");
        self.client()
    }

    pub fn client(&self) -> Client {
        Client::new(connect(&self.dir).unwrap())
    }

    pub fn record(&self) -> Record {
        Record::read(&self.dir).unwrap()
    }

    pub fn identity(&self) -> RunnerIdentity {
        self.record().runner.unwrap()
    }

    /// `ranks` ranks that each run `script` in sh below the stand-in for torchrun.
    pub fn ranks(&self, ranks: u32, script: &str) -> StartSpec {
        let mut spec = self.program("bash", &["-c", LAUNCHER], ranks);
        spec.env.insert("RANKS".into(), ranks.to_string());
        spec.env.insert("SCRIPT".into(), script.into());
        spec
    }

    pub fn program(&self, program: &str, args: &[&str], ranks: u32) -> StartSpec {
        let dir = self.dir.to_str().unwrap().to_owned();
        let env = [
            ("PATH", std::env::var("PATH").unwrap()),
            ("DIR", dir.clone()),
            ("SHIM", format!("{dir}/muster-shim")),
            ("PYTHON_EXEC", format!("{dir}/muster-shim")),
            ("MUSTER_SHIM_DIR", dir),
            ("MUSTER_SHIM_PROGRAM", "/bin/sh".into()),
            ("MUSTER_SHIM_ARGS", "[]".into()),
        ];
        StartSpec {
            env_files: BTreeMap::new(),
            program: program.into(),
            args: args.iter().map(|a| (*a).into()).collect(),
            env: env
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<BTreeMap<_, _>>(),
            cwd: self.dir.clone(),
            ranks,
            first_rank: 0,
            order: None,
            mpi: None,
            members: Vec::new(),
            restartable: false,
        }
    }

    /// One of several members, whose ranks run `script` in sh in a folder of their own.
    pub fn member(&self, number: u32, first_rank: u32, ranks: u32, script: &str) -> MemberSpec {
        let cwd = self.dir.join(format!("of-{number}"));
        std::fs::create_dir_all(&cwd).unwrap();
        MemberSpec {
            number,
            first_rank,
            ranks,
            command: ["/bin/sh", "-c", script, &format!("member-{number}")]
                .map(str::to_owned)
                .into(),
            env: BTreeMap::from([("PATH".to_owned(), std::env::var("PATH").unwrap())]),
            env_files: BTreeMap::new(),
            cwd,
            restartable: false,
        }
    }

    /// Several members in one worker group.
    pub fn members(&self, members: Vec<MemberSpec>) -> StartSpec {
        StartSpec {
            ranks: members.iter().map(|member| member.ranks).sum(),
            first_rank: members[0].first_rank,
            members,
            ..self.direct(&[])
        }
    }

    /// One member, whose only rank runs `command` in the direct lane.
    pub fn direct(&self, command: &[&str]) -> StartSpec {
        StartSpec {
            order: Some(Order {
                lane: Lane::Direct,
                options: Vec::new(),
                argv: Vec::new(),
                command: command.iter().map(|word| (*word).to_owned()).collect(),
                run_id: "r".into(),
                peer_lost: Vec::new(),
                lacks: Vec::new(),
                inspect: false,
                collectives: false,
            }),
            ..self.program("/bin/sh", &[], 1)
        }
    }

    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join("logs").join(name)).unwrap()
    }

    /// The number that a worker has written into a file of the directory.
    pub fn pid_in(&self, file: &str) -> i32 {
        let text = std::fs::read_to_string(self.dir.join(file)).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let Ok(Record {
            runner: Some(runner),
            ..
        }) = Record::read(&self.dir)
        else {
            return;
        };
        if alive(&runner) {
            Living::of(runner.pid).kill();
        }
        if let Some(cgroup) = &runner.cgroup
            && cgroup.exists()
        {
            let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
            let until = Instant::now() + PATIENCE;
            while std::fs::remove_dir(cgroup).is_err() && Instant::now() < until {
                std::thread::yield_now();
            }
        }
    }
}

/// The agent's side of a control socket.
pub struct Client {
    stream: BufReader<UnixStream>,
    next: u64,
}

impl Client {
    pub fn new(stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client {
            stream: BufReader::new(stream),
            next: 1,
        }
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// The next line, or none when the runner has closed the connection.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line),
            // The runner closed the connection before it had read all our bytes.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("no line from the runner: {e}"),
        }
    }

    fn reply(&mut self) -> Option<Reply> {
        Some(serde_json::from_str(&self.line()?).unwrap())
    }

    /// Sends a command and waits for its answer. It skips pushes in between.
    pub fn ask(&mut self, command: Command) -> Reply {
        let id = self.next;
        self.next += 1;
        let request = serde_json::to_string(&Request::new(id, command)).unwrap();
        self.send_raw(format!("{request}\n").as_bytes());
        loop {
            let reply = self.reply().expect("an answer");
            if reply.id == Some(id) {
                return reply;
            }
        }
    }

    pub fn ok(&mut self, command: Command) {
        let reply = self.ask(command);
        assert_eq!(reply.ok, Some(true), "{:?}", reply.error);
    }

    pub fn refused(&mut self, command: Command) -> Refusal {
        self.ask(command).error.expect("a refusal")
    }

    pub fn start(&mut self, spec: StartSpec) {
        self.ok(Command::Start(Box::new(spec)));
    }

    pub fn stop(&mut self, grace: Duration) {
        self.ok(Command::Stop {
            grace_ms: grace.as_millis() as u64,
            reason: "test".into(),
        });
    }

    /// Where these ranks are.
    pub fn stacks(&mut self, ranks: &[u32]) -> Vec<RankStacks> {
        let ranks = ranks.to_vec();
        let reply = self.ask(Command::Stacks { ranks });
        reply.stacks.unwrap_or_else(|| panic!("{:?}", reply.error))
    }

    pub fn status(&mut self) -> Status {
        *self.ask(Command::Status).status.unwrap()
    }

    /// Subscribes and waits for a status that `wish` accepts.
    pub fn until(&mut self, wish: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + PATIENCE;
        self.ok(Command::Subscribe);
        loop {
            let status = self
                .reply()
                .expect("a push")
                .status
                .expect("pushes carry a status");
            if wish(&status) {
                return *status;
            }
            assert!(Instant::now() < until, "never as wished: {status:?}");
        }
    }

    /// Waits until this many ranks have printed a step.
    pub fn until_stepping(&mut self, ranks: usize) -> Status {
        self.until(|s| s.ranks.iter().filter(|r| r.first_step.is_some()).count() == ranks)
    }

    pub fn until_dead(&mut self) -> Status {
        let status = self.until(|s| s.phase == Phase::Dead);
        assert_eq!(status.dead.as_ref().unwrap().survivors, 0);
        status
    }
}

/// One exact process, even if its pid is reused.
pub struct Living {
    fd: std::os::fd::OwnedFd,
    pub pid: i32,
}

impl Living {
    pub fn of(pid: i32) -> Living {
        Living::find(pid).expect("it lives")
    }

    /// None if the process is gone already.
    pub fn find(pid: i32) -> Option<Living> {
        let fd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).ok()?;
        Some(Living { fd, pid })
    }

    pub fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.fd, signal).unwrap();
    }

    /// Kills the process and waits for its end.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.gone();
    }

    /// Waits for the end of the process.
    pub fn gone(&self) {
        let mut fds = [rustix::event::PollFd::new(
            &self.fd,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        assert_eq!(
            rustix::event::poll(&mut fds, Some(&limit)).unwrap(),
            1,
            "pid {} lives on",
            self.pid
        );
    }

    /// Whether the process has ended.
    pub fn is_gone(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(
            &self.fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
    }
}

/// Waits until a file exists and ends with a newline.
pub fn until_written(path: &Path) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text,
            _ => assert!(
                Instant::now() < until,
                "{} was never written",
                path.display()
            ),
        }
        std::thread::yield_now();
    }
}

/// Whether `pid` is a process that has not ended.
pub fn lives(pid: i32) -> bool {
    Stat::of(pid).is_ok_and(|s| !s.is_dead())
}
