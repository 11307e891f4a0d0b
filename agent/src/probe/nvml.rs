//! Calls NVML on its own thread and nowhere else. A call may hang for ever when a GPU falls off the
//! bus, and must then block nothing else.
//!
//! The thread looks at three different rates, at once when it is poked, and when a glance in
//! between shows something new. It publishes whole looks. The age of the last look is itself a
//! health signal, which the receiver judges.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use muster_core::{
    health::{Reading, Source},
    node_report::gpu::{Driver, Gpu},
    usage::{GpuUsage, Space},
};
use muster_runtime::chain::chain;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    glance::Glances,
    sense::{GpuLook, Sense},
    settings::Pace,
};

mod code;
mod events;
mod inventory;
mod raw;
mod readings;

use code::Code;
use raw::{Handle, Library, OpenError};

/// The shortest time between two looks, however often the thread is poked. Corrected memory errors
/// come in storms, and each is an event.
const APART: Duration = Duration::from_millis(250);

/// What the thread needs to know.
pub(super) struct Watch {
    pub(super) library: Option<PathBuf>,
    pub(super) pace: Pace,
    pub(super) out: SyncSender<Sense>,
    /// Where the use of each GPU is told, after each look.
    pub(super) usage: watch::Sender<Vec<GpuUsage>>,
    /// Asks for a look at once.
    pub(super) poked: Receiver<()>,
    /// Set once nobody listens any more.
    pub(super) over: Arc<AtomicBool>,
}

/// A GPU that this process knows.
struct Known {
    gpu: Gpu,
    /// None: its handle could not be obtained in the last look.
    handle: Option<Handle>,
    /// The result of the last look's first call for it: the driver's verdict, and whether each link
    /// is active.
    states: Vec<Option<u64>>,
    /// The most of its links that were ever active at once.
    links: usize,
    /// The error count of each of its links at the first read.
    errors: BTreeMap<u32, u64>,
    /// The highest temperature that its memory may have, in degrees Celsius.
    heat_max: Option<u32>,
    /// Its clock in MHz, known only while it is busy and nothing slows it down.
    clock: Option<u32>,
}

#[derive(Default)]
struct Eyes {
    library: Option<Arc<Library>>,
    driver: Option<Driver>,
    known: BTreeMap<u32, Known>,
    was_open: bool,
    counted: Option<Instant>,
    listed: Option<Instant>,
}

pub(super) fn start(watch: Watch) {
    let look = move || look_for_ever(&watch);
    if let Err(e) = thread::Builder::new().name("nvml".into()).spawn(look) {
        warn!("GPUs are not watched: no thread: {e}");
    }
}

fn look_for_ever(watch: &Watch) {
    let (mut eyes, mut glances) = (Eyes::default(), Glances::new(watch.pace.glance));
    while !watch.over.load(Ordering::Relaxed) {
        let look = eyes.look(watch);
        watch.usage.send_replace(eyes.usage());
        let absent = look.absent;
        if watch.out.send(Sense::Gpus(Box::new(look))).is_err() || absent {
            return;
        }
        if !eyes.rest(watch, &mut glances) {
            return;
        }
    }
}

impl Eyes {
    fn look(&mut self, watch: &Watch) -> GpuLook {
        let mut look = GpuLook::default();
        let library = match self.open(watch, &mut look) {
            Ok(library) => library,
            Err(OpenError::Absent(_)) if !self.was_open => {
                info!("no NVIDIA driver on this node");
                return GpuLook {
                    absent: true,
                    ..look
                };
            }
            Err(e) => {
                look.mismatch = matches!(e, OpenError::Mismatch(_));
                look.unavailable = !look.mismatch;
                look.error = Some(chain(&e));
                look.gpus = self.known.values().map(|known| known.gpu.clone()).collect();
                return look;
            }
        };
        let mut now = Vec::new();
        let mut wrong = Vec::new();
        match library.count() {
            Ok(count) => {
                (0..count).for_each(|index| self.take(&library, index, &mut now, &mut wrong))
            }
            Err(code) => {
                wrong.push(format!("number of GPUs: {code}"));
                // The driver may have been unloaded meanwhile, so start again next time.
                self.library = None;
            }
        }
        if self.listed.is_none_or(|at| at.elapsed() >= watch.pace.slow) {
            self.listed = Some(Instant::now());
            self.driver = Some(inventory::driver(&library));
            for known in self.known.values_mut() {
                if let Some(handle) = known.handle {
                    inventory::renew(&library, handle, known);
                }
            }
            let inventory = self.each(&library, readings::inventory);
            look.readings.push((
                Source::Inventory,
                [inventory, readings::clocks(&self.known)].concat(),
            ));
        }
        if self
            .counted
            .is_none_or(|at| at.elapsed() >= watch.pace.counters)
        {
            self.counted = Some(Instant::now());
            look.readings
                .push((Source::Counters, self.each(&library, readings::counters)));
        }
        now.extend(self.each(&library, readings::fast));
        now.extend(readings::links(&mut self.known));
        look.readings.push((Source::Gpus, now));
        look.present = self
            .known
            .values()
            .filter(|known| known.handle.is_some())
            .count() as u32;
        look.gpus = self.known.values().map(|known| known.gpu.clone()).collect();
        look.driver.clone_from(&self.driver);
        look.error = (!wrong.is_empty()).then(|| wrong.join("; "));
        look
    }

    /// How much of each GPU is in use. Of one that is cut into instances, nothing is known as a whole.
    fn usage(&self) -> Vec<GpuUsage> {
        let Some(library) = &self.library else {
            return Vec::new();
        };
        let whole = |known: &&Known| !known.gpu.mig.as_ref().is_some_and(|mig| mig.enabled);
        let of = |known: &Known| {
            let handle = known.handle?;
            let total = known.gpu.memory_bytes;
            let used = library.memory_used(handle).ok();
            let memory = used.map(|used| Space {
                available: total.saturating_sub(used),
                total,
            });
            let busy_percent = library.utilization(handle).ok();
            let is_known = memory.is_some() || busy_percent.is_some();
            is_known.then(|| GpuUsage {
                uuid: known.gpu.uuid.clone(),
                memory,
                busy_percent,
            })
        };
        self.known.values().filter(whole).filter_map(of).collect()
    }

    /// Returns when it is time to look. False: nobody can poke any more.
    fn rest(&mut self, watch: &Watch, glances: &mut Glances) -> bool {
        let looked = Instant::now();
        glances.looked();
        loop {
            let left = watch.pace.fast.saturating_sub(looked.elapsed());
            match watch.poked.recv_timeout(left.min(glances.pause())) {
                Ok(()) => {
                    thread::sleep(APART.min(watch.pace.fast).saturating_sub(looked.elapsed()));
                    // Most events also change a counter, so read the counters.
                    self.counted = None;
                    return true;
                }
                Err(RecvTimeoutError::Timeout) if looked.elapsed() >= watch.pace.fast => {
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => {
                    glances.begin();
                    let news = self.glance();
                    glances.end();
                    if news {
                        return true;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Whether a look would show a change that breaks a job at once.
    fn glance(&self) -> bool {
        let Some(library) = &self.library else {
            return false;
        };
        let Ok(count) = library.count() else {
            return true;
        };
        (0..count).any(|index| {
            let known = self
                .known
                .get(&index)
                .and_then(|known| Some((known.handle?, known)));
            match (library.gpu(index), known) {
                (Ok(_), Some((handle, known))) => {
                    readings::states(library, handle, known, &mut None) != known.states
                }
                (Err(_), Some(_)) => true,
                // A GPU that appears or comes back can wait for the next look.
                (_, None) => false,
            }
        })
    }

    fn open(&mut self, watch: &Watch, look: &mut GpuLook) -> Result<Arc<Library>, OpenError> {
        if let Some(library) = &self.library {
            return Ok(library.clone());
        }
        let library = Arc::new(Library::open(watch.library.as_deref())?);
        look.reloaded = self.was_open;
        (self.was_open, self.listed, self.counted) = (true, None, None);
        self.known.clear();
        events::start(library.clone(), watch.out.clone(), watch.over.clone());
        self.library = Some(library.clone());
        Ok(library)
    }

    /// Handles the GPU with this index: it is known, new, or in trouble.
    fn take(
        &mut self,
        library: &Library,
        index: u32,
        now: &mut Vec<Reading>,
        wrong: &mut Vec<String>,
    ) {
        let handle = library
            .gpu(index)
            .and_then(|handle| library.uuid(handle).map(|uuid| (handle, uuid)));
        match handle {
            Ok((handle, uuid)) => {
                let same = self
                    .known
                    .get(&index)
                    .is_some_and(|known| known.gpu.uuid == uuid);
                if !same {
                    self.known
                        .insert(index, inventory::first(library, handle, index, uuid));
                    self.listed = None;
                }
                if let Some(known) = self.known.get_mut(&index) {
                    known.handle = Some(handle);
                }
            }
            Err(code) => {
                wrong.push(format!("GPU {index}: {code}"));
                let known = self.known.get_mut(&index);
                now.extend(readings::refused(
                    index,
                    known.as_ref().map(|known| &known.gpu),
                    code,
                ));
                if let Some(known) = known {
                    known.handle = None;
                }
            }
        }
    }

    fn each(
        &mut self,
        library: &Library,
        read: fn(&Library, Handle, &mut Known) -> Vec<Reading>,
    ) -> Vec<Reading> {
        let present = self
            .known
            .values_mut()
            .filter_map(|known| known.handle.map(|handle| (handle, known)));
        present
            .flat_map(|(handle, known)| read(library, handle, known))
            .collect()
    }
}

/// An answer, or None. If the error means that the GPU is in trouble, it is noted.
fn ask<T>(answer: Result<T, Code>, trouble: &mut Option<Code>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(code) => {
            if [Code::LOST, Code::RESET_REQUIRED].contains(&code) {
                *trouble = Some(code);
            }
            None
        }
    }
}
