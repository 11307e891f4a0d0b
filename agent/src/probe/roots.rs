//! Where the machine's facts are read from: `/`, or a tree that looks like a machine. Every path of
//! the probes goes through here, which makes them testable without the hardware.

use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug)]
pub(super) struct Roots {
    root: PathBuf,
}

impl Roots {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Whether this is the machine's own root.
    pub(super) fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A value of sysfs or procfs, without its newline. None: the file does not exist, or the
    /// driver refuses (`EINVAL`), which means the same for these files.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read(self.path(path))
            .ok()
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub(super) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The names in a folder, in order. Empty if the folder does not exist.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder))
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The final target of a link, as text.
    pub(super) fn resolved(&self, path: &str) -> Option<String> {
        fs::canonicalize(self.path(path))
            .ok()?
            .into_os_string()
            .into_string()
            .ok()
    }

    /// The last part of a link's target, which is the name of a driver or a device.
    pub(super) fn target(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }
}
