//! The node's senses: what the node is, and how healthy it is.
//!
//! Separate threads look at the hardware (NVML and its events, the machine around it, the kernel
//! log), since any of these may hang. One more thread hears them all, has their readings judged and
//! publishes the whole report when it has changed. No async code ever waits for hardware.
//!
//! | file | owns |
//! |---|---|
//! | `settings` | how to look at the node |
//! | `sense` | what the looking threads say: looks, events, readings |
//! | `senses` | the thread that hears the others and publishes |
//! | `glance` | when to glance between two looks |
//! | `nvml` | GPUs: the only place that calls libnvidia-ml |
//! | `machine` | the thread that looks at everything below |
//! | `host`, `pci`, `network`, `ports` | procfs and sysfs |
//! | `kernel_clock` | whether anything sets the clock |
//! | `usage` | how much of the machine is in use, and by whom |
//! | `held` | what the supervisor says about its runs, and what follows from it |
//! | `holders` | which pods hold which GPUs, by what the kubelet says |
//! | `awaited` | interfaces and peers without which the node takes no work |
//! | `kernel_log` | lines of the kernel log |
//! | `kubelet` | asking the kubelet which devices it gave to pods |
//! | `topology` | the distance matrix |
//! | `roots` | the directory that is read as `/` |

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::Path,
    sync::{Arc, atomic::AtomicBool, mpsc},
    time::Duration,
};

use muster_core::{
    health::{Reading, Subject, Value},
    node_report::NodeReport,
    usage::{GpuUsage, Space, Usage},
};
use muster_runtime::clock::Clock;
use tokio::sync::watch;
use tracing::info;

mod addresses;
mod awaited;
mod container;
mod glance;
mod held;
mod holders;
mod host;
mod kernel_clock;
mod kernel_log;
mod kubelet;
mod machine;
mod network;
mod nvml;
mod pci;
mod ports;
mod roots;
mod sense;
mod senses;
pub(crate) mod settings;
mod topology;
mod usage;

pub use awaited::Peer;
use container::{BaseEnv, Container};
pub use held::{HeldRank, HeldRun};
use roots::Roots;
use sense::Sense;
use senses::Senses;
pub use settings::{Kubelet, Pace, Probes, Share};
pub(crate) use usage::memory;

/// How long the first look may take. Initialising a driver with eight GPUs in non-persistent mode
/// takes seconds.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// How many looks and events may wait to be judged, which takes microseconds each. A storm of XIDs
/// fills the queue for a moment, and the dropped events of a storm say nothing new.
const SENSES_MAX: usize = 256;

/// Everything this node reports about itself.
#[derive(Clone, Debug)]
pub struct Facts {
    fixed: NodeReport,
    /// The node's address, if it is another one than at the start.
    moved_to: watch::Sender<Option<IpAddr>>,
    reports: watch::Receiver<Option<NodeReport>>,
    usage: watch::Receiver<Option<Arc<Usage>>>,
    /// Where the session sends what it finds out to the senses. None if nothing is judged.
    senses: Option<mpsc::SyncSender<Sense>>,
    /// Where the runs that this node holds are told to the senses.
    runs: watch::Sender<Vec<HeldRun>>,
    base_env: watch::Receiver<BaseEnv>,
    gpus_used: watch::Receiver<Vec<GpuUsage>>,
}

impl Facts {
    /// Starts to watch the node. `fixed` is what is known without looking, such as its address and
    /// its labels.
    pub fn gather(fixed: NodeReport, probes: &Probes, state_dir: &Path) -> Self {
        let runs = watch::Sender::default();
        let (usage, used) = watch::channel(None);
        let (env, base_env) = watch::channel(BaseEnv::new());
        let container = match &probes.pod {
            Some(volume) => Some(Container {
                volume: volume.clone(),
                env,
            }),
            None => {
                env.send_replace(container::own_environment());
                None
            }
        };
        let (gpu_usage, gpus_used) = watch::channel(Vec::new());
        let (reports, senses) = watch(
            probes,
            container,
            state_dir,
            fixed.clone(),
            runs.subscribe(),
            usage,
            gpu_usage,
        );
        Self {
            fixed,
            moved_to: watch::Sender::default(),
            reports,
            usage: used,
            senses: Some(senses),
            runs,
            base_env,
            gpus_used,
        }
    }

    /// Facts that are given and not looked for.
    pub(crate) fn unprobed(fixed: NodeReport) -> Self {
        let reports = watch::Sender::new(Some(fixed.clone())).subscribe();
        Self {
            reports,
            fixed,
            moved_to: watch::Sender::default(),
            usage: watch::channel(None).1,
            senses: None,
            runs: watch::Sender::default(),
            base_env: watch::channel(container::own_environment()).1,
            gpus_used: watch::channel(Vec::new()).1,
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
            runs: Vec::new(),
        };
        // The queue is full in a storm of something worse. The reading comes again when the skew
        // changes.
        if let Some(senses) = &self.senses {
            let _ = senses.try_send(Sense::Skew(reading));
        }
    }

    /// Notes how the disk of the state directory handles the agent's writes.
    pub(crate) fn note_state_disk(&self, readings: Vec<Reading>) {
        // The queue is full in a storm of something worse. The reading comes again while the state
        // lasts.
        if let Some(senses) = &self.senses {
            let _ = senses.try_send(Sense::StateDisk(readings));
        }
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
        let mut report = known.unwrap_or_else(|| NodeReport {
            gpu_error: Some(silent()),
            ..self.fixed.clone()
        });
        if let Some(address) = *self.moved_to.borrow() {
            report.address = address.to_string();
        }
        report
    }

    /// Other nodes reach this one at this address from now on. Workers that run keep the old one.
    pub(crate) fn move_to(&self, address: IpAddr) {
        let now = address.to_string();
        let is_new = self.moved_to.send_if_modified(|known| {
            let before = known.map_or(self.fixed.address.clone(), |known| known.to_string());
            *known = Some(address);
            before != now
        });
        if is_new {
            info!("this node reaches the coordinator from {now} now, and that is its address");
        }
    }

    /// The environment that each worker's own environment starts from. It is empty while the container
    /// that workers live in is not up yet; the report has a finding then.
    pub(crate) fn base_env(&self) -> BaseEnv {
        self.base_env.borrow().clone()
    }

    /// The memory of each GPU at the last look, by UUID. A GPU that is cut into instances is left out.
    pub(crate) fn gpu_memory(&self) -> BTreeMap<String, Space> {
        let used = self.gpus_used.borrow();
        let memory = |gpu: &GpuUsage| Some((gpu.uuid.clone(), gpu.memory?));
        used.iter().filter_map(memory).collect()
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
    container: Option<Container>,
    state_dir: &Path,
    fixed: NodeReport,
    runs: watch::Receiver<Vec<HeldRun>>,
    used: watch::Sender<Option<Arc<Usage>>>,
    gpu_usage: watch::Sender<Vec<GpuUsage>>,
) -> (watch::Receiver<Option<NodeReport>>, mpsc::SyncSender<Sense>) {
    let (publish, reports) = watch::channel(None);
    let (out, inbox) = mpsc::sync_channel(SENSES_MAX);
    let (poke, poked) = mpsc::sync_channel(1);
    let over = Arc::new(AtomicBool::new(false));
    let roots = Roots::new(&probes.sysroot);
    senses::start(Senses {
        fixed,
        outer: probes.outer_addresses.clone(),
        share: probes.gpus.clone(),
        expected: probes.expected_gpus,
        state_dir: state_dir.to_owned(),
        table: probes.table.clone(),
        pace: probes.pace,
        remembers: probes.remembers,
        kubelet: probes.kubelet.clone(),
        inbox,
        poke,
        peers: awaited::unasked(&probes.wait_peers),
        runs: runs.clone(),
        publish,
        over: over.clone(),
        wall: Clock::unix(0),
    });
    let gpus = gpu_usage.subscribe();
    nvml::start(nvml::Watch {
        library: probes.nvml.clone(),
        pace: probes.pace,
        out: out.clone(),
        usage: gpu_usage,
        poked,
        over: over.clone(),
    });
    let told = kernel_log::start(roots.path("dev/kmsg"), out.clone(), over.clone());
    if roots.is_real() {
        usage::start(usage::Watch {
            state_dir: state_dir.to_owned(),
            pod: probes.pod.clone(),
            every: probes.pace.usage,
            count_kills: !told,
            runs,
            gpus,
            out: out.clone(),
            publish: used,
            over: over.clone(),
        });
    }
    if let Some(Kubelet { socket, .. }) = &probes.kubelet {
        kubelet::start(kubelet::Watch {
            socket: socket.clone(),
            every: probes.pace.fast,
            out: out.clone(),
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
        container,
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
