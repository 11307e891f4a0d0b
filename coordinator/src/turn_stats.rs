//! The size and the cost of one turn of the engine, as a value. Benchmarks and metrics count with
//! it, so that nobody has to read logs.
//!
//! While somebody listens, the engine publishes one value for each turn that is not idle. It never
//! waits for a listener. A listener that is too slow loses the oldest values and learns how many. Nothing is
//! decided by them.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    time::Duration,
};

use muster_core::{
    fleet::{Change, Effect, TurnOutput},
    time::Timestamp,
};
use serde::{Serialize, Serializer};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tracing::warn;

/// Turns that wait for a listener. A busy engine makes some hundred of them in a second.
pub(crate) const WAITING_MAX: usize = 4_096;

/// One turn of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnStats {
    /// When its last effect had been executed, on the engine's clock (Unix time).
    pub done_us: Timestamp,
    /// Inputs decided together.
    pub inputs: usize,
    /// Changes committed, events included.
    pub changes: usize,
    pub effects: usize,
    /// Sessions that were given a new desired state.
    pub told: usize,
    /// Events by their reason.
    pub events: BTreeMap<String, usize>,
    /// How long it took to decide, to commit, and to execute the effects.
    #[serde(rename = "thinkUs", serialize_with = "microseconds")]
    pub think: Duration,
    #[serde(rename = "commitUs", serialize_with = "microseconds")]
    pub commit: Duration,
    #[serde(rename = "actUs", serialize_with = "microseconds")]
    pub act: Duration,
}

impl TurnStats {
    /// The counts of a turn, without its times.
    pub(crate) fn of(turn: &TurnOutput, inputs: usize) -> Self {
        let mut events = BTreeMap::new();
        for change in &turn.changes {
            if let Change::Event(event) = change {
                *events.entry(event.reason.clone()).or_default() += 1;
            }
        }
        let told = |effect: &&Effect| matches!(effect, Effect::SendDesired { .. });
        Self {
            inputs,
            changes: turn.changes.len(),
            effects: turn.effects.len(),
            told: turn.effects.iter().filter(told).count(),
            events,
            ..Self::default()
        }
    }

    /// Whether nothing was stored and nobody was told anything, as after most heartbeats.
    pub fn is_idle(&self) -> bool {
        self.changes == 0 && self.effects == 0
    }
}

fn microseconds<S: Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(took.as_micros() as u64)
}

/// Appends every turn to a file, one JSON object in a line, until the engine has
/// ended. A line `{"lost":N}` stands for N turns that were not written in time.
pub(crate) struct Recording {
    file: File,
    turns: Receiver<TurnStats>,
}

impl Recording {
    pub(crate) fn open(path: &Path, turns: Receiver<TurnStats>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, turns })
    }

    pub(crate) async fn run(mut self) {
        loop {
            let written = match self.turns.recv().await {
                Ok(stats) => self.write(&stats),
                Err(RecvError::Lagged(lost)) => self.write(&BTreeMap::from([("lost", lost)])),
                Err(RecvError::Closed) => return,
            };
            if let Err(e) = written {
                warn!("write the statistics of a turn: {e}; no more are written");
                return;
            }
        }
    }

    /// In one write, so that a kill leaves whole lines.
    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::fleet::Event;
    use tokio::sync::broadcast;

    use super::*;

    fn event(reason: &str) -> Change {
        Change::Event(Box::new(Event {
            sequence: 1,
            at: Timestamp(1),
            warning: false,
            reason: reason.into(),
            message: String::new(),
            job: None,
            node: None,
            generation: None,
            actor: None,
        }))
    }

    #[tokio::test]
    async fn turns_are_counted_and_written_and_lost_ones_are_said() {
        let turn = TurnOutput {
            changes: vec![event("NodeLost"), event("NodeLost"), event("Scaled")],
            effects: vec![Effect::NodeChanged("n1".into())],
            wake_at: None,
        };
        let stats = TurnStats {
            done_us: Timestamp(7),
            commit: Duration::from_micros(3),
            ..TurnStats::of(&turn, 2)
        };
        assert!(!stats.is_idle() && TurnStats::of(&TurnOutput::default(), 9).is_idle());

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("turns");
        let (publish, turns) = broadcast::channel(2);
        for stats in [TurnStats::default(), stats.clone(), stats] {
            publish.send(stats).unwrap();
        }
        drop(publish);
        Recording::open(&path, turns).unwrap().run().await;
        let line = "{\"doneUs\":7,\"inputs\":2,\"changes\":3,\"effects\":1,\"told\":0,\
                    \"events\":{\"NodeLost\":2,\"Scaled\":1},\"thinkUs\":0,\"commitUs\":3,\"actUs\":0}\n";
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{{\"lost\":1}}\n{line}{line}")
        );
    }
}
