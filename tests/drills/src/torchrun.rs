//! Plain torchrun without Muster, started as a user would. The launch lanes are compared with it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{python, suite, until};

/// The variables that Muster passes on from an agent's environment, so that both sides start alike.
const PASSED: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
];

/// One torchrun on this machine with two ranks. It is ended when this is dropped.
pub struct Torchrun {
    process: Child,
    verdict: PathBuf,
}

impl Torchrun {
    /// Runs torchrun with `args`, in the folder of the lanes' scripts. `own`: a folder that it
    /// makes, for logs and the verdict.
    pub fn start(own: &Path, args: &[&str], env: &[(&str, &str)]) -> Torchrun {
        Self::start_with(Path::new(&python()), &suite(), own, args, env)
    }

    /// The same with another interpreter and in another folder.
    pub fn start_with(
        python: &Path,
        folder: &Path,
        own: &Path,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Torchrun {
        fs::create_dir(own).expect("a folder that is not there yet");
        let verdict = own.join("verdict");
        let mut command = Command::new(python);
        command.arg(suite().join("plain.py")).arg(&verdict);
        command
            .args([
                "--standalone",
                "--nproc-per-node",
                "2",
                "--redirects",
                "3",
                "--log-dir",
            ])
            .arg(own.join("logs"))
            .args(args);
        let passed = |name: &str| {
            PASSED.contains(&name) || name.starts_with("LC_") || name.starts_with("SSL_CERT_")
        };
        command
            .env_clear()
            .envs(env::vars().filter(|(name, _)| passed(name)))
            .envs(env.iter().copied());
        command
            .env("PYTHONUNBUFFERED", "1")
            .env("OMP_NUM_THREADS", "1")
            .current_dir(folder);
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Torchrun {
            process: process.expect("the interpreter can be executed"),
            verdict,
        }
    }

    /// Waits for its end. Returns the exit code (negative: a signal) and message of every failed
    /// rank, by local rank.
    pub fn verdict(mut self) -> Value {
        until(|| self.process.try_wait().expect("it is our child")).expect("plain torchrun ends");
        let text = fs::read_to_string(&self.verdict).expect("plain.py writes its verdict");
        serde_json::from_str(&text).expect("plain.py writes JSON")
    }
}

impl Drop for Torchrun {
    fn drop(&mut self) {
        // Its ranks die with it, because torch asks the kernel for that.
        let _ = (self.process.kill(), self.process.wait());
    }
}
