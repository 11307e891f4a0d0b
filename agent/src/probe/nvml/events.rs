//! The driver's events. The wait blocks, so it has its own thread besides the thread that looks.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::Duration,
};

use muster_core::health::{Channel, Xid, kernel_log::normal_pci};
use tracing::{debug, warn};

use super::{
    code::Code,
    raw::{EventSet, Handle, Library, XID},
};
use crate::probe::sense::Sense;

/// How long one wait blocks. The thread notices the agent's end within this time.
const WAIT_MS: u32 = 5_000;
/// The pause after an error of the wait itself, so that the thread does not spin. A lost GPU causes
/// such errors immediately and repeatedly.
const PAUSE: Duration = Duration::from_secs(5);

/// Registers before it returns, so every later event is heard.
pub(super) fn start(library: Arc<Library>, out: SyncSender<Sense>, over: Arc<AtomicBool>) {
    let (set, addresses) = match register(&library) {
        Ok(registered) => registered,
        Err(code) => return debug!("no NVML events: {code}"),
    };
    let listen = move || listen(&library, set, &addresses, &out, &over);
    if let Err(e) = thread::Builder::new()
        .name("nvml-events".into())
        .spawn(listen)
    {
        warn!("XIDs are only read from the kernel log: no thread: {e}");
    }
}

fn listen(
    library: &Arc<Library>,
    set: EventSet,
    addresses: &BTreeMap<Handle, String>,
    out: &SyncSender<Sense>,
    over: &AtomicBool,
) {
    // The looking thread holds the library too. When it opens another library, this thread is over.
    while !over.load(Ordering::Relaxed) && Arc::strong_count(library) > 1 {
        match library.wait(&set, WAIT_MS) {
            Ok(event) => {
                let told = match addresses.get(&event.gpu) {
                    Some(pci) if event.kind == XID => Sense::Xid(Xid {
                        pci: pci.clone(),
                        code: u32::try_from(event.value).unwrap_or(u32::MAX),
                        channel: Channel::Event,
                        fatal: None,
                        detail: String::new(),
                    }),
                    // A look will show what happened.
                    _ => Sense::LookAgain,
                };
                // The queue is full only in a storm. The kernel log and the next look show the
                // rest.
                let _ = out.try_send(told);
            }
            Err(Code::TIMEOUT) => {}
            Err(code) => {
                debug!("NVML events: {code}");
                let _ = out.try_send(Sense::LookAgain);
                thread::sleep(PAUSE);
            }
        }
    }
    library.free(set);
}

/// Reads the addresses now, since a GPU that fell off the bus no longer tells its own.
fn register(library: &Library) -> Result<(EventSet, BTreeMap<Handle, String>), Code> {
    let set = library.event_set()?;
    let mut addresses = BTreeMap::new();
    for index in 0..library.count()? {
        let Ok(gpu) = library.gpu(index) else {
            continue;
        };
        if let Some(pci) = library.pci(gpu).ok().and_then(|pci| normal_pci(&pci)) {
            addresses.insert(gpu, pci);
        }
        if let Err(code) = library.register(&set, gpu) {
            debug!("GPU {index} tells no events: {code}");
        }
    }
    Ok((set, addresses))
}
