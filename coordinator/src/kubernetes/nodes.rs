//! Reads the labels of the Node objects of a Kubernetes cluster, and hands them to the engine.
//!
//! Only the metadata of each object is asked for. The labels are kept, and everything else is
//! dropped as it arrives.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, Config, api::PartialObjectMeta};
use muster_core::{
    fleet::{Input, ObjectNews},
    id::{NodeName, node_name_error},
    node_report::labels::Labels,
};
use tokio_util::sync::CancellationToken;

use super::{
    KubernetesError,
    follow::{Follower, News, Reader},
};
use crate::handle::{Handle, NoAnswer};

/// The Node objects of one cluster.
pub(crate) struct Nodes {
    api: Api<PartialObjectMeta<Node>>,
}

impl Nodes {
    pub(crate) fn of(configuration: Config) -> Result<Self, KubernetesError> {
        let client = Client::try_from(configuration)
            .map_err(|source| KubernetesError::Client(Box::new(source)))?;
        Ok(Self {
            api: Api::all(client),
        })
    }

    /// Follows the objects until the shutdown.
    pub(crate) async fn follow(self, handle: Handle, shutdown: CancellationToken) {
        let mut follower = Follower::new(self.api, Labelled(handle));
        // Boxed, because kube's requests are large and this task is spawned with others.
        shutdown
            .run_until_cancelled(Box::pin(follower.work()))
            .await;
    }
}

/// Hands labels to the engine.
struct Labelled(Handle);

impl Reader for Labelled {
    type Object = PartialObjectMeta<Node>;
    type Key = NodeName;
    type Kept = Labels;

    const PLURAL: &'static str = "nodes";
    const GROUP: &'static str = "";
    const OBJECTS: &'static str = "Kubernetes Node objects";
    const MEANWHILE: &'static str = "nodes keep the labels they have";
    /// Kubernetes itself is built for 5,000 nodes. At some 5 KiB of labels each, 20,000 take 100 MB.
    const MOST: usize = 20_000;
    /// Labels are not urgent, and an API server that comes back may have many clients.
    const RETRY_MAX: Duration = Duration::from_secs(30);

    /// The node that an object describes, and its labels. `None`: no agent can have the object's
    /// name.
    fn keep(object: Self::Object) -> Option<(NodeName, Labels)> {
        let object = object.metadata;
        let name = object.name.filter(|name| node_name_error(name).is_none())?;
        let labels = Labels::bounded(object.labels.unwrap_or_default());
        Some((name.as_str().into(), labels))
    }

    async fn tell(&mut self, news: News<NodeName, Labels>) -> Result<(), NoAnswer> {
        let news = match news {
            News::Listed(all) => ObjectNews::Listed(all),
            News::Applied(name, labels) => ObjectNews::Applied(name, labels),
            News::Deleted(name, _) => ObjectNews::Deleted(name),
            News::Followed => ObjectNews::Followed,
            News::Unreadable(why) => ObjectNews::Unreadable(why),
        };
        self.0.tell(Input::Objects(news)).await
    }
}
