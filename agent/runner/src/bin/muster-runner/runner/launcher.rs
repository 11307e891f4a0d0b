//! The launcher that stays: one interpreter for all generations of a job on a node. The runners of
//! these generations are forked from it.
//!
//! A runner deals with it in one of two ways. If its `hold.json` says `launcher`, it starts the
//! launcher, forwards requests to it and returns its answers; it has no worker group. If it was
//! forked from the launcher, it has a copy of the launcher as its child, and starts its worker
//! group with that copy.

use std::collections::BTreeMap;
use std::io;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use muster_runner::procfs::{self, Stat};
use muster_runner::record;
use muster_runner::wire::{
    AdoptSpec, Exit, Lane, Order, ParkSpec, Refusal, RefusalKind, Reply, StandbySpec, StartSpec,
};

use super::{LAUNCHER, Runner};
use crate::group::{self, Launcher};
use crate::parked::{self, Ask, Parked};
use crate::poll::{Interest, Source};
use crate::{affinity, env_files, mpi, rank_env, time};

impl Runner {
    /// Starts the launcher that stays. The answer comes once it has imported torch.
    pub(super) fn park(&mut self, spec: &ParkSpec) -> Result<(), Refusal> {
        if !self.hold.launcher || self.group.stop.is_some() || self.group.launcher.is_some() {
            return Err(Refusal::new(
                RefusalKind::Conflict,
                "a launcher is there already, or none may start any more",
            ));
        }
        check(&spec.cwd, &spec.env)?;
        let flags: &[&str] = if spec.background {
            &["stay", "background"]
        } else {
            &["stay"]
        };
        self.spawn_parked(spec, flags)
            .map_err(|text| Refusal::new(RefusalKind::Spawn, text))?;
        let trouble =
            |e: io::Error| Refusal::new(RefusalKind::Spawn, format!("listen to the launcher: {e}"));
        let parked = self.group.parked.as_ref().expect("it was just started");
        parked.control().set_nonblocking(true).map_err(trouble)?;
        self.poll
            .add(parked.control(), Source::Launcher, Interest::Read)
            .map_err(trouble)
    }

    pub(super) fn spawn_parked(&mut self, spec: &ParkSpec, flags: &[&str]) -> Result<(), String> {
        let (parked, theirs) = Parked::prepare().map_err(|e| format!("{}: {e}", parked::FILE))?;
        let here = std::env::current_dir().map_err(|e| format!("own directory: {e}"))?;
        let mut command = Process::new(&spec.program);
        command
            .args(&spec.options)
            .arg("-u")
            .arg(here.join(parked::FILE))
            .arg(&here)
            .arg(theirs.as_raw_fd().to_string());
        command
            .args(flags)
            .env_clear()
            .envs(&spec.env)
            .current_dir(&spec.cwd);
        let cpus = spec
            .env
            .get(affinity::NAME)
            .and_then(|lists| affinity::of_all(lists, spec.ranks));
        self.group.launcher = Some(self.spawn(command, Some(theirs), cpus)?);
        self.group.parked = Some(parked);
        Ok(())
    }

    /// Tells the launcher to fork a runner for `dir`. The answer comes once that runner is ready.
    pub(super) fn fork(&mut self, dir: &Path) -> Result<(), Refusal> {
        let spawn = |text: String| Refusal::new(RefusalKind::Spawn, text);
        let own = std::env::current_exe().map_err(|e| spawn(format!("own program: {e}")))?;
        let texts = [own.as_path(), Path::new("hold"), Path::new("--dir"), dir];
        let mut runner = Vec::new();
        for text in texts {
            runner.push(
                text.to_str()
                    .ok_or_else(|| spawn(format!("{} is not UTF-8", text.display())))?
                    .to_owned(),
            );
        }
        runner.extend((!self.state.cgroups).then(|| "--no-cgroup".to_owned()));
        self.ask_launcher(&Ask::Fork {
            token: self.state.asked_next,
            dir,
            runner,
        })
    }

    /// Gives the launcher to a job. It belonged to none before.
    pub(super) fn adopt(&mut self, spec: &AdoptSpec) -> Result<(), Refusal> {
        check(&spec.cwd, &spec.env)?;
        self.ask_launcher(&Ask::Adopt {
            token: self.state.asked_next,
            cwd: &spec.cwd,
            env: &spec.env,
        })
    }

    pub(super) fn preload(&mut self) -> Result<(), Refusal> {
        self.ask_launcher(&Ask::Preload {
            token: self.state.asked_next,
        })
    }

    /// Tells the launcher which standbys to make for the next generation.
    pub(super) fn standbys(&mut self, mut spec: StandbySpec) -> Result<(), Refusal> {
        rank_env::complete(&mut spec.env);
        self.ask_launcher(&Ask::Standbys {
            token: self.state.asked_next,
            spec: &spec,
        })
    }

    fn ask_launcher(&mut self, ask: &Ask<'_>) -> Result<(), Refusal> {
        let parked = self.group.parked.as_ref().filter(|_| self.hold.launcher);
        let parked = parked.ok_or_else(|| Refusal::new(RefusalKind::Spawn, LAUNCHER_ENDED))?;
        parked
            .ask(ask)
            .map_err(|e| Refusal::new(RefusalKind::Spawn, format!("tell the launcher: {e}")))
    }

    /// Passes the launcher's answers on to the clients that asked.
    pub(super) fn hear_launcher(&mut self) {
        let Some(parked) = &mut self.group.parked else {
            return;
        };
        match parked.answers() {
            Ok(answers) => {
                for said in answers {
                    let Some((client, request)) = self.state.asked.remove(&said.token) else {
                        continue;
                    };
                    let reply = match said.error {
                        None => Reply::ok(request),
                        Some(text) => {
                            Reply::refused(Some(request), Refusal::new(RefusalKind::Spawn, text))
                        }
                    };
                    self.control.answer(client, &reply);
                }
            }
            Err(_) => {
                self.poll.remove(parked.control());
                self.group.parked = None;
                self.refuse_asked();
            }
        }
    }

    fn refuse_asked(&mut self) {
        for (client, request) in std::mem::take(&mut self.state.asked).into_values() {
            let refusal = Refusal::new(RefusalKind::Spawn, LAUNCHER_ENDED);
            self.control
                .answer(client, &Reply::refused(Some(request), refusal));
        }
    }

    /// Takes over the copy of the launcher that was forked together with this runner and is its
    /// child.
    pub(crate) fn take_launcher(
        &mut self,
        pid: i32,
        control: UnixStream,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> io::Result<()> {
        let stat = Stat::of(pid)?;
        if stat.ppid != std::process::id() as i32 {
            return Err(io::Error::other("it is no child of this process"));
        }
        if let Some(cgroup) = &self.cgroup {
            let mut entrance = cgroup.entrance()?;
            entrance.write_all(pid.to_string().as_bytes())?;
            // Its standbys were forked before. What it forks from now on is in the cgroup.
            for child in procfs::all()?.iter().filter(|stat| stat.ppid == pid) {
                // One that has ended since needs no cgroup.
                let _ = entrance.write_all(child.pid.to_string().as_bytes());
            }
        }
        let output = self.take_output(LAUNCHER, record::LAUNCHER_LOG, stdout, stderr)?;
        let process = group::Process {
            pid,
            start_time: stat.start_time,
            started_us: time::boot_us(),
            end: None,
        };
        self.group.launcher = Some(Launcher { process, output });
        self.group.parked = Some(Parked::from(control));
        Ok(())
    }

    /// Gives the order of a start to the waiting launcher, or to a new one that imports torch
    /// first.
    pub(super) fn begin_with_launcher(
        &mut self,
        spec: &StartSpec,
        order: &Order,
    ) -> Result<(), String> {
        let here = std::env::current_dir().map_err(|e| format!("own directory: {e}"))?;
        if spec.restartable || !spec.members.is_empty() {
            // Their ranks are not forked.
            self.dismiss_launcher();
        }
        if !spec.members.is_empty() {
            return self.start_members(spec, order, &here);
        }
        let envs: Vec<BTreeMap<String, String>> = match order.lane {
            Lane::Parked => vec![spec.env.clone()],
            Lane::Direct if spec.mpi.is_some() => {
                vec![mpi::environment(&spec.env); spec.ranks as usize]
            }
            Lane::Fork | Lane::Direct => {
                rank_env::make_error_folders(spec.ranks)
                    .map_err(|e| format!("folders for errors: {e}"))?;
                self.rank_envs(spec, order, &here)
            }
        };
        // Reaping notices a launcher that has just ended, and another one replaces it.
        self.reap(time::boot());
        if self.group.parked.is_none() {
            if order.lane == Lane::Direct {
                return self.start_ranks(spec, order, envs, &here);
            }
            let (program, options, env, cwd) = (
                spec.program.clone(),
                order.options.clone(),
                spec.env.clone(),
                PathBuf::from(&spec.cwd),
            );
            self.spawn_parked(
                &ParkSpec {
                    program,
                    options,
                    env,
                    cwd,
                    background: false,
                    ranks: spec.ranks,
                },
                &[],
            )?;
        }
        let parked = self
            .group
            .parked
            .take()
            .ok_or("the launcher ended at once")?;
        if let Some(launcher) = &mut self.group.launcher {
            launcher.process.started_us = time::boot_us();
        }
        parked
            .order(order, spec, &envs)
            .map_err(|e| format!("tell the launcher: {e}"))
    }

    /// Forgets a launcher that ended before its order came. The start brings up another.
    pub(super) fn forget_parked(&mut self, exit: Exit, now: Duration) {
        say!("{} the launcher has ended: {exit:?}", time::stamp());
        if let Some(parked) = self.group.parked.take() {
            self.poll.remove(parked.control());
        }
        self.close_launcher(now);
        self.refuse_asked();
    }

    /// Lets go of the copy of the launcher that was forked with this runner and is not needed. It
    /// ends when its control socket closes.
    pub(super) fn dismiss_launcher(&mut self) {
        if self.group.parked.take().is_some() {
            self.close_launcher(time::boot());
        }
    }

    pub(super) fn close_launcher(&mut self, now: Duration) {
        if let Some(mut launcher) = self.group.launcher.take() {
            let ended = launcher.output.drain(
                &mut self.state.buffer,
                &mut self.search,
                now,
                &time::stamp(),
            );
            ended.iter().for_each(|fd| self.poll.remove(fd));
            launcher
                .output
                .open()
                .for_each(|(_, fd)| self.poll.remove(fd));
            launcher.output.close(&time::stamp());
        }
    }

    /// Starts the ranks in another way if the launcher has failed by itself, which means before any
    /// rank said hello. This is no failure of the job. The ranks are executed, or torchrun if the
    /// order does not say what a rank executes. True: something was started.
    pub(super) fn fall_back(&mut self, exit: Exit, now: Duration) -> bool {
        let Some(spec) = self.group.spec.clone() else {
            return false;
        };
        let Some(order) = spec.order.clone().filter(|order| order.lane == Lane::Fork) else {
            return false;
        };
        if exit.success()
            || self.group.fell_back
            || !self.group.ranks.is_empty()
            || self.group.stop.is_some()
        {
            return false;
        }
        let torchrun = order.command.is_empty();
        let instead = if torchrun {
            "torchrun is"
        } else {
            "the ranks are"
        };
        say!(
            "{} the launcher has failed ({exit:?}), so {instead} executed",
            time::stamp()
        );
        self.close_launcher(now);
        self.group.parked = None;
        let started = env_files::with_values(&spec)
            .map_err(|e| e.to_string())
            .and_then(|spec| match torchrun {
                true => self.execute(&spec),
                false => self.execute_ranks(&spec, &order),
            });
        match started {
            Ok(()) => {
                self.group.fell_back = true;
                self.state.urgent = true;
                true
            }
            Err(text) => {
                say!("{} they cannot be executed: {text}", time::stamp());
                false
            }
        }
    }

    fn execute_ranks(&mut self, spec: &StartSpec, order: &Order) -> Result<(), String> {
        let here = std::env::current_dir().map_err(|e| format!("own directory: {e}"))?;
        let envs = self.rank_envs(spec, order, &here);
        self.start_ranks(spec, order, envs, &here)
    }

    /// The complete environment of each rank.
    fn rank_envs(
        &self,
        spec: &StartSpec,
        order: &Order,
        here: &Path,
    ) -> Vec<BTreeMap<String, String>> {
        let env = |local| {
            let place = rank_env::Place::alone(spec, &self.hold, local);
            rank_env::of(&spec.env, &self.hold, order, &place, here)
        };
        (0..spec.ranks).map(env).collect()
    }
}

fn check(cwd: &Path, env: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if !cwd.is_absolute() || env.keys().any(|n| n.is_empty() || n.contains(['=', '\0'])) {
        return Err(Refusal::new(
            RefusalKind::Invalid,
            "cwd is not absolute, or a variable has no proper name",
        ));
    }
    Ok(())
}

const LAUNCHER_ENDED: &str = "the launcher has ended: its launcher.log says why";
