//! Jobs in the queues of Kueue. For each MusterJob object that names a queue there is a Workload object,
//! by which Kueue admits the job, evicts it, and knows its end.
//!
//! Where a job stands and what its Workload needs is decided in `rules::queue`. The rest of the
//! coordinator hears of it by the desk: a job that is not admitted is held back as if it were suspended, and
//! pods are made as the admission says.
//!
//! Kueue's objects are in the cluster only if somebody has installed it. Their version is found by asking
//! the API server which it has. A cluster without Kueue harms nobody but jobs that name a queue.
//!
//! | file | owns |
//! |---|---|
//! | `object` | a Workload as it is read, made and patched |
//! | `flavors` | what an admission adds to pods |
//! | `controller` | the loop |

mod controller;
mod flavors;
mod object;

use std::{sync::Arc, time::Duration};

use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject},
};
use muster_handle::handle::{Handle, NoAnswer};
use tokio::{sync::mpsc, time::sleep};

pub(super) use self::flavors::{Flavors, Unplaced};
use self::{
    controller::{Controller, Sources},
    object::{GROUP, KIND, PLURAL, Seen},
};
use super::model::Model;
use crate::{
    controller::run,
    desk::Desk,
    follow::{About, Follower, News, Reader},
    owner::{JOB_UID, JobKey},
    server::Server,
    versions::Group,
};

/// News that wait for the controller. While they are this many, the watch waits.
const NEWS: usize = 64;
/// How often the API server is asked for the versions of Kueue's objects: while it has none, and while they are
/// followed.
const LOOK_FOR: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_secs(60);
const KUEUE: Group = Group {
    name: GROUP,
    owner: "Kueue",
    versions: &["v1beta2", "v1beta1"],
};

/// What the controller is told.
enum Told {
    /// The cluster's version of Kueue's objects. Their news follow.
    Version(&'static str),
    /// The cluster has none that is known here.
    Absent(String),
    News(News<JobKey, Box<Seen>>),
}

/// Keeps the Workloads of all jobs until it is dropped.
pub(super) async fn work(
    client: Client,
    handle: Handle,
    server: Server,
    model: Arc<Model>,
    desk: Arc<Desk>,
    most: usize,
) {
    let (tell, told) = mpsc::channel(NEWS);
    let sources = Sources::new(&handle, &desk, told);
    let controller = Controller::new(handle, server.clone(), model, desk);
    tokio::join!(
        Box::pin(follow(client, server, tell, most)),
        Box::pin(run(controller, sources))
    );
}

/// Follows the Workloads in the version that the cluster has, and anew if it has another one.
async fn follow(client: Client, server: Server, tell: mpsc::Sender<Told>, most: usize) {
    loop {
        let version = match KUEUE.version(&server).await {
            Ok(version) => version,
            Err(why) => {
                if tell.send(Told::Absent(why)).await.is_err() {
                    return;
                }
                sleep(LOOK_FOR).await;
                continue;
            }
        };
        if tell.send(Told::Version(version)).await.is_err() {
            return;
        }
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: version.to_owned(),
            api_version: format!("{GROUP}/{version}"),
            kind: KIND.to_owned(),
            plural: PLURAL.to_owned(),
        };
        let api = Api::all_with(client.clone(), &resource);
        let mut follower = Follower::new(api, Telling(tell.clone()), most);
        let other = async {
            loop {
                sleep(LOOK_AGAIN).await;
                if KUEUE.has_changed(&server, version).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = Box::pin(follower.work()) => return,
            () = other => {}
        }
    }
}

const ABOUT: About = About {
    plural: PLURAL,
    group: GROUP,
    objects: "Workloads of Kueue",
    meanwhile: "jobs that are admitted go on, and others wait",
    install: "install Kueue",
};

/// Hands Workloads to the controller.
struct Telling(mpsc::Sender<Told>);

impl Reader for Telling {
    type Object = DynamicObject;
    type Key = JobKey;
    type Kept = Box<Seen>;

    /// 20,000 Workloads at some 3 KiB.
    const ROOM: usize = 64 << 20;
    const SELECTOR: Option<&'static str> = Some(JOB_UID);
    /// Jobs wait for them.
    const RETRY_MAX: Duration = Duration::from_secs(10);

    fn about(&self) -> About {
        ABOUT
    }

    fn keep(object: DynamicObject) -> Option<(JobKey, Box<Seen>)> {
        let seen = Seen::of(serde_json::to_value(object).ok()?)?;
        Some((seen.key.clone(), Box::new(seen)))
    }

    fn namespace<'a>(job: &'a JobKey, _: &'a Box<Seen>) -> &'a str {
        &job.namespace
    }

    fn bytes(seen: &Box<Seen>) -> usize {
        seen.bytes
    }

    async fn tell(&mut self, news: News<JobKey, Box<Seen>>) -> Result<(), NoAnswer> {
        let told = Told::News(news);
        self.0.send(told).await.map_err(|_| NoAnswer::Ended)
    }
}
