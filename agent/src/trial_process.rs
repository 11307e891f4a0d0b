//! The process of a trial, for who waits for it: `muster-agent prove` once more, below `muster-runner
//! ask`. So everything ends with the trial, when its time is over, or when nobody waits for it any
//! more.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_core::node::torchrun;
use muster_runner::place::{Output, Program};
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};

use crate::{host::RunnerHost, trials::Made};

/// How long a trial may take. It needs about 75 s of processor time; on two cores that twenty others
/// wanted, too, it took four minutes.
const TIME_MAX: Duration = Duration::from_secs(600);
/// What a trial may take of memory, as far as it can be seen from outside: pages that processes share
/// count for each. 3.3 GiB were seen.
pub(crate) const MEMORY_MAX: u64 = 8 << 30;
/// The begin of a folder's name, before the number of the upper process.
const NAME: &str = "trial-";
/// The argument that makes this the lower process.
const INNER: &str = "--below-a-runner";

/// The trial of one interpreter, for the agent: dropping the future ends it with all that it has
/// started. `env` is that of the job's launch.
pub(crate) async fn trial(
    host: &dyn RunnerHost,
    python: &Path,
    state_dir: &Path,
    runner: &Path,
    env: &BTreeMap<String, String>,
) -> Result<Made, String> {
    let folder = Folder::make(Some(state_dir))?;
    host.give(folder.path())
        .map_err(|e| format!("{}: {e}", folder.path().display()))?;
    let python = python.to_string_lossy();
    let program = lower(&python, folder.path(), runner, &torchrun::passed(env))?;
    let made = answer(&host.run(&program).await?)?;
    // Whatever the user's process says of that.
    let uid = host.account().map(|account| account.uid);
    Ok(Made { uid, ..made })
}

/// A folder for one trial, which goes with this value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// In the agent's state directory, or else in the one for temporary files.
    pub(crate) fn make(state_dir: Option<&Path>) -> Result<Self, String> {
        let own = std::process::id();
        let folder = match state_dir {
            Some(dir) => {
                clear(dir);
                dir.join(format!("{NAME}{own}"))
            }
            None => std::env::temp_dir().join(format!("muster-{NAME}{own}")),
        };
        let trouble = |e: std::io::Error| format!("{}: {e}", folder.display());
        // One that a process with the same number has left.
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(trouble(e)),
            _ => {}
        }
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(trouble)?;
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Removes the folders of trials whose upper process has ended before it could do so.
fn clear(state_dir: &Path) {
    for entry in fs::read_dir(state_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok());
        let is_gone = |pid| test_kill_process(pid) == Err(Errno::SRCH);
        if owner.is_some_and(|pid| Pid::from_raw(pid.cast_signed()).is_none_or(is_gone)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The lower process.
pub(crate) fn lower(
    python: &str,
    folder: &Path,
    runner: &Path,
    env: &BTreeMap<String, String>,
) -> Result<Program, String> {
    let own = std::env::current_exe().map_err(|e| format!("own program: {e}"))?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let args = [
        "prove",
        "--python",
        python,
        INNER,
        &text(folder),
        "--runner",
        &text(runner),
    ];
    Ok(Program {
        program: own,
        args: args.map(str::to_owned).to_vec(),
        env: env.clone(),
        dir: folder.to_owned(),
        timeout_ms: u64::try_from(TIME_MAX.as_millis()).unwrap_or(u64::MAX),
    })
}

pub(crate) fn answer(output: &Output) -> Result<Made, String> {
    serde_json::from_str(&output.stdout).map_err(|_| {
        let last = output.stderr.lines().last().unwrap_or("it said nothing");
        let words = last.strip_prefix("muster-agent prove: ").unwrap_or(last);
        format!("the suite could not be run: {words:.600}")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use muster_core::node_report::trial::Trial;

    use super::*;

    #[test]
    fn what_a_killed_process_has_left_goes_with_the_next_trial() {
        let state = tempfile::tempdir().unwrap();
        let (gone, lives) = (state.path().join("trial-0"), state.path().join("trial-1"));
        for folder in [&gone, &lives] {
            fs::create_dir(folder).unwrap();
        }
        let folder = Folder::make(Some(state.path())).unwrap();
        assert!(folder.path().is_dir() && lives.is_dir() && !gone.exists());
        let own = folder.path().to_owned();
        drop(folder);
        assert!(!own.exists());
    }

    #[test]
    fn what_the_lower_process_says_is_the_outcome_or_the_reason() {
        let output = |stdout: &str, stderr: &str| Output {
            stdout: stdout.into(),
            stderr: stderr.into(),
            code: Some(2),
        };
        let why = answer(&output(
            "",
            "warning\nmuster-agent prove: python9 not found in PATH",
        ));
        assert_eq!(
            why.unwrap_err(),
            "the suite could not be run: python9 not found in PATH"
        );
        let made = Made {
            trial: Trial::default(),
            files: vec![("/p".into(), Some(1))],
            uid: None,
        };
        let text = serde_json::to_string(&made).unwrap();
        assert_eq!(answer(&output(&text, "")).unwrap(), made);
    }
}
