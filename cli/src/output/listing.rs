//! Lists of jobs, nodes and events: their columns, and the content of each.

use std::collections::BTreeSet;

use muster_proto::{convert::jobs, v1};

use super::{
    document::{self, severity},
    hardware, usage,
    words::{self, or_dash},
};

/// Replaces the value of a job's environment variable, which may be a secret.
pub(crate) const HIDDEN: &str = "<hidden>";

/// How one kind of object is listed.
pub(crate) trait Listed: Clone {
    type Document: From<Self> + serde::Serialize;
    /// The word in `job/digits`.
    fn kind(&self) -> &'static str;
    /// The columns. `wide` adds some on the right, `namespaced` one on the left.
    fn heads(wide: bool, namespaced: bool) -> Vec<&'static str>;
    fn row(&self, now_us: u64, wide: bool, namespaced: bool) -> Vec<String>;
    /// The object without the parts that change all the time. A watch prints a change of those only
    /// now and then, and any other change at once.
    fn calm(&self) -> Self {
        self.clone()
    }
    /// The object without the parts that may be secret.
    fn discreet(self) -> Self {
        self
    }
    fn name(&self) -> String;
    /// The key that tells objects of a watch apart.
    fn key(&self) -> String;
}

impl Listed for v1::Job {
    type Document = document::Job;

    fn kind(&self) -> &'static str {
        "job"
    }

    fn heads(wide: bool, namespaced: bool) -> Vec<&'static str> {
        let mut heads = if namespaced {
            vec!["NAMESPACE"]
        } else {
            Vec::new()
        };
        heads.extend([
            "NAME", "STATE", "NODES", "RANGE", "RESTARTS", "STEP", "AGE", "REASON",
        ]);
        if wide {
            heads.extend(["GENERATION", "WORLD", "STORE", "OWNER", "UID", "MESSAGE"]);
        }
        heads
    }

    fn row(&self, now_us: u64, wide: bool, namespaced: bool) -> Vec<String> {
        let named = self.r#ref.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let spec = self.spec.clone().unwrap_or_default();
        let (min, max) = words::bounds(&jobs::spec_document(spec));
        let mut row = if namespaced {
            vec![named.namespace]
        } else {
            Vec::new()
        };
        row.extend([
            named.name,
            words::phase(status.phase).into(),
            format!("{}/{}", status.nodes_running, status.replicas),
            words::range(min, max),
            status.restarts.to_string(),
            or_dash(status.last_step),
            words::age(self.created_unix_us, now_us),
            status.reason,
        ]);
        if wide {
            row.extend([
                status.generation.to_string(),
                status.world_size.to_string(),
                status.store_node,
                or_dash(Some(&self.owner).filter(|owner| !owner.is_empty())),
                self.uid.clone(),
                status.message,
            ]);
        }
        row
    }

    fn calm(&self) -> Self {
        let mut calm = self.clone();
        if let Some(status) = &mut calm.status {
            status.last_step = None;
            for rank in &mut status.ranks {
                (rank.memory_bytes, rank.cpu_milli, rank.usage_unix_us) = (None, None, 0);
            }
        }
        calm
    }

    fn discreet(mut self) -> Self {
        if let Some(spec) = &mut self.spec {
            let of_roles = spec.roles.iter_mut().flat_map(|role| &mut role.env);
            let all = spec.env.iter_mut().chain(of_roles);
            for var in all.filter(|var| !var.value.is_empty()) {
                var.value = HIDDEN.into();
            }
        }
        self
    }

    fn name(&self) -> String {
        self.r#ref.clone().unwrap_or_default().name
    }

    fn key(&self) -> String {
        self.uid.clone()
    }
}

impl Listed for v1::Node {
    type Document = document::Node;

    fn kind(&self) -> &'static str {
        "node"
    }

    fn heads(wide: bool, _: bool) -> Vec<&'static str> {
        let mut heads = vec!["NAME", "STATE", "SLOTS", "GPUS", "JOBS", "AGENT", "AGE"];
        if wide {
            heads.extend(["ADDRESS", "HOSTNAME", "KERNEL", "CPUS", "MEMORY", "MODEL"]);
            heads.extend(usage::NODE_HEADS);
            heads.push("HEARD");
        }
        heads
    }

    fn row(&self, now_us: u64, wide: bool, _: bool) -> Vec<String> {
        let jobs: BTreeSet<&str> = self
            .runs
            .iter()
            .filter(|run| is_live(run))
            .map(|run| run.job.as_str())
            .collect();
        let mut row = vec![
            self.name.clone(),
            hardware::state(self),
            format!(
                "{}/{}",
                self.slots.saturating_sub(self.slots_free),
                self.slots
            ),
            hardware::gpus(self),
            jobs.into_iter().collect::<Vec<_>>().join(","),
            self.agent_version.clone(),
            words::age(self.first_seen_unix_us, now_us),
        ];
        if wide {
            row.extend([
                self.address.clone(),
                self.hostname.clone(),
                self.kernel.clone(),
                self.cpus.to_string(),
                words::bytes(self.memory_bytes),
                self.gpus
                    .first()
                    .map(|gpu| gpu.model.clone())
                    .unwrap_or_default(),
            ]);
            row.extend(usage::node_row(self.usage.as_ref()));
            row.push(words::age(self.last_heard_unix_us, now_us));
        }
        row
    }

    fn calm(&self) -> Self {
        Self {
            last_heard_unix_us: 0,
            usage: None,
            usage_unix_us: 0,
            ..self.clone()
        }
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn key(&self) -> String {
        self.name.clone()
    }
}

/// A dead run stays listed on its node until the coordinator has recorded its end.
fn is_live(run: &v1::NodeRun) -> bool {
    !run.job.is_empty() && run.phase != "Dead" && !run.phase.starts_with("Refused")
}

impl Listed for v1::Event {
    type Document = document::Event;

    fn kind(&self) -> &'static str {
        "event"
    }

    fn heads(wide: bool, namespaced: bool) -> Vec<&'static str> {
        let mut heads = if namespaced {
            vec!["NAMESPACE"]
        } else {
            Vec::new()
        };
        heads.extend(["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        if wide {
            heads.extend(["GENERATION", "TIME", "SEQUENCE"]);
        }
        heads
    }

    fn row(&self, now_us: u64, wide: bool, namespaced: bool) -> Vec<String> {
        let object = match (self.job.as_str(), self.node.as_str()) {
            ("", "") => String::new(),
            ("", node) => format!("node/{node}"),
            (job, _) => format!("job/{job}"),
        };
        let mut row = if namespaced {
            vec![self.namespace.clone()]
        } else {
            Vec::new()
        };
        row.extend([
            words::age(self.at_unix_us, now_us),
            severity(self).into(),
            self.reason.clone(),
            object,
            self.message.clone(),
        ]);
        if wide {
            let generation = (self.generation != 0).then_some(self.generation);
            row.extend([
                or_dash(generation),
                words::utc(self.at_unix_us),
                self.sequence.to_string(),
            ]);
        }
        row
    }

    fn name(&self) -> String {
        self.sequence.to_string()
    }

    fn key(&self) -> String {
        self.sequence.to_string()
    }
}
