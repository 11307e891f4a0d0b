//! Worker pods: each is one node's place of a job, in the job's own image. The cluster's scheduler
//! chooses its node, its agent dials this coordinator, and the fleet makes generations of those that
//! are up.
//!
//! Which pods a job lacks is decided in `core::fleet::pod_plan` and `pod_work`; here they are made, read and
//! deleted. The agents' image and the coordinator's address are taken from the agents'
//! DaemonSet, so one upgrade changes both.
//!
//! | file | owns |
//! |---|---|
//! | `template` | a job's template: what it may say, and the pod that is made of it |
//! | `object` | what is kept of a Pod object |
//! | `model` | the DaemonSet of the agents, and the authorities in a job's namespace |
//! | `controller` | the loop: news, plans, pods made and deleted |
//! | `kueue` | jobs in the queues of Kueue |

mod controller;
mod kueue;
mod model;
mod object;
mod template;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Config};
use muster_core::{
    fleet::{Input, PodNews, worker_pod::WorkerPod},
    id::NodeName,
};
use muster_handle::handle::{Handle, NoAnswer};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(super) use self::template::check as check_template;
use self::{
    controller::{Controller, Queues, Sources},
    kueue::Flavors,
    model::Model,
};
use crate::{
    account::Account,
    controller::run,
    desk::Desk,
    follow::{About, BUILT_IN, Follower, News, Reader},
    owner::JOB_UID,
    server::{NoServer, Server},
};

/// News that wait for the controller. While they are this many, the watch waits.
const NEWS: usize = 64;

/// The worker pods of one cluster.
#[derive(Clone)]
pub struct Pods {
    client: Client,
    server: Server,
    model: Account,
    audience: String,
    /// `Some`: Kueue admits jobs.
    desk: Option<Arc<Desk>>,
    most: usize,
}

impl Pods {
    /// `model`: the DaemonSet of the agents. `desk`: given if Kueue admits jobs.
    pub fn of(
        configuration: &Config,
        model: Account,
        audience: String,
        desk: Option<Arc<Desk>>,
        most: usize,
    ) -> Result<Self, NoServer> {
        let client = Client::try_from(configuration.clone())
            .map_err(|source| NoServer::Client(Box::new(source)))?;
        Ok(Self {
            client,
            server: Server::of(configuration)?,
            model,
            audience,
            desk,
            most,
        })
    }

    /// Makes and follows pods until the shutdown. `authorities`: those of this coordinator, PEM.
    pub async fn follow(
        self,
        handle: Handle,
        authorities: impl Fn() -> String + Send + Sync + 'static,
        shutdown: CancellationToken,
    ) {
        let server = self.server.while_leading(handle.lead());
        let (tell, news) = mpsc::channel(NEWS);
        let reader = Telling {
            handle: handle.clone(),
            tell,
        };
        let mut follower = Follower::new(Api::all(self.client.clone()), reader, self.most);
        let model = Model::new(
            server.clone(),
            self.model,
            self.audience,
            Box::new(authorities),
        );
        let model = Arc::new(model);
        let sources = Sources::new(&handle, self.desk.as_deref(), news);
        let queues = self.desk.clone().map(|desk| Queues {
            desk,
            flavors: Flavors::new(server.clone()),
        });
        let kueue = {
            let (handle, server, model) = (handle.clone(), server.clone(), model.clone());
            async move {
                if let Some(desk) = self.desk {
                    kueue::work(self.client, handle, server, model, desk, self.most).await;
                }
            }
        };
        let controller = Controller::new(handle, server, model, queues);
        let work = async {
            tokio::join!(
                Box::pin(follower.work()),
                Box::pin(run(controller, sources)),
                Box::pin(kueue)
            )
        };
        shutdown.run_until_cancelled(work).await;
    }
}

const ABOUT: About = About {
    plural: "pods",
    group: "",
    objects: "worker pods",
    meanwhile: "those that run go on",
    install: BUILT_IN,
};

/// Hands pods to the engine and to the controller.
struct Telling {
    handle: Handle,
    tell: mpsc::Sender<News<NodeName, Arc<WorkerPod>>>,
}

impl Reader for Telling {
    type Object = Pod;
    type Key = NodeName;
    type Kept = Arc<WorkerPod>;

    /// 20,000 pods at some 3 KiB.
    const ROOM: usize = 64 << 20;
    const SELECTOR: Option<&'static str> = Some(JOB_UID);
    /// Jobs wait for them.
    const RETRY_MAX: Duration = Duration::from_secs(10);

    fn about(&self) -> About {
        ABOUT
    }

    fn keep(object: Pod) -> Option<(NodeName, Arc<WorkerPod>)> {
        let pod = object::kept(object)?;
        Some((pod.node(), Arc::new(pod)))
    }

    fn namespace<'a>(_: &'a NodeName, pod: &'a Arc<WorkerPod>) -> &'a str {
        &pod.namespace
    }

    fn bytes(pod: &Arc<WorkerPod>) -> usize {
        let avoids = pod.avoids.iter().map(|host| 64 + host.as_str().len());
        let waits = pod.waits.iter();
        let waits = waits.map(|wait| wait.reason.len() + wait.message.len());
        1_024 + avoids.chain(waits).sum::<usize>()
    }

    async fn tell(&mut self, news: News<NodeName, Arc<WorkerPod>>) -> Result<(), NoAnswer> {
        let for_fleet = match &news {
            News::Listed(all, crowded) if crowded.is_empty() => Some(PodNews::Listed(all.clone())),
            News::Listed(all, crowded) => Some(PodNews::ListedInPart(all.clone(), crowded.clone())),
            News::Crowded(crowded) => Some(PodNews::Crowded(crowded.clone())),
            News::Applied(name, pod) => Some(PodNews::Applied(name.clone(), pod.clone())),
            News::Deleted(name, last) => Some(PodNews::Deleted(name.clone(), last.clone())),
            // The log has it.
            News::Followed | News::Unreadable(_) => None,
        };
        if let Some(for_fleet) = for_fleet {
            self.handle.tell(Input::Pods(for_fleet)).await?;
        }
        self.tell.send(news).await.map_err(|_| NoAnswer::Ended)
    }
}
