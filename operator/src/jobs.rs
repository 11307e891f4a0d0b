//! `MusterJob` objects of a Kubernetes cluster: each is a job of its namespace.
//!
//! The object is the request, and its status is written from the job. The store stays the truth
//! about what runs: while the API server is away, jobs go on, and their objects hear of it later.
//! What an object asks for is decided in `rules::job_object`; here it is read and done.
//!
//! | file | owns |
//! |---|---|
//! | `object` | the object as it is read |
//! | `status` | the status as it is written, and how urgent a change is |
//! | `events` | the story of a job as Kubernetes Events |
//! | `dependents` | what else an object owns: NetworkPolicies, PodDisruptionBudgets, PodGroups |
//! | `deeds` | what is done about one object, with one question |
//! | `controller` | the loop: news, steps, writes |
//! | `telling` | what is kept of all objects, and how much |
//! | `doubt` | whether a list of all objects is believed |

mod controller;
mod deeds;
mod dependents;
mod doubt;
mod events;
mod object;
mod status;
mod telling;

use std::sync::Arc;

use kube::{Api, Client, Config};
use muster_handle::handle::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(super) use self::status::difference;
use self::{
    controller::{Controller, Sources},
    events::Events,
    object::MusterJob,
    telling::Telling,
};
use crate::{
    controller::run,
    desk::Desk,
    follow::Follower,
    server::{NoServer, Server},
};

/// News that wait for the controller. While they are this many, the watch waits.
const NEWS: usize = 64;

/// The `MusterJob` objects of one cluster.
#[derive(Clone)]
pub struct Jobs {
    api: Api<MusterJob>,
    /// For dependents. `None`: no pods are made, and so no dependents.
    client: Option<Client>,
    /// Jobs may ask for PodGroups.
    pod_groups: bool,
    /// `Some`: Kueue admits jobs.
    desk: Option<Arc<Desk>>,
    server: Server,
    most: usize,
}

impl Jobs {
    pub fn of(
        configuration: &Config,
        makes_pods: bool,
        pod_groups: bool,
        desk: Option<Arc<Desk>>,
        most: usize,
    ) -> Result<Self, NoServer> {
        let client = Client::try_from(configuration.clone())
            .map_err(|source| NoServer::Client(Box::new(source)))?;
        Ok(Self {
            client: makes_pods.then(|| client.clone()),
            api: Api::all(client),
            pod_groups,
            desk,
            server: Server::of(configuration)?,
            most,
        })
    }

    /// Follows the objects and the jobs until the shutdown.
    pub async fn follow(self, handle: Handle, shutdown: CancellationToken) {
        let server = self.server.while_leading(handle.lead());
        let (tell, news) = mpsc::channel(NEWS);
        let mut follower = Follower::new(self.api, Telling(tell), telling::TIMES * self.most);
        let events = Events::new(handle.clone(), server.clone());
        let (tell, told) = mpsc::channel(NEWS);
        let makes_pods = self.client.is_some();
        let writer = server.clone();
        let sources = Sources::new(&handle, self.desk.as_deref(), news, told);
        let controller = Controller::new(handle, writer, makes_pods, self.desk);
        let dependents = async {
            match self.client {
                Some(client) => {
                    dependents::follow(client, server, self.pod_groups, tell, self.most).await
                }
                None => drop(tell),
            }
        };
        let work = async {
            // Each ends when the coordinator does.
            tokio::join!(
                Box::pin(follower.work()),
                Box::pin(run(controller, sources)),
                Box::pin(dependents),
                Box::pin(events.work())
            )
        };
        shutdown.run_until_cancelled(work).await;
    }
}
