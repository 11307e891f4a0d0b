//! What a node says of itself under the keys that Kubernetes and NVIDIA's GPU Feature Discovery have for it, so that a
//! job chooses nodes by the same words on bare hosts as in a cluster. A label that somebody gave wins.

use super::{Gpu, NodeReport};

const HOSTNAME: &str = "kubernetes.io/hostname";
const SYSTEM: &str = "kubernetes.io/os";
const PRESENT: &str = "nvidia.com/gpu.present";
const PRODUCT: &str = "nvidia.com/gpu.product";
const MEMORY: &str = "nvidia.com/gpu.memory";
const COUNT: &str = "nvidia.com/gpu.count";
const COMPUTE_MAJOR: &str = "nvidia.com/gpu.compute.major";
const COMPUTE_MINOR: &str = "nvidia.com/gpu.compute.minor";
const DRIVER: &str = "nvidia.com/cuda.driver-version.full";
const DRIVER_MAJOR: &str = "nvidia.com/cuda.driver-version.major";
const DRIVER_MINOR: &str = "nvidia.com/cuda.driver-version.minor";
const CUDA_MAJOR: &str = "nvidia.com/cuda.runtime-version.major";
const CUDA_MINOR: &str = "nvidia.com/cuda.runtime-version.minor";

/// All keys.
pub(super) const KEYS: [&str; 13] = [
    HOSTNAME,
    SYSTEM,
    PRESENT,
    PRODUCT,
    MEMORY,
    COUNT,
    COMPUTE_MAJOR,
    COMPUTE_MINOR,
    DRIVER,
    DRIVER_MAJOR,
    DRIVER_MINOR,
    CUDA_MAJOR,
    CUDA_MINOR,
];

/// `None`: the node cannot say it, or its GPUs differ.
pub(super) fn value(report: &NodeReport, key: &str) -> Option<String> {
    let part = |version: &str, at: usize| {
        let part = version.split('.').nth(at)?;
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.to_owned())
    };
    let driver = || report.driver.as_ref();
    let value = match key {
        HOSTNAME => report.hostname.clone(),
        SYSTEM => "linux".into(),
        PRESENT if !report.gpus.is_empty() => "true".into(),
        COUNT if !report.gpus.is_empty() => report.gpus.len().to_string(),
        PRODUCT => alike(report, |gpu| gpu.model.as_str())?.replace(' ', "-"),
        // In MiB.
        MEMORY => alike(report, |gpu| gpu.memory_bytes >> 20)?.to_string(),
        COMPUTE_MAJOR => part(alike(report, |gpu| gpu.compute_capability.as_str())?, 0)?,
        COMPUTE_MINOR => part(alike(report, |gpu| gpu.compute_capability.as_str())?, 1)?,
        DRIVER => driver()?.version.clone(),
        DRIVER_MAJOR => part(&driver()?.version, 0)?,
        DRIVER_MINOR => part(&driver()?.version, 1)?,
        CUDA_MAJOR => part(&driver()?.cuda, 0)?,
        CUDA_MINOR => part(&driver()?.cuda, 1)?,
        _ => return None,
    };
    (!value.is_empty()).then_some(value)
}

/// What all GPUs of the node have in common.
fn alike<'a, T: PartialEq>(report: &'a NodeReport, of: impl Fn(&'a Gpu) -> T) -> Option<T> {
    let first = of(report.gpus.first()?);
    let all = report.gpus.iter().all(|gpu| of(gpu) == first);
    all.then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_report::Driver;

    #[test]
    fn a_node_without_labels_says_what_gpu_feature_discovery_would() {
        let gpu = Gpu {
            model: "NVIDIA H100 80GB HBM3".into(),
            memory_bytes: 81_559 << 20,
            compute_capability: "9.0".into(),
            ..Gpu::default()
        };
        let mut report = NodeReport {
            hostname: "n1".into(),
            gpus: vec![gpu.clone(), gpu],
            driver: Some(Driver {
                version: "570.86.15".into(),
                cuda: "12.8".into(),
                nvml: String::new(),
            }),
            ..NodeReport::default()
        };
        let said: Vec<Option<String>> = KEYS.iter().map(|key| value(&report, key)).collect();
        let said: Vec<&str> = said.iter().flatten().map(String::as_str).collect();
        assert_eq!(
            said,
            [
                "n1",
                "linux",
                "true",
                "NVIDIA-H100-80GB-HBM3",
                "81559",
                "2",
                "9",
                "0",
                "570.86.15",
                "570",
                "86",
                "12",
                "8"
            ]
        );
        assert_eq!(report.all_labels().len(), KEYS.len());

        report.labels.insert(PRODUCT.into(), "mine".into());
        assert_eq!(report.label_or_fact(PRODUCT).as_deref(), Some("mine"));
        assert_eq!(report.all_labels()[PRODUCT], "mine");
        report.gpus[1].model = "NVIDIA A100".into();
        assert_eq!(value(&report, PRODUCT), None, "they differ");
        assert_eq!(value(&NodeReport::default(), COUNT), None);
    }
}
