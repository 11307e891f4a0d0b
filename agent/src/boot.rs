//! Which boot this agent is on. The coordinator takes a new boot id as proof that all processes of
//! the earlier boot are dead. So an id is new only where that is certain. If it cannot be read, nothing
//! is known, and the agent says so and does not begin.
//!
//! In a pod, both a new pod and a reboot of the machine give a new id. It is kept in the state directory,
//! where workers cannot write, and which goes with the pod. The shared volume has a copy: earlier agents
//! kept the id only there.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use muster_core::time::Timestamp;
use muster_runner::{Folder, pod::RUNS, procfs};
use muster_runtime::{chain::chain, clock::Clock};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::atomic_file;

/// The file in the state directory, and its copy in the shared volume.
const FILE: &str = "pod.json";
/// Time between attempts to read the machine's boot. Files are closed meanwhile.
const RETRY: Duration = Duration::from_secs(1);

/// One life of the place where workers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) id: String,
    /// When it began, on the machine's clock. None: not known.
    pub(crate) began: Option<Timestamp>,
}

/// Why it is not known which boot this is. The text says what to do, because a person must act.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    #[error("the machine's boot id")]
    Machine(#[source] io::Error),
    #[error(
        "{}: {what}; whether this is the pod that it was is not known then, and another one would prove its workers \
         dead: delete the pod, which ends them, or restore the file",
        file.display()
    )]
    Damaged { file: PathBuf, what: String },
    #[error(
        "{}: is missing although runs lie in the shared volume; whether this is the pod that it was is not known \
         then, and another one would prove its workers dead: delete the pod, which ends them",
        file.display()
    )]
    Missing { file: PathBuf },
    #[error("{}", file.display())]
    Io {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
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
    pub(crate) fn of_machine() -> Result<Self, BootError> {
        Ok(Self {
            id: procfs::boot_id().map_err(BootError::Machine)?,
            began: procfs::boot_id_is_kernels().then_some(Timestamp(0)),
        })
    }

    /// That of the pod with this volume, which workers can write, and this state directory.
    pub(crate) fn of_pod(volume: &Path, state_dir: &Path) -> Result<Self, BootError> {
        let machine = procfs::boot_id().map_err(BootError::Machine)?;
        let (own, copy) = (state_dir.join(FILE), volume.join(FILE));
        let known = match remembered(&own)? {
            Some(known) => Some(known),
            // Once there is an own file, nobody reads what workers may have written.
            None => match remembered(&copy)? {
                None if has_runs(volume)? => return Err(BootError::Missing { file: own }),
                known => known.inspect(|_| warn!("{} is taken over", copy.display())),
            },
        };
        let boot = known.filter(|known| known.machine == machine);
        let boot = boot.unwrap_or_else(|| Remembered {
            id: format!("{machine}-{:x}", nanoseconds()),
            machine,
            began_us: Clock::Boot.now_us(),
        });
        let text = serde_json::to_vec(&boot).expect("texts and a number always serialize");
        let kept = atomic_file::write_atomic(&own, &text);
        kept.map_err(|source| BootError::Io { file: own, source })?;
        if let Err(e) = atomic_file::write_atomic(&copy, &text) {
            warn!("{}: the copy for an earlier agent: {e}", copy.display());
        }
        Ok(Self {
            id: boot.id,
            began: Some(Timestamp(boot.began_us)),
        })
    }
}

/// None: there is no such file.
fn remembered(file: &Path) -> Result<Option<Remembered>, BootError> {
    let damaged = |what: String| BootError::Damaged {
        file: file.to_owned(),
        what,
    };
    match atomic_file::read(file) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| damaged(e.to_string())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(damaged(e.to_string())),
        Err(source) => Err(BootError::Io {
            file: file.to_owned(),
            source,
        }),
    }
}

/// Whether an agent has held runs here. The workers' container makes their folder empty.
fn has_runs(volume: &Path) -> Result<bool, BootError> {
    let names = Folder::trusted(volume).and_then(|volume| volume.below(RUNS)?.names(0));
    match names {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(true),
        Err(source) => Err(BootError::Io {
            file: volume.join(RUNS),
            source,
        }),
    }
}

/// The machine's boot, however long it takes to read it. An unknown boot is not another one.
pub(crate) async fn of_now() -> String {
    let mut told = String::new();
    loop {
        match procfs::boot_id() {
            Ok(id) => return id,
            Err(e) => {
                let why = chain(&BootError::Machine(e));
                if why != told {
                    warn!("{why}; trying again, because nothing is proven dead without it");
                    told = why;
                }
            }
        }
        tokio::time::sleep(RETRY).await;
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
    use std::fs;

    use super::*;

    /// A pod: the volume and the state directory.
    struct Pod(tempfile::TempDir);

    impl Pod {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["run", "state", "run/runs"] {
                fs::create_dir(dir.path().join(name)).unwrap();
            }
            Self(dir)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn boot(&self) -> Result<Boot, BootError> {
            Boot::of_pod(&self.path("run"), &self.path("state"))
        }
    }

    #[test]
    fn a_pod_made_again_and_a_reboot_are_other_boots() {
        let (first, second) = (Pod::new(), Pod::new());
        let boot = first.boot().unwrap();
        assert_eq!(first.boot().unwrap(), boot, "the agent was restarted");
        assert_ne!(second.boot().unwrap().id, boot.id);
        assert!(boot.id.starts_with(&Boot::of_machine().unwrap().id));
        let file = first.path("state/pod.json");
        let mut remembered: Remembered = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        remembered.machine = "an earlier boot".into();
        fs::write(&file, serde_json::to_vec(&remembered).unwrap()).unwrap();
        assert_ne!(first.boot().unwrap().id, boot.id);
    }

    #[test]
    fn what_workers_do_to_the_copy_proves_nothing() {
        let pod = Pod::new();
        let boot = pod.boot().unwrap();
        let copy = pod.path("run/pod.json");
        let good = fs::read(&copy).unwrap();
        for text in ["damaged", "", r#"{"machine":"m","id":"i","began_us":0}"#] {
            fs::write(&copy, text).unwrap();
            assert_eq!(pod.boot().unwrap(), boot, "{text}");
        }
        fs::remove_file(&copy).unwrap();
        assert_eq!(pod.boot().unwrap(), boot, "it is missing");
        assert_eq!(fs::read(&copy).unwrap(), good, "an earlier agent finds it");
        fs::remove_file(&copy).unwrap();
        fs::create_dir(&copy).unwrap();
        assert_eq!(pod.boot().unwrap(), boot, "a folder is in its place");
    }

    #[test]
    fn what_an_earlier_agent_has_noted_goes_on() {
        let pod = Pod::new();
        let boot = pod.boot().unwrap();
        fs::remove_file(pod.path("state/pod.json")).unwrap();
        assert_eq!(pod.boot().unwrap(), boot);
    }

    #[test]
    fn what_cannot_be_read_is_no_other_boot() {
        let pod = Pod::new();
        let boot = pod.boot().unwrap();
        let (own, copy) = (pod.path("state/pod.json"), pod.path("run/pod.json"));
        let good = fs::read(&own).unwrap();
        let hint = "delete the pod, which ends them";
        fs::write(&own, "damaged").unwrap();
        let error = pod.boot().unwrap_err();
        assert!(matches!(error, BootError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
        assert_eq!(fs::read(&own).unwrap(), b"damaged", "it is kept");
        fs::remove_file(&own).unwrap();
        fs::write(&copy, &good[..good.len() / 2]).unwrap();
        assert!(matches!(pod.boot(), Err(BootError::Damaged { .. })));
        fs::remove_file(&copy).unwrap();
        fs::create_dir(pod.path("run/runs/j-g1")).unwrap();
        let error = pod.boot().unwrap_err();
        assert!(matches!(error, BootError::Missing { .. }), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
        fs::write(&own, good).unwrap();
        assert_eq!(pod.boot().unwrap(), boot);
    }
}
