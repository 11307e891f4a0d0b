//! Takes off the programs around a launcher, as `nice` in `nice -n 1 torchrun train.py`, and puts those that
//! are kept around each rank. Core has their table; nothing is taken off a command without a launcher.

use muster_core::spec::{
    launchers,
    wrappers::{self, FateHere, Seen},
};

use super::{By, Launch, is_python, stem};
use crate::{verdict::Verdicts, words::Word};

/// What became of the first program of a command.
pub(super) enum Taken {
    /// It is none that could be taken off, or there is no launcher behind it.
    Nothing,
    /// It must stand around each rank.
    Kept(Vec<Word>),
    LeftOut,
    /// It can neither be left out nor stand around each rank, for this reason.
    Not(String),
}

/// Takes the first program off the words.
pub(super) fn take(words: &mut Vec<Word>, log: &mut Verdicts) -> Taken {
    let texts: Vec<&str> = words.iter().map(|word| &*word.text).collect();
    let Some(found) = launchers::started_by(&texts).filter(|found| !found.behind.is_empty()) else {
        return Taken::Nothing;
    };
    let behind = match wrappers::look(&texts) {
        Seen::Behind(behind) => behind,
        Seen::NoWrapper | Seen::Opaque { .. } => {
            return Taken::Not(format!(
                "{}; Muster starts the ranks itself and cannot take the launcher out there: put what one rank runs behind it, \
                 in place of {} and its flags",
                found.sentence(),
                found.launcher
            ));
        }
    };
    let at = words[0].field();
    match behind.fate {
        FateHere::Kept => {
            log.note(&at, format!("{} is put around each rank", behind.name));
            Taken::Kept(words.drain(..behind.at).collect())
        }
        FateHere::LeftOut(why) => {
            log.note(&at, format!("{} is left out: {why}", behind.name));
            words.drain(..behind.at);
            Taken::LeftOut
        }
        FateHere::Lost(why) => Taken::Not(format!(
            "starts {} behind {}, which cannot be put around each rank: {why}",
            found.launcher, behind.name
        )),
    }
}

/// Leaves out the shell's own `time`, which is no program.
pub(super) fn leave_out_times(words: &mut Vec<Word>, log: &mut Verdicts) {
    while let Some(first) = words.first()
        && first.text == "time"
        && words.len() > 1
    {
        log.note(
            &first.field(),
            "time is left out: muster describe has how long ranks live",
        );
        let options = words[1..]
            .iter()
            .take_while(|word| word.text == "-p")
            .count();
        words.drain(..=options);
    }
}

impl Launch {
    /// The same with these words before the command of each rank.
    pub(super) fn behind(mut self, wrapper: Vec<String>) -> Launch {
        let python = self
            .command
            .first()
            .is_some_and(|word| is_python(stem(word)));
        if python && self.by != By::Itself {
            // As torchrun runs a script: without a buffer.
            self.args.insert(0, "-u".to_owned());
        }
        let mut words = [wrapper, self.command, self.args].concat();
        self.args = words.split_off(1);
        self.command = words;
        self.lane = self.lane.or(Some("direct"));
        self
    }
}
