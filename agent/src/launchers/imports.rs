//! The books of what launchers import for the next generation of their jobs.
//!
//! There are two lists. The first has the imports of the script's top level, which every run makes: a
//! launcher imports them beside the first start, if processors are idle. The second has all that a
//! generation's ranks have imported: a launcher imports it once they train, if enough of it is new.
//! Only one list is imported at a time, because a second would begin the first anew.

use std::{collections::BTreeSet, path::Path};

use muster_core::{
    id::{Generation, JobUid},
    node::launcher::{RECORD_QUIET, Record},
    time::Timestamp,
};

use super::{Kept, Launcher, Launchers, Slot, imported, imported_bytes};

/// How many new modules are worth another copy of the launcher. A rank imports fewer in about 50
/// ms, and a copy takes seconds.
const WORTH_IMPORTING: usize = 50;

/// The imports of a launcher's job, so far as they are known.
#[derive(Debug, Default)]
pub(super) struct Imports {
    /// Of the newest generation that trains.
    record: Option<Record>,
    /// The modules that a copy of the launcher was told to import, or has imported.
    known: BTreeSet<String>,
    /// The newest generation whose ranks have started.
    newest: Option<Generation>,
    /// A copy of the launcher is importing.
    under_way: bool,
    /// The launcher was asked for the imports that every run of the script makes.
    sure: bool,
}

/// The outcome of a look at the imports of a generation.
#[derive(Debug)]
pub(crate) struct Look {
    /// The launcher that is to import this list, if enough of it is new.
    pub(crate) import: Option<(Launcher, String)>,
    /// When to look again.
    pub(crate) again: Timestamp,
}

impl Imports {
    /// Those of a launcher that has imported what every run of the script imports.
    pub(super) fn sure(known: BTreeSet<String>) -> Self {
        Self {
            known,
            sure: true,
            ..Self::default()
        }
    }

    /// Whether the launcher was asked for nothing yet.
    fn is_askable(&self) -> bool {
        !self.sure && !self.under_way && self.known.is_empty()
    }

    /// Notes that the launcher is asked for what every run of the script imports. False if it was
    /// asked for anything before.
    fn ask_sure(&mut self) -> bool {
        let asks = self.is_askable();
        if asks {
            (self.sure, self.under_way) = (true, true);
        }
        asks
    }

    /// Notes what the launcher has imported ahead now.
    fn note_imported(&mut self, lines: BTreeSet<String>) {
        self.under_way = false;
        self.known.extend(lines);
    }

    /// Looks at the list of a generation that trains. Returns it if the launcher is told of it, and
    /// when to look again.
    fn look(
        &mut self,
        generation: Generation,
        now: Timestamp,
        shows_steps: bool,
        list: &impl List,
    ) -> (Option<String>, Timestamp) {
        self.newest = Some(generation);
        if self.under_way {
            return (None, now + RECORD_QUIET);
        }
        let read = |record: Option<Record>| record.map(|record| (record.generation, record.read));
        let before = read(self.record);
        let (record, again) = Record::look(self.record, now, generation, list.bytes(), shows_steps);
        self.record = Some(record);
        let told = (record.read != 0 && read(self.record) != before)
            .then(|| self.tell(list.text()))
            .flatten();
        (told, again)
    }

    /// Notes that the ranks of a generation have started. Returns what its predecessor here has
    /// imported, if the launcher is told of it.
    fn begun(
        &mut self,
        generation: Generation,
        list_of: impl FnOnce(Generation) -> String,
    ) -> Option<String> {
        if self.newest == Some(generation) || self.under_way {
            return None;
        }
        let before = self.newest.replace(generation)?;
        self.tell(list_of(before))
    }

    /// Notes that the launcher is told of this list. None if too little of it is new.
    fn tell(&mut self, text: String) -> Option<String> {
        let lines: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        let new = || lines.difference(&self.known);
        // A variable that had another value than before must not be assumed again.
        if new().count() < WORTH_IMPORTING && !new().any(|line| line.starts_with('~')) {
            return None;
        }
        (self.known, self.under_way) = (lines, true);
        Some(text)
    }
}

impl Launchers {
    fn kept(&mut self, job: &JobUid) -> Option<&mut Kept> {
        match self.slots.get_mut(job)? {
            Slot::Ready(kept) => Some(kept),
            _ => None,
        }
    }

    /// Looks at the list of what this generation's ranks have imported. None if the job has no
    /// launcher that could import it.
    pub(crate) fn look_at_imports(
        &mut self,
        job: &JobUid,
        generation: Generation,
        now: Timestamp,
        shows_steps: bool,
        list: &impl List,
    ) -> Option<Look> {
        let kept = self.kept(job)?;
        let (told, again) = kept.imports.look(generation, now, shows_steps, list);
        let import = told.map(|text| (kept.launcher.clone(), text));
        Some(Look { import, again })
    }

    /// Notes that the ranks of a generation have started. Returns what its predecessor here has
    /// imported, if the job's launcher was not told yet.
    pub(crate) fn begun(
        &mut self,
        job: &JobUid,
        generation: Generation,
        list_of: impl FnOnce(Generation) -> String,
    ) -> Option<(Launcher, String)> {
        let kept = self.kept(job)?;
        let told = kept.imports.begun(generation, list_of)?;
        Some((kept.launcher.clone(), told))
    }

    /// Jobs whose launchers were asked for no imports yet.
    pub(crate) fn askable(&self) -> BTreeSet<JobUid> {
        let askable = |(job, slot): (&JobUid, &Slot)| match slot {
            Slot::Ready(kept) if kept.imports.is_askable() => Some(job.clone()),
            _ => None,
        };
        self.slots.iter().filter_map(askable).collect()
    }

    /// Notes that the job's launcher is asked for what every run of the script imports. None if it
    /// was asked for anything before, or if there is none.
    pub(crate) fn ask_sure(&mut self, job: &JobUid) -> Option<Launcher> {
        let kept = self.kept(job)?;
        kept.imports.ask_sure().then(|| kept.launcher.clone())
    }

    /// Notes what the job's launcher has imported ahead now.
    pub(super) fn note_imported(&mut self, job: &JobUid, number: u32, lines: BTreeSet<String>) {
        let kept = self.kept(job);
        if let Some(kept) = kept.filter(|kept| kept.launcher.number == number) {
            kept.imports.note_imported(lines);
        }
    }
}

/// A list of imported modules, which grows while a script imports.
pub(crate) trait List {
    fn bytes(&self) -> u64;
    fn text(&self) -> String;
}

/// The list in the directory of a run.
pub(crate) struct OfRun<'a>(pub(crate) &'a Path);

impl List for OfRun<'_> {
    fn bytes(&self) -> u64 {
        imported_bytes(self.0)
    }

    fn text(&self) -> String {
        imported(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of a script that imports so many modules.
    fn list(modules: usize) -> String {
        (0..modules).map(|n| format!("m{n}\t/m{n}.py\n")).collect()
    }

    fn lines(modules: usize) -> BTreeSet<String> {
        list(modules).lines().map(str::to_owned).collect()
    }

    struct Text(String);

    impl List for Text {
        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn text(&self) -> String {
            self.0.clone()
        }
    }

    const NOW: Timestamp = Timestamp(9_000_000);

    #[test]
    fn what_was_imported_beside_a_first_start_is_not_imported_again() {
        let look = |imports: &mut Imports, modules, now| {
            imports.look(Generation(1), now, true, &Text(list(modules)))
        };
        let mut imports = Imports::default();
        assert!(imports.ask_sure());
        assert!(!imports.ask_sure(), "once");
        assert_eq!(
            look(&mut imports, 100, NOW),
            (None, NOW + RECORD_QUIET),
            "a second list would begin the first anew"
        );
        imports.note_imported(lines(100));
        let (told, again) = look(&mut imports, 120, NOW);
        assert_eq!(told, None, "twenty more are not worth a copy");
        let (told, _) = look(&mut imports, 200, again);
        let (told_later, _) = look(&mut imports, 200, again + RECORD_QUIET);
        assert_eq!((told, told_later), (None, Some(list(200))));
        assert!(!imports.ask_sure(), "it knows better by now");
    }

    #[test]
    fn what_a_short_generation_left_waits_for_what_is_being_imported() {
        let mut imports = Imports::default();
        let left = |_| list(100);
        assert_eq!(imports.begun(Generation(1), left), None, "it is the first");
        assert!(imports.ask_sure());
        assert_eq!(imports.begun(Generation(2), left), None);
        imports.note_imported(lines(10));
        assert_eq!(imports.begun(Generation(2), left), Some(list(100)));
        imports.note_imported(lines(100));
        assert_eq!(imports.begun(Generation(2), left), None, "asked before");
        assert_eq!(imports.begun(Generation(3), left), None, "known");
    }

    #[test]
    fn a_launcher_that_imported_for_a_job_to_come_is_not_asked_again() {
        let mut imports = Imports::sure(lines(3));
        assert!(!imports.ask_sure());
        let (told, _) = imports.look(Generation(1), NOW, true, &Text(list(60)));
        assert_eq!(told, Some(list(60)), "much was not to be read off its text");
    }
}
