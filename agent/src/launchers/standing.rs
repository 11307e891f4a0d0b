//! The books of one job's standbys: what was asked of its launcher, and what became of it.

use std::{io::Read, path::Path};

use muster_core::{
    id::Generation,
    node::standby::{Mode, No},
};
use muster_runner::{
    Folder, record,
    wire::{StandbyMode, StandbysShown},
};

/// The longest file that is read: a line for each of 256 ranks.
const SHOWN_BYTES: u64 = 64 << 10;

/// The standbys beside one generation. All of it begins anew with the next, except what the driver
/// could not do.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    generation: Option<Generation>,
    /// What was decided last.
    decided: Option<Result<Mode, No>>,
    /// What the launcher shows of those that wait.
    waiting: Option<StandbysShown>,
    /// What became of those that this generation's ranks were made of.
    used: Option<StandbysShown>,
    /// Why those that waited beside this generation have ended. They are not tried again beside it.
    ended: Option<String>,
    /// Why those of an earlier generation became no ranks. They are not tried again at all.
    broken: Option<String>,
}

impl Standing {
    /// Looks at what there is beside this generation.
    pub(super) fn look(&mut self, generation: Generation, launcher_dir: &Path, run_dir: &Path) {
        if self.generation != Some(generation) {
            let used = shown(run_dir);
            let lost = used.as_ref().filter(|used| used.used.is_empty());
            *self = Self {
                generation: Some(generation),
                broken: lost
                    .and_then(|used| used.why.clone())
                    .or(self.broken.take()),
                used,
                ..Self::default()
            };
        }
        self.waiting = shown(launcher_dir);
        if let Some(shown) = &self.waiting
            && shown.mode != StandbyMode::Off
            && let Some(why) = &shown.why
        {
            self.ended = Some(why.clone());
        }
    }

    /// Why standbys failed, if they did.
    pub(crate) fn failed(&self) -> Option<String> {
        self.ended.as_ref().or(self.broken.as_ref()).cloned()
    }

    /// The standbys that wait.
    pub(crate) fn has(&self) -> Option<Mode> {
        let shown = self
            .waiting
            .as_ref()
            .filter(|shown| !shown.ranks.is_empty())?;
        match shown.mode {
            StandbyMode::Open => Some(Mode::Open),
            StandbyMode::Parked => Some(Mode::Parked),
            StandbyMode::Off => None,
        }
    }

    /// Notes a decision. Returns what to ask of the launcher, if that is something else than before.
    pub(super) fn decide(&mut self, decided: Result<Mode, No>) -> Option<StandbyMode> {
        let ask = |decided: &Option<Result<Mode, No>>| match decided {
            Some(Ok(Mode::Open)) => StandbyMode::Open,
            Some(Ok(Mode::Parked)) => StandbyMode::Parked,
            Some(Err(_)) | None => StandbyMode::Off,
        };
        let before = ask(&self.decided);
        self.decided = Some(decided);
        let now = ask(&self.decided);
        (now != before).then_some(now)
    }

    /// Whether some were asked for, beside whichever generation.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.decided, Some(Ok(_)))
    }

    pub(super) fn forget(&mut self) {
        self.decided = None;
    }

    /// What is said about them beside this generation. None: nothing is known yet.
    pub(super) fn words(&self, generation: Generation) -> Option<String> {
        if self.generation != Some(generation) {
            return None;
        }
        let used = self.used.as_ref().map(|used| {
            let why = used.why.as_deref().unwrap_or("none was ready");
            match used.used.len() {
                0 => format!("its standbys were not taken: {why}"),
                count => format!("{count} of its ranks had waited with their GPU open"),
            }
        });
        let next = match self.decided.as_ref()? {
            Err(no) => format!("no standbys: {no}"),
            Ok(mode) => match &self.waiting {
                Some(shown) if !shown.ranks.is_empty() => {
                    let ready = |state: &str| state == mode.name();
                    let ready = shown.ranks.iter().filter(|rank| ready(&rank.state)).count();
                    let all = shown.ranks.len();
                    format!("standbys: {ready} of {all} {}", mode.name())
                }
                _ => format!("standbys: {} ones are being made", mode.name()),
            },
        };
        let words: Vec<String> = used.into_iter().chain([next]).collect();
        Some(words.join("; "))
    }
}

/// What a launcher, or the copy of one that a run got, has written about standbys.
fn shown(dir: &Path) -> Option<StandbysShown> {
    let mut bytes = Vec::new();
    let file = Folder::of_run(dir)
        .and_then(|folder| folder.open(record::STANDBYS))
        .ok()?;
    file.take(SHOWN_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use muster_runner::wire::StandbyShown;

    use super::*;

    fn write(dir: &Path, shown: &StandbysShown) {
        std::fs::write(
            dir.join(record::STANDBYS),
            serde_json::to_vec(shown).unwrap(),
        )
        .unwrap();
    }

    fn waiting(states: &[&str], why: Option<&str>) -> StandbysShown {
        let rank = |(local, state): (u32, &&str)| StandbyShown {
            local,
            pid: 7,
            state: (*state).to_owned(),
        };
        StandbysShown {
            mode: StandbyMode::Parked,
            ranks: (0..).zip(states).map(rank).collect(),
            used: Vec::new(),
            why: why.map(str::to_owned),
        }
    }

    #[test]
    fn a_launcher_is_asked_once_for_each_decision() {
        let mut standing = Standing::default();
        assert_eq!(standing.decide(Err(No::NoGpu)), None, "it has none anyway");
        assert_eq!(standing.decide(Ok(Mode::Parked)), Some(StandbyMode::Parked));
        assert_eq!(standing.decide(Ok(Mode::Parked)), None);
        assert!(standing.is_asked());
        assert_eq!(standing.decide(Err(No::NotWanted)), Some(StandbyMode::Off));
        assert_eq!(standing.decide(Err(No::NoGpu)), None);
        assert!(!standing.is_asked());
    }

    #[test]
    fn what_there_is_is_said_and_a_failure_of_the_driver_is_remembered() {
        let (launcher, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (launcher, run) = (launcher.path(), run.path());
        let mut standing = Standing::default();
        let look = |standing: &mut Standing, generation| {
            standing.look(Generation(generation), launcher, run);
            standing.decide(match standing.failed() {
                Some(why) => Err(No::Failed(why)),
                None => Ok(Mode::Parked),
            });
            standing.words(Generation(generation)).unwrap()
        };
        assert_eq!(
            look(&mut standing, 1),
            "standbys: parked ones are being made"
        );
        assert_eq!(standing.words(Generation(2)), None);
        write(launcher, &waiting(&["parked", "parking"], None));
        assert_eq!(look(&mut standing, 1), "standbys: 1 of 2 parked");
        assert_eq!(standing.has(), Some(Mode::Parked));
        write(launcher, &waiting(&[], Some("it has ended")));
        assert_eq!(
            look(&mut standing, 1),
            "no standbys: an earlier one failed: it has ended"
        );
        // The launcher was told that none is wanted any more, and says so.
        let off = StandbysShown {
            mode: StandbyMode::Off,
            ..waiting(&[], None)
        };
        write(launcher, &off);
        assert_eq!(
            look(&mut standing, 1),
            "no standbys: an earlier one failed: it has ended"
        );
        // With the next generation the launcher has none, and they are tried again.
        std::fs::remove_file(launcher.join(record::STANDBYS)).unwrap();
        let mut used = StandbysShown {
            used: vec![0, 1],
            ..waiting(&[], None)
        };
        write(run, &used);
        assert_eq!(
            look(&mut standing, 2),
            "2 of its ranks had waited with their GPU open; standbys: parked ones are being made"
        );
        (used.used, used.why) = (Vec::new(), Some("error 999".into()));
        write(run, &used);
        let not = "its standbys were not taken: error 999";
        let none = "no standbys: an earlier one failed: error 999";
        assert_eq!(look(&mut standing, 3), format!("{not}; {none}"));
        std::fs::remove_file(run.join(record::STANDBYS)).unwrap();
        assert_eq!(
            look(&mut standing, 4),
            none,
            "for as long as the launcher lives"
        );
    }
}
