//! The driver's events. The wait blocks, so it has a thread of its own beside the one that looks.

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
use crate::probe::senses::Sense;

/// How long one wait blocks; the end of the agent is noticed so soon.
const WAIT_MS: u32 = 5_000;
/// After an error of the wait itself, which a lost GPU causes at once and again: not to spin.
const PAUSE: Duration = Duration::from_secs(5);

/// Registered before this returns: what happens from then on is heard.
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
    // The thread that looks holds the library too; when it opens another one, this one is over.
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
                    // Whatever it is, a look will tell.
                    _ => Sense::LookAgain,
                };
                // A queue that is full is a storm; the kernel log and the next look tell the rest.
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

/// Addresses are asked for now: a GPU that fell off the bus does not tell its own any more.
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
