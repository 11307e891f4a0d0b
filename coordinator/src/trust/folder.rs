//! The trust folder as a whole, so that it can be kept elsewhere: for a coordinator that follows
//! another one on another machine.

use std::{collections::BTreeMap, fs, io, path::Path};

use super::{
    ENDPOINT,
    files::{TrustError, read, remove, write},
};

/// All files of the folder and what they hold, by their paths within it. Locks, and where a coordinator
/// served, are of its machine only and are left out.
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
    name == ENDPOINT || name.ends_with(".lock") || name.starts_with(".new-")
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
