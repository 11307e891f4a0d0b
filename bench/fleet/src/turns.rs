//! What the coordinator's log says about its decisions: every turn that sent something to agents,
//! and events that must not occur.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::Result;
use serde::Deserialize;

/// Reads a log as it grows.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    read_to: u64,
}

/// One turn that sent something to agents.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Turn {
    pub(crate) inputs: u64,
    pub(crate) told: u64,
    pub(crate) think_us: u64,
    pub(crate) commit_us: u64,
    pub(crate) act_us: u64,
    /// When its last order was handed to the sessions, on the coordinator's clock (Unix time).
    pub(crate) done_us: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) turns: Vec<Turn>,
    pub(crate) suspects: usize,
    pub(crate) lost: usize,
    pub(crate) broken: usize,
}

impl Log {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read_to: 0 }
    }

    /// What the log has said since the last look.
    pub(crate) fn read(&mut self) -> Result<Said> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read_to))?;
        let (mut reader, mut said, mut line) =
            (BufReader::new(file), Said::default(), String::new());
        while reader.read_line(&mut line)? > 0 {
            if !line.ends_with('\n') {
                break;
            }
            self.read_to += line.len() as u64;
            if line.contains("\"think_us\"") {
                said.turns.push(serde_json::from_str(&line)?);
            }
            said.suspects += usize::from(line.contains("\"reason\":\"NodeSuspect\""));
            said.lost += usize::from(line.contains("\"reason\":\"NodeLost\""));
            let breaks = ["WorkerKilled", "WorkerFailed", "PeersLost"];
            said.broken += usize::from(
                breaks
                    .iter()
                    .any(|reason| line.contains(&format!("\"reason\":\"{reason}\""))),
            );
            line.clear();
        }
        Ok(said)
    }
}
