//! `muster-agent prove`: runs the short half of the lanes' compatibility suite with one interpreter,
//! and says whether its ranks may be forked.
//!
//! Two processes do that. The upper one, which is this command or the agent itself, runs the lower one
//! ([`inner`]) as `trial_process` says. The lower one watches how much memory and how many processes
//! there are.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use muster_core::{node::torchrun, node_report::trial::Trial};
use muster_rpc::peer;
use muster_runner::place::{self, TreeUsage};
use muster_runtime::{tasks::Scope, version::version};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Flags},
    host::{LocalHost, RunnerHost},
    preflight::Preflight,
    trial_process::{Folder, MEMORY_MAX, answer, lower},
    trials::{Made, Trials},
};

mod bench;
mod short;

use bench::Bench;
use short::Short;

/// The most processes at a time. 22 were seen.
const PROCESSES_MAX: u32 = 128;
/// Time between looks at both.
const LOOK: Duration = Duration::from_millis(500);
/// Run the short half of the compatibility suite with an interpreter: may its ranks be forked?
///
/// Each of three scripts runs under plain torchrun and forked from a launcher, and what it sees and
/// leaves is compared. It takes about 75 s of processor time, at most 10 minutes and 8 GiB of memory, and
/// opens no GPU. With --state-dir the agent of that directory obeys the outcome: `launch: auto`
/// takes `fork` if nothing differs.
#[derive(Debug, Parser)]
#[command(name = "muster-agent prove", bin_name = "muster-agent prove", version = version(), max_term_width = 110, after_help = "\
Exit status: 0 nothing differs, 1 something differs, 2 the suite could not be run.

Examples:
  muster-agent prove --python /opt/venv/bin/python
  muster-agent prove --python /opt/venv/bin/python --state-dir /var/lib/muster/agent -o json")]
pub struct Prove {
    // The word `prove` itself.
    #[arg(hide = true, value_name = "prove")]
    word: String,
    /// The interpreter, as a job names it
    #[arg(long, value_name = "PYTHON", required_unless_present = "suite")]
    python: Option<String>,
    /// The state directory of the agent that shall obey the outcome; without it nothing is kept
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The runner's program; muster-runner beside this one if not given
    #[arg(long, env = "MUSTER_RUNNER", value_name = "PATH")]
    runner: Option<PathBuf>,
    /// Let the scripts of the suite run as root if this does
    #[arg(long, env = "MUSTER_ALLOW_ROOT_WORKERS")]
    allow_root_workers: bool,
    /// How the outcome is printed
    #[arg(short, long, value_name = "FORMAT", value_parser = ["text", "json"], default_value = "text")]
    output: String,
    /// Print the version of the suite and exit
    #[arg(long)]
    suite: bool,
    /// This is the lower process, with the folder for all that it makes
    #[arg(long = "below-a-runner", value_name = "DIR", hide = true)]
    inner: Option<PathBuf>,
}

impl Prove {
    pub fn run(self) -> ExitCode {
        if self.suite {
            println!("{}", muster_suite::version());
            return ExitCode::SUCCESS;
        }
        let python = self.python.clone().unwrap_or_default();
        let outcome = match &self.inner {
            Some(dir) => inner(&python, dir, self.runner.as_deref()),
            None => self.outer(&python),
        };
        match outcome {
            Ok(made) => self.say(&made),
            Err(why) => {
                eprintln!("muster-agent prove: {why}");
                ExitCode::from(2)
            }
        }
    }

    fn outer(&self, python: &str) -> Result<Made, String> {
        let flags = ["--state-dir".into(), "/".to_owned()];
        let flags = self.flags(&flags)?;
        let allowed = flags.check_user(peer::own_user());
        allowed.map_err(|e| e.to_string())?;
        let runner = flags.check().map_err(|e| e.to_string())?.runner;
        // The lower process has another working directory.
        let state_dir = self.state_dir.as_ref().map(std::path::absolute);
        let state_dir = state_dir
            .transpose()
            .map_err(|e| format!("--state-dir: {e}"))?;
        let folder = Folder::make(state_dir.as_deref())?;
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let program = lower(python, folder.path(), &runner, &torchrun::passed(&env))?;
        let made = answer(&place::ask(&runner, &program)?)?;
        if let Some(state_dir) = &state_dir {
            let kept = Trials::of(state_dir).note(made.clone());
            kept.map_err(|e| format!("{}: {e}", state_dir.display()))?;
        }
        Ok(made)
    }

    fn flags(&self, more: &[String]) -> Result<Flags, String> {
        let mut words = vec!["muster-agent".to_owned()];
        words.extend(more.iter().cloned());
        if let Some(runner) = &self.runner {
            words.extend(["--runner".to_owned(), runner.to_string_lossy().into_owned()]);
        }
        if self.allow_root_workers {
            words.push("--allow-root-workers".to_owned());
        }
        Flags::try_parse_from(words).map_err(|e| e.to_string())
    }

    fn say(&self, made: &Made) -> ExitCode {
        let trial = &made.trial;
        let text = match (self.inner.is_some(), self.output.as_str()) {
            (true, _) => serde_json::to_string(made),
            (false, "json") => serde_json::to_string_pretty(trial),
            (false, _) => Ok(shown(trial)),
        };
        let text = text.expect("plain values have a JSON form");
        // Nobody reads it if the pipe is closed.
        let _ = writeln!(std::io::stdout(), "{text}");
        match trial.passed() || self.inner.is_some() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// For people.
fn shown(trial: &Trial) -> String {
    let pair = format!(
        "torch {} with Python {} ({})",
        trial.torch, trial.python, trial.program
    );
    match trial.passed() {
        true => format!("{pair}: nothing differs from plain torchrun; its ranks may be forked"),
        false => format!(
            "{pair}: differs from plain torchrun, so its ranks are not forked unless a job asks for it:\n{}",
            trial.differs.join("\n")
        ),
    }
}

/// The lower process: runs the suite in this folder.
fn inner(python: &str, dir: &Path, runner: Option<&Path>) -> Result<Made, String> {
    // Everything that belongs to the trial gives way to jobs and to people.
    let _ = rustix::process::setpriority_process(None, 19);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| format!("start threads: {e}"))?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = suite(python, dir, runner) => outcome,
            why = bounds() => Err(why),
        }
    });
    runtime.shutdown_background();
    outcome
}

/// Returns what the trial has too much of.
async fn bounds() -> String {
    // The runner above this process is a subreaper, so everything of the trial is below it.
    let top = rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(used) = { place::usage(&[top]) }.ok().and_then(|mut all| all.pop()) else {
            continue;
        };
        if let Some(why) = too_much(&used) {
            return why;
        }
    }
}

fn too_much(used: &TreeUsage) -> Option<String> {
    if used.memory_bytes > MEMORY_MAX {
        return Some(format!(
            "it takes more than {} GiB of memory",
            MEMORY_MAX >> 30
        ));
    }
    let many = used.processes > PROCESSES_MAX;
    many.then(|| format!("it has more than {PROCESSES_MAX} processes"))
}

async fn suite(python: &str, dir: &Path, runner: Option<&Path>) -> Result<Made, String> {
    let (scripts, left, state) = (dir.join("scripts"), dir.join("left"), dir.join("state"));
    for folder in [&scripts, &left, &state] {
        let mut made = fs::DirBuilder::new();
        let made = made.mode(0o700).create(folder);
        made.map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    muster_suite::write_scripts(&scripts).map_err(|e| format!("{}: {e}", scripts.display()))?;
    let config = config(&state, runner)?;
    let host: Arc<dyn RunnerHost> = Arc::new(LocalHost::new(config.runner.clone()));
    let env: BTreeMap<String, String> = std::env::vars().collect();
    let wanted = place::Wanted {
        dir: scripts.clone(),
        env_files: BTreeMap::new(),
        path: env.get("PATH").cloned(),
        program: python.to_owned(),
        script: None,
        ranks: None,
    };
    let program = host.find(&wanted)?;
    let answer = Preflight::default()
        .ask(host.as_ref(), &program, &env, &scripts)
        .await
        .map_err(|refusal| refusal.reason)?;
    let scope = Scope::new(CancellationToken::new());
    let mut short = Short {
        bench: Bench::up(config, host.clone(), &scope).await?,
        host,
        python,
        program: program.clone(),
        scripts,
        left,
        env,
    };
    let differs = short.run().await?;
    scope.shutdown().cancel();
    let at = SystemTime::now().duration_since(UNIX_EPOCH);
    let interpreter = &answer.interpreter;
    let trial = Trial {
        program: program.to_string_lossy().into_owned(),
        torch: interpreter.build.clone(),
        python: format!("{}.{}", interpreter.python.0, interpreter.python.1),
        suite: muster_suite::version(),
        at_unix_us: u64::try_from(at.unwrap_or_default().as_micros()).unwrap_or_default(),
        differs,
    };
    Ok(Made {
        trial: trial.bounded(),
        files: crate::trials::times(answer.read_from()),
        uid: None,
    })
}

/// That of an agent for this one trial.
fn config(state: &Path, runner: Option<&Path>) -> Result<Config, String> {
    let mut words = vec![
        "muster-agent".to_owned(),
        "--node-name=trial".to_owned(),
        "--address=127.0.0.1".to_owned(),
        "--no-prove".to_owned(),
        format!("--state-dir={}", state.display()),
    ];
    words.extend(runner.map(|runner| format!("--runner={}", runner.display())));
    let flags = Flags::try_parse_from(words).map_err(|e| e.to_string())?;
    flags.check().map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use super::*;

    #[test]
    fn a_trial_that_takes_too_much_is_ended_with_the_reason() {
        let used = |memory_bytes, processes| TreeUsage {
            pid: 1,
            start_time: 0,
            cpu_ms: 0,
            memory_bytes,
            processes,
        };
        assert_eq!(too_much(&used(MEMORY_MAX, PROCESSES_MAX)), None);
        assert_eq!(
            too_much(&used(MEMORY_MAX + 1, 1)).unwrap(),
            "it takes more than 8 GiB of memory"
        );
        assert_eq!(
            too_much(&used(1, PROCESSES_MAX + 1)).unwrap(),
            "it has more than 128 processes"
        );
    }
}
