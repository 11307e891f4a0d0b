//! The trust folder as a whole, so that it can be kept elsewhere: for a coordinator that follows
//! another one on another machine.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use ring::digest::{SHA256, digest};
use uuid::Uuid;

use super::{
    ENDPOINT,
    files::{TrustError, read, remove, write},
};

/// The file that says which contents of the folder are kept elsewhere too, by their hash. Where there is
/// none, nothing is kept elsewhere.
const SHARED: &str = "shared";

/// A command that waits until its change is kept elsewhere leaves an empty file of this name. Coordinators
/// leave out whatever ends like a lock, those of before this was so as well.
const WAITS: (&str, &str) = ("wait-", ".lock");

/// How long a command waits until its change is kept elsewhere. The coordinator looks every second.
const SHARED_WAIT: Duration = Duration::from_secs(10);
const SHARED_LOOK: Duration = Duration::from_millis(50);

/// All files of the folder and what they hold, by their paths within it. Locks, where a coordinator
/// served, and what is kept elsewhere are of its machine only and are left out.
pub type Contents = BTreeMap<String, String>;

/// What the folder of this state directory holds.
pub fn contents(state_dir: &Path) -> Result<Contents, TrustError> {
    let mut contents = Contents::new();
    collect(&super::folder(state_dir), "", &mut contents)?;
    Ok(contents)
}

/// Makes the folder hold this and nothing else. No coordinator may be using it.
pub fn replace(state_dir: &Path, contents: &Contents) -> Result<(), TrustError> {
    let folder = super::folder(state_dir);
    for path in self::contents(state_dir)?.into_keys() {
        if !contents.contains_key(&path) {
            remove(&folder.join(path))?;
        }
    }
    for (path, text) in contents {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(&folder);
        fs::create_dir_all(parent).map_err(|why| TrustError::File {
            path: parent.to_owned(),
            why,
        })?;
        write(&path, text)?;
    }
    Ok(())
}

/// Notes that this is kept elsewhere.
pub fn note_shared(state_dir: &Path, contents: &Contents) -> Result<(), TrustError> {
    write(&super::folder(state_dir).join(SHARED), &hash(contents))
}

/// Commands that wait until what the folder holds is kept elsewhere.
#[derive(Debug)]
pub struct Waiting(Vec<PathBuf>);

impl Waiting {
    /// Those that wait now. Whatever they have changed is in the contents that are read after this.
    pub fn in_folder(state_dir: &Path) -> Result<Self, TrustError> {
        let folder = super::folder(state_dir);
        let failed = |why| TrustError::File {
            path: folder.clone(),
            why,
        };
        let mut waiting = Vec::new();
        let entries = match fs::read_dir(&folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self(waiting)),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let (first, last) = WAITS;
            if name
                .to_str()
                .is_some_and(|name| name.starts_with(first) && name.ends_with(last))
            {
                waiting.push(folder.join(name));
            }
        }
        Ok(Self(waiting))
    }

    /// Contents that were read after they had begun to wait are kept elsewhere.
    pub fn tell(self) -> Result<(), TrustError> {
        self.0.iter().try_for_each(|path| remove(path))
    }
}

/// Waits until what the folder holds is kept elsewhere, if it is at all: a coordinator that takes over
/// must know of every change that somebody was told of. What others change meanwhile is not waited for.
pub fn until_shared(state_dir: &Path) -> Result<(), TrustError> {
    let folder = super::folder(state_dir);
    let path = folder.join(SHARED);
    if read(&path)?.is_none() {
        return Ok(());
    }
    let (first, last) = WAITS;
    let waits = folder.join(format!("{first}{}{last}", Uuid::now_v7()));
    write(&waits, "")?;
    let shared = until_told(state_dir, &path, &waits);
    remove(&waits)?;
    shared
}

fn until_told(state_dir: &Path, path: &Path, waits: &Path) -> Result<(), TrustError> {
    let end = Instant::now() + SHARED_WAIT;
    loop {
        if read(waits)?.is_none() {
            return Ok(());
        }
        let Some(shared) = read(path)? else {
            return Ok(());
        };
        // A coordinator of before commands left a file tells only this.
        if shared == hash(&contents(state_dir)?) {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(TrustError::NotShared);
        }
        thread::sleep(SHARED_LOOK);
    }
}

fn hash(contents: &Contents) -> String {
    let text = serde_json::to_string(contents).expect("texts have a JSON form");
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

fn collect(folder: &Path, below: &str, contents: &mut Contents) -> Result<(), TrustError> {
    let failed = |why| TrustError::File {
        path: folder.to_owned(),
        why,
    };
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{below}{name}");
        if entry.file_type().map_err(failed)?.is_dir() {
            collect(&entry.path(), &format!("{path}/"), contents)?;
        } else if !is_local(&name)
            && let Some(text) = read(&entry.path())?
        {
            contents.insert(path, text);
        }
    }
    Ok(())
}

fn is_local(name: &str) -> bool {
    // A file that is just being written has another name until it is whole.
    [ENDPOINT, SHARED].contains(&name) || name.ends_with(".lock") || name.starts_with(".new-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust;

    #[test]
    fn another_machine_has_the_same_authority_tokens_and_denials() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = ["muster.example.org".to_owned()];
        let (made, _) = trust::init(here.path(), None, &names).unwrap();
        let all = contents(here.path()).unwrap();
        assert!(all.contains_key("authority.key"), "{:?}", all.keys());
        trust::init(there.path(), None, &["other".to_owned()]).unwrap();
        fs::create_dir_all(there.path().join("trust/tokens")).unwrap();
        fs::write(there.path().join("trust/tokens/old.json"), "{}").unwrap();

        replace(there.path(), &all).unwrap();
        assert_eq!(contents(there.path()).unwrap(), all);
        let (same, is_new) = trust::init(there.path(), None, &names).unwrap();
        assert!(!is_new && same.pin() == made.pin());
    }

    /// As while an authority is replaced, or many machines join: whenever the folder is kept, it has
    /// changed again.
    #[test]
    fn a_command_waits_for_its_own_change_and_not_for_those_of_others() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path();
        trust::init(path, None, &["muster.example.org".to_owned()]).unwrap();
        note_shared(path, &contents(path).unwrap()).unwrap();
        let changed = |number: u32| {
            let other = super::super::folder(path).join("other");
            write(&other, &number.to_string()).unwrap();
        };
        changed(1);
        thread::scope(|scope| {
            let command = scope.spawn(|| until_shared(path));
            let waiting = loop {
                let waiting = Waiting::in_folder(path).unwrap();
                if !waiting.0.is_empty() {
                    break waiting;
                }
                thread::yield_now();
            };
            let kept = contents(path).unwrap();
            assert_eq!(kept.get("other").map(String::as_str), Some("1"));
            changed(2);
            note_shared(path, &kept).unwrap();
            assert!(!command.is_finished(), "nobody has told it yet");
            waiting.tell().unwrap();
            command.join().unwrap().unwrap();
        });
        assert!(Waiting::in_folder(path).unwrap().0.is_empty());
    }
}
