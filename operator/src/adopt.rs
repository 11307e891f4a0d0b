//! Objects of other systems' kinds that name Muster as their manager, such as a `PyTorchJob`: each gets a
//! `MusterJob` object of its name, and a status in its own kind's words (`--adopt`).
//!
//! `rules::adoption` decides what an object needs, and `muster_foreign` what it means. This folder reads
//! and does both. The `MusterJob` is like any other: `jobs` makes a job of it, `pods` its pods.
//!
//! | file | owns |
//! |---|---|
//! | `object` | a foreign object, and its `MusterJob`, as they are read |
//! | `made` | the `MusterJob` as it is made |
//! | `runtime` | where the runtime of a TrainJob is |
//! | `status` | the status of a foreign object, from its job |
//! | `history` | conditions that are a history, and go on from what was written before |
//! | `labels` | the labels of the job's pods that say which member each is |
//! | `events` | what is told about a foreign object |
//! | `deeds` | what is done, with one question each |
//! | `controller` | the loop: news, steps, writes |

mod controller;
mod deeds;
mod events;
mod history;
mod labels;
mod made;
mod object;
mod runtime;
mod status;

use std::{collections::BTreeMap, time::Duration};

use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject},
};
use muster_core::id::JobName;
use muster_foreign::adopt::Adoptable;
use muster_handle::handle::{Handle, NoAnswer};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::{
    controller::{Controller, Sources},
    made::ADOPTED,
    object::{Made, Raw},
};
use crate::{
    controller::run,
    crd::{GROUP, JOBS},
    follow::{About, Follower, INSTALL_OURS, News, Reader},
    server::{NoServer, Server},
};

/// News that wait for the controller. While they are this many, the watches wait.
const NEWS: usize = 64;

/// What was read: objects of a kind, by its place in the list of kinds, or the `MusterJob` objects that
/// were made for them.
enum Told {
    Objects(usize, News<JobName, Box<Raw>>),
    Made(News<JobName, Box<Made>>),
}

/// The objects of other kinds in one cluster.
#[derive(Clone)]
pub struct Adopt {
    client: Client,
    server: Server,
    kinds: Vec<Adoptable>,
    most: usize,
}

impl Adopt {
    pub fn of(
        configuration: &Config,
        kinds: Vec<Adoptable>,
        most: usize,
    ) -> Result<Self, NoServer> {
        let client = Client::try_from(configuration.clone())
            .map_err(|source| NoServer::Client(Box::new(source)))?;
        Ok(Self {
            client,
            server: Server::of(configuration)?,
            kinds,
            most,
        })
    }

    /// Follows the objects and their jobs until the shutdown.
    pub async fn follow(self, handle: Handle, shutdown: CancellationToken) {
        let server = self.server.while_leading(handle.lead());
        let (tell, news) = mpsc::channel(NEWS);
        let mut reading = tokio::task::JoinSet::new();
        for (at, kind) in self.kinds.iter().enumerate() {
            let resource = ApiResource {
                group: kind.group.to_owned(),
                version: kind.version.to_owned(),
                api_version: format!("{}/{}", kind.group, kind.version),
                kind: kind.kind.to_owned(),
                plural: kind.plural.to_owned(),
            };
            let api = Api::all_with(self.client.clone(), &resource);
            let reader = Objects {
                at,
                kind: *kind,
                tell: tell.clone(),
            };
            let mut follower = Follower::new(api, reader, self.most);
            reading.spawn(async move { follower.work().await });
        }
        let all = Api::all_with(self.client, &musterjobs());
        let mut children = Follower::new(all, Children(tell), self.most);
        reading.spawn(async move { children.work().await });
        let sources = Sources::new(&handle, news);
        let controller = Controller::new(handle, server, self.kinds);
        // The followers end with `reading`. If one panics, nobody reads its kind any more. So all begin anew.
        let a_follower_ended = async {
            while let Some(ended) = reading.join_next().await {
                if let Err(panicked) = ended {
                    std::panic::resume_unwind(panicked.into_panic());
                }
            }
            std::future::pending::<()>().await;
        };
        let work = async {
            tokio::select! {
                () = run(controller, sources) => {}
                () = a_follower_ended => {}
            }
        };
        shutdown.run_until_cancelled(work).await;
    }
}

fn musterjobs() -> ApiResource {
    let (group, version) = muster_core::spec::API_VERSION
        .split_once('/')
        .expect("has a group");
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: muster_core::spec::API_VERSION.to_owned(),
        kind: muster_core::spec::KIND.to_owned(),
        plural: JOBS.to_owned(),
    }
}

/// Hands the objects of one kind to the controller.
struct Objects {
    at: usize,
    kind: Adoptable,
    tell: mpsc::Sender<Told>,
}

impl Reader for Objects {
    type Object = DynamicObject;
    type Key = JobName;
    type Kept = Box<Raw>;

    /// 20,000 at some 10 KiB: each has the templates of its pods.
    const ROOM: usize = 200 << 20;
    /// Users wait for their changes.
    const RETRY_MAX: Duration = Duration::from_secs(10);

    fn about(&self) -> About {
        About {
            plural: self.kind.plural,
            group: self.kind.group,
            objects: self.kind.kind,
            meanwhile: "their jobs go on as they are",
            install: "it is not ours: its system's definitions must be installed; until then nothing of it is adopted",
        }
    }

    fn keep(object: DynamicObject) -> Option<(JobName, Box<Raw>)> {
        let raw = Raw::of(object)?;
        Some((raw.name.clone(), Box::new(raw)))
    }

    fn namespace<'a>(name: &'a JobName, _: &'a Box<Raw>) -> &'a str {
        &name.namespace
    }

    fn bytes(raw: &Box<Raw>) -> usize {
        raw.bytes
    }

    fn shed(raw: &mut Box<Raw>) -> bool {
        raw.shed();
        true
    }

    async fn tell(&mut self, news: News<JobName, Box<Raw>>) -> Result<(), NoAnswer> {
        let told = Told::Objects(self.at, news);
        self.tell.send(told).await.map_err(|_| NoAnswer::Ended)
    }
}

const CHILDREN: About = About {
    plural: JOBS,
    group: GROUP,
    objects: "MusterJob objects of adopted jobs",
    meanwhile: "their jobs go on as they are",
    install: INSTALL_OURS,
};

/// Hands the `MusterJob` objects that were made for others to the controller.
struct Children(mpsc::Sender<Told>);

impl Reader for Children {
    type Object = DynamicObject;
    type Key = JobName;
    type Kept = Box<Made>;

    /// The same as of those for which they are made.
    const ROOM: usize = 200 << 20;
    const SELECTOR: Option<&'static str> = Some(ADOPTED);
    const RETRY_MAX: Duration = Duration::from_secs(10);

    fn about(&self) -> About {
        CHILDREN
    }

    fn keep(object: DynamicObject) -> Option<(JobName, Box<Made>)> {
        let made = Made::of(object)?;
        Some((made.name.clone(), Box::new(made)))
    }

    fn namespace<'a>(name: &'a JobName, _: &'a Box<Made>) -> &'a str {
        &name.namespace
    }

    fn bytes(made: &Box<Made>) -> usize {
        made.bytes
    }

    async fn tell(&mut self, news: News<JobName, Box<Made>>) -> Result<(), NoAnswer> {
        let told = Told::Made(news);
        self.0.send(told).await.map_err(|_| NoAnswer::Ended)
    }
}

/// All objects of a place, as they were read last. `None`: they were not read yet.
type All<T> = Option<BTreeMap<JobName, T>>;
