//! What the kubelet has said about GPUs: for the report, for the judge, and for XIDs.

use std::collections::BTreeSet;

use muster_core::{
    health::{POD_RESOURCES, Reading, Subject, Value},
    node_report::{
        Gpu,
        devices::{Given, resolve, workload},
        holders::{HOLDERS_MAX, Holder, Holders},
    },
};

use super::{sense::GpuLook, settings::Kubelet};

#[derive(Debug)]
pub(super) struct PodHolders {
    /// None: nobody is asked.
    kubelet: Option<Kubelet>,
    /// What it said last, without the agent's own pod.
    said: Option<Vec<Given>>,
}

impl PodHolders {
    pub(super) fn new(kubelet: Option<Kubelet>) -> Self {
        Self {
            kubelet,
            said: None,
        }
    }

    /// Takes the latest answer, and says what is wrong with it. `look`: the last one at the GPUs.
    pub(super) fn hear(
        &mut self,
        answer: Result<Vec<Given>, String>,
        look: Option<&GpuLook>,
    ) -> Reading {
        let wrong = match answer {
            Ok(mut given) => {
                let own = self
                    .kubelet
                    .as_ref()
                    .and_then(|kubelet| kubelet.own_pod.as_ref());
                given.retain(|device| {
                    own.is_none_or(|(namespace, pod)| {
                        (namespace, pod) != (&device.namespace, &device.pod)
                    })
                });
                let wrong = look.and_then(|look| doubt(look, &given));
                self.said = Some(given);
                wrong
            }
            Err(why) => Some(match self.said {
                Some(_) => format!("{why}; what it said before is taken for true"),
                None => format!("{why}; until then no GPU of this node is given to a job"),
            }),
        };
        Reading {
            check: POD_RESOURCES,
            subject: Subject::Node,
            value: Value::Flag(wrong.is_some()),
            words: wrong.unwrap_or_default(),
            runs: Vec::new(),
        }
    }

    /// Who holds the GPUs of this node, which are some of `all`.
    pub(super) fn of(&self, all: &[Gpu], own: &[Gpu]) -> Holders {
        match (&self.kubelet, &self.said) {
            (None, _) => Holders::NotAsked,
            (Some(_), None) => Holders::Unknown,
            (Some(_), Some(given)) => {
                let mut holders = resolve(all, given).holders;
                holders.retain(|holder| own.iter().any(|gpu| gpu.has(&holder.gpu)));
                Holders::Known(holders)
            }
        }
    }

    /// The workload whose pods alone hold this GPU. Of several, an XID does not say which.
    pub(super) fn workload_on(&self, gpus: &[Gpu], uuid: &str) -> Option<String> {
        let gpu = gpus.iter().find(|gpu| gpu.uuid == uuid)?;
        let holders = resolve(gpus, self.said.as_deref()?).holders;
        let here = holders
            .iter()
            .filter(|holder: &&Holder| gpu.has(&holder.gpu));
        let workloads: BTreeSet<String> = here.map(workload).collect();
        let mut workloads = workloads.into_iter();
        workloads.next().filter(|_| workloads.next().is_none())
    }
}

/// What in an answer does not go with the GPUs that there are. If the driver does not answer, nothing can
/// be said.
fn doubt(look: &GpuLook, given: &[Given]) -> Option<String> {
    let resolved = resolve(&look.gpus, given);
    if look.gpus.is_empty() {
        let sees_none = look.absent && resolved.strange.is_some();
        return sees_none.then(|| {
            "the kubelet has given GPUs to pods, and the agent sees no driver: the pod needs the runtime class nvidia and \
             NVIDIA_VISIBLE_DEVICES=all, and NVIDIA's container toolkit must accept this variable from unprivileged containers"
                .to_owned()
        });
    }
    if resolved.cut {
        return Some(format!(
            "more than {HOLDERS_MAX} pods share GPUs here, and the others are not counted"
        ));
    }
    // The pod is not named: everybody who may look at nodes reads this.
    let Given { by, device, .. } = resolved.strange?;
    Some(format!(
        "the kubelet has given {device} ({by}) to a pod, and NVML knows no such GPU: the device plugin and the agent must see the same \
         GPUs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str) -> Gpu {
        Gpu {
            uuid: uuid.into(),
            ..Gpu::default()
        }
    }

    fn look(gpus: &[Gpu]) -> GpuLook {
        GpuLook {
            gpus: gpus.to_vec(),
            ..GpuLook::default()
        }
    }

    fn given(pod: &str, device: &str) -> Given {
        let (namespace, pod) = pod.split_once('/').unwrap();
        Given {
            namespace: namespace.into(),
            pod: pod.into(),
            by: "nvidia.com/gpu".into(),
            device: device.into(),
        }
    }

    fn asked() -> PodHolders {
        PodHolders::new(Some(Kubelet {
            socket: "/kubelet.sock".into(),
            own_pod: Some(("muster-system".into(), "muster-agent-x".into())),
        }))
    }

    fn pods(holders: Holders) -> Vec<String> {
        let all = holders.all().iter();
        all.map(|holder| holder.pod.clone()).collect()
    }

    #[test]
    fn nothing_is_guessed_before_the_kubelet_has_answered() {
        let (all, mut holders) = ([gpu("GPU-a")], asked());
        assert_eq!(PodHolders::new(None).of(&all, &all), Holders::NotAsked);
        let reading = holders.hear(Err("it is away".into()), None);
        assert_eq!(reading.value, Value::Flag(true));
        assert!(reading.words.contains("no GPU of this node is given"));
        assert_eq!(holders.of(&all, &all), Holders::Unknown);
        let reading = holders.hear(Ok(vec![given("team-a/p", "GPU-a")]), Some(&look(&all)));
        assert_eq!(reading.value, Value::Flag(false));
        let reading = holders.hear(Err("it is away".into()), None);
        assert!(reading.words.contains("is taken for true"));
        assert_eq!(pods(holders.of(&all, &all)), ["p"]);
    }

    #[test]
    fn the_agents_own_pod_and_gpus_of_other_agents_are_left_out() {
        let (all, mut holders) = ([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")], asked());
        holders.hear(
            Ok(vec![
                given("muster-system/muster-agent-x", "GPU-a"),
                given("team-a/p", "GPU-b"),
                given("team-a/q", "GPU-c"),
            ]),
            Some(&look(&all)),
        );
        assert_eq!(pods(holders.of(&all, &all[..2])), ["p"]);
    }

    #[test]
    fn a_device_that_is_none_of_the_gpus_is_told() {
        let strange = || Ok(vec![given("team-a/p", "GPU-z")]);
        let reading = asked().hear(strange(), Some(&look(&[gpu("GPU-a")])));
        let said = "given GPU-z (nvidia.com/gpu) to a pod";
        assert!(reading.words.contains(said), "{}", reading.words);
        // The driver may not have answered yet.
        for unknown in [None, Some(&look(&[]))] {
            let reading = asked().hear(strange(), unknown);
            assert_eq!(reading.value, Value::Flag(false));
        }
        let absent = GpuLook {
            absent: true,
            ..GpuLook::default()
        };
        let reading = asked().hear(strange(), Some(&absent));
        assert!(
            reading.words.contains("runtime class nvidia"),
            "{}",
            reading.words
        );
        let others = Ok(vec![Given {
            by: "rdma/hca".into(),
            ..given("team-a/p", "0")
        }]);
        assert_eq!(
            asked().hear(others, Some(&absent)).value,
            Value::Flag(false)
        );
    }

    #[test]
    fn an_xid_is_the_matter_of_the_only_workload_on_its_gpu() {
        let (all, mut holders) = ([gpu("GPU-a")], asked());
        let mut on = |pods: &[&str]| {
            let given = pods.iter().map(|pod| given(pod, "GPU-a"));
            holders.hear(Ok(given.collect()), Some(&look(&all)));
            holders.workload_on(&all, "GPU-a")
        };
        assert_eq!(on(&["team-a/one-bcdfg"]).as_deref(), Some("team-a/one"));
        let of_one = on(&["team-a/one-bcdfg", "team-a/one-hjklm"]);
        assert_eq!(of_one.as_deref(), Some("team-a/one"));
        assert_eq!(on(&["team-a/one-bcdfg", "team-b/one-bcdfg"]), None);
        assert_eq!(on(&[]), None);
    }
}
