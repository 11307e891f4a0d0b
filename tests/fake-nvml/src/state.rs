//! The file behind the functions: found beside the library, read again when it has changed.

use std::{
    ffi::{CStr, OsStr},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::hardware::Hardware;

/// How soon a hung call looks whether it still hangs, and a waiting one for news. Each look is one
/// stat.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct State {
    dir: PathBuf,
    /// What the file was like when it was last read: a new one is another inode.
    seen: (u64, i64, u64),
    pub(crate) hardware: Hardware,
    /// Number of the last event given out.
    pub(crate) delivered: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl State {
    fn fresh(&mut self) {
        let Ok(found) = std::fs::metadata(self.dir.join(crate::hardware::FILE)) else {
            return;
        };
        let seen = (found.ino(), found.mtime_nsec(), found.len());
        if seen != self.seen
            && let Ok(hardware) = Hardware::read(&self.dir)
        {
            (self.seen, self.hardware) = (seen, hardware);
        }
    }
}

/// The hardware as of now, to answer a call from. Blocks while the driver hangs.
pub(crate) fn with<T>(answer: impl FnOnce(&mut State) -> T) -> T {
    loop {
        let mut guard = lock();
        let state = guard.get_or_insert_with(|| State {
            dir: own_dir().unwrap_or_default(),
            ..State::default()
        });
        state.fresh();
        if !state.hardware.hang {
            return answer(state);
        }
        drop(guard);
        std::thread::sleep(LOOK);
    }
}

/// Where this library lies.
fn own_dir() -> Option<PathBuf> {
    let path = crate::abi::own_path()?;
    Path::new(OsStr::from_bytes(CStr::to_bytes(path)))
        .parent()
        .map(Path::to_owned)
}
