//! The dependents of `MusterJob` objects: those that exist, as they were read, and those that are written.
//! Which there should be is decided in `rules::dependents`.
//!
//! They are found by the label of worker pods, and only if a MusterJob object of their namespace owns them. One that somebody
//! has changed or deleted is put right again.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::ObjectMeta;
use muster_core::{
    id::{JobName, JobUid},
    spec::{API_VERSION, KIND},
};
use serde_json::{Value, json};

use crate::{
    follow::{Crowded, News},
    gang,
    owner::{JOB_NAME, JOB_UID, JobKey, Owner},
    rules::dependents::{self, Dependent, Kind, Step, There},
    server::{Server, Unanswered},
};

mod following;

use following::about;
pub(super) use following::follow;

/// So many of the last characters of the object's uid end the names of its dependents.
const SUFFIX: usize = 5;

/// So many that are gone are remembered. Late news comes within seconds.
const GONE_MAX: usize = 4_096;

/// Of which job, and the name.
type Key = (JobKey, String);

/// A dependent that exists.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Owned {
    job: JobName,
    key: Key,
    uid: String,
    version: String,
    spec: Value,
}

/// What is told of one kind.
pub(super) enum Told {
    /// The API server has the kind in this version. Its news follow.
    Version(&'static str),
    News(News<Key, Box<Owned>>),
}

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
    /// Of a kind that not every cluster has.
    version: Option<&'static str>,
    /// `None`: they were not read yet.
    all: Option<BTreeMap<Key, Box<Owned>>>,
    /// Namespaces of which not all of them are known.
    crowded: Crowded,
    /// Why they cannot be read.
    unreadable: Option<String>,
}

/// What there is to do for one object.
pub(super) enum Next {
    Nothing,
    Change(Box<Change>),
    /// A dependent is wanted, and nobody knows whether it exists. With the reason, if there is one.
    Unknown(Kind, Option<String>),
}

/// The next change, and what it is about.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) step: Step,
    /// The group and the version of its kind.
    api: String,
    there: Option<Owned>,
}

/// What came of a change.
pub(super) enum Changed {
    Is(Kind, Box<Owned>),
    Gone(Kind, Box<Owned>),
}

impl Dependents {
    /// Takes what is told of a kind, and returns the objects that it is about.
    pub(super) fn hear(&mut self, kind: Kind, told: Told) -> Vec<JobName> {
        let known = self.kinds.entry(kind).or_default();
        let news = match told {
            Told::Version(version) => {
                known.version = Some(version);
                return Vec::new();
            }
            Told::News(news) => news,
        };
        match news {
            News::Listed(all, crowded) => {
                known.crowded = crowded;
                let before = known.all.take().into_iter().flatten();
                let jobs = before.map(|(_, owned)| owned.job);
                let jobs = jobs.chain(all.values().map(|owned| owned.job.clone()));
                let jobs = jobs.collect();
                (known.all, known.unreadable) = (Some(all), None);
                jobs
            }
            // Whoever asks for one there looks again.
            News::Crowded(crowded) => {
                known.crowded = crowded;
                Vec::new()
            }
            News::Applied(_, owned) => {
                let job = owned.job.clone();
                self.is(kind, owned);
                vec![job]
            }
            News::Deleted(_, owned) => {
                let job = owned.job.clone();
                self.gone(kind, &owned);
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
            Changed::Is(kind, owned) => self.is(kind, owned),
            Changed::Gone(kind, owned) => self.gone(kind, &owned),
        }
    }

    fn is(&mut self, kind: Kind, owned: Box<Owned>) {
        if self.gone.contains(&owned.uid) {
            return;
        }
        let Some(all) = &mut self.kinds.entry(kind).or_default().all else {
            return;
        };
        let number = |owned: &Owned| owned.version.parse::<u64>().unwrap_or_default();
        let there = all.get(&owned.key);
        let is_older =
            there.is_some_and(|known| known.uid == owned.uid && number(known) > number(&owned));
        if !is_older {
            all.insert(owned.key.clone(), owned);
        }
    }

    fn gone(&mut self, kind: Kind, owned: &Owned) {
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        self.gone.insert(owned.uid.clone());
        let all = self.kinds.entry(kind).or_default().all.as_mut();
        let is_same = |known: &Owned| known.uid == owned.uid;
        if let Some(all) = all.filter(|all| all.get(&owned.key).is_some_and(|one| is_same(one))) {
            all.remove(&owned.key);
        }
    }

    /// What to do next for this object, which should have these.
    pub(super) fn next(&self, job: &JobName, uid: &JobUid, wanted: &[Dependent]) -> Next {
        let key = JobKey::new(job, uid);
        for one in wanted {
            let known = self.kinds.get(&one.kind());
            if known.is_none_or(|known| known.all.is_none()) {
                let why = known.and_then(|known| known.unreadable.clone());
                return Next::Unknown(one.kind(), why);
            }
        }
        for (one, known) in wanted
            .iter()
            .filter_map(|one| Some((one, self.kinds.get(&one.kind())?)))
        {
            let own = known.all.iter().flat_map(|all| of(all, &key)).next();
            if own.is_none() && known.crowded.contains(&job.namespace) {
                // It may have one, so none is made.
                let why = about(one.kind()).crowded(&job.namespace);
                return Next::Unknown(one.kind(), Some(why));
            }
        }
        let there: Vec<(Kind, &Owned)> = (self.kinds.iter())
            .filter_map(|(kind, known)| Some((*kind, known.all.as_ref()?)))
            .flat_map(|(kind, all)| of(all, &key).map(move |owned| (kind, owned)))
            .collect();
        let fits = |(kind, owned): (Kind, &Owned)| {
            let mut wanted = wanted.iter();
            let wanted = wanted.find(|one| one.kind() == kind);
            wanted.is_some_and(|one| contains(&owned.spec, &spec(*one, uid)))
        };
        let seen: Vec<There> = there
            .iter()
            .map(|one| There {
                kind: one.0,
                fits: fits(*one),
            })
            .collect();
        let Some(step) = dependents::step(wanted, &seen) else {
            return Next::Nothing;
        };
        let about = there.into_iter().find(|(kind, _)| *kind == step.kind());
        let about = about.map(|(_, owned)| owned);
        let known = self.kinds.get(&step.kind());
        Next::Change(Box::new(Change {
            step,
            api: api(step.kind(), known.and_then(|known| known.version)),
            there: about.cloned(),
        }))
    }
}

fn of<'a>(all: &'a BTreeMap<Key, Box<Owned>>, job: &'a JobKey) -> impl Iterator<Item = &'a Owned> {
    let own = all.range((job.clone(), String::new())..);
    let own = own.take_while(move |((of, _), _)| of == job);
    own.map(|(_, owned)| &**owned)
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
        Dependent::PodGroup {
            scheduler,
            min_member,
        } => gang::spec(scheduler, min_member),
    }
}

/// The group and the version of a kind. `version`: the cluster's, for a kind that not every cluster has.
fn api(kind: Kind, version: Option<&str>) -> String {
    match kind {
        Kind::NetworkPolicy => "networking.k8s.io/v1".to_owned(),
        Kind::DisruptionBudget => "policy/v1".to_owned(),
        Kind::PodGroup(scheduler) => {
            let group = gang::group(scheduler);
            let version = version.unwrap_or(group.versions[0]);
            format!("{}/{version}", group.name)
        }
    }
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::NetworkPolicy => "networkpolicies",
        Kind::DisruptionBudget => "poddisruptionbudgets",
        Kind::PodGroup(_) => gang::PLURAL,
    }
}

/// The name of all dependents of a job. Its last characters are of the object's uid, so that they are none
/// of the user's, nor those of an object of the same name that was deleted a moment ago.
pub(super) fn name(job: &JobName, uid: &JobUid) -> String {
    let start = uid.as_str().len().saturating_sub(SUFFIX);
    let end = uid.as_str().get(start..).unwrap_or_default();
    format!("{}-{end}", job.name)
}

fn object(dependent: Dependent, api: &str, job: &JobName, uid: &JobUid) -> Value {
    let own = json!({
        "apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": uid.as_str(), "controller": true,
    });
    json!({
        "apiVersion": api,
        "kind": dependent.kind().name(),
        "metadata": {
            "name": name(job, uid),
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
    let Change { step, api, there } = change;
    let kind = step.kind();
    let is = |owned: Option<Owned>| owned.map(|owned| Changed::Is(kind, Box::new(owned)));
    let all = format!("/apis/{api}/namespaces/{}/{}", job.namespace, plural(kind));
    let at = |owned: &Owned| format!("{all}/{}", owned.key.1);
    match (step, there) {
        (Step::Create(dependent), _) => {
            let object = object(dependent, &api, job, uid);
            let made = server.create(&all, &object).await?;
            Ok(is(read(made)))
        }
        (Step::Update(dependent), Some(there)) => {
            let patch = json!({
                "metadata": { "uid": there.uid, "resourceVersion": there.version },
                "spec": spec(dependent, uid),
            });
            let changed = server.merge(&at(&there), &patch).await?;
            Ok(is(read(changed)))
        }
        (Step::Delete(_), Some(there)) => {
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": there.uid },
            });
            match server.delete::<Value>(&at(&there), &options).await {
                Err(why) if !why.is_missing() => Err(why),
                _ => Ok(Some(Changed::Gone(kind, Box::new(there)))),
            }
        }
        // There is always one to change.
        (Step::Update(_) | Step::Delete(_), None) => Ok(None),
    }
}

/// Why a dependent is not as it should be, for people.
pub(super) fn sentence(kind: Kind, why: &Unanswered) -> String {
    let component = match kind {
        Kind::NetworkPolicy | Kind::DisruptionBudget => "worker-pods",
        Kind::PodGroup(_) => "pod-groups",
    };
    match why {
        Unanswered::Forbidden(text) if text.contains(" cannot ") => {
            format!("{text}; manifests/components/{component} has the right")
        }
        Unanswered::Forbidden(text) => text.clone(),
        _ => why.to_string(),
    }
}

/// `None`: no MusterJob object owns it.
fn read(mut object: Value) -> Option<Owned> {
    let spec = object["spec"].take();
    let metadata: ObjectMeta = serde_json::from_value(object["metadata"].take()).ok()?;
    let owner = Owner::of(&metadata)?;
    Some(Owned {
        key: (owner.key(), metadata.name?),
        job: owner.job,
        uid: metadata.uid?,
        version: metadata.resource_version.unwrap_or_default(),
        spec,
    })
}

#[cfg(test)]
mod tests {
    use muster_core::spec::GangScheduler;

    use super::*;

    const POLICY: Dependent = Dependent::NetworkPolicy;
    const BUDGET: Kind = Kind::DisruptionBudget;

    fn budget(min_available: u32) -> Dependent {
        Dependent::DisruptionBudget { min_available }
    }

    fn uid() -> JobUid {
        JobUid::from("0b4e-11".to_owned())
    }

    fn made(dependent: Dependent, version: &str) -> Owned {
        let api = api(dependent.kind(), None);
        let mut object = object(dependent, &api, &digits(), &uid());
        object["metadata"]["uid"] = json!("d-1");
        object["metadata"]["resourceVersion"] = json!(version);
        // The API server fills these in.
        object["spec"]["more"] = json!({ "x": 1 });
        read(object).unwrap()
    }

    fn digits() -> JobName {
        JobName {
            namespace: "team-a".into(),
            name: "digits".into(),
        }
    }

    fn step(all: &Dependents, wanted: &[Dependent]) -> Option<Step> {
        match all.next(&digits(), &uid(), wanted) {
            Next::Nothing => None,
            Next::Change(change) => Some(change.step),
            Next::Unknown(kind, why) => panic!("{kind:?}: {why:?}"),
        }
    }

    fn hear(all: &mut Dependents, kind: Kind, news: News<Key, Box<Owned>>) {
        all.hear(kind, Told::News(news));
    }

    fn read_all() -> Dependents {
        let mut all = Dependents::default();
        for kind in Kind::BUILT_IN {
            hear(
                &mut all,
                kind,
                News::Listed(BTreeMap::new(), Crowded::new()),
            );
        }
        all
    }

    #[test]
    fn what_is_as_wanted_is_left_alone_and_what_is_not_is_changed() {
        let mut all = read_all();
        assert_eq!(step(&all, &[budget(2)]), Some(Step::Create(budget(2))));
        all.changed(Changed::Is(BUDGET, Box::new(made(budget(2), "5"))));
        assert_eq!(step(&all, &[budget(2)]), None);
        assert_eq!(step(&all, &[budget(3)]), Some(Step::Update(budget(3))));
        // Older news of the watch do not count.
        let older = made(budget(1), "4");
        let news = News::Applied(older.key.clone(), Box::new(older));
        hear(&mut all, Kind::DisruptionBudget, news);
        assert_eq!(step(&all, &[budget(2)]), None);
        assert_eq!(step(&all, &[]), Some(Step::Delete(Kind::DisruptionBudget)));
        all.changed(Changed::Gone(BUDGET, Box::new(made(budget(2), "6"))));
        assert_eq!(step(&all, &[]), None);
        // Neither an event nor an answer that comes late brings it back.
        all.changed(Changed::Is(BUDGET, Box::new(made(budget(2), "7"))));
        assert_eq!(step(&all, &[budget(2)]), Some(Step::Create(budget(2))));
    }

    #[test]
    fn somebody_s_further_way_into_the_pods_is_closed() {
        let mut all = read_all();
        let mut owned = made(POLICY, "5");
        all.changed(Changed::Is(Kind::NetworkPolicy, Box::new(owned.clone())));
        assert_eq!(step(&all, &[POLICY]), None);
        let rules = owned.spec["ingress"].as_array_mut().unwrap();
        rules.push(json!({}));
        owned.version = "6".into();
        all.changed(Changed::Is(Kind::NetworkPolicy, Box::new(owned)));
        assert_eq!(step(&all, &[POLICY]), Some(Step::Update(POLICY)));
    }

    #[test]
    fn what_cannot_be_read_is_known_to_be_unknown_only_if_it_is_wanted() {
        let mut all = Dependents::default();
        let unknown = |all: &Dependents| match all.next(&digits(), &uid(), &[POLICY]) {
            Next::Unknown(Kind::NetworkPolicy, why) => why,
            _ => panic!("it is known"),
        };
        assert_eq!(unknown(&all), None);
        hear(
            &mut all,
            Kind::NetworkPolicy,
            News::Unreadable("no right".into()),
        );
        assert_eq!(unknown(&all).as_deref(), Some("no right"));
        assert_eq!(step(&all, &[]), None);
        hear(
            &mut all,
            Kind::NetworkPolicy,
            News::Listed(BTreeMap::new(), Crowded::new()),
        );
        assert_eq!(step(&all, &[POLICY]), Some(Step::Create(POLICY)));
    }

    #[test]
    fn in_a_crowded_namespace_a_dependent_may_be_there_already() {
        let mut all = read_all();
        let crowded = |all: &mut Dependents, namespace: &str| {
            let news = News::Crowded([namespace.to_owned()].into());
            hear(all, Kind::NetworkPolicy, news);
        };
        crowded(&mut all, "team-b");
        assert_eq!(step(&all, &[POLICY]), Some(Step::Create(POLICY)));
        crowded(&mut all, "team-a");
        let Next::Unknown(Kind::NetworkPolicy, Some(why)) = all.next(&digits(), &uid(), &[POLICY])
        else {
            panic!("nobody knows of it");
        };
        assert!(
            why.contains("more NetworkPolicies of jobs in namespace team-a"),
            "{why}"
        );
        // Those that are known are kept in order, and other kinds do not wait.
        assert_eq!(step(&all, &[budget(2)]), Some(Step::Create(budget(2))));
        let news = News::Listed(
            [made(POLICY, "5")]
                .map(|one| (one.key.clone(), Box::new(one)))
                .into(),
            ["team-a".to_owned()].into(),
        );
        hear(&mut all, Kind::NetworkPolicy, news);
        assert_eq!(step(&all, &[POLICY]), None);
    }

    #[test]
    fn a_stranger_s_object_is_none_of_ours() {
        let mut owned = made(POLICY, "5");
        owned.key.0.uid = JobUid::from("another".to_owned());
        let mut all = read_all();
        all.changed(Changed::Is(Kind::NetworkPolicy, Box::new(owned)));
        assert_eq!(step(&all, &[]), None);
        // Whoever has a namespace can write any owner there.
        let mut forged = object(POLICY, "x/v1", &made(POLICY, "5").job, &uid());
        forged["metadata"]["uid"] = json!("d-2");
        forged["metadata"]["namespace"] = json!("team-b");
        let forged = read(forged).unwrap();
        hear(
            &mut all,
            Kind::NetworkPolicy,
            News::Applied(forged.key.clone(), Box::new(forged)),
        );
        assert_eq!(step(&all, &[POLICY]), Some(Step::Create(POLICY)));
        assert_eq!(step(&all, &[]), None);
        let mut unowned = object(POLICY, "x/v1", &made(POLICY, "5").job, &uid());
        unowned["metadata"]["ownerReferences"] = json!([]);
        assert_eq!(read(unowned), None);
    }

    #[test]
    fn a_group_is_made_in_the_version_that_the_cluster_has() {
        let (mut all, scheduler) = (read_all(), GangScheduler::Kubernetes);
        let kind = Kind::PodGroup(scheduler);
        let group = Dependent::PodGroup {
            scheduler,
            min_member: 2,
        };
        let why = "the cluster has none".to_owned();
        hear(&mut all, kind, News::Unreadable(why.clone()));
        match all.next(&digits(), &uid(), &[group]) {
            Next::Unknown(unknown, said) => assert_eq!((unknown, said), (kind, Some(why))),
            _ => panic!("nobody knows of it"),
        }
        // Others do not wait for it.
        assert_eq!(step(&all, &[]), None);
        all.hear(kind, Told::Version("v1alpha2"));
        hear(
            &mut all,
            kind,
            News::Listed(BTreeMap::new(), Crowded::new()),
        );
        let Next::Change(change) = all.next(&digits(), &uid(), &[group]) else {
            panic!("it is missing");
        };
        assert_eq!(change.api, "scheduling.k8s.io/v1alpha2");
        assert_eq!(change.step, Step::Create(group));
        all.changed(Changed::Is(kind, Box::new(made(group, "5"))));
        assert_eq!(step(&all, &[group]), None);
    }
}
