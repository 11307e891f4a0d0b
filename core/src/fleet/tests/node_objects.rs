//! What others, and people, say on Node objects, and what the fleet wants written there.

mod overruled;

use std::sync::Arc;

use super::*;
use crate::fleet::pod_plan::Host;
use crate::node_object::{Condition, NodeObject, Raw, Status, correction};
use crate::node_report::taint::Taint;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The fleet with an API server beside it: the objects, as they are written.
struct Cluster {
    bench: Bench,
    objects: BTreeMap<NodeName, Raw>,
}

impl Cluster {
    fn new(nodes: &[&str]) -> Self {
        let mut cluster = Self {
            bench: Bench::new(nodes),
            objects: BTreeMap::new(),
        };
        cluster.bench.fleet.policy.kubernetes_cordon = CordonMode::On;
        nodes.iter().for_each(|node| cluster.changes(node, |_| ()));
        cluster
    }

    /// Somebody changes an object, and the fleet hears of it.
    fn changes(&mut self, node: &str, change: impl FnOnce(&mut Raw)) {
        let raw = self.objects.entry(node.into()).or_default();
        change(raw);
        let object = Arc::new(NodeObject::read(raw.clone()));
        let news = ObjectNews::Applied(node.into(), object);
        self.bench.input(Input::Objects(news));
        self.bench.obey();
    }

    /// Writes what the fleet wants on this object. True: there was something to write.
    fn writes(&mut self, node: &str) -> bool {
        let Some(wanted) = self.view(node).unmarked else {
            return false;
        };
        let seen = NodeObject::read(self.objects[&node.into()].clone());
        let done = correction(&wanted, &seen, self.bench.now);
        assert!(!done.is_empty());
        self.changes(node, |raw| {
            raw.unschedulable = done.unschedulable.unwrap_or(raw.unschedulable);
            for (key, value) in done.annotations {
                raw.annotations.remove(key);
                raw.annotations
                    .extend(value.map(|value| (key.to_owned(), value)));
            }
            if let Some(condition) = done.condition {
                raw.conditions.retain(|other| other.kind != condition.kind);
                raw.conditions.push(condition);
            }
        });
        true
    }

    fn settles(&mut self, node: &str) -> &Raw {
        self.writes(node);
        assert!(!self.writes(node), "one round is enough");
        &self.objects[&node.into()]
    }

    fn view(&self, node: &str) -> NodeView {
        self.bench.fleet.node_view(&node.into()).unwrap()
    }

    fn record(&self, node: &str) -> &NodeRecord {
        &self.bench.stored_nodes[&node.into()]
    }

    fn cordons(&mut self, node: &str) {
        let reason = "fan".into();
        let node = node.into();
        self.bench.request(Request::Cordon { node, reason });
    }

    /// So many failures of two jobs count against the node that it should be cordoned.
    fn storm(&mut self, node: &str) {
        for job in ["one", "two", "two"] {
            let mark = Mark {
                at: self.bench.now,
                job: job.into(),
                name: JobName {
                    namespace: "default".into(),
                    name: job.into(),
                },
                cause: Cause::NodeLost,
                lasted: Duration::ZERO,
                standing: Standing::Node,
            };
            let node = self.bench.fleet.nodes.get_mut(&node.into()).unwrap();
            node.record.marks.push(mark);
        }
        self.bench.pass(61 * SECOND);
    }

    fn told(&self, reason: &str) -> usize {
        let events = self.bench.events.iter();
        events.filter(|event| event.reason == reason).count()
    }

    /// The coordinator starts anew with these nodes in its store.
    fn starts_with(&mut self, nodes: Vec<NodeRecord>) {
        let policy = self.bench.fleet.policy.clone();
        self.bench.stored_nodes = nodes
            .iter()
            .map(|node| (node.name.clone(), node.clone()))
            .collect();
        let stored = Stored {
            nodes,
            ..Stored::default()
        };
        let term = self.bench.fleet.term.next();
        self.bench.fleet = Fleet::new(policy, term, stored, self.bench.now);
        for name in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.bench.connect(name.as_str());
            self.changes(name.as_str(), |_| ());
        }
    }

    fn starts(&mut self) {
        let nodes = self.bench.stored_nodes.values().cloned().collect();
        self.starts_with(nodes);
    }

    /// Time goes by, and nobody says anything.
    fn waits(&mut self, time: Duration) {
        self.bench.now = self.bench.now + time;
        self.bench.input(Input::Tick);
        for node in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.bench.connect(node.as_str());
        }
        self.bench.pass(62 * SECOND);
    }
}

fn condition(kind: &str, status: Status) -> Condition {
    Condition {
        kind: kind.into(),
        status,
        reason: String::new(),
        message: String::new(),
        since: None,
    }
}

/// Each of the two can be silent alone: an agent that is replaced, a kubelet that restarts.
#[test]
fn a_host_is_silent_if_neither_its_agent_nor_its_kubelet_is_heard() {
    let ready = |status| Condition {
        kind: "Ready".into(),
        status,
        reason: String::new(),
        message: String::new(),
        since: None,
    };
    let mut cluster = Cluster::new(&["a"]);
    cluster.changes("a", |raw| raw.conditions = vec![ready(Status::Unknown)]);
    assert_eq!(
        Host::of(&cluster.view("a")),
        Host::Fit,
        "its agent is heard"
    );
    cluster.bench.cut("a");
    cluster.bench.pass(10 * SECOND);
    assert!(cluster.view("a").record.gone);
    assert_eq!(Host::of(&cluster.view("a")), Host::Silent);
    for status in [Status::True, Status::False] {
        cluster.changes("a", |raw| raw.conditions = vec![ready(status)]);
        assert_eq!(
            Host::of(&cluster.view("a")),
            Host::Fit,
            "its kubelet is heard"
        );
    }
}

#[test]
fn a_node_that_somebody_cordoned_in_kubernetes_gets_no_new_work_and_keeps_what_it_has() {
    let mut cluster = Cluster::new(&["a", "b"]);
    cluster.bench.submit("digits", document(1, 1, 1));
    cluster.bench.pass(SECOND);
    assert_eq!(cluster.bench.members("digits"), ["a"]);
    for node in ["a", "b"] {
        cluster.changes(node, |raw| raw.unschedulable = true);
    }
    cluster.bench.submit("waits", document(1, 1, 1));
    cluster.bench.pass(SECOND);
    let message = &cluster.bench.job("waits").message;
    let why = "unschedulable in Kubernetes, set by somebody else than Muster";
    assert!(message.contains(&format!("b {why}")), "{message}");
    assert_eq!(cluster.bench.job("digits").last_generation.0, 1);
    assert_eq!(cluster.view("b").conditions, [format!("Excluded: {why}")]);
    assert_eq!(cluster.record("b").cordon, None, "it is no cordon of ours");
    assert_eq!(cluster.told("NodeExcluded"), 2);
    cluster.settles("b");
    assert!(cluster.objects[&"b".into()].unschedulable);
    cluster.changes("b", |raw| raw.unschedulable = false);
    cluster.bench.pass(SECOND);
    assert_eq!(cluster.bench.members("waits"), ["b"]);
    assert_eq!(cluster.told("NodeIncluded"), 1);
    assert_eq!(cluster.view("b").conditions, [""; 0]);
}

#[test]
fn a_job_grows_away_from_a_node_that_somebody_cordoned_in_kubernetes() {
    let mut cluster = Cluster::new(&["a", "b"]);
    cluster.bench.submit("digits", document(1, 3, 3));
    assert_eq!(cluster.bench.members("digits"), ["a", "b"]);
    cluster.changes("a", |raw| raw.unschedulable = true);
    cluster.bench.connect("c");
    cluster.bench.pass(10 * SECOND);
    assert_eq!(cluster.bench.members("digits"), ["a", "b"], "not smaller");
    cluster.bench.connect("d");
    cluster.bench.pass(10 * SECOND);
    assert_eq!(cluster.bench.members("digits"), ["b", "c", "d"]);
}

#[test]
fn what_others_say_of_a_node_counts_as_much_as_the_table_says() {
    let mut cluster = Cluster::new(&["a", "b"]);
    cluster.bench.submit("digits", document(1, 2, 2));
    cluster.bench.pass(SECOND);
    let says = |cluster: &mut Cluster, kind: &str, status| {
        cluster.changes("b", |raw| raw.conditions = vec![condition(kind, status)]);
        cluster.bench.pass(SECOND);
    };
    says(&mut cluster, "XIDErrors", Status::True);
    assert_eq!(cluster.told("NodeExcluded"), 0);
    says(&mut cluster, "AcceleratedHardwareReady", Status::False);
    assert_eq!(cluster.bench.job("digits").last_generation.0, 1);
    let conditions = cluster.view("b").conditions;
    assert!(conditions[0].contains("(EKS): a GPU"), "{conditions:?}");
    says(&mut cluster, "VMEventScheduled", Status::True);
    assert_eq!(cluster.bench.members("digits"), ["a"], "it leaves at once");
    let incident = cluster.bench.job("digits").incidents.last().unwrap();
    assert_eq!(incident.cause, Cause::NodeLeaving);
    let says_why = incident
        .message
        .contains("condition VMEventScheduled=True (AKS)");
    assert!(says_why, "{}", incident.message);
    // The object goes, and with it the word of others.
    cluster
        .bench
        .input(Input::Objects(ObjectNews::Deleted("b".into())));
    cluster.bench.pass(10 * SECOND);
    assert_eq!(cluster.bench.members("digits"), ["a", "b"]);
}

#[test]
fn a_storm_and_a_person_cordon_the_object_and_uncordon_lifts_it() {
    let mut cluster = Cluster::new(&["a", "b", "c"]);
    cluster.storm("a");
    cluster.cordons("b");
    let raw = cluster.settles("a").clone();
    assert!(raw.unschedulable);
    assert_eq!(raw.annotations["muster.dev/cordoned-by"], "muster");
    assert_eq!(
        raw.annotations["muster.dev/cordoned-job"],
        "default/one,default/two"
    );
    let raw = cluster.settles("b").clone();
    assert_eq!(raw.annotations["muster.dev/cordoned-by"], "root");
    assert_eq!(cluster.told("NodeExcluded"), 0, "our own cordon is no news");
    for node in ["a", "b"] {
        cluster
            .bench
            .request(Request::Uncordon { node: node.into() });
        let raw = cluster.settles(node);
        assert!(!raw.unschedulable && raw.annotations.is_empty(), "{raw:?}");
        assert_eq!(cluster.record(node).hold_off, None);
    }
}

#[test]
fn a_person_who_uncordons_in_kubernetes_is_right_for_a_day() {
    let mut cluster = Cluster::new(&["a", "b", "c"]);
    cluster.storm("a");
    cluster.settles("a");
    cluster.changes("a", |raw| raw.unschedulable = false);
    assert_eq!(cluster.record("a").cordon, None);
    let held = cluster.record("a").hold_off.clone().unwrap();
    assert_eq!(held.until, cluster.bench.now + DAY);
    let raw = cluster.settles("a");
    assert!(!raw.unschedulable && raw.annotations.is_empty(), "{raw:?}");
    let conditions = cluster.view("a").conditions;
    let said = format!("for 24h, until {}", held.until.rfc3339_seconds());
    assert!(conditions[0].starts_with("HoldOff") && conditions[0].ends_with(&said));

    cluster.storm("a");
    assert_eq!(cluster.record("a").cordon, None);
    assert_eq!(cluster.told("CordonWithheld"), 1);
    let raw = cluster.settles("a").clone();
    assert!(raw.annotations["muster.dev/cordon-withheld"].contains("somebody uncordoned it"));
    // A coordinator that starts anew knows it too.
    let stored = Stored {
        nodes: cluster.bench.stored_nodes.values().cloned().collect(),
        ..Stored::default()
    };
    let policy = cluster.bench.fleet.policy.clone();
    cluster.bench.fleet = Fleet::new(policy, Term(2), stored, cluster.bench.now);
    for node in ["a", "b", "c"] {
        cluster.bench.connect(node);
        cluster.changes(node, |_| ());
    }
    cluster.storm("a");
    assert_eq!(cluster.record("a").cordon, None);
    // A person's own cordon still works, and so does Muster's once the time is over.
    cluster.cordons("a");
    assert!(cluster.settles("a").unschedulable);
    cluster
        .bench
        .request(Request::Uncordon { node: "a".into() });
    assert!(!cluster.settles("a").unschedulable);
    assert_eq!(cluster.record("a").hold_off, Some(held));
    cluster.waits(DAY);
    assert_eq!(cluster.record("a").hold_off, None);
    cluster.storm("a");
    assert_eq!(
        cluster.record("a").cordon.as_ref().unwrap().by,
        CordonedBy::Muster
    );
}

#[test]
fn only_the_word_about_this_very_cordon_ends_it() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.cordons("a");
    cluster.settles("a");
    let old = cluster.objects[&"a".into()].clone();
    cluster.bench.pass(SECOND);
    cluster
        .bench
        .request(Request::Uncordon { node: "a".into() });
    cluster.cordons("a");
    // The person looked at the older cordon, and this is heard late.
    cluster.changes("a", |raw| {
        *raw = old;
        raw.unschedulable = false;
    });
    assert!(cluster.record("a").cordon.is_some());
    assert!(cluster.settles("a").unschedulable);
}

#[test]
fn a_cordon_that_is_older_than_the_books_is_taken_over() {
    let mut cluster = Cluster::new(&["a", "b"]);
    cluster.storm("a");
    let cordon = cluster.record("a").cordon.clone().unwrap();
    cluster.settles("a");
    // The store is lost. The node reports before and after its object was read.
    cluster.bench.pass(SECOND);
    for object_first in [true, false] {
        let policy = cluster.bench.fleet.policy.clone();
        cluster.bench.stored_nodes.clear();
        cluster.bench.fleet = Fleet::new(policy, Term(2), Stored::default(), cluster.bench.now);
        let raw = cluster.objects[&"a".into()].clone();
        if object_first {
            cluster.changes("a", |_| ());
            cluster.bench.connect("a");
        } else {
            cluster.bench.connect("a");
            cluster.changes("a", |_| ());
        }
        let taken = cluster.record("a").cordon.clone().unwrap();
        assert_eq!((taken.by, taken.at), (cordon.by.clone(), cordon.at));
        assert_eq!(cluster.settles("a").annotations, raw.annotations);
    }
    cluster
        .bench
        .request(Request::Uncordon { node: "a".into() });
    assert!(!cluster.settles("a").unschedulable);
}

#[test]
fn objects_that_cannot_be_written_are_one_event_and_a_condition_until_they_can() {
    let mut cluster = Cluster::new(&["a"]);
    let news = |news| Input::Objects(news);
    let why = "it may not patch nodes";
    for (known, why) in [(false, "n1: it may not"), (true, why)] {
        let why = why.into();
        cluster
            .bench
            .input(news(ObjectNews::Unwritable { why, known }));
    }
    let conditions = cluster.view("a").conditions;
    assert!(conditions[0].starts_with("MarksStale") && conditions[0].ends_with(why));
    cluster.bench.input(news(ObjectNews::Written));
    cluster.bench.input(news(ObjectNews::Written));
    assert_eq!(cluster.view("a").conditions, [""; 0]);
    assert_eq!(
        (
            cluster.told("NodeMarksStale"),
            cluster.told("NodeMarksFresh")
        ),
        (1, 1)
    );
}

#[test]
fn a_withheld_cordon_follows_when_its_veto_is_over() {
    let mut cluster = Cluster::new(&["a", "b", "c"]);
    cluster.storm("a");
    cluster.storm("b");
    assert!(cluster.record("a").cordon.is_some());
    let withheld = cluster.view("b").conditions.remove(0);
    assert!(
        withheld.starts_with("CordonWithheld: restart storm"),
        "{withheld}"
    );
    cluster.bench.pass(120 * SECOND);
    assert_eq!(cluster.told("CordonWithheld"), 1, "it is told once");
    cluster
        .bench
        .request(Request::Uncordon { node: "a".into() });
    cluster.bench.pass(61 * SECOND);
    assert_eq!(
        cluster.record("b").cordon.as_ref().unwrap().by,
        CordonedBy::Muster
    );
    assert_eq!(cluster.view("b").conditions, [""; 0]);
}

#[test]
fn what_keeps_work_away_is_told_again_only_if_it_is_another_thing() {
    let mut cluster = Cluster::new(&["a", "b"]);
    let told = |cluster: &Cluster| (cluster.told("NodeExcluded"), cluster.told("NodeIncluded"));
    cluster.changes("a", |raw| raw.unschedulable = true);
    assert_eq!(told(&cluster), (1, 0));
    cluster.starts();
    cluster.starts();
    assert_eq!(told(&cluster), (1, 0), "a coordinator that starts knows it");
    // What has changed meanwhile is told.
    cluster.objects.get_mut(&"b".into()).unwrap().conditions =
        vec![condition("GPUMissing", Status::True)];
    cluster.starts();
    assert_eq!(told(&cluster), (2, 0));
    cluster.changes("b", |raw| {
        raw.conditions = vec![condition("VMEventScheduled", Status::True)]
    });
    assert_eq!(told(&cluster), (3, 0), "now it leaves");
    // Both are over while no coordinator runs; one of the objects is even gone.
    cluster.objects.get_mut(&"b".into()).unwrap().conditions = Vec::new();
    cluster.objects.remove(&"a".into());
    cluster.starts();
    cluster.bench.connect("a");
    assert_eq!(told(&cluster), (3, 1), "the objects are not all read yet");
    let all = cluster.objects.iter();
    let all = all.map(|(name, raw)| (name.clone(), Arc::new(NodeObject::read(raw.clone()))));
    let news = ObjectNews::Listed(all.collect());
    cluster.bench.input(Input::Objects(news));
    assert_eq!(told(&cluster), (3, 2));
    assert_eq!(cluster.view("a").conditions, [""; 0]);
}

#[test]
fn a_withheld_cordon_is_told_again_only_if_its_veto_is_another() {
    let names = ["a", "b", "c", "d"];
    let mut cluster = Cluster::new(&names);
    cluster.bench.fleet.policy.cordon_breaker_percent = 50;
    cluster.bench.fleet.policy.cordon_percent = 50;
    for node in ["a", "b"] {
        cluster.storm(node);
        assert!(cluster.record(node).cordon.is_some());
    }
    cluster.storm("c");
    let raw = cluster.settles("c").clone();
    let withheld = |raw: &Raw| raw.annotations["muster.dev/cordon-withheld"].clone();
    assert!(withheld(&raw).contains("2 of 4 nodes"), "{raw:?}");
    assert_eq!(cluster.told("CordonWithheld"), 1);
    // There are more failures, and the veto is the same.
    cluster.storm("c");
    let wanted = cluster.view("c").unmarked.unwrap();
    let seen = NodeObject::read(cluster.objects[&"c".into()].clone());
    let done = correction(&wanted, &seen, cluster.bench.now);
    assert_eq!(done.event, None, "the object says the new number only");
    let raw = cluster.settles("c").clone();
    assert!(withheld(&raw).contains("storm: 6 failures"), "{raw:?}");
    assert_eq!(cluster.told("CordonWithheld"), 1);
    cluster
        .bench
        .request(Request::Uncordon { node: "a".into() });
    cluster.bench.fleet.policy.cordon_breaker_percent = 100;
    cluster.bench.fleet.policy.cordon_percent = 10;
    cluster.storm("c");
    let raw = cluster.settles("c").clone();
    assert!(withheld(&raw).contains("were cordoned within"), "{raw:?}");
    assert_eq!(cluster.told("CordonWithheld"), 2);
}

/// Taints that another rule handles mean what that says. Others are for jobs to tolerate.
#[test]
fn a_taint_of_the_object_keeps_jobs_away_until_it_is_taken_off() {
    let mut cluster = Cluster::new(&["a"]);
    let taint = |text| Taint::read(text).unwrap();
    cluster.changes("a", |raw| {
        raw.taints = vec![
            taint("node.kubernetes.io/not-ready:NoExecute"),
            taint("karpenter.sh/disrupted:NoSchedule"),
            taint("dedicated=team-a:NoSchedule"),
        ];
    });
    let report = |cluster: &Cluster| cluster.bench.fleet.nodes[&"a".into()].report.clone();
    assert_eq!(
        report(&cluster).object_taints,
        [taint("dedicated=team-a:NoSchedule")]
    );
    cluster.bench.submit("digits", document(1, 1, 1));
    let message = cluster.bench.job("digits").message.clone();
    assert!(
        message
            .contains("a has taint dedicated=team-a:NoSchedule, which the job does not tolerate"),
        "{message}"
    );
    // A report of the agent knows nothing of it.
    let session = cluster.bench.agents[&"a".into()].session.unwrap();
    let sent = NodeReport {
        object_taints: Vec::new(),
        ..(*report(&cluster)).clone()
    };
    cluster.bench.input(Input::Report {
        session,
        report: sent,
    });
    assert_eq!(report(&cluster).object_taints.len(), 1);
    // With the object its taints are gone.
    let news = ObjectNews::Listed(BTreeMap::new());
    cluster.bench.input(Input::Objects(news));
    cluster.bench.obey();
    assert_eq!(cluster.bench.members("digits"), ["a"]);
}
