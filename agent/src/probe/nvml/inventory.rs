//! What a GPU is. It is read when the GPU is first seen, and renewed slowly.

use std::collections::BTreeMap;

use muster_core::{
    health::kernel_log::normal_pci,
    node_report::gpu::{
        ComputeMode, Driver, Fabric, FabricHealth, FabricState, Gpu, GpuProcess, Mig, MigInstance,
        NvLink, NvLinkPeer, PcieLink,
    },
};

use super::{
    Known,
    raw::{Handle, Library},
};

/// NVML's field for a link's errors: CRC flits. Every driver with links has it.
pub(super) const LINK_CRC: u32 = 163;

pub(super) fn driver(library: &Library) -> Driver {
    let cuda = library
        .cuda_version()
        .map(|number| format!("{}.{}", number / 1_000, number % 1_000 / 10));
    Driver {
        version: library.driver_version().unwrap_or_default(),
        cuda: cuda.unwrap_or_default(),
        nvml: library.nvml_version().unwrap_or_default(),
    }
}

/// Reads what never changes while the GPU is there.
pub(super) fn first(library: &Library, handle: Handle, index: u32, uuid: String) -> Known {
    let capability = library
        .compute_capability(handle)
        .map(|(major, minor)| format!("{major}.{minor}"));
    let gpu = Gpu {
        uuid,
        index,
        model: library.name(handle).unwrap_or_default(),
        memory_bytes: library.memory_total(handle).unwrap_or(0),
        pci: library
            .pci(handle)
            .ok()
            .and_then(|pci| normal_pci(&pci))
            .unwrap_or_default(),
        minor: library.minor(handle).ok(),
        serial: library.serial(handle).unwrap_or_default(),
        module_id: library.module(handle).ok(),
        numa_node: library.numa_node(handle).ok(),
        compute_capability: capability.unwrap_or_default(),
        ..Gpu::default()
    };
    Known {
        gpu,
        handle: Some(handle),
        states: Vec::new(),
        links: 0,
        errors: BTreeMap::new(),
        heat_max: None,
        clock: None,
    }
}

/// Reads what an operator or the driver may change.
pub(super) fn renew(library: &Library, handle: Handle, known: &mut Known) {
    let links = links(library, handle, known);
    let gpu = &mut known.gpu;
    gpu.compute_mode = match library.compute_mode(handle) {
        Ok(0) | Err(_) => ComputeMode::Default,
        Ok(2) => ComputeMode::Prohibited,
        Ok(3) => ComputeMode::ExclusiveProcess,
        Ok(_) => ComputeMode::Other,
    };
    gpu.persistence = library.persistence(handle).ok().map(|on| on != 0);
    gpu.ecc = library.ecc_mode(handle).ok().map(|(on, _)| on != 0);
    gpu.mig = mig(library, handle, &gpu.model);
    gpu.pcie = pcie(library, handle);
    gpu.fabric = fabric(library, handle);
    gpu.processes = processes(library, handle);
    gpu.nvlinks = links.into();
}

fn mig(library: &Library, gpu: Handle, model: &str) -> Option<Mig> {
    let (current, pending) = library.mig_mode(gpu).ok()?;
    let mut mig = Mig {
        enabled: current != 0,
        pending: pending != 0,
        instances: Vec::new(),
    };
    if mig.enabled {
        let parts = (0..library.mig_count(gpu).unwrap_or(0))
            .filter_map(|index| library.mig_part(gpu, index).ok());
        mig.instances = parts
            .filter_map(|part| instance(library, part, model))
            .collect();
    }
    Some(mig)
}

fn instance(library: &Library, part: Handle, model: &str) -> Option<MigInstance> {
    let name = library.name(part).unwrap_or_default();
    Some(MigInstance {
        uuid: library.uuid(part).ok()?,
        profile: name
            .trim_start_matches(model)
            .trim_start_matches(" MIG ")
            .trim()
            .to_owned(),
        memory_bytes: library.memory_total(part).unwrap_or(0),
        gpu_instance: library.gpu_instance(part).unwrap_or(0),
        compute_instance: library.compute_instance(part).unwrap_or(0),
    })
}

fn pcie(library: &Library, gpu: Handle) -> Option<PcieLink> {
    Some(PcieLink {
        generation: library.pcie_generation(gpu).ok()?,
        generation_max: library.pcie_generation_max(gpu).ok()?,
        width: library.pcie_width(gpu).ok()?,
        width_max: library.pcie_width_max(gpu).ok()?,
    })
}

fn fabric(library: &Library, gpu: Handle) -> Option<Fabric> {
    let (state, status, clique, cluster, health) = library.fabric(gpu).ok()?;
    let state = match state {
        1 => FabricState::NotStarted,
        2 => FabricState::InProgress,
        3 => FabricState::Completed,
        _ => FabricState::NotSupported,
    };
    let health = match health {
        1 => FabricHealth::Healthy,
        2 => FabricHealth::Unhealthy,
        3 => FabricHealth::Limited,
        _ => FabricHealth::NotSupported,
    };
    let hex: String = cluster.iter().map(|byte| format!("{byte:02x}")).collect();
    let cluster = if cluster == [0; 16] {
        String::new()
    } else {
        [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ]
        .join("-")
    };
    Some(Fabric {
        state,
        status,
        cluster,
        clique,
        health,
    })
}

fn processes(library: &Library, gpu: Handle) -> Vec<GpuProcess> {
    let named = |(pid, memory): (u32, u64)| GpuProcess {
        pid,
        name: super::super::host::process_name(pid),
        memory_bytes: memory - memory % GpuProcess::STEP,
    };
    let mut processes: Vec<GpuProcess> = library
        .processes(gpu)
        .unwrap_or_default()
        .into_iter()
        .map(named)
        .collect();
    processes.sort();
    processes
}

/// The links of a GPU. "Not supported" means no links if it comes for the first link, and the end
/// of the list if it comes later. The most links by architecture are from NCCL's table.
fn links(library: &Library, handle: Handle, known: &mut Known) -> Vec<NvLink> {
    let most = match known
        .gpu
        .compute_capability
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .unwrap_or(0)
    {
        9.. => 18,
        8 => 12,
        7 => 6,
        _ => 4_u32,
    };
    let mut links = Vec::new();
    for link in 0..most {
        let Ok(active) = library.link_active(handle, link) else {
            break;
        };
        let remote = library
            .link_remote(handle, link)
            .ok()
            .and_then(|pci| normal_pci(&pci));
        let peer = match (remote, library.link_to_switch(handle, link)) {
            _ if !active => NvLinkPeer::Unknown,
            (remote, Ok(true)) => NvLinkPeer::Switch(remote.unwrap_or_default()),
            (Some(remote), _) => NvLinkPeer::Gpu(remote),
            // The peer is not visible at all, as in a virtual machine. It is a switch, since a GPU
            // of ours would be visible.
            (None, _) => NvLinkPeer::Switch(String::new()),
        };
        links.push(NvLink {
            link,
            active,
            peer,
            errors: 0,
        });
    }
    let fields: Vec<(u32, u32)> = links.iter().map(|link| (LINK_CRC, link.link)).collect();
    if !fields.is_empty()
        && let Ok(values) = library.fields(handle, &fields)
    {
        for (link, value) in links.iter_mut().zip(values) {
            let Some(value) = value else { continue };
            let first = *known.errors.entry(link.link).or_insert(value);
            link.errors = value.saturating_sub(first);
        }
    }
    // A link that is down does not tell its peer, so its earlier peer is kept.
    for link in links.iter_mut().filter(|link| !link.active) {
        if let Some(before) = known
            .gpu
            .nvlinks
            .iter()
            .find(|before| before.link == link.link)
        {
            link.peer = before.peer.clone();
        }
    }
    links
}
