//! What each command of the control socket does.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use muster_runner::procfs::Stat;
use muster_runner::record;
use muster_runner::wire::{
    Command, Lane, MAX_RANKS, MemberSpec, Order, Refusal, RefusalKind, Refused, Reply, StartSpec,
};
use rustix::pipe::PipeFlags;
use rustix::thread::CpuSet;

use super::{LAUNCHER, Runner};
use crate::attend::RankOrder;
use crate::group::{self, Launcher};
use crate::sys::{self, Child};
use crate::{attend, env_files, fence, mpi, rank_env, time};

/// A grace of more than a month is a typing error.
const MAX_GRACE_MS: u64 = 31 * 24 * 3_600 * 1_000;

impl Runner {
    /// Answers all whole requests that a client has sent.
    pub(super) fn answer_client(&mut self, id: u32, now: Duration) {
        while let Some(request) = self.control.next_request(id) {
            let reply = match request {
                Err(Refused {
                    id: request,
                    close,
                    error,
                }) => {
                    if close {
                        self.control.close(id);
                    }
                    Reply::refused(request, error)
                }
                Ok(request) => match self.obey(id, request.id, request.command, now) {
                    Ok(Answer::Ok) => Reply::ok(request.id),
                    Ok(Answer::Status) => Reply::status(Some(request.id), self.status(now)),
                    Ok(Answer::OfLauncher) => {
                        self.state
                            .asked
                            .insert(self.state.asked_next, (id, request.id));
                        self.state.asked_next += 1;
                        continue;
                    }
                    Ok(Answer::Later) => continue,
                    Err(refusal) => Reply::refused(Some(request.id), refusal),
                },
            };
            self.control.answer(id, &reply);
        }
    }

    fn obey(
        &mut self,
        client: u32,
        request: u64,
        command: Command,
        now: Duration,
    ) -> Result<Answer, Refusal> {
        match command {
            Command::Park(spec) => {
                self.park(&spec)?;
                return Ok(Answer::OfLauncher);
            }
            Command::Adopt(spec) => {
                self.adopt(&spec)?;
                return Ok(Answer::OfLauncher);
            }
            Command::Fork { dir } => {
                self.fork(&dir)?;
                return Ok(Answer::OfLauncher);
            }
            Command::Preload => {
                self.preload()?;
                return Ok(Answer::OfLauncher);
            }
            Command::Standbys(spec) => {
                self.standbys(spec)?;
                return Ok(Answer::OfLauncher);
            }
            Command::Start(spec) => self.start(*spec, now)?,
            Command::Restart { rank, attempt } => self.restart(rank, attempt, now)?,
            Command::Stop { grace_ms, reason } => {
                if grace_ms > MAX_GRACE_MS {
                    let text = format!("grace_ms: {grace_ms} is above {MAX_GRACE_MS}");
                    return Err(Refusal::new(RefusalKind::Invalid, text));
                }
                let reason: String = reason.chars().take(1_000).collect();
                self.stop(now, Duration::from_millis(grace_ms), &reason);
            }
            Command::Stacks { ranks } => {
                self.ask_stacks(&ranks, (client, request), now)?;
                return Ok(Answer::Later);
            }
            Command::Signal { rank, signal } => self.signal_rank(rank, signal)?,
            Command::Renew { heard_us } => self.fence.renew(Duration::from_micros(heard_us), now),
            Command::Status => return Ok(Answer::Status),
            Command::Subscribe => self.control.subscribe(client),
            Command::StoreSet { key, value } => self.tcp_store()?.set(&key, &value),
            Command::CompleteExitBarrier { node_rank } => {
                let nnodes = self.hold.nnodes;
                self.tcp_store()?.complete_exit_barrier(node_rank, nnodes)?;
            }
            Command::Release => {
                if self.group.dead.is_none() {
                    return Err(Refusal::new(
                        RefusalKind::NotDead,
                        "the worker group is not dead: stop it first",
                    ));
                }
                self.state.released = true;
            }
        }
        Ok(Answer::Ok)
    }

    fn tcp_store(&mut self) -> Result<&mut crate::served::Served, Refusal> {
        self.served
            .as_mut()
            .ok_or_else(|| Refusal::new(RefusalKind::NoStore, "this runner serves no TCPStore"))
    }

    fn start(&mut self, spec: StartSpec, now: Duration) -> Result<(), Refusal> {
        if self.group.stop.is_some() || self.group.dead.is_some() {
            return Err(Refusal::new(
                RefusalKind::Stopped,
                "this worker group was stopped and never starts again",
            ));
        }
        match &self.group.spec {
            Some(started) if *started == spec => return Ok(()),
            Some(_) => {
                let text = "this worker group was started with other content";
                return Err(Refusal::new(RefusalKind::Conflict, text));
            }
            None => {}
        }
        check(&spec, self.hold.world_size)
            .map_err(|text| Refusal::new(RefusalKind::Invalid, text))?;
        // Before the fence is looked at: a file may be slow.
        let whole =
            env_files::with_values(&spec).map_err(|text| Refusal::new(RefusalKind::Spawn, text))?;
        let now = time::boot().max(now);
        if self.mind_fence(now).is_none() && self.fence.closed {
            return Err(Refusal::new(RefusalKind::Stopped, fence::CLOSED));
        }
        self.begin(&whole)
            .map_err(|text| Refusal::new(RefusalKind::Spawn, text))?;
        self.group.spec = Some(spec);
        self.state.urgent = true;
        // The launcher may have ended before this runner had noted its pid.
        self.state.children_changed = true;
        let _ = now;
        Ok(())
    }

    /// Starts the launcher, or gives the parked one its order.
    fn begin(&mut self, spec: &StartSpec) -> Result<(), String> {
        let Some(order) = &spec.order else {
            self.dismiss_launcher();
            return self.execute(spec);
        };
        self.begin_with_launcher(spec, order)
    }

    /// Executes the launch itself, which is torchrun.
    pub(super) fn execute(&mut self, spec: &StartSpec) -> Result<(), String> {
        let mut command = Process::new(&spec.program);
        command
            .args(&spec.args)
            .env_clear()
            .envs(&spec.env)
            .current_dir(&spec.cwd);
        self.group.launcher = Some(self.spawn(command, None, None)?);
        Ok(())
    }

    /// Starts the ranks of one member without torchrun and without a launcher.
    pub(super) fn start_ranks(
        &mut self,
        spec: &StartSpec,
        order: &Order,
        envs: Vec<BTreeMap<String, String>>,
        here: &Path,
    ) -> Result<(), String> {
        let command = match &spec.mpi {
            None => order.command.clone(),
            Some(part) => mpi::prepare(part, &order.command, here)
                .map_err(|e| format!("files for MPI: {e}"))?,
        };
        let rank = |(local, env): (u32, BTreeMap<String, String>)| RankOrder {
            rank: spec.first_rank + local,
            local,
            command: command.clone(),
            cwd: spec.cwd.clone(),
            env,
            restartable: spec.restartable,
        };
        let ranks = (0..).zip(envs).map(rank).collect();
        self.start_all(spec, ranks, here)
    }

    /// Starts the ranks of all members on this node.
    pub(super) fn start_members(
        &mut self,
        spec: &StartSpec,
        order: &Order,
        here: &Path,
    ) -> Result<(), String> {
        rank_env::make_error_folders(spec.ranks).map_err(|e| format!("folders for errors: {e}"))?;
        let mut ranks = Vec::new();
        for member in &spec.members {
            for local in 0..member.ranks {
                let place = rank_env::Place {
                    rank: member.first_rank + local,
                    local,
                    of: member.ranks,
                    group: member.number,
                    on_node: ranks.len() as u32,
                };
                let env = rank_env::of(&member.env, &self.hold, order, &place, here);
                ranks.push(RankOrder {
                    rank: place.rank,
                    local,
                    command: member.command.clone(),
                    cwd: member.cwd.clone(),
                    env,
                    restartable: member.restartable,
                });
            }
        }
        self.start_all(spec, ranks, here)
    }

    fn start_all(
        &mut self,
        spec: &StartSpec,
        ranks: Vec<RankOrder>,
        here: &Path,
    ) -> Result<(), String> {
        let orders = attend::Orders { ranks };
        let orders =
            attend::orders_file(&orders).map_err(|e| format!("orders for the ranks: {e}"))?;
        let mut command = Process::new(here.join(attend::NAME));
        command
            .arg("start")
            .arg(orders.as_raw_fd().to_string())
            .env_clear()
            .envs(&spec.env);
        self.group.launcher = Some(self.spawn(command, Some(orders), None)?);
        Ok(())
    }

    pub(super) fn spawn(
        &mut self,
        mut command: Process,
        keep: Option<OwnedFd>,
        cpus: Option<CpuSet>,
    ) -> Result<Launcher, String> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| format!("pipe: {e}"));
        let ((out_read, out_write), (err_read, err_write)) = (pipe()?, pipe()?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::from(out_write))
            .stderr(Stdio::from(err_write));
        let cgroup = match &self.cgroup {
            Some(cgroup) => Some(
                cgroup
                    .entrance()
                    .map_err(|e| format!("{}: {e}", cgroup.path.display()))?,
            ),
            None => None,
        };
        let output = self
            .take_output(LAUNCHER, record::LAUNCHER_LOG, out_read, err_read)
            .map_err(|e| format!("{}: {e}", record::LAUNCHER_LOG))?;
        let started_us = time::boot_us();
        let pid = sys::spawn(
            &mut command,
            Child {
                cgroup,
                session: true,
                keep,
                cpus,
            },
        )
        .map_err(|e| {
            format!(
                "start {:?} in {:?}: {e}",
                command.get_program(),
                command.get_current_dir().unwrap_or(Path::new("."))
            )
        })?
        .as_raw_nonzero()
        .get();
        let start_time = Stat::of(pid).map_or(0, |s| s.start_time);
        Ok(Launcher {
            process: group::Process {
                pid,
                start_time,
                started_us,
                end: None,
            },
            output,
        })
    }
}

enum Answer {
    Ok,
    Status,
    /// The answer comes once the launcher has answered.
    OfLauncher,
    /// The answer comes once the ranks have answered, or had the time to.
    Later,
}

fn check(spec: &StartSpec, world_size: u32) -> Result<(), String> {
    if spec.program.is_empty() {
        return Err("program: is empty".into());
    }
    if spec.ranks > MAX_RANKS {
        return Err(format!("ranks: {} is above {MAX_RANKS}", spec.ranks));
    }
    match spec.first_rank.checked_add(spec.ranks) {
        Some(end) if end <= world_size => {}
        _ => {
            let StartSpec {
                first_rank, ranks, ..
            } = spec;
            return Err(format!(
                "first_rank: {first_rank} and {ranks} ranks do not fit a world of {world_size}"
            ));
        }
    }
    let direct = |order: &Order| order.lane == Lane::Direct;
    let is_direct = spec.order.as_ref().is_some_and(direct);
    if spec.mpi.is_some() && !is_direct {
        return Err("mpi: is only started in the direct lane".into());
    }
    if !spec.members.is_empty() && (!is_direct || spec.mpi.is_some()) {
        return Err("members: are only started in the direct lane, and not of MPI".into());
    }
    check_members(spec, world_size)?;
    check_restartable(spec, is_direct)?;
    check_process(&spec.cwd, &spec.env, &spec.env_files)?;
    for member in &spec.members {
        check_process(&member.cwd, &member.env, &member.env_files)?;
    }
    let members = spec.members.iter().flat_map(|member| &member.command);
    let mut strings = spec.args.iter().chain([&spec.program]).chain(members);
    if strings.any(|s| s.contains('\0')) {
        return Err("args: a NUL byte cannot be passed to a program".into());
    }
    Ok(())
}

/// Whether the members have the ranks of this node, each rank once.
fn check_members(spec: &StartSpec, world_size: u32) -> Result<(), String> {
    let mut free = spec.first_rank;
    for member in &spec.members {
        let end = member.first_rank.checked_add(member.ranks);
        match end.filter(|end| member.first_rank >= free && *end <= world_size) {
            Some(end) => free = end,
            None => {
                return Err(format!(
                    "members: {} has a rank that is not free below {world_size}",
                    member.number
                ));
            }
        }
        if member.command.is_empty() {
            return Err(format!("members: {} has nothing to run", member.number));
        }
    }
    let ranks: u32 = spec.members.iter().map(|member| member.ranks).sum();
    match spec.members.is_empty() || ranks == spec.ranks {
        true => Ok(()),
        false => Err(format!("members: have {ranks} ranks, not {}", spec.ranks)),
    }
}

/// Whether each member that says so can have its rank started again alone.
fn check_restartable(spec: &StartSpec, is_direct: bool) -> Result<(), String> {
    if spec.restartable && !spec.members.is_empty() {
        return Err("restartable: of several members, each says it for itself".into());
    }
    if spec.restartable && (!is_direct || spec.mpi.is_some()) {
        return Err("restartable: is only possible in the direct lane, and not for MPI".into());
    }
    let one = "restartable: a member must have one rank, and";
    if spec.restartable && spec.ranks != 1 {
        return Err(format!("{one} this one has {}", spec.ranks));
    }
    match spec.members.iter().find(|m| m.restartable && m.ranks != 1) {
        None => Ok(()),
        Some(MemberSpec { number, ranks, .. }) => Err(format!("{one} member {number} has {ranks}")),
    }
}

fn check_process(
    cwd: &Path,
    env: &BTreeMap<String, String>,
    env_files: &BTreeMap<String, String>,
) -> Result<(), String> {
    if !cwd.is_absolute() {
        return Err(format!("cwd: {cwd:?} is not an absolute path"));
    }
    if let Some(name) = env
        .keys()
        .chain(env_files.keys())
        .find(|n| n.is_empty() || n.contains(['=', '\0']))
    {
        return Err(format!("env: {name:?} cannot be a variable's name"));
    }
    if env.values().any(|value| value.contains('\0')) {
        return Err("env: a NUL byte cannot be passed to a program".into());
    }
    Ok(())
}
