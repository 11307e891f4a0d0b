//! The trust folder as a whole, so that it can be kept elsewhere: for a coordinator that follows
//! another one on another machine.

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ring::digest::{SHA256, digest};

use super::{
    ENDPOINT,
    files::{TrustError, read, remove, write},
};

/// The file that says which contents of the folder are kept elsewhere too, by their hash. Where there is
/// none, nothing is kept elsewhere.
const SHARED: &str = "shared";

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

/// Waits until what the folder holds is kept elsewhere, if it is at all: a coordinator that takes over
/// must know of every change that somebody was told of.
pub fn until_shared(state_dir: &Path) -> Result<(), TrustError> {
    let path = super::folder(state_dir).join(SHARED);
    let end = Instant::now() + SHARED_WAIT;
    loop {
        let Some(shared) = read(&path)? else {
            return Ok(());
        };
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
}
