//! Reads and follows the dependents of all kinds. Kinds that not every cluster has are looked for first.

use std::time::Duration;

use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject},
};
use muster_core::spec::GangScheduler;
use muster_handle::handle::NoAnswer;
use tokio::{sync::mpsc, time::sleep};

use super::{Key, Owned, Told, api, plural, read};
use crate::{
    follow::{About, BUILT_IN, Follower, News, Reader, size},
    gang,
    owner::JOB_UID,
    rules::dependents::Kind,
    server::Server,
};

/// How often the API server is asked for the versions of a kind: while it has none, and while it is followed.
const LOOK_FOR: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_secs(60);

type Tell = mpsc::Sender<(Kind, Told)>;

/// Follows the dependents of all kinds, and tells of them. `pod_groups`: those of gang schedulers, too.
pub(in crate::jobs) async fn follow(
    client: Client,
    server: Server,
    pod_groups: bool,
    tell: Tell,
    most: usize,
) {
    let of = |kind: Kind| Telling {
        kind,
        tell: tell.clone(),
        most,
    };
    let [policies, budgets] = Kind::BUILT_IN.map(|kind| {
        let mut follower = of(kind).follower(&client, None);
        async move { follower.work().await }
    });
    let [own, coscheduling, volcano] = GangScheduler::ALL.map(|(_, scheduler)| {
        let telling = of(Kind::PodGroup(scheduler));
        groups(&client, &server, pod_groups, scheduler, telling)
    });
    tokio::join!(
        Box::pin(policies),
        Box::pin(budgets),
        Box::pin(own),
        Box::pin(coscheduling),
        Box::pin(volcano)
    );
}

/// Follows the PodGroups of a scheduler in the version that the cluster has, and anew if it has another one.
async fn groups(
    client: &Client,
    server: &Server,
    wanted: bool,
    scheduler: GangScheduler,
    telling: Telling,
) {
    if !wanted {
        let why = "the coordinator was started without --kubernetes-pod-groups";
        // Whoever would hear it may have ended.
        let _ = telling.say(unreadable(why.to_owned())).await;
        return;
    }
    let group = gang::group(scheduler);
    loop {
        let version = match group.version(server).await {
            Ok(version) => version,
            Err(why) => {
                if telling.say(unreadable(why)).await.is_err() {
                    return;
                }
                sleep(LOOK_FOR).await;
                continue;
            }
        };
        if telling.say(Told::Version(version)).await.is_err() {
            return;
        }
        let mut follower = telling.clone().follower(client, Some(version));
        let other = async {
            loop {
                sleep(LOOK_AGAIN).await;
                if group.has_changed(server, version).await {
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

fn unreadable(why: String) -> Told {
    Told::News(News::Unreadable(why))
}

/// Reads the objects of one kind, and tells of them.
#[derive(Clone)]
struct Telling {
    kind: Kind,
    tell: Tell,
    most: usize,
}

impl Telling {
    /// `version`: the cluster's, for a kind that not every cluster has.
    fn follower(self, client: &Client, version: Option<&str>) -> Follower<Self> {
        let api_version = api(self.kind, version);
        let (group, version) = api_version.split_once('/').expect("api has both");
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: self.kind.name().to_owned(),
            plural: plural(self.kind).to_owned(),
            api_version: api_version.clone(),
        };
        let most = self.most;
        Follower::new(Api::all_with(client.clone(), &resource), self, most)
    }

    async fn say(&self, told: Told) -> Result<(), NoAnswer> {
        let told = self.tell.send((self.kind, told)).await;
        told.map_err(|_| NoAnswer::Ended)
    }
}

impl Reader for Telling {
    type Object = DynamicObject;
    type Key = Key;
    type Kept = Box<Owned>;

    /// 20,000 at some 3 KiB.
    const ROOM: usize = 64 << 20;
    const SELECTOR: Option<&'static str> = Some(JOB_UID);
    /// Jobs wait for them.
    const RETRY_MAX: Duration = Duration::from_secs(10);

    fn about(&self) -> About {
        about(self.kind)
    }

    fn keep(object: DynamicObject) -> Option<(Key, Box<Owned>)> {
        let owned = read(serde_json::to_value(&object).ok()?)?;
        Some((owned.key.clone(), Box::new(owned)))
    }

    fn namespace<'a>(key: &'a Key, _: &'a Box<Owned>) -> &'a str {
        &key.0.namespace
    }

    fn bytes(owned: &Box<Owned>) -> usize {
        1_024 + size(&owned.spec)
    }

    async fn tell(&mut self, news: News<Key, Box<Owned>>) -> Result<(), NoAnswer> {
        self.say(Told::News(news)).await
    }
}

/// The dependents of a kind, for people.
pub(super) fn about(kind: Kind) -> About {
    let (group, objects, install) = match kind {
        Kind::NetworkPolicy => ("networking.k8s.io", "NetworkPolicies of jobs", BUILT_IN),
        Kind::DisruptionBudget => ("policy", "PodDisruptionBudgets of jobs", BUILT_IN),
        Kind::PodGroup(scheduler) => (
            gang::group(scheduler).name,
            "PodGroups of jobs",
            "is this scheduler installed, with its PodGroups?",
        ),
    };
    About {
        plural: plural(kind),
        group,
        objects,
        meanwhile: "jobs that ask for one wait, and all others go on",
        install,
    }
}
