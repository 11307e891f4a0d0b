//! Files and links below a sysroot, laid out like sysfs: a device has one place, and everything
//! else links to it.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Writes `text` and the newline with which sysfs ends every value.
    pub(crate) fn file(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("paths lie below the root"))?;
        fs::write(path, format!("{text}\n"))
    }

    pub(crate) fn files(&self, folder: &str, values: &[(&str, &str)]) -> io::Result<()> {
        values
            .iter()
            .try_for_each(|(name, text)| self.file(&format!("{folder}/{name}"), text))
    }

    pub(crate) fn folder(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(path))
    }

    /// Makes a link at `path` to `target`, both below the root. It is relative, as in sysfs, so
    /// that the root can be anywhere.
    pub(crate) fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let at = self.root.join(path);
        fs::create_dir_all(at.parent().expect("paths lie below the root"))?;
        let up = "../".repeat(path.split('/').count() - 1);
        symlink(format!("{up}{target}"), at)
    }
}
