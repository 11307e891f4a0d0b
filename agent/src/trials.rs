//! The trials of this node's interpreters on disk: `DIR/trials.json`, newest last.
//!
//! A trial holds for the files that the interpreter and its torch consist of, as they were, and for
//! the suite that this agent has. A file that cannot be read holds none: the node makes them again.

use std::{
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use muster_core::node_report::trial::{TRIALS_MAX, Trial};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::atomic_file;

const FILE: &str = "trials.json";

/// Files with their times, in microseconds since 1970. None: the file is not there.
pub(crate) type Files = Vec<(PathBuf, Option<u64>)>;

/// One trial, and what it was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) trial: Trial,
    pub(crate) files: Files,
    /// The user whose processes have said so, where jobs run as their owners. It holds for his jobs alone.
    /// None: the operator, or the agent's own user. It holds for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    /// None: nothing is kept.
    file: Option<PathBuf>,
}

impl Trials {
    pub(crate) fn of(state_dir: &Path) -> Self {
        Self {
            file: Some(state_dir.join(FILE)),
        }
    }

    /// The trial of the interpreter with these files, for jobs of this user. It blocks for a look at the disk.
    pub(crate) fn find(
        &self,
        files: &[(PathBuf, Option<SystemTime>)],
        uid: Option<u32>,
    ) -> Option<Trial> {
        let (files, suite) = (times(files), muster_suite::version());
        let holds = |made: &Made| {
            let is_believed = made.uid.is_none_or(|said| uid == Some(said));
            made.files == files && is_believed && made.trial.suite == suite
        };
        let found = self.read().ok()?.into_iter().rev().find(holds);
        found.map(|made| made.trial)
    }

    /// All, newest last.
    pub(crate) fn all(&self) -> Vec<Trial> {
        let all = self.read().unwrap_or_default();
        all.into_iter().map(|made| made.trial).collect()
    }

    /// Keeps a trial in place of an earlier one of the same files or program.
    pub(crate) fn note(&self, made: Made) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut all = self.read().unwrap_or_else(|e| {
            warn!(
                "the trials of interpreters are made again: {}: {e}",
                file.display()
            );
            Vec::new()
        });
        let is_replaced = |old: &Made| {
            let same = old.files == made.files || old.trial.program == made.trial.program;
            same && old.uid == made.uid
        };
        all.retain(|old| !is_replaced(old));
        all.push(made);
        let over = all.len().saturating_sub(TRIALS_MAX);
        atomic_file::write_atomic(file, serde_json::to_vec(&all[over..])?)
    }

    fn read(&self) -> io::Result<Vec<Made>> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        match atomic_file::read(file) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

pub(crate) fn times(files: &[(PathBuf, Option<SystemTime>)]) -> Files {
    let us = |time: &SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    };
    files
        .iter()
        .map(|(file, time)| (file.clone(), time.as_ref().map(us)))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use std::time::Duration;

    use super::*;

    fn made(program: &str, files: &[(PathBuf, Option<SystemTime>)]) -> Made {
        Made {
            trial: Trial {
                program: program.into(),
                suite: muster_suite::version(),
                ..Trial::default()
            },
            files: times(files),
            uid: None,
        }
    }

    #[test]
    fn a_trial_holds_for_the_files_that_it_was_made_with() {
        let dir = tempfile::tempdir().unwrap();
        let trials = Trials::of(dir.path());
        let at = |s| Some(UNIX_EPOCH + Duration::from_secs(s));
        let files = |s| vec![(PathBuf::from("/p/torch"), at(s)), ("/p/gone".into(), None)];
        assert_eq!(trials.find(&files(1), None), None, "nothing was tried yet");
        trials.note(made("/p/python", &files(1))).unwrap();
        assert!(
            trials
                .find(&files(1), None)
                .is_some_and(|trial| trial.passed())
        );
        assert_eq!(trials.find(&files(2), None), None, "torch was replaced");
        trials.note(made("/p/python", &files(2))).unwrap();
        assert_eq!(trials.all().len(), 1, "the newer one of a program counts");
        let other_suite = Trial {
            suite: "0".into(),
            ..made("/p/python", &[]).trial
        };
        let older = Made {
            trial: other_suite,
            ..made("/p/python", &files(3))
        };
        trials.note(older).unwrap();
        assert_eq!(
            trials.find(&files(3), None),
            None,
            "an earlier agent's suite"
        );
        for number in 0..40 {
            let program = format!("/p{number}/python");
            trials
                .note(made(&program, &[(program.clone().into(), None)]))
                .unwrap();
        }
        assert_eq!(trials.all().len(), TRIALS_MAX);
        assert_eq!(trials.all().last().unwrap().program, "/p39/python");
        let of_ann = Made {
            uid: Some(1007),
            ..made("/p/python", &files(4))
        };
        trials.note(of_ann).unwrap();
        assert!(trials.find(&files(4), Some(1007)).is_some());
        assert_eq!(
            trials.find(&files(4), Some(1008)),
            None,
            "another user's word"
        );
        assert_eq!(trials.find(&files(4), None), None);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(trials.all(), [], "what cannot be read is made again");
        trials.note(made("/p/python", &files(1))).unwrap();
        assert_eq!(trials.all().len(), 1);
    }
}
