//! Reads the kernel log line by line on its own thread. `core::health::kernel_log` decides what a
//! line means.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::Duration,
};

use muster_core::health::kernel_log;
use tracing::{debug, info, warn};

use super::sense::Sense;

/// How long one wait for new lines blocks. The thread notices the agent's end within this time.
const WAIT: Duration = Duration::from_secs(2);
/// How often to look at a log that is an ordinary file (in a tree that only looks like a machine),
/// because such a file cannot be waited on.
const LOOK: Duration = Duration::from_millis(200);
/// A record has at most 8 KiB (kernel, `CONSOLE_EXT_LOG_MAX`).
const RECORD: usize = 8 << 10;

/// Starts to read at the log's end. What an earlier agent of this boot has seen is in its memory,
/// and older lines have no usable time. Returns whether the log is read at all. In a container it
/// usually does not exist.
pub(super) fn start(path: PathBuf, out: SyncSender<Sense>, over: Arc<AtomicBool>) -> bool {
    let log = match open(&path) {
        Ok(log) => log,
        Err(e) => {
            info!("the kernel log is not read: {}: {e}", path.display());
            return false;
        }
    };
    let read = move || {
        if let Err(e) = follow(log, &out, &over) {
            warn!(
                "the kernel log is not read any more: {}: {e}",
                path.display()
            );
        }
    };
    let started = thread::Builder::new().name("kernel-log".into()).spawn(read);
    started
        .inspect_err(|e| warn!("the kernel log is not read: no thread: {e}"))
        .is_ok()
}

fn open(path: &Path) -> io::Result<File> {
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

fn follow(mut log: File, out: &SyncSender<Sense>, over: &AtomicBool) -> io::Result<()> {
    let ordinary = log.metadata()?.is_file();
    let (mut buffer, mut rest) = (vec![0; RECORD], String::new());
    while !over.load(Ordering::Relaxed) {
        match log.read(&mut buffer) {
            Ok(0) => thread::sleep(LOOK),
            Ok(read) => {
                rest.push_str(&String::from_utf8_lossy(&buffer[..read]));
                while let Some(end) = rest.find('\n') {
                    let line: String = rest.drain(..=end).collect();
                    tell(&line, out);
                }
                // Text this long without an end is not a record.
                if rest.len() > RECORD {
                    rest.clear();
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !ordinary => wait(&log)?,
            // The kernel has overwritten records before they were read.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {
                debug!("kernel log: records were lost")
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn wait(log: &File) -> io::Result<()> {
    let mut polled = [rustix::event::PollFd::new(
        log,
        rustix::event::PollFlags::IN,
    )];
    let timeout = rustix::event::Timespec {
        tv_sec: WAIT.as_secs() as i64,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Reads `6,1234,5678901,-;text`. A line that begins with a space continues the previous record
/// with fields for programs.
fn tell(record: &str, out: &SyncSender<Sense>) {
    let Some((_, text)) = record.split_once(';').filter(|_| !record.starts_with(' ')) else {
        return;
    };
    if let Some(line) = kernel_log::read(text) {
        // The queue is full only in a storm, and enough is known about that.
        let _ = out.try_send(Sense::KernelLine(line));
    }
}
