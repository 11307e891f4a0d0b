//! The file behind the functions. It is found beside the library, and read again when it has
//! changed.

use std::{
    ffi::{CStr, OsStr},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::hardware::Hardware;

/// How often a hung call checks whether the hang is over, and a waiting call looks for news. Each
/// look is one stat.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct State {
    dir: PathBuf,
    /// The identity of the file when it was last read. A new file has another inode.
    seen: (u64, i64, u64),
    pub(crate) hardware: Hardware,
    /// The number of the last event that was given out.
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

/// The hardware as it is now, for one call. Blocks while the driver hangs.
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

/// The directory of this library.
fn own_dir() -> Option<PathBuf> {
    let path = crate::abi::own_path()?;
    Path::new(OsStr::from_bytes(CStr::to_bytes(path)))
        .parent()
        .map(Path::to_owned)
}
