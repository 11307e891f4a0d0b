//! Names what is missing where a program cannot be started. The kernel says "No such file or directory"
//! of a script that is there, if the interpreter of its first line is not.

use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

/// The error of a start, with what is missing.
pub(crate) fn named(command: &Command, error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOENT) {
        return error;
    }
    let folder = command.get_current_dir().unwrap_or(Path::new("."));
    let program = Path::new(command.get_program());
    let names_a_file = program.components().count() > 1;
    let what = match interpreter_of(&folder.join(program)) {
        _ if !folder.is_dir() => format!("the working directory {} is not there", folder.display()),
        _ if !names_a_file => "command not found on PATH".to_owned(),
        Some(interpreter) => format!("its interpreter {interpreter} is not there"),
        None => return error,
    };
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The interpreter that the first line of a script names.
fn interpreter_of(program: &Path) -> Option<String> {
    // The kernel reads 256 bytes (BINPRM_BUF_SIZE).
    let mut first = Vec::new();
    let file = muster_runner::folder::open_named(program).ok()?;
    file.take(256).read_to_end(&mut first).ok()?;
    let line = first.split(|byte| *byte == b'\n').next()?;
    let words = String::from_utf8_lossy(line.strip_prefix(b"#!")?).into_owned();
    let name = words.trim_matches([' ', '\t']).split([' ', '\t']).next()?;
    // A file from Windows has a carriage return there, which the kernel takes for a part of the name.
    Some(name.escape_debug().to_string())
}
