//! The names that a kubelet has for GPUs, and which GPUs they are.
//!
//! NVIDIA's device plugin names them by UUID or by index, as it is configured. Where pods share a GPU it
//! adds `::` and a number. NVIDIA's driver for Dynamic Resource Allocation names them `gpu-MINOR`, and a
//! part of one `gpu-MINOR-mig-...`. A name that does not tell which part of a GPU it means stands for the
//! whole GPU. (NVIDIA/k8s-device-plugin, kubernetes-sigs/dra-driver-nvidia-gpu.)

use super::{
    Gpu,
    gpu::MigInstance,
    holders::{HOLDERS_MAX, Holder},
};

/// A device that a kubelet has given to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Given {
    pub namespace: String,
    pub pod: String,
    /// The resource of the device plugin, as `nvidia.com/gpu`, or the name of the driver.
    pub by: String,
    pub device: String,
}

/// Who holds what of these GPUs, and the first device that should be one of them and is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// In order, each once.
    pub holders: Vec<Holder>,
    pub strange: Option<Given>,
    /// There were more holders than a report may have.
    pub cut: bool,
}

/// Resolves what the kubelet says, by all GPUs of the machine.
pub fn resolve(gpus: &[Gpu], given: &[Given]) -> Resolved {
    let mut resolved = Resolved::default();
    for device in given {
        match gpu_of(gpus, device) {
            Some(gpu) => resolved.holders.push(Holder {
                gpu: gpu.to_owned(),
                namespace: device.namespace.clone(),
                pod: device.pod.clone(),
            }),
            None if is_gpu(&device.by) => {
                resolved.strange.get_or_insert_with(|| device.clone());
            }
            None => {}
        }
    }
    resolved.holders.sort();
    resolved.holders.dedup();
    resolved.cut = resolved.holders.len() > HOLDERS_MAX;
    resolved.holders.truncate(HOLDERS_MAX);
    resolved
}

const DRIVER: &str = "gpu.nvidia.com";

/// Whether NVIDIA's device plugin or driver gives GPUs, or parts of them, under this name.
fn is_gpu(by: &str) -> bool {
    let plugin = by.strip_prefix("nvidia.com/").is_some_and(|resource| {
        let is_mig = resource.starts_with("mig-");
        resource == "gpu" || resource.starts_with("gpu.") || is_mig
    });
    plugin || by == DRIVER
}

/// The UUID of the GPU or MIG instance that this device is.
fn gpu_of<'a>(gpus: &'a [Gpu], given: &Given) -> Option<&'a str> {
    let device = given.device.split("::").next().unwrap_or_default();
    if device.starts_with("GPU-") || device.starts_with("MIG-") {
        // Whatever the resource is called: a site may rename it.
        return gpus.iter().find_map(|gpu| named(gpu, device));
    }
    if !is_gpu(&given.by) {
        return None;
    }
    let number = |text: &str| text.parse::<u32>().ok();
    let gpu = if given.by == DRIVER {
        let minor = device.strip_prefix("gpu-")?.split('-').next()?;
        let minor = number(minor)?;
        gpus.iter().find(|gpu| gpu.minor == Some(minor))
    } else {
        // `3`, or `3:1` for a MIG instance.
        let index = number(device.split(':').next()?)?;
        gpus.iter().find(|gpu| gpu.index == index)
    };
    gpu.map(|gpu| gpu.uuid.as_str())
}

/// The UUID of this GPU, or of its instance, if the device is that. Drivers before R470 name an instance
/// `MIG-GPU-UUID/GI/CI`.
fn named<'a>(gpu: &'a Gpu, device: &str) -> Option<&'a str> {
    let mut instances = gpu.mig.iter().flat_map(|mig| &mig.instances);
    let old = || {
        let mut words = device.strip_prefix("MIG-")?.split('/');
        let of_gpu = words.next()? == gpu.uuid;
        let ids: Vec<u32> = words.map_while(|word| word.parse().ok()).collect();
        of_gpu.then_some(ids)
    };
    let old = old();
    let is = |instance: &&MigInstance| {
        let ids = [instance.gpu_instance, instance.compute_instance];
        instance.uuid == device || old.as_deref() == Some(&ids)
    };
    let whole = (gpu.uuid == device).then_some(gpu.uuid.as_str());
    whole.or_else(|| instances.find(is).map(|instance| instance.uuid.as_str()))
}

/// The workload that a pod is of, as `NAMESPACE/NAME`: its name without what the API server has generated,
/// five of certain letters and digits after a dash. Pods of one job have different names, and a fault
/// that follows the job is not one of the GPU.
pub fn workload(holder: &Holder) -> String {
    const GENERATED: &str = "bcdfghjklmnpqrstvwxz2456789";
    let name = match holder.pod.rsplit_once('-') {
        Some((name, end))
            if end.len() == 5 && end.chars().all(|c| GENERATED.contains(c)) && !name.is_empty() =>
        {
            name
        }
        _ => &holder.pod,
    };
    format!("{}/{name}", holder.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_report::gpu::Mig;

    /// GPU-a and GPU-b, of which GPU-b is cut up. Their minors are not their indices.
    fn gpus() -> Vec<Gpu> {
        let gpu = |index: u32, uuid: &str| Gpu {
            uuid: uuid.into(),
            index,
            minor: Some(index + 4),
            ..Gpu::default()
        };
        let part = |uuid: &str, gpu_instance: u32| MigInstance {
            uuid: uuid.into(),
            gpu_instance,
            ..MigInstance::default()
        };
        let mut gpus = vec![gpu(0, "GPU-a"), gpu(1, "GPU-b")];
        gpus[1].mig = Some(Mig {
            enabled: true,
            pending: true,
            instances: vec![part("MIG-1", 7), part("MIG-2", 8)],
        });
        gpus
    }

    fn given(by: &str, device: &str) -> Given {
        Given {
            namespace: "team-a".into(),
            pod: "train-0".into(),
            by: by.into(),
            device: device.into(),
        }
    }

    #[test]
    fn every_form_of_name_is_known() {
        let cases = [
            ("nvidia.com/gpu", "GPU-a", Some("GPU-a")),
            ("nvidia.com/gpu.shared", "GPU-a::3", Some("GPU-a")),
            ("example.com/h100", "GPU-a", Some("GPU-a")),
            ("nvidia.com/gpu", "1", Some("GPU-b")),
            ("nvidia.com/gpu", "0::7", Some("GPU-a")),
            ("nvidia.com/mig-1g.10gb", "MIG-2", Some("MIG-2")),
            ("nvidia.com/mig-1g.10gb", "MIG-GPU-b/7/0", Some("MIG-1")),
            ("nvidia.com/mig-1g.10gb", "1:0", Some("GPU-b")),
            ("gpu.nvidia.com", "gpu-4", Some("GPU-a")),
            ("gpu.nvidia.com", "gpu-5-mig-19-0-1", Some("GPU-b")),
            ("nvidia.com/gpu", "GPU-z", None),
            ("nvidia.com/gpu", "2", None),
            ("gpu.nvidia.com", "gpu-0", None),
        ];
        for (by, device, gpu) in cases {
            let resolved = resolve(&gpus(), &[given(by, device)]);
            let named = resolved.holders.first().map(|holder| holder.gpu.as_str());
            assert_eq!(named, gpu, "{by} {device}");
            let strange = gpu.is_none().then(|| given(by, device));
            assert_eq!(resolved.strange, strange, "{by} {device}");
        }
    }

    #[test]
    fn what_is_no_gpu_is_left_alone() {
        let others = [
            given("rdma/hca", "0"),
            given("nvidia.com/hostdev", "mlx5_0"),
            given("compute-domain.nvidia.com", "channel-0"),
            given("example.com/fpga", "1"),
        ];
        assert_eq!(resolve(&gpus(), &others), Resolved::default());
    }

    #[test]
    fn holders_are_in_order_and_bounded() {
        let twice = [
            given("nvidia.com/gpu", "GPU-a::1"),
            given("nvidia.com/gpu", "GPU-a::0"),
        ];
        assert_eq!(resolve(&gpus(), &twice).holders.len(), 1);
        let many: Vec<Given> = (0..HOLDERS_MAX + 1)
            .map(|i| Given {
                pod: format!("pod-{i}"),
                ..given("nvidia.com/gpu.shared", "GPU-a::0")
            })
            .collect();
        let resolved = resolve(&gpus(), &many);
        assert_eq!((resolved.holders.len(), resolved.cut), (HOLDERS_MAX, true));
        assert!(resolved.holders.is_sorted());
        assert!(!resolve(&gpus(), &many[1..]).cut);
    }

    #[test]
    fn pods_of_one_workload_have_one_name() {
        let of = |pod: &str| {
            workload(&Holder {
                gpu: String::new(),
                namespace: "team-a".into(),
                pod: pod.into(),
            })
        };
        assert_eq!(of("own-image-x7k2p"), "team-a/own-image");
        assert_eq!(of("notebook-0"), "team-a/notebook-0");
        assert_eq!(of("train-alpha"), "team-a/train-alpha", "it has vowels");
        assert_eq!(of("x7k2p"), "team-a/x7k2p");
    }
}
