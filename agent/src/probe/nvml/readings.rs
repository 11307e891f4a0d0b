//! The readings by which a GPU's health is judged. The table has the thresholds and verdicts.

use std::collections::BTreeMap;

use muster_core::{
    health::{Reading, Subject, Value},
    node_report::gpu::{FabricHealth, FabricState, Gpu},
};

use super::{
    Known, ask,
    code::Code,
    inventory::LINK_CRC,
    raw::{Handle, Library, Place},
};

/// NVML's field for the driver's own verdict.
const RECOVERY_ACTION: u32 = 230;
/// NVML's field for whether a link is active, per link.
const LINK_STATE: u32 = 165;
/// NVML's field for NVLink recoveries that failed, per link.
const LINK_RECOVERY_FAILED: u32 = 214;
/// The throttle reasons that count: hardware slowdown, its thermal and power-brake kinds, and the
/// software's thermal slowdown. The power cap and idling are normal.
const THROTTLE: u64 = 0x8 | 0x20 | 0x40 | 0x80;
/// NVML's field for the temperature of the memory.
const MEMORY_HEAT: u32 = 82;
/// With fewer peers there is no usual clock.
const PEERS_MIN: usize = 3;
/// A clock below this percentage of the usual clock is low.
const LOW_PERCENT: u32 = 80;
/// A GPU this busy does not let its PCIe link idle down.
const BUSY_PERCENT: u32 = 50;

fn subject(gpu: &Gpu) -> Subject {
    Subject::Gpu(gpu.uuid.clone())
}

fn name(gpu: &Gpu) -> String {
    format!("GPU {} at {}", gpu.index, gpu.pci)
}

/// The reading for a handle or a first answer that was refused.
pub(super) fn refused(index: u32, gpu: Option<&Gpu>, code: Code) -> Option<Reading> {
    let check = match code {
        Code::LOST => "gpu-lost",
        Code::RESET_REQUIRED => "gpu-reset-required",
        Code::MISMATCH => "driver-mismatch",
        Code::UNKNOWN => "gpu-unknown-error",
        _ => "gpu-unreadable",
    };
    let (subject, name) = match gpu {
        Some(gpu) => (subject(gpu), name(gpu)),
        None => (Subject::Node, format!("GPU {index}")),
    };
    Some(Reading {
        check,
        subject,
        value: Value::Flag(true),
        words: format!("{name}: {code}"),
        runs: Vec::new(),
    })
}

/// Gathers the readings of one GPU.
struct Readings<'a> {
    gpu: &'a Gpu,
    all: Vec<Reading>,
}

impl<'a> Readings<'a> {
    fn of(gpu: &'a Gpu) -> Self {
        Self {
            gpu,
            all: Vec::new(),
        }
    }

    fn push(&mut self, check: &'static str, value: Value, words: &str) {
        self.all.push(Reading {
            check,
            subject: subject(self.gpu),
            value,
            words: format!("{}: {words}", name(self.gpu)),
            runs: Vec::new(),
        });
    }

    fn flag(&mut self, check: &'static str, set: bool, words: &str) {
        self.push(check, Value::Flag(set), words);
    }

    fn end(mut self, trouble: Option<Code>) -> Vec<Reading> {
        if let Some(code) = trouble {
            self.all
                .extend(refused(self.gpu.index, Some(self.gpu), code));
        }
        self.all
    }
}

/// The driver's verdict, and whether each link is active, in one call. With 18 links, one call per
/// link would be most of a look's cost.
pub(super) fn states(
    library: &Library,
    handle: Handle,
    known: &Known,
    trouble: &mut Option<Code>,
) -> Vec<Option<u64>> {
    let links = known.gpu.nvlinks.iter().map(|link| (LINK_STATE, link.link));
    let fields: Vec<(u32, u32)> = [(RECOVERY_ACTION, 0)].into_iter().chain(links).collect();
    ask(library.fields(handle, &fields), trouble).unwrap_or_default()
}

pub(super) fn fast(library: &Library, handle: Handle, known: &mut Known) -> Vec<Reading> {
    let mut trouble = None;
    known.states = states(library, handle, known, &mut trouble);
    let mut values = known.states.iter().copied();
    let action = values.next().flatten();
    for i in 0..known.gpu.nvlinks.len() {
        let link = &known.gpu.nvlinks[i];
        // Drivers for GPUs before Hopper do not know the field.
        let state = values.next().flatten().map(|state| state != 0);
        let active = state
            .or_else(|| ask(library.link_active(handle, link.link), &mut trouble))
            .unwrap_or(link.active);
        if active != link.active {
            known.gpu.nvlinks.make_mut()[i].active = active;
        }
    }
    let mut readings = Readings::of(&known.gpu);
    for (value, check, words) in [
        (
            1,
            "recovery-reset",
            "the driver asks for a reset of the GPU",
        ),
        (2, "recovery-reboot", "the driver asks for a reboot"),
        (
            3,
            "recovery-drain-p2p",
            "the driver asks to drain peer traffic",
        ),
        (
            4,
            "recovery-drain-reset",
            "the driver asks to drain and reset the GPU",
        ),
    ] {
        readings.flag(check, action == Some(value), words);
    }
    if let Some((uncorrectable, pending, failed)) = ask(library.remapped_rows(handle), &mut trouble)
    {
        readings.flag("row-remap-failure", failed, "a row could not be remapped");
        readings.flag(
            "row-remap-pending",
            pending,
            "a row remap waits for a reset",
        );
        readings.push(
            "row-remap-many",
            Value::Level(uncorrectable.into()),
            "rows remapped for uncorrectable errors",
        );
    }
    if let Some(pending) = ask(library.retired_pending(handle), &mut trouble) {
        readings.flag(
            "retired-pages-pending",
            pending != 0,
            "a page retirement waits for a reboot",
        );
    }
    if let Some(reasons) = ask(library.throttle_reasons(handle), &mut trouble) {
        readings.flag("throttle", reasons & THROTTLE != 0, throttle_words(reasons));
    }
    readings.end(trouble)
}

fn throttle_words(reasons: u64) -> &'static str {
    match reasons {
        r if r & 0x40 != 0 => "slowed down by heat (hardware)",
        r if r & 0x80 != 0 => "slowed down by the power brake",
        r if r & 0x20 != 0 => "slowed down by heat (software)",
        _ => "slowed down by hardware",
    }
}

pub(super) fn counters(library: &Library, handle: Handle, known: &mut Known) -> Vec<Reading> {
    let mut trouble = None;
    let mut readings = Readings::of(&known.gpu);
    // Without persistence mode the driver lets go of the GPU when its last user goes, and may count anew.
    if known.gpu.persistence == Some(true)
        && let Some(energy) = ask(library.energy(handle), &mut trouble)
    {
        readings.push("energy", Value::SinceReset(energy), "energy used");
    }
    if let Some(errors) = ask(library.ecc_errors(handle, true), &mut trouble) {
        readings.push(
            "ecc-uncorrectable",
            Value::Counter(errors),
            "uncorrectable memory errors",
        );
    }
    if let Some(errors) = ask(library.ecc_errors(handle, false), &mut trouble) {
        readings.push(
            "ecc-corrected",
            Value::Counter(errors),
            "corrected memory errors",
        );
    }
    for (place, check, words) in [
        (
            Place::Dram,
            "dram-corrected-many",
            "corrected errors of its DRAM",
        ),
        (
            Place::Sram,
            "sram-corrected-many",
            "corrected errors of its SRAM",
        ),
    ] {
        if let Some(errors) = ask(library.corrected_in(handle, place), &mut trouble) {
            readings.push(check, Value::Counter(errors), words);
        }
    }
    if let Some((errors, beyond)) = ask(library.sram_errors(handle), &mut trouble) {
        readings.push(
            "sram-uncorrectable",
            Value::Counter(errors),
            "uncorrectable SRAM errors",
        );
        readings.flag(
            "sram-threshold",
            beyond,
            "more SRAM errors than the driver allows",
        );
    }
    if let Some(replays) = ask(library.pcie_replays(handle), &mut trouble) {
        readings.push(
            "pcie-replay",
            Value::Counter(replays.into()),
            "PCIe replays",
        );
    }
    let links = known.gpu.nvlinks.iter().map(|link| link.link);
    let of_links = links.flat_map(|link| [(LINK_CRC, link), (LINK_RECOVERY_FAILED, link)]);
    let fields: Vec<(u32, u32)> = [(MEMORY_HEAT, 0)].into_iter().chain(of_links).collect();
    if let Some(values) = ask(library.fields(handle, &fields), &mut trouble) {
        if let (Some(Some(heat)), Some(most)) =
            (values.first(), known.heat_max.filter(|most| *most > 0))
        {
            readings.flag(
                "memory-hot",
                *heat > u64::from(most),
                &format!("its memory is hotter than {most} C"),
            );
        }
        let sum = |kind: u32| {
            let of_kind = fields
                .iter()
                .zip(&values)
                .filter(|((id, _), _)| *id == kind);
            of_kind
                .filter_map(|(_, value)| *value)
                .reduce(u64::wrapping_add)
        };
        for (kind, check, words) in [
            (LINK_CRC, "nvlink-errors", "NVLink CRC errors"),
            (
                LINK_RECOVERY_FAILED,
                "nvlink-recovery-failed",
                "NVLink recoveries that failed",
            ),
        ] {
            if let Some(errors) = sum(kind) {
                readings.push(check, Value::Counter(errors), words);
            }
        }
    }
    readings.end(trouble)
}

pub(super) fn inventory(library: &Library, handle: Handle, known: &mut Known) -> Vec<Reading> {
    let mut trouble = None;
    let gpu = &known.gpu;
    let mut readings = Readings::of(gpu);
    readings.flag(
        "persistence-off",
        gpu.persistence == Some(false),
        "persistence mode is off",
    );
    if let Some(mig) = &gpu.mig {
        readings.flag(
            "mig-pending",
            mig.enabled != mig.pending,
            "the MIG mode asked for waits for a reset",
        );
    }
    if let Some(pcie) = gpu.pcie {
        let words = format!("{} of {} PCIe lanes", pcie.width, pcie.width_max);
        readings.flag("pcie-width", pcie.width < pcie.width_max, &words);
    }
    if let Some(pages) = ask(library.retired_pages(handle), &mut trouble) {
        readings.push("retired-pages", Value::Level(pages.into()), "pages retired");
    }
    if let Some(fabric) = &gpu.fabric {
        let wrong = match (fabric.state, fabric.status, fabric.health) {
            // Machines without NVSwitch report this normally.
            (FabricState::NotSupported, ..) => None,
            (FabricState::NotStarted | FabricState::InProgress, ..) => {
                Some("registration with the NVLink fabric has not completed")
            }
            (_, status, _) if status != 0 => Some("registration with the NVLink fabric has failed"),
            (.., FabricHealth::Unhealthy) => Some("the NVLink fabric is unhealthy"),
            (.., FabricHealth::Limited) => Some("the NVLink fabric is limited"),
            _ => None,
        };
        readings.flag(
            "fabric-incomplete",
            wrong.is_some(),
            wrong.unwrap_or_default(),
        );
    }
    if nobody_listed(library, handle, gpu)
        && let Some(used) = ask(library.memory_used(handle), &mut trouble)
    {
        readings.push(
            "memory-held",
            Value::Level(used >> 20),
            "MiB of its memory used, by no process that this agent can see",
        );
    }
    let busy = ask(library.utilization(handle), &mut trouble)
        .is_some_and(|percent| percent >= BUSY_PERCENT);
    if let Some(pcie) = gpu.pcie {
        let words = format!(
            "PCIe generation {} of {} while busy",
            pcie.generation, pcie.generation_max
        );
        readings.flag(
            "pcie-generation",
            busy && pcie.generation < pcie.generation_max,
            &words,
        );
    }
    let readings = readings.end(trouble);
    known.heat_max = library.memory_heat_max(handle).ok();
    let slowed = library
        .throttle_reasons(handle)
        .is_ok_and(|reasons| reasons & THROTTLE != 0);
    known.clock = if busy && !slowed {
        library.clock(handle).ok()
    } else {
        None
    };
    readings
}

/// Whether NVML lists nothing that explains memory in use: no process, no screen, and no MIG
/// instances, which take some memory themselves. If the memory is a NUMA node of the host (Grace),
/// the kernel itself puts pages there, and nothing can be concluded.
fn nobody_listed(library: &Library, handle: Handle, gpu: &Gpu) -> bool {
    let nobody = library
        .processes(handle)
        .is_ok_and(|processes| processes.is_empty());
    // A driver that does not list these has none, or cannot tell.
    let others = [library.drawing(handle), library.sharing(handle)]
        .into_iter()
        .flatten()
        .any(|processes| !processes.is_empty());
    let screen = library.display(handle).is_ok_and(|active| active != 0);
    let divided = gpu.mig.as_ref().is_some_and(|mig| mig.enabled);
    nobody && !others && !screen && !divided && gpu.numa_node.is_none()
}

/// Busy GPUs of one model run at one clock. A GPU that runs slower, for no reason that its driver
/// gives, delays all others.
pub(super) fn clocks(all: &BTreeMap<u32, Known>) -> Vec<Reading> {
    let present = || all.values().filter(|known| known.handle.is_some());
    let reading = |known: &Known| {
        let mut peers: Vec<u32> = present()
            .filter(|peer| peer.gpu.model == known.gpu.model)
            .filter_map(|peer| peer.clock)
            .collect();
        peers.sort_unstable();
        let usual = peers
            .get(peers.len() / 2)
            .copied()
            .filter(|_| peers.len() >= PEERS_MIN);
        let low = known
            .clock
            .zip(usual)
            .is_some_and(|(own, usual)| own * 100 < usual * LOW_PERCENT);
        let words = format!(
            "{}: busy, and more than 20 % below its peers' {} MHz",
            name(&known.gpu),
            usual.unwrap_or(0)
        );
        Reading {
            check: "clocks-low",
            subject: subject(&known.gpu),
            value: Value::Flag(low),
            words,
            runs: Vec::new(),
        }
    };
    present().map(reading).collect()
}

/// Links that were active and are not any more, or that sibling GPUs of the same model have and
/// this one lacks.
pub(super) fn links(all: &mut BTreeMap<u32, Known>) -> Vec<Reading> {
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    for known in all.values_mut().filter(|known| known.handle.is_some()) {
        known.links = known.links.max(known.gpu.active_links());
        let siblings = most.entry(known.gpu.model.clone()).or_default();
        *siblings = known.links.max(*siblings);
    }
    let down = |known: &Known| {
        let expected = most.get(&known.gpu.model).copied().unwrap_or(0);
        let active = known.gpu.active_links();
        (active < expected).then(|| {
            let inactive = known
                .gpu
                .nvlinks
                .iter()
                .filter(|link| !link.active)
                .map(|link| link.link.to_string());
            let links = inactive.collect::<Vec<_>>().join(", ");
            let words = format!(
                "{}: {active} of {expected} NVLinks active (down: {links})",
                name(&known.gpu)
            );
            Reading {
                check: "nvlink-down",
                subject: subject(&known.gpu),
                value: Value::Flag(true),
                words,
                runs: Vec::new(),
            }
        })
    };
    all.values()
        .filter(|known| known.handle.is_some())
        .filter_map(down)
        .collect()
}
