//! What the coordinator counts about its turns (`--turn-stats`): every turn that sent something to
//! agents, and events that must not occur.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::{Result, bail};
use serde::Deserialize;

/// Reads the statistics as they grow.
#[derive(Debug)]
pub(crate) struct Turns {
    path: PathBuf,
    read_to: u64,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    /// The coordinator could not write so many turns in time.
    Lost {
        lost: u64,
    },
    Turn(Turn),
}

/// One turn that stored something or told somebody something.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Turn {
    pub(crate) inputs: u64,
    pub(crate) told: u64,
    pub(crate) think_us: u64,
    pub(crate) commit_us: u64,
    pub(crate) act_us: u64,
    /// When its last order was handed to the sessions, on the coordinator's clock (Unix time).
    pub(crate) done_us: u64,
    events: BTreeMap<String, usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Only those that told agents something.
    pub(crate) turns: Vec<Turn>,
    pub(crate) suspects: usize,
    pub(crate) lost: usize,
    pub(crate) broken: usize,
}

impl Turns {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read_to: 0 }
    }

    /// What was counted since the last look.
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
            let turn = match serde_json::from_str(&line)? {
                Line::Lost { lost } => bail!("the coordinator lost the statistics of {lost} turns"),
                Line::Turn(turn) => turn,
            };
            let count =
                |reason: &str| -> usize { turn.events.get(reason).copied().unwrap_or_default() };
            said.suspects += count("NodeSuspect");
            said.lost += count("NodeLost");
            let breaks = ["WorkerKilled", "WorkerFailed", "PeersLost"];
            said.broken += breaks.into_iter().map(count).sum::<usize>();
            if turn.told > 0 {
                said.turns.push(turn);
            }
            line.clear();
        }
        Ok(said)
    }
}
