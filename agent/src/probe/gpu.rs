//! The GPUs, as NVML names them.
//!
//! NVML is called on a thread of its own and nowhere else: a call may hang for ever when a GPU falls off the bus, and must then hang
//! alone. The thread publishes whole snapshots; who wants to know waits for the next one.

use std::{collections::BTreeSet, thread, time::Duration};

use muster_core::node_report::Gpu;
use nvml_wrapper::{Nvml, error::NvmlError};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::chain::chain;

/// What one look at the GPUs found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gpus {
    pub(crate) gpus: Vec<Gpu>,
    /// Why the list may be short. None also where there is no driver at all.
    pub(crate) error: Option<String>,
}

/// Initialising a driver with eight GPUs in non-persistent mode takes seconds.
pub(super) const FIRST_LOOK: Duration = Duration::from_secs(10);

/// GPUs come and go with driver restarts and resets, not by the second.
const PERIOD: Duration = Duration::from_secs(15);

impl Gpus {
    /// What is said while the first look has not ended.
    pub(super) fn silent() -> Self {
        Self { gpus: Vec::new(), error: Some(format!("NVML has not answered within {} s", FIRST_LOOK.as_secs())) }
    }
}

/// Starts to watch. The value is none until the first look has ended.
pub(super) fn watch() -> watch::Receiver<Option<Gpus>> {
    let (publish, gpus) = watch::channel(None);
    let look = move || look_for_ever(&publish);
    if let Err(e) = thread::Builder::new().name("nvml".into()).spawn(look) {
        warn!("GPUs are not watched: no thread: {e}");
    }
    gpus
}

/// Ends when nobody listens any more, or where there is nothing to look at.
fn look_for_ever(publish: &watch::Sender<Option<Gpus>>) {
    let mut nvml = None;
    while !publish.is_closed() {
        let gpus = match open(&mut nvml) {
            Ok(Some(nvml)) => look(nvml),
            Ok(None) => {
                info!("no NVIDIA driver on this node");
                publish.send_replace(Some(Gpus::default()));
                return;
            }
            Err(e) => Gpus { gpus: Vec::new(), error: Some(chain(&e)) },
        };
        publish.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&gpus);
            if changed {
                info!(count = gpus.gpus.len(), models = ?models(&gpus), "GPUs");
                if let Some(error) = &gpus.error {
                    warn!("GPUs: {error}");
                }
                *known = Some(gpus);
            }
            changed
        });
        thread::sleep(PERIOD);
    }
}

fn models(gpus: &Gpus) -> BTreeSet<&str> {
    gpus.gpus.iter().map(|gpu| gpu.model.as_str()).collect()
}

/// None: the library is not on this node.
fn open(nvml: &mut Option<Nvml>) -> Result<Option<&Nvml>, NvmlError> {
    if nvml.is_none() {
        match Nvml::init() {
            Ok(opened) => *nvml = Some(opened),
            Err(NvmlError::LibloadingError(_)) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    Ok(nvml.as_ref())
}

/// One GPU that cannot be read does not hide the others.
fn look(nvml: &Nvml) -> Gpus {
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(e) => return Gpus { gpus: Vec::new(), error: Some(format!("number of GPUs: {}", chain(&e))) },
    };
    let mut found = Gpus::default();
    let mut wrong = Vec::new();
    for index in 0..count {
        match read(nvml, index) {
            Ok(gpu) => found.gpus.push(gpu),
            Err(e) => wrong.push(format!("GPU {index}: {}", chain(&e))),
        }
    }
    found.error = (!wrong.is_empty()).then(|| wrong.join("; "));
    found
}

fn read(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    Ok(Gpu { uuid: device.uuid()?, index, model: device.name()?, memory_bytes: device.memory_info()?.total, ..Gpu::default() })
}
