//! The system calls that need `unsafe`: fork, the signal mask, signalfd, and what runs between fork
//! and exec.
//!
//! All programs in this binary have exactly one thread, which makes all of this sound.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{DumpableBehavior, Pid, Signal};
use rustix::thread::CpuSet;

use crate::{affinity, limits, missing};

/// Which side of [`fork`] this is.
pub(crate) enum Fork {
    Parent,
    Child,
}

/// Forks the calling process, which must have one thread.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: this process has one thread, so the child inherits no lock that nobody will release.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        _ => Ok(Fork::Parent),
    }
}

/// Closes every descriptor from `first` on that this process inherited, so that no worker inherits
/// it and no pipe of the caller stays open. It must be called before anything is opened. Kernels
/// before 5.9 lack the call and keep the descriptors.
pub(crate) fn close_inherited(first: u32) {
    // SAFETY: nothing in this process has opened or owns a descriptor from `first` on yet.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0u32) };
}

/// Blocks `signals` and returns a descriptor that reads as readable when one is pending.
pub(crate) fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: `set` is initialised; the old mask is not asked for.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `set` is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets all signals through again, in a child that has left the loop of its parent.
pub(crate) fn unblock_signals() -> io::Result<()> {
    let none = signal_set(&[]);
    // SAFETY: `none` is initialised; the old mask is not asked for.
    match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: all zeroes is a valid sigset_t, and the calls only write into it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        set
    }
}

/// The next pending signal of a [`signal_fd`]: its number, or none.
pub(crate) fn next_signal(fd: &OwnedFd) -> Option<i32> {
    // signalfd(2): a read gives whole 128-byte records; ssi_signo is the first word.
    let mut record = [0u8; 128];
    match rustix::io::read(fd, &mut record) {
        Ok(128) => Some(i32::from_ne_bytes([
            record[0], record[1], record[2], record[3],
        ])),
        _ => None,
    }
}

/// The process on the other side of a Unix socket.
pub(crate) struct Peer {
    /// 0 if the peer lives in another PID namespace, as the agent does beside a pod. rustix's call
    /// is not used because its pid cannot be 0.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

pub(crate) fn peer(socket: &impl AsRawFd) -> io::Result<Peer> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `peer`, which is plain data of that
    // size.
    let outcome = unsafe {
        let into = (&raw mut peer).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            into,
            &mut length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer {
        pid: peer.pid,
        uid: peer.uid,
    })
}

/// Lets this process run on every CPU that it may have. The launcher that forked it may have been
/// limited to some of them.
pub(crate) fn allow_all_cpus() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // The kernel leaves out the CPUs that the cpuset forbids. If the call fails, this process keeps
    // the launcher's CPUs.
    let _ = rustix::thread::sched_setaffinity(None, &all);
}

/// Takes over a descriptor that this process was started with, by its number. Each number may be
/// given once.
pub(crate) fn inherited(fd: i32) -> OwnedFd {
    // SAFETY: the parent left the descriptor open for this process alone, and the caller names each
    // number once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// What a child does before it becomes its program.
#[derive(Default)]
pub(crate) struct Child {
    /// The child enters this cgroup. The file is its open `cgroup.procs`.
    pub(crate) cgroup: Option<File>,
    /// The child leads its own session.
    pub(crate) session: bool,
    /// The child's program inherits this descriptor, under the same number.
    pub(crate) keep: Option<OwnedFd>,
    /// The child may use only these CPUs.
    pub(crate) cpus: Option<CpuSet>,
}

/// Starts `command`. The kernel kills it when the calling process ends. It begins with an empty
/// signal mask and with every signal at its default.
pub(crate) fn spawn(command: &mut Command, child: Child) -> io::Result<Pid> {
    let parent = rustix::process::getpid();
    let mut cgroup = child.cgroup;
    let nothing_blocked = signal_set(&[]);
    let before_exec = move || {
        if let Some(procs) = &mut cgroup {
            procs.write_all(b"0")?;
        }
        if child.session {
            rustix::process::setsid()?;
        }
        if let Some(fd) = &child.keep {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
        }
        if let Some(cpus) = &child.cpus
            && rustix::thread::sched_setaffinity(None, cpus).is_err()
        {
            let _ = rustix::io::write(rustix::stdio::stderr(), affinity::NOT_PINNED.as_bytes());
        }
        limits::restore()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // SAFETY: the set is initialised; the old mask is not asked for. Allowed between fork and
        // exec.
        if unsafe { libc::sigprocmask(libc::SIG_SETMASK, &nothing_blocked, std::ptr::null_mut()) }
            != 0
        {
            return Err(io::Error::last_os_error());
        }
        // The process that started the agent may have made it ignore signals (nohup, a shell's
        // background job). Workers must not inherit that.
        for signal in 1..=libc::SIGSYS {
            // SAFETY: sets a disposition of this process only; the two that cannot be set answer
            // with an error that means nothing.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // A parent that ended before the death signal was set sends none.
        if rustix::process::getppid() != Some(parent) && rustix::process::getppid().is_some() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor locks.
    unsafe { command.pre_exec(before_exec) };
    let child = command.spawn().map_err(|e| missing::named(command, e))?;
    Ok(Pid::from_raw(child.id() as i32).expect("a started child has a pid"))
}

/// The pid of a child that has ended, and whether it has failed. The child is not reaped: until it
/// is, no other process and no other group can have this pid.
pub(crate) fn ended_child() -> Option<(i32, bool)> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: all zeroes is a valid siginfo_t. The kernel fills it in for a child that has ended,
    // and leaves the pid 0 if there is none.
    let (pid, code, status) = unsafe {
        let mut told: libc::siginfo_t = std::mem::zeroed();
        if libc::waitid(libc::P_ALL, 0, &raw mut told, flags) != 0 {
            return None;
        }
        (told.si_pid(), told.si_code, told.si_status())
    };
    (pid != 0).then_some((pid, code != libc::CLD_EXITED || status != 0))
}

/// Ends this process by `signal`, as its child ended, and leaves no core dump.
pub(crate) fn end_by(signal: i32) -> ! {
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let set = signal_set(&[signal]);
    // SAFETY: default disposition, empty mask for this signal, then the signal itself; no memory is
    // touched.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
    // Signals that are ignored or that stop a process by default cannot have ended the child. For
    // those the shell's convention gives the exit code.
    std::process::exit(128 + signal)
}

/// The end of a process, as its pidfd tells it.
pub(crate) enum PidfdExit {
    /// The wait status.
    Known(i32),
    /// It is not reaped yet.
    NotReaped,
    /// This kernel does not tell: it is older than 6.15.
    Untold,
}

/// `struct pidfd_info` of Linux 6.15 (include/uapi/linux/pidfd.h), in its first size.
#[repr(C)]
#[derive(Default)]
struct PidfdEnd {
    mask: u64,
    cgroup: u64,
    /// Process, thread group and parent; then eight ids of users and groups.
    ids: [u32; 11],
    exit_code: i32,
}

/// Asks how the process of this pidfd has ended, also if another process has reaped it.
pub(crate) fn pidfd_exit(pidfd: &OwnedFd) -> PidfdExit {
    const GET_INFO: u64 = 3 << 30 | (size_of::<PidfdEnd>() as u64) << 16 | 0xff << 8 | 11;
    const EXIT: u64 = 1 << 3;
    let mut told = PidfdEnd {
        mask: EXIT,
        ..PidfdEnd::default()
    };
    // SAFETY: the kernel writes at most the 64 bytes that the request's number names, into plain data
    // of that size.
    let outcome = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut told) };
    match (outcome, told.mask & EXIT) {
        (0, EXIT) => PidfdExit::Known(told.exit_code),
        (0, _) => PidfdExit::NotReaped,
        _ => PidfdExit::Untold,
    }
}

/// Gives this process and its children a machine name of their own. Without the right to do so, it takes a user namespace in which it stays the same user.
pub(crate) fn take_own_name(name: &str) -> io::Result<()> {
    // SAFETY: this process has one thread, and shares nothing that a new namespace would take from
    // another one.
    if unsafe { libc::unshare(libc::CLONE_NEWUTS) } != 0 {
        // A policy may allow the namespace and refuse the mapping. This process would be nobody then, so
        // a child tries it first.
        // SAFETY: there is one thread, and the child only makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(user_namespace().is_err());
            // SAFETY: it ends this child and returns to nobody.
            unsafe { libc::_exit(code) };
        }
        let pid = rustix::process::Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?;
        let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
        let ended = ended.and_then(|(_, status)| status.exit_status());
        if ended != Some(0) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        user_namespace()?;
    }
    Ok(rustix::system::sethostname(name.as_bytes())?)
}

/// Lets this process and its children see `own` in place of the file at `path`, in mounts of their own.
pub(crate) fn own_file(own: &std::path::Path, path: &str) -> io::Result<()> {
    use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
    // SAFETY: as in `take_own_name`.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // What the machine mounts and unmounts later is still seen, and nothing of this is seen there.
    let below = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", below)?;
    Ok(mount_bind(own, path)?)
}

/// Moves this process into a user namespace in which it stays the same user, with a machine name of
/// its own.
fn user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: as in `take_own_name`.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWUTS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // user_namespaces(7): a user without rights may map itself, once setgroups is denied.
    let (user, group) = (user.as_raw(), group.as_raw());
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}
