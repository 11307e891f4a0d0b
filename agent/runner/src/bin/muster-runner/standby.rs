//! `muster-standby`: a keeper or a runner that belongs to no generation yet.
//!
//! A launcher forks them ahead. Each executes this program at once and so gives the launcher's
//! memory back. It waits for one line, a JSON list with the command that it shall be, and executes
//! this binary again with it. The end of the socket without a line means that it is not needed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::sys;

/// The name under which a launcher executes this binary.
pub(crate) const PROGRAM: &str = "muster-standby";

/// The arguments are the launcher's directory, which is there for people to see; the number of the
/// socket; the nice value of what this process becomes; and further arguments for the command.
pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let number = |at: usize| args.get(at)?.to_str()?.parse::<i32>().ok();
    let (Some(socket), Some(nice)) = (number(1), number(2)) else {
        say!("{PROGRAM}: is run by launchers alone");
        return ExitCode::from(2);
    };
    sys::close_inherited(socket.unsigned_abs().max(2) + 1);
    let _ = rustix::thread::set_name(c"muster-standby");
    // It was forked with a low priority, so that workers lost no time.
    let _ = rustix::process::setpriority_process(None, nice);
    match become_commanded(socket, &args[3..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say!("{PROGRAM}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns only if there is no command, or if it cannot be executed.
fn become_commanded(socket: i32, further: &[OsString]) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(File::from(sys::inherited(socket))).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Ok(());
    }
    let words: Vec<String> = serde_json::from_str(&line)?;
    let (name, rest) = words.split_first().ok_or(std::io::ErrorKind::InvalidData)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(name).args(rest).args(further).env_clear();
    Err(command.exec())
}
