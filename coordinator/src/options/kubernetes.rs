//! What the flags ask of a Kubernetes cluster.

use clap::{Args, ValueEnum};
use muster_core::fleet::CordonMode;
use muster_foreign::adopt::{Adoptable, adoptable};
use muster_operator::{Account, KEPT_MAX};

use crate::kubernetes::{self, AGAIN_AFTER, KubernetesError, Settings, Tokens};

/// The cluster is that of $KUBECONFIG or ~/.kube/config, else the one this runs in.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct KubernetesOptions {
    /// Also read the Node objects of a Kubernetes cluster. A node gets the labels of the object that
    /// has its name, and no new work while the object is unschedulable or other programs say there
    /// that the node is faulty or leaving. The cluster is that of $KUBECONFIG or
    /// ~/.kube/config, else the one this runs in. Needs the verbs get, list and watch on nodes.
    #[arg(long, env = "MUSTER_KUBERNETES_NODES")]
    pub kubernetes_nodes: bool,

    /// Write on Node objects. `dry-run`: annotations that say which nodes Muster would cordon, and
    /// the condition MusterGPUHealthy. `on`: cordons too, in spec.unschedulable, with who, when and
    /// why. Muster takes away only what it has set, and a person who uncordons a node with kubectl
    /// is right for 24 hours. Needs get, list, watch and patch on nodes, patch on nodes/status, and
    /// create on events of events.k8s.io.
    #[arg(
        long,
        env = "MUSTER_KUBERNETES_CORDON",
        value_name = "MODE",
        value_enum,
        default_value_t
    )]
    pub kubernetes_cordon: Cordons,

    /// Take the tokens of the pods of this service account: each is the agent of the node on which
    /// it is, and needs no certificate. The cluster's API server reviews the tokens; needs the
    /// ClusterRole system:auth-delegator.
    #[arg(
        long,
        env = "MUSTER_KUBERNETES_AGENTS",
        value_name = "NAMESPACE/SERVICEACCOUNT"
    )]
    pub kubernetes_agents: Option<Account>,

    /// Take the tokens of all others, as users: what they may do, the cluster's rules (RBAC) say for
    /// the resources musterjobs and musternodes of the group muster.dev.
    #[arg(long, env = "MUSTER_KUBERNETES_USERS")]
    pub kubernetes_users: bool,

    /// Follow the MusterJob objects of the cluster: each is a job of its namespace, and its status
    /// says how the job is. Needs the CustomResourceDefinition (`muster-coordinator crd`), list,
    /// watch, patch and delete on musterjobs, patch on musterjobs/status, and create on events of
    /// events.k8s.io.
    #[arg(long, env = "MUSTER_KUBERNETES_JOBS")]
    pub kubernetes_jobs: bool,

    /// Make worker pods for MusterJob objects that have a template: one for each node of the job, in the
    /// job's own image. Their agents are as in this DaemonSet: the image of its container
    /// `agent`, and its variable MUSTER_COORDINATOR. Needs --kubernetes-jobs, and the rights of
    /// manifests/components/worker-pods.
    #[arg(
        long,
        env = "MUSTER_KUBERNETES_PODS",
        value_name = "NAMESPACE/DAEMONSET",
        requires = "kubernetes_jobs"
    )]
    pub kubernetes_pods: Option<Account>,

    /// Let Kueue admit jobs with pods of their own whose object has the label
    /// kueue.x-k8s.io/queue-name: each gets a Workload object, and no pod before it is admitted. Needs
    /// --kubernetes-pods, and the rights of manifests/components/kueue.
    #[arg(long, env = "MUSTER_KUBERNETES_KUEUE", requires = "kubernetes_pods")]
    pub kubernetes_kueue: bool,

    /// Let jobs with pods of their own ask for a PodGroup of a gang scheduler (spec.podGroup): Kubernetes'
    /// own, Coscheduling or Volcano. Needs --kubernetes-pods, and the rights of
    /// manifests/components/pod-groups.
    #[arg(
        long,
        env = "MUSTER_KUBERNETES_POD_GROUPS",
        requires = "kubernetes_pods"
    )]
    pub kubernetes_pod_groups: bool,

    /// Adopt objects of other systems' kinds that name Muster: by the label muster.dev/adopt: "true", or
    /// with muster.dev/coordinator as spec.runPolicy.managedBy. Each gets a MusterJob object of its name,
    /// runs in pods of its own, and has its status written in its kind's words. The kinds, with commas:
    /// pytorchjobs, tfjobs, jaxjobs, xgboostjobs, paddlejobs, mpijobs, elasticjobs, aitrainingjobs, trainjobs;
    /// for another version or group the full name, as in mpijobs.v2beta1.kubeflow.org. Needs --kubernetes-pods, and the
    /// rights of manifests/components/adopt.
    #[arg(
        long,
        env = "MUSTER_ADOPT",
        value_name = "KINDS",
        value_delimiter = ',',
        value_parser = adoptable,
        requires = "kubernetes_pods"
    )]
    pub adopt: Vec<Adoptable>,

    /// Objects of each kind that are kept at most: pods, Workloads, dependents, adopted objects; ten times as many
    /// MusterJob objects. If there are more, each namespace has a share of them. What a namespace has
    /// beyond it is not known here, and its jobs say so.
    #[arg(
        long,
        env = "MUSTER_KUBERNETES_OBJECTS_MAX",
        value_name = "COUNT",
        default_value_t = KEPT_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1_000..=1_000_000)
    )]
    pub kubernetes_objects_max: u32,

    /// For whom a token must be [default: muster-coordinator.NAMESPACE, with the namespace of the
    /// pod or kubeconfig]
    #[arg(long, env = "MUSTER_AUDIENCE", value_name = "AUDIENCE")]
    pub audience: Option<String>,
}

/// What is written on Node objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cordons {
    /// Nothing
    #[default]
    Off,
    /// What Muster would do
    DryRun,
    /// Cordons
    On,
}

impl From<Cordons> for CordonMode {
    fn from(cordons: Cordons) -> Self {
        match cordons {
            Cordons::Off => Self::Off,
            Cordons::DryRun => Self::DryRun,
            Cordons::On => Self::On,
        }
    }
}

impl KubernetesOptions {
    /// Agents show tokens, and know the coordinator by the authorities that it publishes.
    pub fn has_agents(&self) -> bool {
        self.kubernetes_agents.is_some() || self.kubernetes_pods.is_some()
    }

    /// What is asked of the cluster. `None`: nothing.
    pub async fn settings(self) -> Result<Option<Settings>, KubernetesError> {
        let takes_tokens = self.has_agents() || self.kubernetes_users;
        let cordon = CordonMode::from(self.kubernetes_cordon);
        let nodes = self.kubernetes_nodes || cordon != CordonMode::Off;
        if !nodes && !self.kubernetes_jobs && !takes_tokens {
            return Ok(None);
        }
        let configuration = kubernetes::configuration().await?;
        let audience = self.audience.unwrap_or_else(|| {
            let namespace = &configuration.default_namespace;
            format!("muster-coordinator.{namespace}")
        });
        let tokens = takes_tokens.then_some(Tokens {
            audience,
            agents: self.kubernetes_agents,
            pods: self.kubernetes_pods.is_some(),
            users: self.kubernetes_users,
            again_after: AGAIN_AFTER,
        });
        Ok(Some(Settings {
            configuration,
            jobs: self.kubernetes_jobs,
            pods: self.kubernetes_pods,
            kueue: self.kubernetes_kueue,
            pod_groups: self.kubernetes_pod_groups,
            adopt: distinct(self.adopt)?,
            kept_max: self.kubernetes_objects_max as usize,
            nodes,
            cordon,
            tokens,
        }))
    }
}

/// Each kind once. One definition has all versions of a kind, so only one of them can be followed.
fn distinct(kinds: Vec<Adoptable>) -> Result<Vec<Adoptable>, KubernetesError> {
    let mut all: Vec<Adoptable> = Vec::new();
    for kind in kinds {
        let same = |known: &&Adoptable| (known.plural, known.group) == (kind.plural, kind.group);
        match all.iter().find(same) {
            Some(known) if *known == kind => {}
            Some(known) => {
                return Err(KubernetesError::TwoVersions(
                    known.full_name(),
                    kind.full_name(),
                ));
            }
            None => all.push(kind),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_adopted_in_one_version() {
        let named = |words: &[&str]| {
            let kinds = words.iter().map(|word| adoptable(word).unwrap());
            distinct(kinds.collect())
        };
        let kinds = named(&["pytorchjobs", "mpijobs", "pytorchjobs.kubeflow.org"]).unwrap();
        assert_eq!(kinds.len(), 2);
        let both = named(&["mpijobs", "mpijobs.v2beta1.kubeflow.org"]).unwrap_err();
        assert_eq!(
            both.to_string(),
            "--adopt: mpijobs.v1.kubeflow.org and mpijobs.v2beta1.kubeflow.org are two versions of one definition; name the one that your objects have"
        );
    }
}
