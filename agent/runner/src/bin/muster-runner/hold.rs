//! How this process becomes a runner: it checks the directory, leaves the caller's session, sets
//! everything up, says "ready", then loops.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;

use muster_runner::identity::{Keeper, LOCK};
use muster_runner::procfs::Stat;
use muster_runner::wire::{Hold, StoreSpec};
use muster_runner::{Folder, RunnerIdentity, journal, record};
use muster_tcpstore::StoreError;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::pipe::PipeFlags;

use crate::control::Control;
use crate::fence::Fence;
use crate::group::Group;
use crate::inspect::Inspector;
use crate::poll::{Interest, Poll, Source};
use crate::ranks::Ranks;
use crate::register::Register;
use crate::runner::{LoopState, Runner};
use crate::search::Search;
use crate::served::Served;
use crate::sys::{self, Fork};
use crate::tree::{self, Cgroup};
use crate::{Options, attend, keeper, limits, shim, time, version};

const LOG: &str = "runner.log";

/// The runner writes a line to its own log per problem. At its start it empties a log that is
/// longer than this.
const LOG_BYTES: u64 = 1 << 20;

/// Exit status when the directory belongs, or belonged, to another runner.
const TAKEN: u8 = 3;

/// Why a runner could not begin.
pub(crate) struct Trouble {
    status: u8,
    pub(crate) text: String,
}

impl Trouble {
    fn new(text: String) -> Self {
        Self { status: 1, text }
    }
}

fn trouble(what: &str) -> impl Fn(io::Error) -> Trouble + '_ {
    move |e| Trouble::new(format!("{what}: {e}"))
}

/// Holds the worker group of a directory. In the background, the caller's process ends once the
/// runner can be talked to.
pub(crate) fn run(options: &Options) -> ExitCode {
    sys::close_inherited(options.launcher.map_or(3, |_| Forked::END));
    limits::raise();
    let dir = &options.dir;
    let outcome = match options.launcher {
        Some(pid) => Ok(after_fork(dir, options, Forked::take(pid))),
        None if options.foreground || std::process::id() == 1 => {
            set_up(dir, options.cgroup, None).map(|runner| finish(runner.run()))
        }
        None => in_background(dir, options.cgroup),
    };
    outcome.unwrap_or_else(|trouble| {
        say!("muster-runner: {}: {}", dir.display(), trouble.text);
        ExitCode::from(trouble.status)
    })
}

fn finish(ended: io::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say!("{} ended by trouble: {e}", time::stamp());
            ExitCode::FAILURE
        }
    }
}

/// The parent waits for one byte of status and a text. If it gets neither, the child has died.
fn in_background(dir: &Path, cgroup: bool) -> Result<ExitCode, Trouble> {
    let (read, write) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| trouble("pipe")(e.into()))?;
    match sys::fork().map_err(trouble("fork"))? {
        Fork::Parent => {
            drop(write);
            let mut told = Vec::new();
            File::from(read)
                .read_to_end(&mut told)
                .map_err(trouble("wait for the runner"))?;
            match told.split_first() {
                Some((0, _)) => Ok(ExitCode::SUCCESS),
                Some((status, text)) => Err(Trouble {
                    status: *status,
                    text: String::from_utf8_lossy(text).into_owned(),
                }),
                None => Err(Trouble::new("the runner ended before it was ready".into())),
            }
        }
        Fork::Child => {
            drop(read);
            let keeper = std::process::id() as i32;
            if is_launchers(dir) {
                // The runners that the launcher forks are for others to keep.
                tree::spare_chains();
            }
            let runner = detach(dir)
                .and_then(|()| keeper::fork().map_err(trouble("fork")))
                .and_then(|side| match side {
                    Fork::Parent => Ok(None),
                    Fork::Child => set_up(dir, cgroup, parent(keeper)).map(Some),
                });
            match runner.transpose() {
                None => {
                    // Only the runner says whether it is ready.
                    drop(write);
                    Ok(keeper::keep(dir))
                }
                Some(runner) => Ok(tell_and_run(runner, write)),
            }
        }
    }
}

/// Whether the runner of this directory holds a launcher and no worker group. A directory that cannot be read is refused later, in `set_up`.
fn is_launchers(dir: &Path) -> bool {
    record::json::<Hold>(dir, record::HOLD).is_ok_and(|hold| hold.is_some_and(|hold| hold.launcher))
}

/// What a launcher hands to the runner that it has forked.
struct Forked {
    launcher: i32,
    control: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// Tells the launcher about readiness as in [`in_background`].
    tell: OwnedFd,
}

impl Forked {
    /// The first descriptor that does not belong to it.
    const END: u32 = 7;

    /// Takes over the descriptors 3 to 6, in the order in which `launcher.py` lays them out.
    fn take(launcher: i32) -> Self {
        let [control, stdout, stderr, tell] = [3, 4, 5, 6].map(|fd| {
            let fd = sys::inherited(fd);
            let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
            fd
        });
        Self {
            launcher,
            control,
            stdout,
            stderr,
            tell,
        }
    }
}

/// Runs in a process that a launcher forked. The launcher does not wait for its end, and a copy of
/// the launcher is its child.
fn after_fork(dir: &Path, options: &Options, forked: Forked) -> ExitCode {
    let Forked {
        launcher,
        control,
        stdout,
        stderr,
        tell,
    } = forked;
    sys::allow_all_cpus();
    let ready = detach(dir)
        .and_then(|()| set_up(dir, options.cgroup, options.keeper.and_then(parent)))
        .map(|mut runner| {
            // The runner's record is on disk, so this runner stays. The copy ends when its control
            // socket closes, and a start brings up another launcher.
            if let Err(e) = runner.take_launcher(launcher, control.into(), stdout, stderr) {
                say!("{} launcher {launcher}: {e}", time::stamp());
            }
            runner
        });
    tell_and_run(ready, tell)
}

/// The keeper of a runner that a launcher has forked. The launcher has made this process a
/// subreaper before it forked the runner.
pub(crate) fn keep_forked(dir: &Path) -> ExitCode {
    sys::close_inherited(3);
    match detach(dir) {
        Ok(()) => keeper::keep(dir),
        Err(trouble) => {
            say!("{} the runner's keeper: {}", time::stamp(), trouble.text);
            ExitCode::FAILURE
        }
    }
}

/// Says whether the runner is ready: one byte of status, and a text if it is not.
fn tell_and_run(ready: Result<Runner, Trouble>, tell: OwnedFd) -> ExitCode {
    let mut tell = File::from(tell);
    match ready {
        Ok(runner) => {
            let _ = tell.write_all(&[0]);
            drop(tell);
            finish(runner.run())
        }
        Err(Trouble { status, text }) => {
            let _ = tell.write_all(&[&[status], text.as_bytes()].concat());
            ExitCode::from(status)
        }
    }
}

/// The keeper, as its runner knows it. `None` if the keeper is gone already: the new parent, such
/// as init, keeps nothing and may never end, so agents would wait for it for ever.
fn parent(keeper: i32) -> Option<Keeper> {
    let is_parent =
        || rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == keeper);
    let stat = Stat::of(keeper).ok()?;
    // Checked after the read: while the keeper is the parent, no other process can have its pid.
    is_parent().then_some(Keeper {
        pid: stat.pid,
        start_time: stat.start_time,
    })
}

/// Starts a session of its own without a terminal, and sends messages to the log in the directory.
fn detach(dir: &Path) -> Result<(), Trouble> {
    rustix::process::setsid().map_err(|e| trouble("setsid")(e.into()))?;
    let log = Folder::of_run(dir).and_then(|folder| folder.append(LOG));
    let log = log.map_err(trouble(LOG))?;
    if log.metadata().is_ok_and(|m| m.len() > LOG_BYTES) {
        log.set_len(0).map_err(trouble(LOG))?;
    }
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(trouble("/dev/null"))?;
    let onto = |e: rustix::io::Errno| trouble("standard streams")(e.into());
    rustix::stdio::dup2_stdin(&null).map_err(onto)?;
    rustix::stdio::dup2_stdout(&null).map_err(onto)?;
    rustix::stdio::dup2_stderr(&log).map_err(onto)
}

/// Sets up everything except the loop. From here on the current directory is `dir`, so that no path
/// is too long for a socket.
fn set_up(dir: &Path, cgroup: bool, keeper: Option<Keeper>) -> Result<Runner, Trouble> {
    std::env::set_current_dir(dir).map_err(trouble("enter the directory"))?;
    let here = Path::new(".");
    // The lock is held until this process ends in any way.
    let folder = Folder::trusted(here).map_err(trouble("enter the directory"))?;
    std::mem::forget(lock(&folder)?);
    if folder.has(record::RUNNER) {
        let text = "an earlier runner has left its record here; each worker group needs a directory of its own";
        return Err(Trouble {
            status: TAKEN,
            text: text.into(),
        });
    }
    let hold = read_hold()?;
    let search = Search::of(&hold).map_err(|e| Trouble::new(format!("{}: {e}", record::HOLD)))?;

    let signals = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
    let signals = sys::signal_fd(&signals).map_err(trouble("signals"))?;
    if hold.launcher {
        // They outlive this process.
        tree::spare_chains();
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| trouble("subreaper")(e.into()))?;

    let poll = Poll::new().map_err(trouble("epoll"))?;
    poll.add(&signals, Source::Signals, Interest::Read)
        .map_err(trouble("epoll"))?;
    let served = serve(&hold, &poll)?;
    let mut identity = RunnerIdentity::own(version()).map_err(trouble("own identity"))?;
    let cgroups = cgroup;
    let cgroup = (cgroup && !hold.launcher).then(|| {
        Cgroup::make(&format!(
            "muster-{}-g{}-{}",
            hold.job, hold.generation, identity.pid
        ))
    });
    let cgroup = cgroup.and_then(|made| {
        made.inspect_err(|e| say!("{} no cgroup of its own: {e}", time::stamp()))
            .ok()
    });
    identity.keeper = keeper;
    identity.store_port = served.as_ref().map(|s| s.addr().port());
    identity.cgroup = cgroup.as_ref().map(|c| c.path.clone());

    let logs = directory(record::LOGS).map_err(trouble(record::LOGS))?;
    let exits = { folder.append(record::EXITS) }
        .and_then(journal::Writer::new)
        .map_err(trouble(record::EXITS))?;
    link_programs().map_err(trouble("the links to its own program"))?;
    let ranks = Ranks::listen(&poll).map_err(trouble(muster_runner::socket::RANKS))?;
    let control = Control::listen(&poll).map_err(trouble(muster_runner::socket::CONTROL))?;
    let register = Register::begin(&identity.boot_id).map_err(trouble(record::DESCENDANTS))?;
    record::write_atomic(here, record::RUNNER, &identity).map_err(trouble(record::RUNNER))?;

    let group = Group::default();
    let state = LoopState::new(time::boot(), cgroups);
    let fence = Fence::default();
    Ok(Runner {
        hold,
        poll,
        signals,
        control,
        ranks,
        served,
        cgroup,
        logs,
        exits,
        search,
        group,
        fence,
        state,
        register,
        inspector: Inspector::default(),
    })
}

fn lock(folder: &Folder) -> Result<File, Trouble> {
    let file = folder.lock(LOCK).map_err(trouble(LOCK))?;
    match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Trouble {
            status: TAKEN,
            text: "another runner holds this directory".into(),
        }),
        Err(e) => Err(trouble(LOCK)(e.into())),
    }
}

fn read_hold() -> Result<Hold, Trouble> {
    let wrong = |e: &dyn std::fmt::Display| Trouble::new(format!("{}: {e}", record::HOLD));
    let folder = Folder::trusted(Path::new(".")).map_err(|e| wrong(&e))?;
    let text = { folder.read(record::HOLD, record::RECORD_MAX) }.map_err(|e| wrong(&e))?;
    let hold: Hold = record::parse(&text).map_err(|(_, what)| wrong(&what))?;
    hold.check().map_err(|e| wrong(&e))?;
    Ok(hold)
}

/// Binds the TCPStore that `hold` asks for.
pub(crate) fn serve(hold: &Hold, poll: &Poll) -> Result<Option<Served>, Trouble> {
    let Some(spec) = &hold.store else {
        return Ok(None);
    };
    let addr = spec
        .bind
        .parse()
        .expect("checked with the rest of hold.json");
    let served = bind(addr, spec, hold)?;
    poll.add(served.poll_fd(), Source::Store, Interest::Read)
        .map_err(trouble("TCPStore"))?;
    Ok(Some(served))
}

/// Binds the port that the spec names, or a free one of its range.
fn bind(addr: SocketAddr, spec: &StoreSpec, hold: &Hold) -> Result<Served, Trouble> {
    let served = |port| Served::bind(SocketAddr::new(addr.ip(), port), spec, hold);
    let trouble = |e: &StoreError| Trouble::new(format!("TCPStore: {}", chain(e)));
    let Some(ports) = spec.ports else {
        return served(addr.port()).map_err(|e| trouble(&e));
    };
    // Two jobs that begin at the same moment rarely try the same port.
    let chance = RandomState::new().build_hasher().finish();
    for port in ports.from_any(chance) {
        match served(port) {
            Err(e) if e.is_in_use() => {}
            other => return other.map_err(|e| trouble(&e)),
        }
    }
    Err(Trouble::new(format!(
        "TCPStore: every port of {ports} is in use on {}",
        addr.ip()
    )))
}

/// An error and all its sources in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// Makes and opens a directory, never through a link.
fn directory(name: &str) -> io::Result<OwnedFd> {
    match DirBuilder::new().mode(0o700).create(name) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(name, flags, rustix::fs::Mode::empty())?)
}

/// Links the names under which this binary is a shim and the attendant of all ranks. torchrun gets
/// the shim as its interpreter.
fn link_programs() -> io::Result<()> {
    let own = std::env::current_exe()?;
    for name in [shim::NAME, attend::NAME] {
        match fs::remove_file(name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::os::unix::fs::symlink(&own, name)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use muster_runner::wire::{Hold, VERSION};

    #[test]
    fn only_who_was_to_become_the_keeper_is_one() {
        let parent = rustix::process::getppid()
            .expect("a test has a parent")
            .as_raw_nonzero()
            .get();
        assert_eq!(super::parent(parent).map(|keeper| keeper.pid), Some(parent));
        // This process is not its own parent. The same is true when the keeper could not be
        // executed and the runner has another parent.
        assert_eq!(super::parent(std::process::id() as i32), None);
    }

    /// The `hold.json` of one rank on one node.
    pub(crate) fn hold() -> Hold {
        let text = format!(
            r#"{{"v":{VERSION},"job":"j","name":"n","namespace":"d","generation":1,"node":"a","node_rank":0,"nnodes":1,"world_size":1}}"#
        );
        serde_json::from_str(&text).expect("the other fields have defaults")
    }
}
