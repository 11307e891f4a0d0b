//! The node's senses: what the node is, and how healthy it is.
//!
//! Separate threads look at the hardware (NVML and its events, the machine around it, the kernel
//! log), since any of these may hang. One more thread hears them all, has their readings judged and
//! publishes the whole report when it has changed. No async code ever waits for hardware.
//!
//! | file | owns |
//! |---|---|
//! | `senses` | the thread that hears the others and publishes |
//! | `glance` | when to glance between two looks |
//! | `nvml` | GPUs: the only place that calls libnvidia-ml |
//! | `machine` | the thread that looks at everything below |
//! | `host`, `pci`, `network`, `ports` | procfs and sysfs |
//! | `kernel_clock` | whether anything sets the clock |
//! | `usage` | how much of the machine is in use, and by whom |
//! | `held` | what the supervisor says about its runs, and what follows from it |
//! | `awaited` | interfaces and peers without which the node takes no work |
//! | `kernel_log` | lines of the kernel log |
//! | `topology` | the distance matrix |
//! | `roots` | the directory that is read as `/` |

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, mpsc},
    time::Duration,
};

use muster_core::{
    health::{Reading, Subject, Table, Value},
    node_report::{Gpu, NodeReport},
    usage::Usage,
};
use muster_runtime::{clock::Clock, version::version};
use tokio::sync::watch;

use crate::config::Config;

mod awaited;
mod glance;
mod held;
mod host;
mod kernel_clock;
mod kernel_log;
mod machine;
mod network;
mod nvml;
mod pci;
mod ports;
mod roots;
mod senses;
mod topology;
mod usage;

pub use awaited::Peer;
pub use held::{HeldRank, HeldRun};
use roots::Roots;
use senses::{Sense, Senses};
pub(crate) use usage::memory;

/// How long the first look may take. Initialising a driver with eight GPUs in non-persistent mode
/// takes seconds.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// The time between glances. A change must be known within a second; the other half is for the
/// look, and for a machine that is busy.
const GLANCE: Duration = Duration::from_millis(500);
/// How many looks and events may wait to be judged, which takes microseconds each. A storm of XIDs
/// fills the queue for a moment, and the dropped events of a storm say nothing new.
const SENSES_MAX: usize = 256;

/// How to look at the node, checked.
#[derive(Clone, Debug)]
pub struct Probes {
    /// The directory below which sysfs, procfs and devices are looked for.
    pub sysroot: PathBuf,
    /// The file of libnvidia-ml. The loader finds it if none is given.
    pub nvml: Option<PathBuf>,
    pub gpus: Share,
    /// How many GPUs there should be, if a person has said so.
    pub expected_gpus: Option<u32>,
    pub table: Table,
    pub pace: Pace,
    /// Whether to keep what must outlive the agent in its state directory.
    pub remembers: bool,
    /// Interfaces and peers without which the node takes no work.
    pub wait_interfaces: Vec<String>,
    pub wait_peers: Vec<Peer>,
    /// This file exists once the machine is about to be taken away.
    pub notice_file: Option<PathBuf>,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            sysroot: "/".into(),
            nvml: None,
            gpus: Share::All,
            expected_gpus: None,
            table: Table::standard(),
            pace: Pace::default(),
            remembers: true,
            wait_interfaces: Vec::new(),
            wait_peers: Vec::new(),
            notice_file: None,
        }
    }
}

/// How often the probes look. Events and the kernel log are heard at once, independently of this.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Compares handles, the driver's verdict, and the states of links, ports and interfaces with
    /// the last look.
    pub glance: Duration,
    /// Handles, the driver's verdict, remap flags, throttling, links, ports.
    pub fast: Duration,
    /// Counters.
    pub counters: Duration,
    /// Inventory.
    pub slow: Duration,
    /// How much of the machine is in use.
    pub usage: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self::every(Duration::from_secs(5))
    }
}

impl Pace {
    /// Derives all periods from the period of the fast looks.
    pub fn every(fast: Duration) -> Self {
        Self {
            glance: GLANCE.min(fast),
            fast,
            counters: fast * 3,
            slow: fast * 12,
            usage: fast * 2,
        }
    }

    /// NVML counts as hung after three missed looks, as in NVSentinel.
    fn hung(self) -> Duration {
        self.fast * 3
    }
}

/// Which GPUs of the machine belong to this node. Several agents may share a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    All,
    /// The `number`-th (from 1) of `of` equal parts, in the order of the GPUs' index.
    Part {
        number: u32,
        of: u32,
    },
    /// By UUID or index.
    Listed(Vec<String>),
}

impl Share {
    fn of(&self, gpus: &[Gpu]) -> Vec<Gpu> {
        let all = gpus.len();
        let part = |number: u32, of: u32| all * number as usize / of.max(1) as usize;
        match self {
            Share::All => gpus.to_vec(),
            Share::Part { number, of } => gpus[part(number - 1, *of)..part(*number, *of)].to_vec(),
            Share::Listed(wanted) => {
                let is_wanted = |gpu: &&Gpu| {
                    wanted
                        .iter()
                        .any(|word| *word == gpu.uuid || *word == gpu.index.to_string())
                };
                gpus.iter().filter(is_wanted).cloned().collect()
            }
        }
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    /// `all`, `none`, `2/3`, or UUIDs and indices separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Share::All),
            "none" => return Ok(Share::Listed(Vec::new())),
            _ => {}
        }
        if let Some((number, of)) = text.split_once('/') {
            return match (number.parse(), of.parse()) {
                (Ok(number), Ok(of)) if (1..=of).contains(&number) => {
                    Ok(Share::Part { number, of })
                }
                _ => Err(format!("{text:?} is no part like 2/3")),
            };
        }
        let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
        if words.iter().any(String::is_empty) {
            return Err(format!(
                "{text:?} is none of all, none, N/M, and a list of UUIDs or indices"
            ));
        }
        Ok(Share::Listed(words))
    }
}

/// Everything this node reports about itself.
#[derive(Clone, Debug)]
pub struct Facts {
    fixed: NodeReport,
    reports: watch::Receiver<Option<NodeReport>>,
    usage: watch::Receiver<Option<Arc<Usage>>>,
    /// Where the session sends what it finds out to the senses. None if nothing is judged.
    senses: Option<mpsc::SyncSender<Sense>>,
    /// Where the runs that this node holds are told to the senses.
    runs: watch::Sender<Vec<HeldRun>>,
}

impl Facts {
    /// Reads the fixed facts and starts to watch the others.
    pub fn gather(config: &Config) -> Self {
        let fixed = NodeReport {
            address: config.address.to_string(),
            agent_version: version().to_owned(),
            labels: config.labels.clone(),
            slots: config.slots,
            ..NodeReport::default()
        };
        let runs = watch::Sender::default();
        let (usage, used) = watch::channel(None);
        let (reports, senses) = watch(
            &config.probes,
            &config.state_dir,
            fixed.clone(),
            runs.subscribe(),
            usage,
        );
        Self {
            fixed,
            reports,
            usage: used,
            senses: Some(senses),
            runs,
        }
    }

    /// Facts that are given and not looked for.
    pub(crate) fn unprobed(fixed: NodeReport) -> Self {
        let reports = watch::Sender::new(Some(fixed.clone())).subscribe();
        Self {
            reports,
            fixed,
            usage: watch::channel(None).1,
            senses: None,
            runs: watch::Sender::default(),
        }
    }

    /// Notes how many milliseconds this node's wall clock is ahead of the coordinator's. A negative
    /// number means that it is behind.
    pub(crate) fn note_skew(&self, ahead_ms: i64) {
        let direction = if ahead_ms < 0 { "behind" } else { "ahead of" };
        let reading = Reading {
            check: "clock-skew",
            subject: Subject::Node,
            value: Value::Level(ahead_ms.unsigned_abs()),
            words: format!("milliseconds its clock is {direction} the coordinator's"),
        };
        // The queue is full in a storm of something worse. The reading comes again when the skew
        // changes.
        let _ = self
            .senses
            .as_ref()
            .map(|senses| senses.try_send(Sense::Skew(reading)));
    }

    /// Notes how the disk of the state directory handles the agent's writes.
    pub(crate) fn note_state_disk(&self, readings: Vec<Reading>) {
        // The queue is full in a storm of something worse. The reading comes again while the state
        // lasts.
        let _ = self
            .senses
            .as_ref()
            .map(|senses| senses.try_send(Sense::StateDisk(readings)));
    }

    /// Notes all runs that this node holds. If several use the same GPU, the one that works there
    /// now comes last.
    pub fn note_runs(&self, runs: Vec<HeldRun>) {
        self.runs.send_if_modified(|known| {
            let changed = *known != runs;
            if changed {
                *known = runs;
            }
            changed
        });
    }

    /// The report as of now.
    pub fn report(&mut self) -> NodeReport {
        let silent = || format!("NVML has not answered within {} s", FIRST_LOOK.as_secs());
        let known = self.reports.borrow_and_update().clone();
        known.unwrap_or_else(|| NodeReport {
            gpu_error: Some(silent()),
            ..self.fixed.clone()
        })
    }

    /// Each look at how much of the machine is in use. It stays empty if nothing looks.
    pub fn usage(&self) -> watch::Receiver<Option<Arc<Usage>>> {
        self.usage.clone()
    }

    /// Waits for the first look at everything, as long as a healthy driver needs. Returns whether
    /// it came. The report says so too.
    pub async fn first_look(&mut self) -> bool {
        tokio::time::timeout(FIRST_LOOK, self.reports.wait_for(Option::is_some))
            .await
            .is_ok_and(|seen| seen.is_ok())
    }

    /// Returns once the facts may have changed. Cancel safe.
    pub async fn changed(&mut self) {
        if self.reports.changed().await.is_err() {
            // The senses have ended, so nothing on this node is watched.
            std::future::pending::<()>().await;
        }
    }
}

/// Starts all threads. They end by themselves when nobody listens any more.
fn watch(
    probes: &Probes,
    state_dir: &Path,
    fixed: NodeReport,
    runs: watch::Receiver<Vec<HeldRun>>,
    used: watch::Sender<Option<Arc<Usage>>>,
) -> (watch::Receiver<Option<NodeReport>>, mpsc::SyncSender<Sense>) {
    let (publish, reports) = watch::channel(None);
    let (out, inbox) = mpsc::sync_channel(SENSES_MAX);
    let (poke, poked) = mpsc::sync_channel(1);
    let over = Arc::new(AtomicBool::new(false));
    let roots = Roots::new(&probes.sysroot);
    senses::start(Senses {
        fixed,
        share: probes.gpus.clone(),
        expected: probes.expected_gpus,
        state_dir: state_dir.to_owned(),
        table: probes.table.clone(),
        pace: probes.pace,
        remembers: probes.remembers,
        inbox,
        poke,
        peers: awaited::unasked(&probes.wait_peers),
        runs: runs.clone(),
        publish,
        over: over.clone(),
        wall: Clock::unix(0),
    });
    nvml::start(nvml::Watch {
        library: probes.nvml.clone(),
        pace: probes.pace,
        out: out.clone(),
        poked,
        over: over.clone(),
    });
    let told = kernel_log::start(roots.path("dev/kmsg"), out.clone(), over.clone());
    if roots.is_real() {
        usage::start(usage::Watch {
            state_dir: state_dir.to_owned(),
            every: probes.pace.usage,
            count_kills: !told,
            runs,
            out: out.clone(),
            publish: used,
            over: over.clone(),
        });
    }
    awaited::start(
        probes.wait_peers.clone(),
        probes.pace.fast,
        out.clone(),
        over.clone(),
    );
    machine::start(machine::Watch {
        roots,
        awaited: probes.wait_interfaces.clone(),
        notice: probes
            .notice_file
            .clone()
            .unwrap_or_else(|| state_dir.join("termination-notice")),
        pace: probes.pace,
        out: out.clone(),
        over,
    });
    (reports, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_shared_out_without_overlap() {
        let gpus: Vec<Gpu> = (0..8)
            .map(|index| Gpu {
                uuid: format!("GPU-{index}"),
                index,
                ..Gpu::default()
            })
            .collect();
        let given = |text: &str| {
            text.parse::<Share>()
                .unwrap()
                .of(&gpus)
                .into_iter()
                .map(|gpu| gpu.index)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            [given("1/3"), given("2/3"), given("3/3")].concat(),
            (0..8).collect::<Vec<_>>()
        );
        assert_eq!(given("1/3").len(), 2);
        assert_eq!(given("all").len(), 8);
        assert_eq!(given("none"), [0; 0]);
        assert_eq!(given("3,GPU-5"), [3, 5]);
        for wrong in ["0/3", "4/3", "x/y", "", "1,,2"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong:?}");
        }
    }
}
