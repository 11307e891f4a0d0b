//! What worker pods need of the cluster: the agents' image and the coordinator's address, as the
//! DaemonSet of the agents has them, and the certificate authorities in the job's namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_core::id::{JobName, JobUid};
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::{
    account::Account,
    bundle,
    server::{Server, Unanswered},
};

/// The container of the agent, in the DaemonSet, and the variable with the coordinator's address.
const CONTAINER: &str = "agent";
const COORDINATOR: &str = "MUSTER_COORDINATOR";
/// After this time the authorities are written anyway before a pod is made: somebody may have
/// deleted the ConfigMap, or the namespace and made it again.
const AGAIN: Duration = Duration::from_secs(30);
/// The same for pods that are there already, and have mounted them. A thousand namespaces cost the
/// API server two writes a second.
const AT_REST: Duration = Duration::from_secs(10 * 60);
/// Jobs that are named as those for which a namespace has the authorities. When all of these are gone, others
/// are named.
const OWNERS_MAX: usize = 64;
/// For so long what was read counts. An upgrade of the agents takes longer.
const READ: Duration = Duration::from_secs(30);

/// What every worker pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) image: String,
    pub(super) pull_policy: Option<String>,
    pub(super) coordinator: String,
    /// How the agents find it where no name service knows it (`hostAliases`).
    pub(super) hosts: Vec<Value>,
    pub(super) audience: String,
}

pub(super) struct Model {
    server: Server,
    /// The DaemonSet of the agents.
    agents: Account,
    audience: String,
    authorities: Box<dyn Fn() -> String + Send + Sync>,
    /// Whoever wants it while it is read waits for the answer, and does not ask, too.
    read: AsyncMutex<Option<(Site, Instant)>>,
    /// What each namespace was given, and when. Here, too, one writes and others wait.
    published: Mutex<BTreeMap<String, Published>>,
    /// By namespace, for which jobs it has the authorities.
    owners: Mutex<BTreeMap<String, bundle::Owners>>,
}

type Published = Arc<AsyncMutex<Option<(String, bundle::Owners, Instant)>>>;

#[derive(Debug, thiserror::Error)]
pub(super) enum NoSite {
    #[error("read the DaemonSet {agents}: {source}")]
    Read {
        agents: String,
        #[source]
        source: Unanswered,
    },
    #[error(
        "the DaemonSet {0} has no container `agent` with an image and the variable {COORDINATOR}"
    )]
    Lacks(String),
    #[error(
        "write the certificate authorities to the ConfigMap {} of the namespace {namespace}: {source}",
        bundle::NAME
    )]
    Write {
        namespace: String,
        #[source]
        source: Unanswered,
    },
}

#[derive(Deserialize)]
struct DaemonSet {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    spec: PodSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    containers: Vec<Container>,
    #[serde(default)]
    init_containers: Vec<Container>,
    #[serde(default)]
    host_aliases: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    image: Option<String>,
    image_pull_policy: Option<String>,
    #[serde(default)]
    env: Vec<Variable>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: Option<String>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").finish_non_exhaustive()
    }
}

impl Model {
    pub(super) fn new(
        server: Server,
        agents: Account,
        audience: String,
        authorities: Box<dyn Fn() -> String + Send + Sync>,
    ) -> Self {
        Self {
            server,
            agents,
            audience,
            authorities,
            read: AsyncMutex::default(),
            published: Mutex::default(),
            owners: Mutex::default(),
        }
    }

    /// What a worker pod of this namespace has. The namespace has the authorities then.
    pub(super) async fn site(&self, namespace: &str) -> Result<Site, NoSite> {
        self.publish_after(namespace, AGAIN).await?;
        let mut known = self.read.lock().await;
        if let Some((site, at)) = &*known
            && at.elapsed() < READ
        {
            return Ok(site.clone());
        }
        let site = self.read().await?;
        *known = Some((site.clone(), Instant::now()));
        Ok(site)
    }

    /// Writes the authorities to a namespace with pods, unless it has them.
    pub(super) async fn publish(&self, namespace: &str) -> Result<(), NoSite> {
        self.publish_after(namespace, AT_REST).await
    }

    async fn publish_after(&self, namespace: &str, again: Duration) -> Result<(), NoSite> {
        let now = (self.authorities)();
        let published = {
            let mut all = self
                .published
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            all.entry(namespace.to_owned()).or_default().clone()
        };
        let mut published = published.lock().await;
        let owners = self.owners_in(namespace);
        let is_there = |(text, of, at): &(String, bundle::Owners, Instant)| {
            *text == now && *of == owners && at.elapsed() < again
        };
        if published.as_ref().is_some_and(is_there) {
            return Ok(());
        }
        let written = bundle::publish(&self.server, namespace, &now, &owners).await;
        written.map_err(|source| NoSite::Write {
            namespace: namespace.to_owned(),
            source,
        })?;
        *published = Some((now, owners, Instant::now()));
        Ok(())
    }

    /// All jobs with pods of their own, as they are known now.
    pub(super) fn own<'a>(&self, jobs: impl Iterator<Item = (&'a JobUid, &'a JobName)>) {
        let mut owners: BTreeMap<String, bundle::Owners> = BTreeMap::new();
        for (uid, job) in jobs {
            let of_namespace = owners.entry(job.namespace.clone()).or_default();
            if of_namespace.len() < OWNERS_MAX {
                of_namespace.push((uid.clone(), job.name.clone()));
            }
        }
        *self.owners.lock().unwrap_or_else(PoisonError::into_inner) = owners;
    }

    /// None in the namespace of the agents, which need the authorities themselves.
    fn owners_in(&self, namespace: &str) -> bundle::Owners {
        if namespace == self.agents.namespace {
            return Vec::new();
        }
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.get(namespace).cloned().unwrap_or_default()
    }

    /// Forgets all namespaces but these.
    pub(super) fn retain(&self, namespaces: &BTreeSet<String>) {
        let mut published = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        published.retain(|namespace, _| namespaces.contains(namespace));
    }

    async fn read(&self) -> Result<Site, NoSite> {
        let path = format!(
            "/apis/apps/v1/namespaces/{}/daemonsets/{}",
            self.agents.namespace, self.agents.name
        );
        let set: DaemonSet = self
            .server
            .get(&path)
            .await
            .map_err(|source| NoSite::Read {
                agents: self.agents.to_string(),
                source,
            })?;
        let PodSpec {
            containers,
            init_containers,
            host_aliases,
        } = set.spec.template.spec;
        let mut all = init_containers.into_iter().chain(containers);
        let agent = all.find(|container| container.name == CONTAINER);
        let site = agent.and_then(|agent| {
            let mut variables = agent.env.into_iter();
            let coordinator = variables.find(|one| one.name == COORDINATOR)?.value?;
            Some(Site {
                image: agent.image?,
                pull_policy: agent.image_pull_policy,
                coordinator,
                hosts: host_aliases,
                audience: self.audience.clone(),
            })
        });
        site.ok_or_else(|| NoSite::Lacks(self.agents.to_string()))
    }
}
