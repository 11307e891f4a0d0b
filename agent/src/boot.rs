//! Which boot this agent is on. The coordinator takes a new boot id as proof that all processes of
//! the earlier boot are dead.
//!
//! In a pod, both a new pod and a reboot of the machine give a new id. The id is in the shared
//! volume, which lives as long as the pod.

use std::{
    fs, io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use muster_core::time::Timestamp;
use muster_runner::procfs;
use muster_runtime::clock::Clock;
use serde::{Deserialize, Serialize};

use crate::atomic_file::write_atomic;

/// The file in the shared volume.
const FILE: &str = "pod.json";

/// One life of the place where workers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) id: String,
    /// When it began, on the machine's clock. None: not known.
    pub(crate) began: Option<Timestamp>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    /// The machine's boot. After a reboot, everything else here is void.
    machine: String,
    id: String,
    began_us: u64,
}

impl Boot {
    /// The machine's own.
    pub(crate) fn of_machine() -> Self {
        Self {
            id: procfs::boot_id().unwrap_or_default(),
            began: procfs::boot_id_is_kernels().then_some(Timestamp(0)),
        }
    }

    /// That of the pod with this volume.
    pub(crate) fn of_pod(volume: &Path) -> io::Result<Self> {
        let machine = procfs::boot_id()?;
        let path = volume.join(FILE);
        let known = match fs::read(&path) {
            Ok(text) => serde_json::from_slice::<Remembered>(&text).ok(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let boot = match known.filter(|known| known.machine == machine) {
            Some(known) => known,
            None => {
                let new = Remembered {
                    id: format!("{machine}-{:x}", nanoseconds()),
                    machine,
                    began_us: Clock::Boot.now_us(),
                };
                write_atomic(&path, serde_json::to_vec(&new)?)?;
                new
            }
        };
        Ok(Self {
            id: boot.id,
            began: Some(Timestamp(boot.began_us)),
        })
    }
}

/// Differs in any two pods of one machine: they cannot begin in the same nanosecond.
fn nanoseconds() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_made_again_and_a_reboot_are_other_boots() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let boot = Boot::of_pod(first.path()).unwrap();
        assert_eq!(
            Boot::of_pod(first.path()).unwrap(),
            boot,
            "the agent was restarted"
        );
        assert_ne!(Boot::of_pod(second.path()).unwrap().id, boot.id);
        assert!(boot.id.starts_with(&Boot::of_machine().id));
        let file = first.path().join(FILE);
        let mut remembered: Remembered = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        remembered.machine = "an earlier boot".into();
        fs::write(&file, serde_json::to_vec(&remembered).unwrap()).unwrap();
        assert_ne!(Boot::of_pod(first.path()).unwrap().id, boot.id);
        fs::write(&file, "damaged").unwrap();
        assert_ne!(
            Boot::of_pod(first.path()).unwrap().id,
            boot.id,
            "who began is unknown then"
        );
    }
}
