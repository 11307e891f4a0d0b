//! Reads the Node objects of a Kubernetes cluster, and hands what is kept of them to the engine.
//!
//! Most changes of an object are heartbeats of its kubelet. An object is handed on only if the kept
//! part has changed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{Api, Client, Config};
use muster_core::{
    fleet::{Input, ObjectNews},
    id::NodeName,
    node_object::NodeObject,
};
use muster_handle::handle::{Handle, NoAnswer};
use tokio_util::sync::CancellationToken;

use crate::{
    follow::{About, BUILT_IN, Follower, News, Reader},
    object::{self, Object},
    server::NoServer,
};

/// Where Node objects are.
pub(super) const NODES: &str = "/api/v1/nodes";

/// The Node objects of one cluster.
#[derive(Clone)]
pub struct Nodes {
    api: Api<Object>,
    most: usize,
}

impl Nodes {
    pub fn of(configuration: Config, most: usize) -> Result<Self, NoServer> {
        let client =
            Client::try_from(configuration).map_err(|source| NoServer::Client(Box::new(source)))?;
        Ok(Self {
            api: Api::all(client),
            most,
        })
    }

    /// Follows the objects until the shutdown.
    pub async fn follow(self, handle: Handle, shutdown: CancellationToken) {
        let mut follower = Follower::new(
            self.api,
            Kept {
                handle,
                told: BTreeMap::new(),
            },
            self.most,
        );
        // Boxed, because kube's requests are large and this task is spawned with others.
        shutdown
            .run_until_cancelled(Box::pin(follower.work()))
            .await;
    }
}

/// Hands objects to the engine.
struct Kept {
    handle: Handle,
    /// What the engine was told last. It shares these values.
    told: BTreeMap<NodeName, Arc<NodeObject>>,
}

impl Reader for Kept {
    type Object = Object;
    type Key = NodeName;
    type Kept = Arc<NodeObject>;

    /// Kubernetes itself is built for 5,000 nodes. At some 5 KiB of labels each, 20,000 take 100
    /// MB. They are no namespace's, so their number is bound enough.
    const ROOM: usize = usize::MAX;
    /// Each has some 10 KiB of metadata, mostly about who changed which field.
    const PAGE: u32 = 250;
    /// Labels are not urgent, and an API server that comes back may have many clients.
    const RETRY_MAX: Duration = Duration::from_secs(30);

    fn about(&self) -> About {
        About {
            plural: "nodes",
            group: "",
            objects: "Kubernetes Node objects",
            meanwhile: "nodes keep the labels they have",
            install: BUILT_IN,
        }
    }

    fn keep(object: Self::Object) -> Option<(NodeName, Arc<NodeObject>)> {
        object::kept(object)
    }

    fn namespace<'a>(_: &'a NodeName, _: &'a Arc<NodeObject>) -> &'a str {
        ""
    }

    fn bytes(_: &Arc<NodeObject>) -> usize {
        0
    }

    async fn tell(&mut self, news: News<NodeName, Arc<NodeObject>>) -> Result<(), NoAnswer> {
        let news = match news {
            // They are no namespace's: there are too many for this coordinator.
            News::Listed(_, crowded) | News::Crowded(crowded) if !crowded.is_empty() => {
                ObjectNews::Unreadable(
                    "there are more than are kept (--kubernetes-objects-max)".to_owned(),
                )
            }
            News::Crowded(_) => return Ok(()),
            News::Listed(all, _) => {
                self.told.clone_from(&all);
                ObjectNews::Listed(all)
            }
            News::Applied(name, object) if self.told.get(&name) == Some(&object) => return Ok(()),
            News::Applied(name, object) => {
                self.told.insert(name.clone(), object.clone());
                ObjectNews::Applied(name, object)
            }
            News::Deleted(name, _) => {
                self.told.remove(&name);
                ObjectNews::Deleted(name)
            }
            News::Followed => ObjectNews::Followed,
            News::Unreadable(why) => ObjectNews::Unreadable(why),
        };
        self.handle.tell(Input::Objects(news)).await
    }
}
