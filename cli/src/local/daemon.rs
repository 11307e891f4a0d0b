//! One daemon of a local cluster. It is started so that it outlives this command and its terminal,
//! and the command waits until it serves.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    os::unix::{
        fs::{OpenOptionsExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use clap::Args;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::process::{Identity, MARK};
use crate::fail::Failure;

/// Name of the hidden command that starts a daemon.
pub(crate) const DETACH: &str = "__detach";

#[derive(Debug, Args)]
pub(crate) struct Detach {
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Leaves the terminal's session and executes the given program. The pid stays the same, so the
/// starter knows it.
pub(crate) fn detach(args: &Detach) -> Result<(), Failure> {
    rustix::process::setsid()
        .map_err(|error| Failure::request(format!("leave the session: {error}")))?;
    let (program, rest) = args
        .words
        .split_first()
        .ok_or_else(|| Failure::usage("which program?"))?;
    let error = Command::new(program).args(rest).exec();
    Err(Failure::request(format!("{}: {error}", program.display())))
}

/// The path of one of our programs: in `bin_dir`, else beside this one.
pub(crate) fn binary(bin_dir: Option<&Path>, name: &str) -> Result<PathBuf, Failure> {
    let dir = match bin_dir {
        Some(dir) => dir.to_owned(),
        None => {
            let own = env::current_exe()
                .map_err(|error| Failure::request(format!("own path: {error}")))?;
            own.parent().map(Path::to_owned).unwrap_or_default()
        }
    };
    let path = std::path::absolute(dir.join(name))
        .map_err(|error| Failure::request(format!("{name}: {error}")))?;
    if path.is_file() {
        Ok(path)
    } else {
        Err(Failure::request(format!(
            "{} is not there; build all of Muster, or give --bin-dir",
            path.display()
        )))
    }
}

/// A daemon that was started and has not served yet.
pub(crate) struct Starting {
    name: String,
    dir: PathBuf,
    child: Child,
    pub(crate) identity: Identity,
}

/// Starts a daemon with its working directory, log and ready file in `dir`.
pub(crate) fn spawn(
    name: &str,
    dir: &Path,
    program: &Path,
    args: &[OsString],
) -> Result<Starting, Failure> {
    let failed =
        |what: &str, error: std::io::Error| Failure::request(format!("{name}: {what}: {error}"));
    super::cluster::make_private(&dir.join("state"))
        .map_err(|error| failed("make its directory", error))?;
    // An earlier version may have made the directory.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
        .map_err(|error| failed("close its directory", error))?;
    match fs::remove_file(ready_file(dir)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed("remove its old ready file", error));
        }
        _ => {}
    }
    let log = || {
        File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(dir.join("log"))
    };
    let own = env::current_exe().map_err(|error| failed("own path", error))?;
    let child = Command::new(own)
        .arg(DETACH)
        .arg(program)
        .args(args)
        .current_dir(dir)
        .env(MARK, dir)
        .stdin(Stdio::null())
        .stdout(log().map_err(|error| failed("open its log", error))?)
        .stderr(log().map_err(|error| failed("open its log", error))?)
        .spawn()
        .map_err(|error| failed("start", error))?;
    // Our own child stays in /proc until we have waited for it.
    let identity = Identity::of(child.id().cast_signed())
        .map_err(|error| failed("read its start time", error))?;
    Ok(Starting {
        name: name.to_owned(),
        dir: dir.to_owned(),
        child,
        identity,
    })
}

pub(crate) fn ready_file(dir: &Path) -> PathBuf {
    dir.join("ready.json")
}

/// The file that a daemon writes once it serves.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// The coordinator's address. Empty: the daemon is an agent.
    #[serde(default)]
    pub(crate) endpoint: String,
    pid: i32,
}

/// The pause between two looks at the ready file. A daemon starts in tens of milliseconds.
const LOOK: Duration = Duration::from_millis(20);
/// How many lines of its log are shown if a daemon fails to start.
const LAST_WORDS: usize = 15;

impl Starting {
    /// Waits until the daemon serves, has ended, or the time is over.
    pub(crate) async fn ready(mut self, until: Instant) -> Result<Ready, Failure> {
        loop {
            // A rename puts the file there, so a readable file is complete.
            if let Ok(text) = fs::read(ready_file(&self.dir))
                && let Ok(ready) = serde_json::from_slice::<Ready>(&text)
                && ready.pid == self.identity.pid
            {
                return Ok(ready);
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Failure::request(format!(
                    "{} ended at once ({status}){}",
                    self.name,
                    self.last_words()
                )));
            }
            if Instant::now() >= until {
                return Err(Failure::Timeout(format!(
                    "{} does not get ready{}",
                    self.name,
                    self.last_words()
                )));
            }
            sleep(LOOK).await;
        }
    }

    fn last_words(&self) -> String {
        let path = self.dir.join("log");
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_WORDS)..]
            .iter()
            .map(|line| format!("\n  {line}"))
            .collect::<String>();
        if last.is_empty() {
            format!("; its log {} is empty", path.display())
        } else {
            format!("; the end of {}:{last}", path.display())
        }
    }
}
