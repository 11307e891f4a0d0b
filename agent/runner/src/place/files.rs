//! Finds the files that a run needs.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use crate::env_file;

/// The files that a run needs. Paths are relative to `dir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The working directory.
    pub dir: PathBuf,
    /// Variables whose values are in files.
    pub env_files: BTreeMap<String, String>,
    /// The value of `PATH` in which programs are looked for.
    pub path: Option<String>,
    /// The program that starts the ranks, which is the one that [`find`] returns.
    pub program: String,
    /// What it is to run.
    pub script: Option<PathBuf>,
    /// The program that each rank is, if the ranks are not Python scripts.
    pub ranks: Option<String>,
}

/// Returns the path of the program that starts the ranks, or tells the user what is missing.
pub fn find(wanted: &Wanted) -> Result<PathBuf, String> {
    let dir = &wanted.dir;
    if !dir.is_dir() {
        return Err(format!("working directory {} not found", dir.display()));
    }
    for (name, file) in &wanted.env_files {
        env_file::value(Path::new(file)).map_err(|why| format!("env {name}: {file}: {why}"))?;
    }
    let find = |program: &str| program_at(program, dir, wanted.path.as_deref());
    let program = find(&wanted.program)?;
    if let Some(script) = &wanted.script {
        let script = dir.join(script);
        // A directory or an archive with a __main__ can be run as well.
        if fs::metadata(&script).is_err() {
            return Err(format!("script {} not found", script.display()));
        }
    }
    if let Some(ranks) = &wanted.ranks {
        find(ranks)?;
    }
    Ok(program)
}

/// When the file was written. None: it cannot be read.
pub fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file)
        .and_then(|metadata| metadata.modified())
        .ok()
}

/// Finds a program as the kernel and a shell would.
fn program_at(program: &str, dir: &Path, path: Option<&str>) -> Result<PathBuf, String> {
    if program.contains('/') {
        let at = dir.join(program);
        return match fs::metadata(&at) {
            Err(_) => Err(format!("{} not found", at.display())),
            Ok(found) if !is_program(&found) => Err(format!("{} is not executable", at.display())),
            Ok(_) => Ok(at),
        };
    }
    let path = path.unwrap_or_default();
    let found = path
        .split(':')
        .map(|part| dir.join(part).join(program))
        .find(|at| fs::metadata(at).is_ok_and(|m| is_program(&m)));
    found.ok_or_else(|| format!("{program} not found in PATH ({path})"))
}

fn is_program(found: &fs::Metadata) -> bool {
    found.is_file() && found.permissions().mode() & 0o111 != 0
}
