//! How much of the machine is in use, and by whom. It looks every ten seconds, on its own thread.
//!
//! Each look is published whole for the session to send, and its readings go to the judge. Nothing
//! here is compared or stored. A source that may hang (a mount whose server is dead, a driver of a
//! network card) has another thread of its own. A look waits for it for a second. Then that value
//! is unknown, and the rest of the look is not.
//!
//! A tree that only looks like a machine has no usage, because these are this machine's own
//! numbers.
//!
//! | file | owns |
//! |---|---|
//! | `patient` | a question to something that may never answer |
//! | `processes` | CPU and memory of process trees |
//! | `pod` | the same of ranks in another container |
//! | `cgroup` | the limits of the agent's own cgroup |

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::{Duration, Instant},
};

use muster_core::{
    health::{self, Reading},
    usage::{CpuUsage, Disk, DiskRole, GpuUsage, Space, Traffic, Usage},
};
use rustix::fs::statvfs;
use sysinfo::{MemoryRefreshKind, Networks, System};
use tokio::sync::watch;
use tracing::warn;

use super::{held::HeldRun, sense::Sense};
use patient::Patient;
use pod::Pod;
use processes::{Processes, Seen};

mod cgroup;
mod patient;
mod pod;
mod processes;

/// The time between the first two looks. Only from the second look on is the CPUs' use known.
const SECOND: Duration = Duration::from_secs(1);
/// How long a look waits for all sources that may hang, together. A local disk answers within
/// microseconds, a healthy file server within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the thread needs to know.
pub(super) struct Watch {
    pub(super) state_dir: PathBuf,
    /// The volume that the workers' container shares with the agent's, where there is one.
    pub(super) pod: Option<PathBuf>,
    /// Time between looks.
    pub(super) every: Duration,
    /// The kernel log is not read, so kills for a cgroup's limit are counted here.
    pub(super) count_kills: bool,
    pub(super) runs: watch::Receiver<Vec<HeldRun>>,
    /// What the thread that asks NVML has seen last.
    pub(super) gpus: watch::Receiver<Vec<GpuUsage>>,
    pub(super) out: SyncSender<Sense>,
    pub(super) publish: watch::Sender<Option<Arc<Usage>>>,
    /// Set once nobody listens any more.
    pub(super) over: Arc<AtomicBool>,
}

pub(super) fn start(watch: Watch) {
    let look = move || look_for_ever(&watch);
    if let Err(e) = thread::Builder::new().name("usage".into()).spawn(look) {
        warn!("the machine's usage is not watched: no thread: {e}");
    }
}

fn look_for_ever(watch: &Watch) {
    let pod = watch.pod.clone();
    let mut eyes = match Eyes::open(&watch.state_dir) {
        Ok(eyes) => Eyes {
            pod: pod.map(|volume| Pod::open(volume, watch.runs.clone())),
            ..eyes
        },
        Err(e) => return warn!("the machine's usage is not watched: {e}"),
    };
    let mut pause = SECOND.min(watch.every);
    while !watch.over.load(Ordering::Relaxed) {
        let runs = watch.runs.borrow().clone();
        let usage = Usage {
            gpus: watch.gpus.borrow().clone(),
            ..eyes.look(&runs)
        };
        let mut readings = health::usage::readings(&usage, runs.iter().any(|run| run.training));
        if watch.count_kills {
            readings.extend(cgroup::kills());
        }
        tell(watch, readings);
        watch.publish.send_replace(Some(Arc::new(usage)));
        thread::sleep(pause);
        pause = watch.every;
    }
}

fn tell(watch: &Watch, readings: Vec<Reading>) {
    // The queue is full in a storm of something worse. The next look says it again.
    let _ = watch.out.try_send(Sense::Usage(readings));
}

/// Memory of this machine, or of the container that the agent runs in. None if the kernel does not
/// say.
pub(crate) fn memory() -> Option<Space> {
    memory_of(&mut System::new().ok()?)
}

fn memory_of(system: &mut System) -> Option<Space> {
    system.refresh_memory_specifics(MemoryRefreshKind::everything());
    let memory = some_space(system.available_memory(), system.total_memory())?;
    Some(cgroup::within(memory, system.cgroup_limits().as_ref()))
}

/// What is known from earlier looks.
struct Eyes {
    system: System,
    /// Set only while runs are held: a look at all processes is the most expensive part.
    processes: Option<Processes>,
    /// Where ranks are, if they are not among the processes that are seen here.
    pod: Option<Pod>,
    state_dir: PathBuf,
    disks: BTreeMap<PathBuf, Patient<Space>>,
    network: Patient<Traffic>,
    looked: bool,
}

impl Eyes {
    fn open(state_dir: &Path) -> Result<Self, sysinfo::Error> {
        let (system, mut networks) = (System::new()?, Networks::new()?);
        let network = Patient::start("usage network", move || traffic(&mut networks));
        Ok(Self {
            system,
            processes: None,
            pod: None,
            state_dir: state_dir.to_owned(),
            disks: BTreeMap::new(),
            network,
            looked: false,
        })
    }

    fn look(&mut self, runs: &[HeldRun]) -> Usage {
        let places = self.ask(runs);
        let until = Instant::now() + PATIENCE;
        let mut usage = Usage {
            processes: count(),
            load_milli: load(),
            ..Usage::default()
        };
        usage.memory = memory_of(&mut self.system);
        usage.swap = Some(Space {
            available: self.system.free_swap(),
            total: self.system.total_swap(),
        });
        self.look_at_cpus(&mut usage);
        let seen = self.look_at_processes(runs, until);
        if let (Some(cpu), Some(ours)) = (&mut usage.cpu, seen.muster_milli) {
            cpu.others_milli = Some(cpu.all_milli.saturating_sub(ours));
        }
        usage.ranks = seen.ranks;
        for (role, path) in places {
            let space = self
                .disks
                .get_mut(&path)
                .and_then(|disk| disk.answer(until));
            usage.disks.push(Disk {
                role,
                path: path.to_string_lossy().into_owned(),
                space,
            });
        }
        usage.network = self.network.answer(until);
        usage
    }

    /// Asks everything that may stay unanswered. Returns which disks were asked about.
    fn ask(&mut self, runs: &[HeldRun]) -> Vec<(DiskRole, PathBuf)> {
        let mut work: Vec<PathBuf> = runs
            .iter()
            .filter_map(|run| run.work_dir.clone())
            .map(PathBuf::from)
            .collect();
        work.sort();
        work.dedup();
        let work = work.into_iter().map(|path| (DiskRole::Work, path));
        let places: Vec<_> = std::iter::once((DiskRole::State, self.state_dir.clone()))
            .chain(work)
            .collect();
        // A reader that hangs is kept. Otherwise the next run in that directory would start another
        // thread, which would hang too.
        self.disks
            .retain(|path, disk| disk.is_asked() || places.iter().any(|(_, place)| place == path));
        for (_, path) in &places {
            let place = path.clone();
            let disk = self
                .disks
                .entry(path.clone())
                .or_insert_with(|| Patient::start("usage disk", move || space(&place)));
            disk.ask();
        }
        self.network.ask();
        if let Some(pod) = &mut self.pod
            && !runs.is_empty()
        {
            pod.ask();
        }
        places
    }

    fn look_at_cpus(&mut self, usage: &mut Usage) {
        self.system.refresh_cpu_usage();
        let cpus = u32::try_from(self.system.cpus().len()).unwrap_or(u32::MAX);
        let all_milli = (self.system.global_cpu_usage() * 10.0 * cpus as f32).max(0.0) as u32;
        // Before the second look the number would be the mean since the boot.
        usage.cpu = (self.looked && cpus > 0).then_some(CpuUsage {
            cpus,
            all_milli,
            others_milli: None,
        });
        self.looked = true;
    }

    fn look_at_processes(&mut self, runs: &[HeldRun], until: Instant) -> Seen {
        if runs.is_empty() {
            self.processes = None;
            return Seen::default();
        }
        if let Some(pod) = &mut self.pod {
            return pod.look(runs, until);
        }
        if self.processes.is_none() {
            self.processes = Processes::open()
                .inspect_err(|e| warn!("the processes of runs are not looked at: {e}"))
                .ok();
        }
        let look = |processes: &mut Processes| processes.look(runs);
        self.processes.as_mut().map(look).unwrap_or_default()
    }
}

fn some_space(available: u64, total: u64) -> Option<Space> {
    (total > 0).then_some(Space { available, total })
}

fn load() -> Option<[u32; 3]> {
    let load = System::load_average().ok()?;
    Some([load.one, load.five, load.fifteen].map(|mean| (mean * 1_000.0) as u32))
}

/// Counts only the names in `/proc`. sysinfo would read a file of each process.
fn count() -> Option<u32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let processes = entries.filter(|entry| {
        entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok())
    });
    u32::try_from(processes.count()).ok()
}

/// Asks about the path itself. sysinfo asks every mount of the machine, so a single dead mount
/// would hide those that matter.
fn space(path: &Path) -> Option<Space> {
    let disk = statvfs(path).ok()?;
    some_space(
        disk.f_bavail.saturating_mul(disk.f_frsize),
        disk.f_blocks.saturating_mul(disk.f_frsize),
    )
}

fn traffic(networks: &mut Networks) -> Option<Traffic> {
    networks.refresh(true);
    let others = networks
        .iter()
        .filter(|(name, _)| name.to_str() != Some("lo"));
    Some(
        others.fold(Traffic::default(), |sum, (_, interface)| Traffic {
            received: sum.received.saturating_add(interface.total_received()),
            sent: sum.sent.saturating_add(interface.total_transmitted()),
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_proc() {
        let state = tempfile::tempdir().unwrap();
        let mut eyes = Eyes::open(state.path()).unwrap();
        let first = eyes.look(&[]);
        assert_eq!(first.cpu, None, "one look says nothing of a rate");
        let usage = eyes.look(&[]);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let total = meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))
            .unwrap();
        let memory = usage.memory.unwrap();
        assert!(
            memory.total <= total.parse::<u64>().unwrap() << 10
                && memory.available > 0
                && memory.available < memory.total
        );
        let cpu = usage.cpu.unwrap();
        assert!(
            cpu.cpus >= 1 && cpu.all_milli <= cpu.cpus * 1_000,
            "{cpu:?}"
        );
        assert_eq!(
            cpu.others_milli, None,
            "nobody looks at processes while no run is held"
        );
        assert!(
            usage.processes.unwrap() >= 1 && usage.load_milli.is_some() && usage.network.is_some()
        );
        let disk = &usage.disks[0];
        assert_eq!(
            (disk.role, disk.path.as_str()),
            (DiskRole::State, state.path().to_str().unwrap())
        );
        assert!(disk.space.unwrap().available <= disk.space.unwrap().total);
        assert_eq!((usage.disks.len(), usage.ranks.len()), (1, 0));
    }

    #[test]
    fn a_directory_that_is_not_there_is_unknown() {
        let state = tempfile::tempdir().unwrap();
        let run = HeldRun {
            work_dir: Some("/nowhere/at/all".into()),
            ..HeldRun::default()
        };
        let usage = Eyes::open(state.path()).unwrap().look(&[run]);
        assert_eq!(
            (usage.disks.len(), usage.disks[1].role, usage.disks[1].space),
            (2, DiskRole::Work, None)
        );
    }

    #[test]
    fn a_mount_that_hangs_hides_itself_alone() {
        let state = tempfile::tempdir().unwrap();
        let mut eyes = Eyes::open(state.path()).unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let hangs = Patient::start("hangs", move || {
            let _ = released.recv();
            None
        });
        eyes.disks.insert("/dead/server".into(), hangs);
        let run = HeldRun {
            work_dir: Some("/dead/server".into()),
            ..HeldRun::default()
        };
        let begun = Instant::now();
        let usage = eyes.look(&[run]);
        assert_eq!(usage.disks[1].space, None);
        assert!(
            usage.disks[0].space.is_some() && usage.memory.is_some() && usage.network.is_some()
        );
        assert!(begun.elapsed() < PATIENCE * 5, "{:?}", begun.elapsed());
        let usage = eyes.look(&[]);
        assert!(
            eyes.disks.contains_key(Path::new("/dead/server")),
            "it is not asked a second time by another thread"
        );
        assert_eq!(usage.disks.len(), 1);
        drop(release);
    }
}
