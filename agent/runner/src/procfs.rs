//! The few facts about processes that only `/proc` has.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The fields of `/proc/PID/stat` that are needed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    /// The state of its first thread. See [`Stat::is_dead`].
    pub state: u8,
    pub ppid: i32,
    pub session: i32,
    pub threads: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
}

impl Stat {
    pub fn of(pid: i32) -> io::Result<Stat> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat"))?).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat: not understood"),
            )
        })
    }

    /// Dead and not yet reaped. If only the first thread has ended, the other threads still work,
    /// or still hold what the process had.
    pub fn is_dead(&self) -> bool {
        self.state == b'Z' && self.threads <= 1
    }

    /// Parses a line of `stat`. The command's name stands in parentheses and may hold any
    /// character, so fields are counted from the last `)`.
    fn parse(text: &[u8]) -> Option<Stat> {
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let pid = std::str::from_utf8(&text[..open])
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let mut fields = std::str::from_utf8(&text[close + 1..])
            .ok()?
            .split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let ppid = fields.next()?.parse().ok()?;
        // proc(5): state is field 3, ppid 4, session 6, num_threads 20, starttime 22.
        let session = fields.nth(6 - 5)?.parse().ok()?;
        let threads = fields.nth(20 - 7)?.parse().ok()?;
        let start_time = fields.nth(22 - 21)?.parse().ok()?;
        Some(Stat {
            pid,
            state,
            ppid,
            session,
            threads,
            start_time,
        })
    }
}

/// What a process does with signals: one bit for each, that of signal N at N - 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dispositions {
    pub ignored: u64,
    pub caught: u64,
    /// It is about to run, or runs: what it does with signals may change at any moment.
    pub runs: bool,
}

impl Dispositions {
    /// `None`: the process has ended.
    pub fn of(pid: i32) -> Option<Dispositions> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    pub fn ignores(&self, signal: Signal) -> bool {
        self.ignored & bit(signal) != 0
    }

    pub fn catches(&self, signal: Signal) -> bool {
        self.caught & bit(signal) != 0
    }

    fn parse(status: &str) -> Option<Dispositions> {
        let mask = |name: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(line.trim(), 16).ok()
        };
        Some(Dispositions {
            ignored: mask("SigIgn:")?,
            caught: mask("SigCgt:")?,
            runs: status.contains("\nState:\tR"),
        })
    }
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// All processes of this PID namespace that this user may see.
///
/// # Errors
/// One of them cannot be read, so the list would be incomplete.
pub fn all() -> io::Result<Vec<Stat>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        match Stat::of(pid) {
            Ok(stat) => found.push(stat),
            Err(e) if is_gone(&e) => {}
            // A /proc that is mounted with hidepid=1 lists the processes of other users and hides
            // their content.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// The processor time that all threads of a process have used. `None`: it has ended.
pub fn cpu_time(pid: i32) -> Option<Duration> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Some(of_ticks(cpu_ticks(&text, 2)?))
}

fn of_ticks(ticks: u64) -> Duration {
    let a_second = rustix::param::clock_ticks_per_second();
    Duration::from_micros(ticks.saturating_mul(1_000_000) / a_second.max(1))
}

/// The sum of the first so many of: utime, stime, and both of the children that it has reaped. proc(5): they are
/// fields 14 to 17; the first field behind the name is 3.
fn cpu_ticks(text: &[u8], fields: usize) -> Option<u64> {
    let close = text.iter().rposition(|b| *b == b')')?;
    let text = std::str::from_utf8(&text[close + 1..]).ok()?;
    let all = text.split_ascii_whitespace().skip(14 - 3).take(fields);
    let ticks: Vec<u64> = all.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    (ticks.len() == fields).then(|| {
        ticks
            .iter()
            .fold(0_u64, |sum, ticks| sum.saturating_add(*ticks))
    })
}

/// What a process has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processor time, with that of the children that it has reaped.
    pub cpu: Duration,
    /// Bytes that it has written, to files or anything else by write(2). It counts a page of a file when the
    /// page is changed, so one long call is seen while it lasts.
    pub written: u64,
    /// The same of reading.
    pub read: u64,
}

impl Counters {
    /// `None`: it has ended, or belongs to another user.
    pub fn of(pid: i32) -> Option<Counters> {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let field = |name: &str| {
            let mut lines = io.lines();
            let line = lines.find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let ticks = cpu_ticks(&stat, 4)?;
        Some(Counters {
            cpu: of_ticks(ticks),
            written: field("wchar:")?.saturating_add(field("write_bytes:")?),
            read: field("rchar:")?.saturating_add(field("read_bytes:")?),
        })
    }
}

/// The kernel's function in which the first thread of a process waits. Empty: it waits in none, or this
/// user may not know.
pub fn wchan(pid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let name = text.trim();
    if name == "0" {
        String::new()
    } else {
        name.chars().take(64).collect()
    }
}

/// How many children the first thread of a process has.
pub fn children(pid: i32) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    text.unwrap_or_default().split_whitespace().count()
}

/// Whether this descriptor of a process is an open file of this name.
pub fn has_open(pid: i32, fd: u32, name: &str) -> bool {
    let file = fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    file.is_ok_and(|file| file.file_name().is_some_and(|own| own == name))
}

/// Whether reading a process's file failed because the process has ended, before or after the file
/// was opened.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The environment that a process got when it started. It is empty for a zombie, and for a process
/// that got none.
///
/// # Errors
/// The process has ended, or belongs to another user.
pub fn environment(pid: i32) -> io::Result<Vec<u8>> {
    let first = fs::read(format!("/proc/{pid}/environ"));
    if first.as_ref().is_ok_and(|text| !text.is_empty()) {
        return first;
    }
    // The process's file shows its first thread, which may have ended while others run. The file is
    // then empty, or on newer kernels cannot be opened.
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end during this loop.
        let text = fs::read(entry?.path().join("environ")).unwrap_or_default();
        if !text.is_empty() {
            return Ok(text);
        }
    }
    first
}

/// Signals exactly this process, if it still lives.
pub fn send(stat: &Stat, signal: Signal) {
    let _ = self::signal(stat.pid, stat.start_time, signal);
}

/// Signals exactly this process. It opens the descriptor first and compares the start time
/// afterwards, so that a process that has reused the pid is left alone.
///
/// # Errors
/// The process has ended, or belongs to another user.
pub fn signal(pid: i32, start_time: u64, signal: Signal) -> io::Result<()> {
    let gone = || io::Error::from(rustix::io::Errno::SRCH);
    let fd = pidfd_open(Pid::from_raw(pid).ok_or_else(gone)?, PidfdFlags::empty())?;
    if Stat::of(pid)?.start_time != start_time {
        return Err(gone());
    }
    Ok(pidfd_send_signal(fd, signal)?)
}

/// The id of this boot. Pids and start times have no meaning across two boots.
pub fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    match text.trim() {
        "" => Err(io::ErrorKind::UnexpectedEof.into()),
        id => Ok(id.to_owned()),
    }
}

/// Whether [`boot_id`] is the kernel's own. Some container managers (systemd-nspawn, LXC) mount
/// another file over it at each start of a container. The kernel's uptime is not the age of such a
/// boot.
pub fn boot_id_is_kernels() -> bool {
    let device = |path: &str| fs::metadata(path).map(|file| file.dev());
    matches!((device("/proc/sys/kernel/random/boot_id"), device("/proc")), (Ok(id), Ok(proc)) if id == proc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_parentheses_and_spaces() {
        let text =
            b"42 (a) b ((c) S 7 42 40 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 98765 1000 200";
        assert_eq!(
            Stat::parse(text),
            Some(Stat {
                pid: 42,
                state: b'S',
                ppid: 7,
                session: 40,
                threads: 1,
                start_time: 98765
            })
        );
        assert_eq!(Stat::parse(b"42 (short) S"), None);
        assert_eq!(
            (cpu_ticks(text, 2), cpu_ticks(b"42 (short) S", 2)),
            (Some(3), None)
        );
    }

    #[test]
    fn a_process_is_dead_when_its_last_thread_is() {
        let stat = |state, threads| Stat {
            pid: 42,
            state,
            ppid: 7,
            session: 42,
            threads,
            start_time: 1,
        };
        assert!(stat(b'Z', 1).is_dead() && stat(b'Z', 0).is_dead());
        assert!(!stat(b'Z', 2).is_dead(), "only its first thread has ended");
        assert!(!stat(b'S', 1).is_dead());
    }

    #[test]
    fn dispositions_are_read_by_signal() {
        let text = "Name:\tsh\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000006\nSigCgt:\t0000000000004000\n";
        let found = Dispositions::parse(text).unwrap();
        assert!(found.ignores(Signal::INT) && found.ignores(Signal::QUIT));
        assert!(found.catches(Signal::TERM) && !found.ignores(Signal::TERM));
        assert_eq!(Dispositions::parse("Name:\tsh\n"), None);
        assert!(Dispositions::of(std::process::id() as i32).is_some());
    }

    #[test]
    fn what_a_process_writes_is_counted() {
        let me = std::process::id() as i32;
        let before = Counters::of(me).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &vec![1; 300_000]).unwrap();
        let after = Counters::of(me).unwrap();
        assert!(
            after.written >= before.written + 300_000,
            "{before:?} {after:?}"
        );
        assert!(after.cpu >= before.cpu && Counters::of(i32::MAX).is_none());
    }

    #[test]
    fn own_process_is_there() {
        let me = std::process::id() as i32;
        let stat = Stat::of(me).unwrap();
        assert_eq!(stat.ppid, std::os::unix::process::parent_id() as i32);
        assert!(
            all()
                .unwrap()
                .iter()
                .any(|s| s.pid == me && s.start_time == stat.start_time)
        );
    }
}
