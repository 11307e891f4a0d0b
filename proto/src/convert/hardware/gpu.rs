//! GPUs, between core's types and the wire.

use muster_core::node_report::gpu::{
    ComputeMode, Fabric, FabricHealth, FabricState, Gpu, GpuProcess, Mig, MigInstance, NvLink,
    NvLinkPeer, PcieLink,
};

use super::{NAME_MAX, count, required_text, text, words};
use crate::{convert::Malformed, v1};

/// NVLink 5 has 18 links; twice that leaves room.
const LINKS_MAX: usize = 36;
/// A GPU can be cut into at most 7 instances; twice that leaves room.
const INSTANCES_MAX: usize = 16;
/// The agent lists at most this many.
const PROCESSES_MAX: usize = 128;

words!(mode_to_wire, mode_from_wire, ComputeMode, Default = "default", Prohibited = "prohibited", ExclusiveProcess = "exclusive-process", Other = "other"; Other);
words!(state_to_wire, state_from_wire, FabricState, NotSupported = "not-supported", NotStarted = "not-started", InProgress = "in-progress", Completed = "completed"; NotSupported);
words!(health_to_wire, health_from_wire, FabricHealth, NotSupported = "not-supported", Healthy = "healthy", Unhealthy = "unhealthy", Limited = "limited"; NotSupported);

pub(in crate::convert) fn gpu_to_wire(gpu: &Gpu) -> v1::Gpu {
    v1::Gpu {
        uuid: gpu.uuid.clone(),
        index: gpu.index,
        model: gpu.model.clone(),
        memory_bytes: gpu.memory_bytes,
        pci: gpu.pci.clone(),
        minor: gpu.minor,
        serial: gpu.serial.clone(),
        module_id: gpu.module_id,
        numa_node: gpu.numa_node,
        compute_capability: gpu.compute_capability.clone(),
        compute_mode: mode_to_wire(gpu.compute_mode),
        persistence: gpu.persistence,
        ecc: gpu.ecc,
        mig: gpu.mig.as_ref().map(|mig| v1::Mig {
            enabled: mig.enabled,
            pending: mig.pending,
            instances: mig.instances.iter().map(instance_to_wire).collect(),
        }),
        pcie: gpu.pcie.map(|pcie| v1::PcieLink {
            generation: pcie.generation,
            generation_max: pcie.generation_max,
            width: pcie.width,
            width_max: pcie.width_max,
        }),
        nvlinks: gpu.nvlinks.iter().map(link_to_wire).collect(),
        fabric: gpu.fabric.as_ref().map(|fabric| v1::Fabric {
            state: state_to_wire(fabric.state),
            status: fabric.status,
            cluster: fabric.cluster.clone(),
            clique: fabric.clique,
            health: health_to_wire(fabric.health),
        }),
        processes: gpu
            .processes
            .iter()
            .map(|process| v1::GpuProcess {
                pid: process.pid,
                name: process.name.clone(),
                memory_bytes: process.memory_bytes,
            })
            .collect(),
    }
}

fn instance_to_wire(instance: &MigInstance) -> v1::MigInstance {
    v1::MigInstance {
        uuid: instance.uuid.clone(),
        profile: instance.profile.clone(),
        memory_bytes: instance.memory_bytes,
        gpu_instance: instance.gpu_instance,
        compute_instance: instance.compute_instance,
    }
}

fn link_to_wire(link: &NvLink) -> v1::NvLink {
    let peer = match &link.peer {
        NvLinkPeer::Gpu(pci) => Some(v1::nv_link::Peer::Gpu(pci.clone())),
        NvLinkPeer::Switch(pci) => Some(v1::nv_link::Peer::Switch(pci.clone())),
        NvLinkPeer::Unknown => None,
    };
    v1::NvLink {
        link: link.link,
        active: link.active,
        peer,
        errors: link.errors,
    }
}

pub(in crate::convert) fn gpu_from_wire(i: usize, wire: v1::Gpu) -> Result<Gpu, Malformed> {
    let field = |name: &str| format!("report.gpus[{i}].{name}");
    let name = |at: &str, value| text(&field(at), value, NAME_MAX);
    count(&field("nvlinks"), wire.nvlinks.len(), LINKS_MAX)?;
    count(&field("processes"), wire.processes.len(), PROCESSES_MAX)?;
    let of_links = field("nvlinks");
    let nvlinks = wire
        .nvlinks
        .into_iter()
        .map(|link| link_from_wire(&of_links, link))
        .collect::<Result<_, _>>()?;
    Ok(Gpu {
        uuid: required_text(&field("uuid"), wire.uuid, NAME_MAX)?,
        index: wire.index,
        model: name("model", wire.model)?,
        memory_bytes: wire.memory_bytes,
        pci: name("pci", wire.pci)?,
        minor: wire.minor,
        serial: name("serial", wire.serial)?,
        module_id: wire.module_id,
        numa_node: wire.numa_node,
        compute_capability: name("compute_capability", wire.compute_capability)?,
        // Older agents do not send it.
        compute_mode: if wire.compute_mode.is_empty() {
            ComputeMode::Default
        } else {
            mode_from_wire(&wire.compute_mode)
        },
        persistence: wire.persistence,
        ecc: wire.ecc,
        mig: wire
            .mig
            .map(|mig| mig_from_wire(&field("mig"), mig))
            .transpose()?,
        pcie: wire.pcie.map(|pcie| PcieLink {
            generation: pcie.generation,
            generation_max: pcie.generation_max,
            width: pcie.width,
            width_max: pcie.width_max,
        }),
        nvlinks,
        fabric: wire
            .fabric
            .map(|fabric| fabric_from_wire(&field("fabric"), fabric))
            .transpose()?,
        processes: wire
            .processes
            .into_iter()
            .map(|process| {
                Ok(GpuProcess {
                    pid: process.pid,
                    name: name("processes.name", process.name)?,
                    memory_bytes: process.memory_bytes,
                })
            })
            .collect::<Result<_, _>>()?,
    })
}

fn mig_from_wire(field: &str, wire: v1::Mig) -> Result<Mig, Malformed> {
    count(
        &format!("{field}.instances"),
        wire.instances.len(),
        INSTANCES_MAX,
    )?;
    let instance = |instance: v1::MigInstance| {
        Ok(MigInstance {
            uuid: required_text(&format!("{field}.instances.uuid"), instance.uuid, NAME_MAX)?,
            profile: text(
                &format!("{field}.instances.profile"),
                instance.profile,
                NAME_MAX,
            )?,
            memory_bytes: instance.memory_bytes,
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance,
        })
    };
    let instances = wire
        .instances
        .into_iter()
        .map(instance)
        .collect::<Result<_, _>>()?;
    Ok(Mig {
        enabled: wire.enabled,
        pending: wire.pending,
        instances,
    })
}

fn link_from_wire(field: &str, wire: v1::NvLink) -> Result<NvLink, Malformed> {
    let pci = |value| text(&format!("{field}.peer"), value, NAME_MAX);
    let peer = match wire.peer {
        Some(v1::nv_link::Peer::Gpu(value)) => NvLinkPeer::Gpu(pci(value)?),
        Some(v1::nv_link::Peer::Switch(value)) => NvLinkPeer::Switch(pci(value)?),
        None => NvLinkPeer::Unknown,
    };
    Ok(NvLink {
        link: wire.link,
        active: wire.active,
        peer,
        errors: wire.errors,
    })
}

fn fabric_from_wire(field: &str, wire: v1::Fabric) -> Result<Fabric, Malformed> {
    Ok(Fabric {
        state: state_from_wire(&wire.state),
        status: wire.status,
        cluster: text(&format!("{field}.cluster"), wire.cluster, NAME_MAX)?,
        clique: wire.clique,
        health: health_from_wire(&wire.health),
    })
}
