//! The coordinator under test: a real process.

use std::{
    fs::{self, File, OpenOptions},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use muster_rpc::Address;

use crate::taken::Taken;

/// A start reads the store, which has a few MB for ten thousand nodes.
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Coordinator {
    program: PathBuf,
    dir: PathBuf,
    flags: Vec<String>,
    child: Option<Child>,
    /// `127.0.0.1:PORT`. It stays the same after a restart.
    pub(crate) address: String,
    /// Where it serves `/metrics`, if it does.
    metrics: Option<SocketAddr>,
    tls: bool,
}

impl Coordinator {
    pub(crate) fn start(program: &Path, dir: &Path, flags: &[String], tls: bool) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let mut coordinator = Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
            flags: flags.to_owned(),
            child: None,
            address: "127.0.0.1:0".into(),
            metrics: None,
            tls,
        };
        if tls {
            coordinator.say(&["init", "--name", "127.0.0.1"])?;
        }
        coordinator.launch()?;
        Ok(coordinator)
    }

    fn launch(&mut self) -> Result<()> {
        let ready = self.dir.join("ready.json");
        let _ = fs::remove_file(&ready);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())?;
        let child = Command::new(&self.program)
            .args(["--listen", &self.address])
            .arg("--turn-stats")
            .arg(self.turns())
            .arg("--state-dir")
            .arg(self.dir.join("state"))
            .arg("--ready-file")
            .arg(&ready)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let child = self.child.insert(child);
        let until = Instant::now() + START_TIMEOUT;
        let text = loop {
            match fs::read_to_string(&ready) {
                Ok(text) => break text,
                Err(_) if child.try_wait()?.is_some() => {
                    anyhow::bail!("the coordinator ended; see {}", self.log().display())
                }
                Err(_) => ensure!(
                    Instant::now() < until,
                    "the coordinator is not ready after {START_TIMEOUT:?}"
                ),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let said: serde_json::Value = serde_json::from_str(&text).context("the ready file")?;
        let endpoint = said["endpoint"]
            .as_str()
            .context("the ready file names no endpoint")?;
        let address = endpoint.rsplit('/').next();
        self.address = address.context("an endpoint is a URL")?.to_owned();
        let url = said["metrics"].as_str();
        let url = url.and_then(|url| url.strip_prefix("http://"));
        let metrics = url.and_then(|url| url.split('/').next()?.parse().ok());
        self.metrics = metrics;
        Ok(())
    }

    pub(crate) fn socket(&self) -> Result<SocketAddr> {
        Ok(self.address.parse()?)
    }

    pub(crate) fn metrics(&self) -> Result<SocketAddr> {
        self.metrics
            .context("the ready file names no address of /metrics")
    }

    pub(crate) fn url(&self) -> Result<Address> {
        let scheme = if self.tls { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.address).parse()?)
    }

    /// Runs one of the coordinator's commands, and returns what it prints.
    pub(crate) fn say(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(args)
            .arg("--state-dir")
            .arg(self.dir.join("state"))
            .output()?;
        let why = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{args:?}: {why}");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The statistics of its turns.
    pub(crate) fn turns(&self) -> PathBuf {
        self.dir.join("turns.jsonl")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("coordinator.log")
    }

    /// Kills the process with SIGKILL, so it cannot tidy up.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("kill the coordinator")?;
            child.wait().context("wait for the coordinator")?;
        }
        Ok(())
    }

    pub(crate) fn restart(&mut self) -> Result<()> {
        self.launch()
    }

    pub(crate) fn taken(&self) -> Result<Taken> {
        let pid = self
            .child
            .as_ref()
            .context("the coordinator does not run")?
            .id();
        Taken::of(pid)
    }

    /// The size of the store's file in bytes.
    pub(crate) fn store_bytes(&self) -> u64 {
        File::open(self.dir.join("state/muster.redb"))
            .and_then(|file| file.metadata())
            .map_or(0, |meta| meta.len())
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
