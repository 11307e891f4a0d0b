//! All senses together: one thread hears the others, has [`Judge`] judge, and publishes the report
//! whenever it has changed.
//!
//! It never looks at hardware itself, so it never hangs. It notices when another thread hangs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use muster_core::{
    health::{
        Health, Judge, Memory, Moment, Reading, Source, Subject, Table, Value, Xid,
        kernel_log::{CGROUP_OOM, HOST_OOM, Line},
    },
    node_report::{Gpu, NodeReport, network::Network, topology::Topology},
    period,
    time::Timestamp,
};
use muster_runtime::clock::Clock;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    held::{Held, HeldRun},
    holders::PodHolders,
    sense::{GpuLook, MachineLook, Sense},
    settings::{Kubelet, Pace, Share},
    topology,
};
use crate::{
    atomic_file::{self, write_atomic},
    trials::Trials,
};

/// The longest time between two checks whether NVML hangs.
const WATCH: Duration = Duration::from_secs(1);
/// The file of the judge's memory, in the state directory.
const MEMORY: &str = "health.json";
/// How long a report waits until the judge's memory is on disk. Healthy disks are faster. A fault
/// that a slow disk keeps back costs more than a fault that is forgotten because the agent ends at
/// this moment.
const REMEMBER_MAX: Duration = Duration::from_millis(500);

pub(super) struct Senses {
    pub(super) fixed: NodeReport,
    pub(super) outer: Vec<IpAddr>,
    pub(super) share: Share,
    pub(super) expected: Option<u32>,
    pub(super) state_dir: PathBuf,
    pub(super) table: Table,
    pub(super) pace: Pace,
    pub(super) remembers: bool,
    pub(super) kubelet: Option<Kubelet>,
    pub(super) inbox: Receiver<Sense>,
    pub(super) poke: SyncSender<()>,
    /// The readings about peers until they have been asked.
    pub(super) peers: Vec<Reading>,
    pub(super) runs: watch::Receiver<Vec<HeldRun>>,
    pub(super) publish: watch::Sender<Option<NodeReport>>,
    /// Tells the other threads that nobody listens any more.
    pub(super) over: Arc<AtomicBool>,
    /// Unix time, for people.
    pub(super) wall: Clock,
}

/// What is known so far.
struct Mind {
    judge: Judge,
    saved: Memory,
    gpus: Option<GpuLook>,
    machine: Option<MachineLook>,
    looked: Instant,
    hung: bool,
    held: Held,
    /// UUID by PCI address, of every GPU ever seen.
    names: BTreeMap<String, String>,
    /// RDMA devices ever seen.
    nics: BTreeSet<String>,
    /// The combined result of the last looks. It is kept as long as looks say the same, as most do.
    seen: Option<Seen>,
    pods: PodHolders,
    keeper: Keeper,
}

/// What the looks at the GPUs and at the machine give together.
struct Seen {
    gpus: Vec<Gpu>,
    network: Network,
    topology: Topology,
}

pub(super) fn start(senses: Senses) {
    if let Err(e) = thread::Builder::new()
        .name("senses".into())
        .spawn(move || senses.run())
    {
        warn!("the node is not watched: no thread: {e}");
    }
}

impl Senses {
    /// Ends when nobody listens any more, or when all other threads have ended.
    fn run(self) {
        let boot_id = muster_runner::procfs::boot_id().unwrap_or_default();
        let remembered = self.remembered();
        let mut mind = Mind {
            judge: Judge::new(self.table.clone(), &boot_id, remembered.clone()),
            saved: remembered,
            gpus: None,
            machine: None,
            looked: Instant::now(),
            hung: false,
            held: Held::new(self.runs.clone()),
            names: BTreeMap::new(),
            nics: BTreeSet::new(),
            seen: None,
            pods: PodHolders::new(self.kubelet.clone()),
            keeper: Keeper::start(self.state_dir.join(MEMORY)),
        };
        mind.judge.look(Source::Peers, &self.peers, self.moment());
        while !self.publish.is_closed() {
            let sense = match self.inbox.recv_timeout(WATCH.min(self.pace.fast)) {
                Ok(sense) => Some(sense),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let runs = mind.held.hear();
            if runs {
                mind.judge
                    .look(Source::Runs, &mind.held.readings(), self.moment());
            }
            let heard = sense.is_some() || runs;
            sense
                .into_iter()
                .for_each(|sense| self.hear(&mut mind, sense));
            let hung = self.watch_nvml(&mut mind);
            let due = mind.judge.next_due().is_some_and(|due| due <= now());
            if heard || hung || due {
                self.tell(&mut mind);
            }
        }
        self.over.store(true, Ordering::Relaxed);
    }

    fn moment(&self) -> Moment {
        Moment {
            now: now(),
            unix_us: self.wall.now_us(),
        }
    }

    fn hear(&self, mind: &mut Mind, sense: Sense) {
        let at = self.moment();
        match sense {
            Sense::Gpus(look) => self.gpus(mind, *look, at),
            Sense::Machine(look) => {
                mind.nics
                    .extend(look.network.rdma.iter().map(|device| device.name.clone()));
                for (source, readings) in &look.readings {
                    let gone = if *source == Source::Network {
                        missing_nics(&mind.nics, &look)
                    } else {
                        Vec::new()
                    };
                    mind.judge
                        .look(*source, &[readings.clone(), gone].concat(), at);
                }
                let same = |known: &MachineLook| {
                    known.network == look.network && known.devices == look.devices
                };
                if !mind.machine.as_ref().is_some_and(same) {
                    mind.seen = None;
                }
                mind.machine = Some(*look);
            }
            Sense::Xid(xid) => self.xid(mind, &xid, at),
            Sense::KernelLine(Line::Xid(xid)) => self.xid(mind, &xid, at),
            Sense::KernelLine(Line::Check { check, pci, text }) => {
                let subject = pci
                    .and_then(|pci| mind.at_address(&pci))
                    .unwrap_or(Subject::Node);
                let killed = matches!(check, CGROUP_OOM | HOST_OOM);
                let text = if killed {
                    mind.held.with_victim(&text)
                } else {
                    text
                };
                mind.judge.event(check, &subject, &text, at);
            }
            Sense::LookAgain => self.look_again(),
            Sense::Peers(readings) => mind.judge.look(Source::Peers, &readings, at),
            Sense::Skew(reading) => mind.judge.look(Source::Clock, &[reading], at),
            Sense::StateDisk(readings) => mind.judge.look(Source::StateDisk, &readings, at),
            Sense::Usage(readings) => mind.judge.look(Source::Usage, &readings, at),
            Sense::Kubelet(answer) => {
                let reading = mind.pods.hear(answer, mind.gpus.as_ref());
                mind.judge.look(Source::Kubelet, &[reading], at);
            }
        }
    }

    fn look_again(&self) {
        // One waiting poke is enough.
        let _ = self.poke.try_send(());
    }

    fn xid(&self, mind: &mut Mind, xid: &Xid, at: Moment) {
        let subject = mind
            .names
            .get(&xid.pci)
            .map_or(Subject::Node, |uuid| Subject::Gpu(uuid.clone()));
        if mind.judge.xid(xid, &subject, at) {
            let uuid = mind.names.get(&xid.pci);
            let ours = uuid.and_then(|uuid| mind.held.job_on(uuid));
            let job = ours.map(str::to_owned);
            if let Some(job) = job.or_else(|| mind.workload_on(uuid?)) {
                mind.judge.fault_of_job(xid.code, &subject, &job, at);
            }
            warn!(code = xid.code, pci = %xid.pci, detail = %xid.detail, "XID");
            self.look_again();
        }
    }

    fn gpus(&self, mind: &mut Mind, look: GpuLook, at: Moment) {
        mind.looked = Instant::now();
        if look.reloaded {
            info!("the NVIDIA driver was loaded anew");
            mind.judge.driver_reloaded();
        }
        mind.names.extend(
            look.gpus
                .iter()
                .map(|gpu| (gpu.pci.clone(), gpu.uuid.clone())),
        );
        for (source, readings) in &look.readings {
            mind.judge
                .look(*source, &mind.held.not_of_ours(readings), at);
        }
        if mind
            .gpus
            .as_ref()
            .is_none_or(|known| known.gpus != look.gpus)
        {
            mind.seen = None;
        }
        mind.gpus = Some(look);
        let all = self.missing(mind);
        mind.judge
            .look(Source::Watchdog, &[all, self.hung(false)].concat(), at);
    }

    /// Readings about GPUs that are missing or cannot be used.
    fn missing(&self, mind: &mut Mind) -> Vec<Reading> {
        let Some(look) = mind.gpus.as_ref().filter(|look| !look.absent) else {
            return Vec::new();
        };
        let on_bus = mind
            .machine
            .as_ref()
            .map_or(0, |machine| machine.gpus.len() as u64);
        let most = mind.judge.most_seen("gpu", u64::from(look.present));
        let should = most.max(on_bus).max(self.expected.unwrap_or(0).into());
        let node = |check, set, words: String| Reading {
            check,
            subject: Subject::Node,
            value: Value::Flag(set),
            words,
            runs: Vec::new(),
        };
        // A lost GPU has its own finding, which says more. While NVML is not open, nothing can be
        // counted.
        let lost = look.gpus.len() as u64 - u64::from(look.present).min(look.gpus.len() as u64);
        let open = !look.mismatch && !look.unavailable;
        let in_a_domain = |gpu: &Gpu| {
            gpu.fabric
                .as_ref()
                .is_some_and(|fabric| !fabric.cluster.is_empty())
        };
        let closed = look.gpus.iter().any(in_a_domain)
            && mind
                .machine
                .as_ref()
                .is_some_and(|m| m.machine.host.imex_channels.is_empty());
        let missing = open && u64::from(look.present) + lost < should;
        vec![
            node(
                "gpu-missing",
                missing,
                format!("{} of {should} GPUs", look.present),
            ),
            node(
                "imex-channel",
                closed,
                "no IMEX channel to the NVLink domain of its GPUs".into(),
            ),
            node(
                "driver-mismatch",
                look.mismatch,
                look.error.clone().unwrap_or_default(),
            ),
            node(
                "nvml-unavailable",
                look.unavailable,
                look.error.clone().unwrap_or_default(),
            ),
        ]
    }

    /// True if NVML has begun or stopped hanging.
    fn watch_nvml(&self, mind: &mut Mind) -> bool {
        let absent = mind.gpus.as_ref().is_some_and(|look| look.absent);
        let late = !absent && mind.looked.elapsed() > self.pace.hung();
        let news = late != mind.hung;
        if news {
            mind.hung = late;
            if late {
                warn!("{}", self.silence());
                let all = self.missing(mind);
                mind.judge.look(
                    Source::Watchdog,
                    &[all, self.hung(true)].concat(),
                    self.moment(),
                );
            } else {
                info!("NVML answers again");
            }
        }
        news
    }

    fn silence(&self) -> String {
        format!(
            "NVML has not answered for {}",
            period::format(self.pace.hung())
        )
    }

    fn hung(&self, hung: bool) -> Vec<Reading> {
        vec![Reading {
            check: "nvml-hung",
            subject: Subject::Node,
            value: Value::Flag(hung),
            words: self.silence(),
            runs: Vec::new(),
        }]
    }

    /// Publishes the report if it has changed.
    fn tell(&self, mind: &mut Mind) {
        let (Some(machine), true) = (&mind.machine, mind.gpus.is_some() || mind.hung) else {
            return;
        };
        let none = GpuLook::default();
        let look = mind.gpus.as_ref().unwrap_or(&none);
        let seen = mind
            .seen
            .get_or_insert_with(|| self.see(&look.gpus, machine));
        let mut report = self.fixed.clone();
        report.hostname.clone_from(&machine.machine.name);
        report.kernel.clone_from(&machine.machine.kernel);
        (report.cpus, report.memory_bytes) = (machine.machine.cpus, machine.machine.memory_bytes);
        report.host = machine.machine.host.clone();
        report.driver.clone_from(&look.driver);
        report.gpu_error = match mind.hung {
            true => Some(self.silence()),
            false => look.error.clone(),
        };
        (report.gpus, report.network, report.topology) = (
            seen.gpus.clone(),
            seen.network.clone(),
            seen.topology.clone(),
        );
        // Alone they would be no full list.
        if !report.network.addresses.is_empty() {
            report.network.addresses.extend(&self.outer);
        }
        report.trials = Trials::of(&self.state_dir).all();
        report.holders = mind.pods.of(&look.gpus, &report.gpus);
        report.health = self.own(mind.judge.health(now()), &report.gpus);
        // Remember before telling: an agent that ends at this moment must not forget what it has
        // told.
        self.remember(mind);
        self.publish.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&report);
            if changed {
                log_changes(known.as_ref().map(|known| &known.health), &report.health);
                *known = Some(report);
            }
            changed
        });
    }

    fn see(&self, gpus: &[Gpu], machine: &MachineLook) -> Seen {
        let own = self.share.of(gpus).into_iter();
        let gpus: Vec<Gpu> = own
            .map(|gpu| topology::seen_from_the_bus(gpu, &machine.devices))
            .collect();
        let topology = topology::matrix(&gpus, &machine.network, &machine.devices);
        let mut network = machine.network.clone();
        topology::number_rails(&mut network, &gpus, &topology);
        Seen {
            gpus,
            network,
            topology,
        }
    }

    /// Removes findings about GPUs that belong to another agent.
    fn own(&self, mut health: Health, gpus: &[Gpu]) -> Health {
        if self.share != Share::All {
            health.findings.retain(|finding| match &finding.subject {
                Subject::Gpu(uuid) => gpus.iter().any(|gpu| &gpu.uuid == uuid),
                _ => true,
            });
        }
        health
    }

    fn remembered(&self) -> Memory {
        let text = atomic_file::read(&self.state_dir.join(MEMORY)).unwrap_or_default();
        // A memory of another version, or a damaged one, is replaced by an empty one, as after a
        // reboot.
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn remember(&self, mind: &mut Mind) {
        let memory = mind.judge.memory();
        if memory == mind.saved || !self.remembers {
            return;
        }
        let text = serde_json::to_string(&memory).expect("plain values have a JSON form");
        if mind.keeper.keep(text) {
            mind.saved = memory;
        }
    }
}

/// The thread that writes the judge's memory, because the disk may hang and the senses must not.
struct Keeper {
    texts: SyncSender<String>,
    written: Receiver<()>,
    /// A write is under way, and nobody waits for it any more.
    late: bool,
}

impl Keeper {
    fn start(path: PathBuf) -> Self {
        // One text at a time: the next is given only when the previous one is written.
        let ((texts, to_write), (say, written)) = (sync_channel(1), sync_channel(1));
        let write = move || {
            while let Ok(text) = to_write.recv() {
                if let Err(e) = write_atomic(&path, String::as_str(&text)) {
                    warn!("health is not remembered over a restart of the agent: {e}");
                }
                if say.send(()).is_err() {
                    return;
                }
            }
        };
        if let Err(e) = thread::Builder::new()
            .name("health memory".into())
            .spawn(write)
        {
            warn!("health is not remembered over a restart of the agent: no thread: {e}");
        }
        Self {
            texts,
            written,
            late: false,
        }
    }

    /// Writes this, and waits a little until it is on disk. False: the disk still works on the
    /// previous text, so the caller must give this one again.
    fn keep(&mut self, text: String) -> bool {
        if self.late && self.written.try_recv().is_err() {
            return false;
        }
        self.late =
            self.texts.try_send(text).is_ok() && self.written.recv_timeout(REMEMBER_MAX).is_err();
        true
    }
}

impl Mind {
    /// The workload in a pod on this GPU.
    fn workload_on(&self, uuid: &str) -> Option<String> {
        self.pods.workload_on(&self.gpus.as_ref()?.gpus, uuid)
    }

    fn at_address(&self, pci: &str) -> Option<Subject> {
        if let Some(uuid) = self.names.get(pci) {
            return Some(Subject::Gpu(uuid.clone()));
        }
        let network = &self.machine.as_ref()?.network;
        network
            .rdma
            .iter()
            .find(|device| device.pci == pci)
            .map(|device| Subject::Nic(device.name.clone()))
    }
}

/// Readings about RDMA devices that existed and are gone.
fn missing_nics(ever: &BTreeSet<String>, look: &MachineLook) -> Vec<Reading> {
    let gone = ever
        .iter()
        .filter(|name| !look.network.rdma.iter().any(|now| &now.name == *name));
    let reading = |name: &String| Reading {
        check: "nic-missing",
        subject: Subject::Nic(name.clone()),
        value: Value::Flag(true),
        words: format!("{name} was there and is gone"),
        runs: Vec::new(),
    };
    gone.map(reading).collect()
}

fn log_changes(before: Option<&Health>, now: &Health) {
    let known = |finding| before.is_some_and(|health| health.findings.contains(finding));
    for finding in now.findings.iter().filter(|finding| !known(finding)) {
        warn!(check = finding.check, subject = ?finding.subject, severity = %finding.severity, remedy = %finding.remedy, "{}", finding.reason);
    }
    let gone = |finding: &&muster_core::health::Finding| {
        !now.findings
            .iter()
            .any(|f| (&f.check, &f.subject) == (&finding.check, &finding.subject))
    };
    for finding in before
        .into_iter()
        .flat_map(|health| &health.findings)
        .filter(gone)
    {
        info!(check = finding.check, subject = ?finding.subject, "well again");
    }
}

fn now() -> Timestamp {
    Timestamp(Clock::Boot.now_us())
}
