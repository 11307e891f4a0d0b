//! The dependents of `MusterJob` objects: those that exist, as they were read, and those that are written.
//! Which there should be is decided in `core::fleet::dependents`.
//!
//! They are found by the label of worker pods, and only if a MusterJob object owns them. One that somebody
//! has changed or deleted is put right again.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{networking::v1::NetworkPolicy, policy::v1::PodDisruptionBudget};
use kube::{Api, Client, Resource, core::ObjectMeta};
use muster_core::{
    fleet::dependents::{self, Dependent, Kind, Step, There},
    id::{JobName, JobUid},
    spec::{API_VERSION, KIND},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{fmt::Debug, marker::PhantomData, time::Duration};
use tokio::sync::mpsc;

use crate::{
    handle::NoAnswer,
    kubernetes::{
        follow::{About, BUILT_IN, Follower, News, Reader},
        pods::{JOB_NAME, JOB_UID, owner},
        server::{Server, Unanswered},
    },
};

/// Ends the names of dependents, so that they are none of the user's, nor those of an object of the
/// same name that was deleted a moment ago: so many of the last characters of the object's uid.
const SUFFIX: usize = 5;

/// So many that are gone are remembered. Late news comes within seconds.
const GONE_MAX: usize = 4_096;

/// Of which job, and the name.
type Key = (JobUid, String);

/// A dependent that exists.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Owned {
    kind: Kind,
    job: JobName,
    key: Key,
    uid: String,
    version: String,
    spec: Value,
}

/// News of one kind.
pub(super) type Told = (Kind, News<Key, Owned>);

/// All dependents that are known.
#[derive(Default)]
pub(super) struct Dependents {
    kinds: BTreeMap<Kind, Known>,
    /// The uids of those that are gone. An answer or an event that comes late must not bring one back.
    gone: BTreeSet<String>,
}

/// Those of one kind.
#[derive(Default)]
struct Known {
    /// `None`: they were not read yet.
    all: Option<BTreeMap<Key, Owned>>,
    /// Why they cannot be read.
    unreadable: Option<String>,
}

/// What there is to do for one object.
pub(super) enum Next {
    Nothing,
    Change(Change),
    /// A dependent is wanted, and nobody knows whether it exists. With the reason, if there is one.
    Unknown(Kind, Option<String>),
}

/// The next change, and what it is about.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) step: Step,
    there: Option<Owned>,
}

/// What came of a change.
pub(super) enum Changed {
    Is(Box<Owned>),
    Gone(Box<Owned>),
}

impl Dependents {
    /// Takes the news, and returns the objects that they are about.
    pub(super) fn hear(&mut self, (kind, news): Told) -> Vec<JobName> {
        let known = self.kinds.entry(kind).or_default();
        match news {
            News::Listed(all) => {
                let before = known.all.take().into_iter().flatten();
                let jobs = before.map(|(_, owned)| owned.job);
                let jobs = jobs.chain(all.values().map(|owned| owned.job.clone()));
                let jobs = jobs.collect();
                (known.all, known.unreadable) = (Some(all), None);
                jobs
            }
            News::Applied(_, owned) => {
                let job = owned.job.clone();
                self.is(owned);
                vec![job]
            }
            News::Deleted(_, owned) => {
                let job = owned.job.clone();
                self.gone(&owned);
                vec![job]
            }
            News::Followed => {
                known.unreadable = None;
                Vec::new()
            }
            News::Unreadable(why) => {
                known.unreadable = Some(why);
                Vec::new()
            }
        }
    }

    /// Takes what came of a change.
    pub(super) fn changed(&mut self, changed: Changed) {
        match changed {
            Changed::Is(owned) => self.is(*owned),
            Changed::Gone(owned) => self.gone(&owned),
        }
    }

    fn is(&mut self, owned: Owned) {
        if self.gone.contains(&owned.uid) {
            return;
        }
        let Some(all) = &mut self.kinds.entry(owned.kind).or_default().all else {
            return;
        };
        let is_newer = |known: &&Owned| {
            let number = |owned: &Owned| owned.version.parse::<u64>().unwrap_or_default();
            known.uid == owned.uid && number(known) > number(&owned)
        };
        if all.get(&owned.key).filter(is_newer).is_none() {
            all.insert(owned.key.clone(), owned);
        }
    }

    fn gone(&mut self, owned: &Owned) {
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        self.gone.insert(owned.uid.clone());
        let all = self.kinds.entry(owned.kind).or_default().all.as_mut();
        let is_same = |known: &Owned| known.uid == owned.uid;
        if let Some(all) = all.filter(|all| all.get(&owned.key).is_some_and(is_same)) {
            all.remove(&owned.key);
        }
    }

    /// What to do next for the object of this uid, which should have these.
    pub(super) fn next(&self, uid: &JobUid, wanted: &[Dependent]) -> Next {
        for one in wanted {
            let known = self.kinds.get(&one.kind());
            if known.is_none_or(|known| known.all.is_none()) {
                let why = known.and_then(|known| known.unreadable.clone());
                return Next::Unknown(one.kind(), why);
            }
        }
        let there: Vec<&Owned> = (self.kinds.values())
            .filter_map(|known| known.all.as_ref())
            .flat_map(|all| of(all, uid))
            .collect();
        let fits = |owned: &Owned| {
            let mut wanted = wanted.iter();
            let wanted = wanted.find(|one| one.kind() == owned.kind);
            wanted.is_some_and(|one| contains(&owned.spec, &spec(*one, uid)))
        };
        let seen: Vec<There> = there
            .iter()
            .map(|owned| There {
                kind: owned.kind,
                fits: fits(owned),
            })
            .collect();
        let Some(step) = dependents::step(wanted, &seen) else {
            return Next::Nothing;
        };
        let about = there.into_iter().find(|owned| owned.kind == step.kind());
        Next::Change(Change {
            step,
            there: about.cloned(),
        })
    }
}

fn of<'a>(all: &'a BTreeMap<Key, Owned>, uid: &'a JobUid) -> impl Iterator<Item = &'a Owned> {
    let own = all.range((uid.clone(), String::new())..);
    let own = own.take_while(move |((job, _), _)| job == uid);
    own.map(|(_, owned)| owned)
}

/// Whether a value has all that the other one has: the API server fills in what is left out.
fn contains(value: &Value, other: &Value) -> bool {
    match (value, other) {
        (Value::Object(value), Value::Object(other)) => other
            .iter()
            .all(|(key, other)| contains(value.get(key).unwrap_or(&Value::Null), other)),
        (Value::Array(value), Value::Array(other)) => {
            let mut both = value.iter().zip(other);
            value.len() == other.len() && both.all(|(value, other)| contains(value, other))
        }
        _ => value == other,
    }
}

fn spec(dependent: Dependent, job: &JobUid) -> Value {
    let pods = json!({ "matchLabels": { JOB_UID: job.as_str() } });
    match dependent {
        Dependent::NetworkPolicy => json!({
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": pods }] }],
        }),
        // A pod that is not healthy protects nobody, and must not hold up a drain.
        Dependent::DisruptionBudget { min_available } => json!({
            "minAvailable": min_available,
            "selector": pods,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        }),
    }
}

fn api(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::NetworkPolicy => ("networking.k8s.io/v1", "networkpolicies"),
        Kind::DisruptionBudget => ("policy/v1", "poddisruptionbudgets"),
    }
}

fn path(kind: Kind, namespace: &str, name: &str) -> String {
    let (api, plural) = api(kind);
    format!("/apis/{api}/namespaces/{namespace}/{plural}{name}")
}

fn object(dependent: Dependent, job: &JobName, uid: &JobUid) -> Value {
    let kind = dependent.kind();
    let start = uid.as_str().len().saturating_sub(SUFFIX);
    let end = uid.as_str().get(start..).unwrap_or_default();
    let own = json!({
        "apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": uid.as_str(), "controller": true,
    });
    json!({
        "apiVersion": api(kind).0,
        "kind": kind.name(),
        "metadata": {
            "name": format!("{}-{end}", job.name),
            "namespace": job.namespace,
            "labels": { "app.kubernetes.io/managed-by": "muster", JOB_NAME: job.name, JOB_UID: uid.as_str() },
            "ownerReferences": [own],
        },
        "spec": spec(dependent, uid),
    })
}

/// Makes, changes or deletes a dependent.
pub(super) async fn change(
    server: &Server,
    job: &JobName,
    uid: &JobUid,
    change: Change,
) -> Result<Option<Changed>, Unanswered> {
    let kind = change.step.kind();
    let is = |owned: Option<Owned>| owned.map(|owned| Changed::Is(Box::new(owned)));
    let at = |owned: &Owned| path(kind, &job.namespace, &format!("/{}", owned.key.1));
    match (change.step, change.there) {
        (Step::Make(dependent), _) => {
            let path = path(kind, &job.namespace, "");
            let made = server.create(&path, &object(dependent, job, uid)).await?;
            Ok(is(read(kind, made)))
        }
        (Step::Change(dependent), Some(there)) => {
            let patch = json!({
                "metadata": { "uid": there.uid, "resourceVersion": there.version },
                "spec": spec(dependent, uid),
            });
            let changed = server.merge(&at(&there), &patch).await?;
            Ok(is(read(kind, changed)))
        }
        (Step::Delete(_), Some(there)) => {
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": there.uid },
            });
            match server.delete::<Value>(&at(&there), &options).await {
                Err(why) if !why.is_missing() => Err(why),
                _ => Ok(Some(Changed::Gone(Box::new(there)))),
            }
        }
        // There is always one to change.
        (Step::Change(_) | Step::Delete(_), None) => Ok(None),
    }
}

/// Why a dependent is not as it should be, for people.
pub(super) fn sentence(why: &Unanswered) -> String {
    match why {
        Unanswered::Forbidden(text) if text.contains(" cannot ") => {
            format!("{text}; manifests/components/worker-pods has the right")
        }
        Unanswered::Forbidden(text) => text.clone(),
        _ => why.to_string(),
    }
}

fn read(kind: Kind, mut object: Value) -> Option<Owned> {
    let spec = object["spec"].take();
    let metadata = serde_json::from_value(object["metadata"].take()).ok()?;
    owned(kind, metadata, spec)
}

fn owned(kind: Kind, metadata: ObjectMeta, spec: Value) -> Option<Owned> {
    let owner = owner(&metadata)?;
    let (job, uid) = (owner.name.clone(), JobUid::from(owner.uid.clone()));
    Some(Owned {
        kind,
        job: JobName {
            namespace: metadata.namespace?,
            name: job,
        },
        key: (uid, metadata.name?),
        uid: metadata.uid?,
        version: metadata.resource_version.unwrap_or_default(),
        spec,
    })
}

/// Follows the dependents of all kinds, and tells of them.
pub(super) async fn follow(client: Client, tell: mpsc::Sender<Told>) {
    let mut policies: Follower<Telling<NetworkPolicy>> =
        Follower::new(Api::all(client.clone()), Telling::new(&tell));
    let mut budgets: Follower<Telling<PodDisruptionBudget>> =
        Follower::new(Api::all(client), Telling::new(&tell));
    tokio::join!(Box::pin(policies.work()), Box::pin(budgets.work()));
}

/// A kind that is followed.
trait Followed: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static {
    const DEPENDENT: Kind;
    const PLURAL: &'static str;
    const GROUP: &'static str;
    const OBJECTS: &'static str;
}

impl Followed for NetworkPolicy {
    const DEPENDENT: Kind = Kind::NetworkPolicy;
    const PLURAL: &'static str = "networkpolicies";
    const GROUP: &'static str = "networking.k8s.io";
    const OBJECTS: &'static str = "NetworkPolicies of jobs";
}

impl Followed for PodDisruptionBudget {
    const DEPENDENT: Kind = Kind::DisruptionBudget;
    const PLURAL: &'static str = "poddisruptionbudgets";
    const GROUP: &'static str = "policy";
    const OBJECTS: &'static str = "PodDisruptionBudgets of jobs";
}

struct Telling<T> {
    tell: mpsc::Sender<Told>,
    of: PhantomData<fn() -> T>,
}

impl<T> Telling<T> {
    fn new(tell: &mpsc::Sender<Told>) -> Self {
        Self {
            tell: tell.clone(),
            of: PhantomData,
        }
    }
}

impl<T: Followed> Reader for Telling<T> {
    type Object = T;
    type Key = Key;
    type Kept = Owned;

    /// As many as MusterJob objects.
    const MOST: usize = 20_000;
    /// Each has less than 2 KiB.
    const PAGE: u32 = 250;
    const SELECTOR: Option<&'static str> = Some(JOB_UID);
    /// Jobs wait for them.
    const RETRY_MAX: Duration = Duration::from_secs(10);

    fn about(&self) -> About {
        About {
            plural: T::PLURAL,
            group: T::GROUP,
            objects: T::OBJECTS,
            meanwhile: "jobs that ask for one wait, and all others go on",
            install: BUILT_IN,
        }
    }

    fn keep(object: T) -> Option<(Key, Owned)> {
        let value = serde_json::to_value(&object).ok()?;
        let owned = read(T::DEPENDENT, value)?;
        Some((owned.key.clone(), owned))
    }

    async fn tell(&mut self, news: News<Key, Owned>) -> Result<(), NoAnswer> {
        let told = (T::DEPENDENT, news);
        self.tell.send(told).await.map_err(|_| NoAnswer::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Dependent = Dependent::NetworkPolicy;

    fn budget(min_available: u32) -> Dependent {
        Dependent::DisruptionBudget { min_available }
    }

    fn uid() -> JobUid {
        JobUid::from("0b4e-11".to_owned())
    }

    fn made(dependent: Dependent, version: &str) -> Owned {
        let job = JobName {
            namespace: "team-a".into(),
            name: "digits".into(),
        };
        let mut object = object(dependent, &job, &uid());
        object["metadata"]["uid"] = json!("d-1");
        object["metadata"]["resourceVersion"] = json!(version);
        // The API server fills these in.
        object["spec"]["more"] = json!({ "x": 1 });
        read(dependent.kind(), object).unwrap()
    }

    fn step(all: &Dependents, wanted: &[Dependent]) -> Option<Step> {
        match all.next(&uid(), wanted) {
            Next::Nothing => None,
            Next::Change(change) => Some(change.step),
            Next::Unknown(kind, why) => panic!("{kind:?}: {why:?}"),
        }
    }

    fn read_all() -> Dependents {
        let mut all = Dependents::default();
        for kind in Kind::ALL {
            all.hear((kind, News::Listed(BTreeMap::new())));
        }
        all
    }

    #[test]
    fn what_is_as_wanted_is_left_alone_and_what_is_not_is_changed() {
        let mut all = read_all();
        assert_eq!(step(&all, &[budget(2)]), Some(Step::Make(budget(2))));
        all.changed(Changed::Is(Box::new(made(budget(2), "5"))));
        assert_eq!(step(&all, &[budget(2)]), None);
        assert_eq!(step(&all, &[budget(3)]), Some(Step::Change(budget(3))));
        // Older news of the watch do not count.
        all.hear((
            Kind::DisruptionBudget,
            News::Applied(made(budget(1), "4").key, made(budget(1), "4")),
        ));
        assert_eq!(step(&all, &[budget(2)]), None);
        assert_eq!(step(&all, &[]), Some(Step::Delete(Kind::DisruptionBudget)));
        all.changed(Changed::Gone(Box::new(made(budget(2), "6"))));
        assert_eq!(step(&all, &[]), None);
        // Neither an event nor an answer that comes late brings it back.
        all.changed(Changed::Is(Box::new(made(budget(2), "7"))));
        assert_eq!(step(&all, &[budget(2)]), Some(Step::Make(budget(2))));
    }

    #[test]
    fn somebody_s_further_way_into_the_pods_is_closed() {
        let mut all = read_all();
        let mut owned = made(POLICY, "5");
        all.changed(Changed::Is(Box::new(owned.clone())));
        assert_eq!(step(&all, &[POLICY]), None);
        let rules = owned.spec["ingress"].as_array_mut().unwrap();
        rules.push(json!({}));
        owned.version = "6".into();
        all.changed(Changed::Is(Box::new(owned)));
        assert_eq!(step(&all, &[POLICY]), Some(Step::Change(POLICY)));
    }

    #[test]
    fn what_cannot_be_read_is_known_to_be_unknown_only_if_it_is_wanted() {
        let mut all = Dependents::default();
        let unknown = |all: &Dependents| match all.next(&uid(), &[POLICY]) {
            Next::Unknown(Kind::NetworkPolicy, why) => why,
            _ => panic!("it is known"),
        };
        assert_eq!(unknown(&all), None);
        all.hear((Kind::NetworkPolicy, News::Unreadable("no right".into())));
        assert_eq!(unknown(&all).as_deref(), Some("no right"));
        assert_eq!(step(&all, &[]), None);
        all.hear((Kind::NetworkPolicy, News::Listed(BTreeMap::new())));
        assert_eq!(step(&all, &[POLICY]), Some(Step::Make(POLICY)));
    }

    #[test]
    fn a_stranger_s_object_is_none_of_ours() {
        let mut owned = made(POLICY, "5");
        owned.key.0 = JobUid::from("another".to_owned());
        let mut all = read_all();
        all.changed(Changed::Is(Box::new(owned)));
        assert_eq!(step(&all, &[]), None);
        let mut unowned = object(POLICY, &made(POLICY, "5").job, &uid());
        unowned["metadata"]["ownerReferences"] = json!([]);
        assert_eq!(read(Kind::NetworkPolicy, unowned), None);
    }
}
