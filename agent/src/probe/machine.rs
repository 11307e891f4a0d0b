//! Looks at the machine around the GPUs on its own thread. A counter of a faulty NIC may be slow to
//! read and must not delay the look at NVML.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::{Duration, Instant},
};

use muster_core::health::{Reading, Source, Subject, Value};
use tracing::warn;

use super::{
    addresses, awaited,
    container::Container,
    glance::Glances,
    host, kernel_clock, network, pci,
    ports::{self, Used},
    roots::Roots,
    sense::{MachineLook, Sense},
    settings::Pace,
};

/// How often to look after a glance has shown something new, and for how long. Some changes count
/// only after they have lasted some seconds, and this notices it in time.
const CLOSELY: Duration = Duration::from_secs(1);
const CLOSELY_FOR: Duration = Duration::from_secs(10);

/// What the thread needs to know.
pub(super) struct Watch {
    pub(super) roots: Roots,
    /// Interfaces without which the node takes no work.
    pub(super) awaited: Vec<String>,
    /// The container that workers live in, if that is another one.
    pub(super) container: Option<Container>,
    /// This file exists once the machine is about to be taken away.
    pub(super) notice: PathBuf,
    pub(super) pace: Pace,
    pub(super) out: SyncSender<Sense>,
    /// Set once nobody listens any more.
    pub(super) over: Arc<AtomicBool>,
}

/// What is known from earlier looks.
#[derive(Default)]
struct Eyes {
    look: MachineLook,
    used: Used,
    signature: Vec<String>,
    listed: Option<Instant>,
    counted: Option<Instant>,
    /// When a glance last showed something new.
    news: Option<Instant>,
}

pub(super) fn start(watch: Watch) {
    let look = move || look_for_ever(&watch);
    if let Err(e) = thread::Builder::new().name("machine".into()).spawn(look) {
        warn!("the machine is not watched: no thread: {e}");
    }
}

fn look_for_ever(watch: &Watch) {
    let (mut eyes, mut glances) = (Eyes::default(), Glances::new(watch.pace.glance));
    while !watch.over.load(Ordering::Relaxed) {
        // The glance comes before the look. A change in between may be missing from the look, and
        // then counts as news.
        let seen = eyes.glance(watch);
        eyes.look(watch);
        if watch
            .out
            .send(Sense::Machine(Box::new(eyes.look.clone())))
            .is_err()
        {
            return;
        }
        eyes.rest(watch, &mut glances, &seen);
    }
}

impl Eyes {
    /// Returns when it is time to look.
    fn rest(&mut self, watch: &Watch, glances: &mut Glances, seen: &[Option<String>]) {
        let looked = Instant::now();
        let closely = self.news.is_some_and(|at| at.elapsed() < CLOSELY_FOR);
        let pace = if closely {
            CLOSELY.min(watch.pace.fast)
        } else {
            watch.pace.fast
        };
        while looked.elapsed() < pace && !watch.over.load(Ordering::Relaxed) {
            thread::sleep(pace.saturating_sub(looked.elapsed()).min(glances.pause()));
            glances.begin();
            let news = self.glance(watch) != seen;
            glances.end();
            if news {
                // The first glance has nothing to compare with.
                self.news = (!seen.is_empty()).then(Instant::now);
                return;
            }
        }
    }

    /// Reads what takes a node out of its jobs, in as few reads as possible: states of ports,
    /// interfaces that the node waits for, and the notice that the machine will go away.
    fn glance(&self, watch: &Watch) -> Vec<Option<String>> {
        if self.listed.is_none() {
            return Vec::new();
        }
        let (roots, network) = (&watch.roots, &self.look.network);
        let state = |device: &str, port: u32| {
            roots.text(&format!("sys/class/infiniband/{device}/ports/{port}/state"))
        };
        let ports = network.rdma.iter().flat_map(|device| {
            device
                .ports
                .iter()
                .map(|port| state(&device.name, port.number))
        });
        let interfaces = watch
            .awaited
            .iter()
            .map(|name| roots.text(&format!("sys/class/net/{name}/operstate")));
        ports
            .chain(interfaces)
            .chain([watch.notice.exists().then(String::new)])
            .chain(watch.container.iter().map(Container::glance))
            .collect()
    }

    /// Reads states and awaited interfaces each time, and counters and stable facts at their own
    /// slower pace, because every read costs the kernel work.
    fn look(&mut self, watch: &Watch) {
        let (roots, pace, look) = (&watch.roots, watch.pace, &mut self.look);
        look.readings.clear();
        let listing = self.listed.is_none_or(|at| at.elapsed() >= pace.slow);
        let signature = network::signature(roots);
        if listing || signature != self.signature {
            self.signature = signature;
            look.network = network::read(roots);
            look.network.addresses = addresses::read();
        } else {
            network::renew(roots, &mut look.network);
        }
        if listing {
            self.listed = Some(Instant::now());
            look.machine = host::read(roots);
            look.gpus = pci::gpus(roots);
            look.readings.push((Source::Node, node(roots, look)));
        }
        let nics = look
            .network
            .rdma
            .iter()
            .map(|device| &device.pci)
            .chain(look.network.interfaces.iter().map(|i| &i.pci));
        let addresses: Vec<String> = nics
            .chain(&look.gpus)
            .filter(|address| !address.is_empty())
            .cloned()
            .collect();
        look.devices
            .retain(|address, _| addresses.contains(address));
        for address in addresses {
            if !look.devices.contains_key(&address)
                && let Some(device) = pci::device(roots, &address)
            {
                look.devices.insert(address, device);
            }
        }
        let states = [
            ports::states(&look.network, &mut self.used),
            awaited::interfaces(roots, &watch.awaited),
        ]
        .concat();
        look.readings.push((Source::Network, states));
        let container = watch.container.as_ref().map(Container::look);
        let notice = [awaited::notice(&watch.notice)];
        look.readings.push((
            Source::Notice,
            notice.into_iter().chain(container).collect(),
        ));
        if self.counted.is_none_or(|at| at.elapsed() >= pace.counters) {
            self.counted = Some(Instant::now());
            look.readings
                .push((Source::NicCounters, ports::counters(roots, &look.network)));
        }
    }
}

fn node(roots: &Roots, look: &MachineLook) -> Vec<Reading> {
    let reading = |check, value, words: &str| Reading {
        check,
        subject: Subject::Node,
        value,
        words: words.to_owned(),
        runs: Vec::new(),
    };
    let host = &look.machine.host;
    let mut all = Vec::new();
    if let Some(bytes) = host.shm_bytes {
        all.push(reading(
            "shm-small",
            Value::Level(bytes),
            "size of /dev/shm in bytes",
        ));
    }
    if let Some(gone) = host::fabric_manager_gone(roots) {
        all.push(reading(
            "fabric-manager",
            Value::Flag(gone),
            "the fabric manager of this NVSwitch machine is not running",
        ));
    }
    if let Some(unset) = kernel_clock::unsynchronised(roots) {
        all.push(reading(
            "clock-unsynchronised",
            Value::Flag(unset),
            "no time service sets its clock (chrony, systemd-timesyncd, ntpd)",
        ));
    }
    let gpu_direct = look.gpus.is_empty() || look.network.rdma.is_empty() || host.peermem;
    all.push(reading(
        "rdma-no-peermem",
        Value::Flag(!gpu_direct),
        "RDMA devices and GPUs, but no nvidia-peermem module",
    ));
    all
}
