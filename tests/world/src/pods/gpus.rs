//! The GPUs that kubelets give to pods. Each host has one for each place of a pod, and pods of others hold
//! those that no pod of ours has. The host's agent says who holds what, and which are sick.

use std::collections::BTreeSet;

use muster_core::{
    fleet::worker_pod::{SUFFIX, node_of},
    health::{Finding, Remedy, Severity, Subject},
    id::NodeName,
    node_report::{
        Gpu, NodeReport,
        holders::{Holder, Holders},
    },
};

use crate::{
    event::Event, fault::Fault, machine::Machine, trace::note, troubles::Kind, world::World,
};

/// A GPU that a host's kubelet gives away.
#[derive(Clone, Debug, Default)]
pub(crate) struct KubeletGpu {
    /// The pod that has it, as its namespace and its name.
    pod: Option<(String, String)>,
    sick: Option<Severity>,
}

impl Machine {
    /// Adds these GPUs to what the host's agent says.
    pub(crate) fn add_kubelet_gpus(&self, report: &mut NodeReport) {
        if self.kubelet_gpus.is_empty() {
            return;
        }
        let mut holders = Vec::new();
        for (place, given) in self.kubelet_gpus.iter().enumerate() {
            let uuid = format!("{}-kubelet-{place}", self.name);
            let others = || ("others".to_owned(), format!("notebook-{place}"));
            let (namespace, pod) = given.pod.clone().unwrap_or_else(others);
            holders.push(Holder {
                gpu: uuid.clone(),
                namespace,
                pod,
            });
            if let Some(severity) = given.sick {
                report.health.findings.push(Finding {
                    check: "xid:48".into(),
                    subject: Subject::Gpu(uuid.clone()),
                    severity,
                    remedy: Remedy::GpuReset,
                    reason: "as it says".into(),
                    since_unix_us: 0,
                    runs: Vec::new(),
                });
            }
            report.gpus.push(Gpu {
                uuid,
                index: 100 + place as u32,
                model: "H100".into(),
                ..Gpu::default()
            });
        }
        holders.sort();
        report.holders = Holders::Known(holders);
    }
}

impl World {
    /// Each host has as many GPUs for pods as it takes pods.
    pub(super) fn kubelets_have_gpus(&mut self) {
        let room = self.pods.as_ref().map_or(0, |pods| pods.room);
        for host in 0..self.plan.machines {
            self.machines[host].kubelet_gpus = vec![KubeletGpu::default(); room];
        }
    }

    /// A pod gets a GPU of the host to which it is bound, in the place of one that is over.
    pub(super) fn gets_a_gpu(&mut self, name: &NodeName, host: usize) {
        let Some(pods) = &self.pods else { return };
        let of = &self.machines[host].name;
        let stands = |(namespace, pod): &(String, String)| {
            let object = pods.objects.get(&node_of(namespace, pod));
            object.is_some_and(|object| {
                object.pod.host.as_ref() == Some(of)
                    && object.pod.stage != muster_core::fleet::worker_pod::PodStage::Ended
            })
        };
        let pod = pods.objects.get(name).map(|object| {
            let pod = &object.pod;
            (pod.namespace.clone(), pod.name.clone())
        });
        let places = self.machines[host].kubelet_gpus.iter();
        let free = places.map(|given| given.pod.as_ref().is_none_or(|pod| !stands(pod)));
        let Some(place) = free.into_iter().position(|free| free) else {
            return;
        };
        self.machines[host].kubelet_gpus[place].pod = pod;
        self.knows_sick(host, place);
        self.describe_node(host);
    }

    /// The pod on this GPU has a sick one from now on, if it is sick.
    fn knows_sick(&mut self, host: usize, place: usize) {
        let given = &self.machines[host].kubelet_gpus[place];
        let (Some((namespace, pod)), Some(_)) = (&given.pod, given.sick) else {
            return;
        };
        let node = node_of(namespace, pod);
        let Some(pods) = &mut self.pods else { return };
        pods.were_sick.insert(node.clone());
        if let Some(machine) = pods.machine(&node) {
            note!(self, "a GPU of {node} is sick");
            self.begins(machine, Kind::SickGpu);
        }
    }

    /// A GPU of this host becomes sick. True: there was one that was well.
    pub(super) fn gpu_sickens(&mut self, host: usize) -> bool {
        let Some(pods) = &mut self.pods else {
            return false;
        };
        let place = pods.rng.below(pods.room);
        let fails = pods.rng.percent(60);
        let lasts = pods.rng.ms(5_000, 90_000);
        let given = &mut self.machines[host].kubelet_gpus[place];
        if given.sick.is_some() {
            return false;
        }
        given.sick = Some(match fails {
            true => Severity::FailNow,
            false => Severity::Drain,
        });
        note!(self, "a GPU of n{host} for pods becomes sick");
        // A job without pods may have it as well.
        self.begins(host, Kind::SickGpu);
        self.knows_sick(host, place);
        self.describe_node(host);
        let mends = Event::Mends {
            fault: Fault::GpuSick,
            machine: host,
            other: place,
        };
        self.after(lasts, mends);
        true
    }

    pub(crate) fn gpu_is_well(&mut self, host: usize, place: usize) {
        let given = self.machines[host].kubelet_gpus.get_mut(place);
        let was_sick = given.is_some_and(|given| given.sick.take().is_some());
        if was_sick {
            self.describe_node(host);
        }
    }

    pub(super) fn all_gpus_are_well(&mut self) {
        for host in 0..self.plan.machines {
            for place in 0..self.machines[host].kubelet_gpus.len() {
                self.gpu_is_well(host, place);
            }
        }
    }

    /// What keeps new work from this worker pod, as its host said it last to the leading coordinator: its
    /// own GPU, and no other. Nothing, while the watch has not told where the pod is.
    pub(crate) fn sick_by_report(&self, node: &NodeName) -> Option<String> {
        let (pod, namespace) = node.as_str().strip_suffix(SUFFIX)?.rsplit_once('.')?;
        let fleet = &self.leader()?.fleet;
        let host = fleet.node_view(node)?.place?.host;
        let report = fleet.node_view(&host)?.report;
        let own: BTreeSet<&str> = report.holders.of_pod(namespace, pod).collect();
        let grave = |finding: &&Finding| match &finding.subject {
            Subject::Gpu(uuid) => {
                own.contains(uuid.as_str()) && finding.severity >= Severity::Drain
            }
            _ => false,
        };
        let mut findings = report.health.findings.iter();
        findings.find(grave).map(|finding| finding.check.clone())
    }
}
