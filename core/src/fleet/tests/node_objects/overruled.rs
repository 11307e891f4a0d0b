//! Annotations of a cordon that a person has ended, and cordons that the books have lost.

use super::*;

/// A person ends Muster's cordon on the object, and it is heard.
fn overruled(prepare: impl FnOnce(&mut Cluster)) -> Cluster {
    let mut cluster = Cluster::new(&["a"]);
    cluster.cordons("a");
    cluster.settles("a");
    prepare(&mut cluster);
    cluster.changes("a", |raw| raw.unschedulable = false);
    assert_eq!(cluster.record("a").cordon, None);
    cluster
}

impl Cluster {
    /// A person has cordoned the node: no job goes there, and no write makes it schedulable.
    fn is_a_persons(&mut self, node: &str) {
        let conditions = self.view(node).conditions;
        let excluded = |cluster: &Self| {
            let conditions = cluster.view(node).conditions;
            conditions.iter().any(|c| c.starts_with("Excluded: "))
        };
        assert!(excluded(self), "{conditions:?}");
        let raw = self.settles(node).clone();
        let ours = |key: &String| key.starts_with("muster.dev/cordoned");
        assert!(raw.unschedulable, "{raw:?}");
        assert!(!raw.annotations.keys().any(ours), "{raw:?}");
        assert!(excluded(self), "{:?}", self.view(node).conditions);
        self.bench.submit("waits", document(1, 1, 1));
        self.bench.pass(SECOND);
        let message = &self.bench.job("waits").message;
        assert!(message.contains("unschedulable"), "{message}");
    }
}

const UNMANAGED: &str = "muster.dev/managed";

#[test]
fn a_persons_cordon_stays_where_an_overruled_one_left_its_note_on_an_unmanaged_node() {
    for restart in [false, true] {
        let mut cluster = overruled(|cluster| {
            cluster.changes("a", |raw| {
                raw.labels.insert(UNMANAGED.into(), "false".into());
            });
        });
        assert_eq!(cluster.view("a").unmarked, None, "it is left alone");
        cluster.changes("a", |raw| raw.unschedulable = true);
        if restart {
            cluster.starts();
        }
        let conditions = cluster.view("a").conditions;
        let excluded = conditions.iter().any(|c| c.starts_with("Excluded: "));
        assert!(excluded, "{conditions:?}");
        cluster.changes("a", |raw| drop(raw.labels.remove(UNMANAGED)));
        cluster.is_a_persons("a");
    }
}

#[test]
fn a_persons_cordon_stays_where_an_overruled_one_left_its_note_while_nothing_was_written() {
    let off = |cluster: &mut Cluster| {
        cluster.bench.fleet.policy.kubernetes_cordon = CordonMode::Off;
    };
    for by_muster in [false, true] {
        let mut cluster = overruled(|cluster| {
            off(cluster);
            if by_muster {
                // The books have ended it, and nobody has told the object.
                cluster
                    .bench
                    .request(Request::Uncordon { node: "a".into() });
            }
        });
        cluster.changes("a", |raw| raw.unschedulable = true);
        cluster.bench.fleet.policy.kubernetes_cordon = CordonMode::On;
        cluster.starts();
        cluster.is_a_persons("a");
    }
}

#[test]
fn a_person_who_uncordons_and_cordons_again_at_once_is_heard() {
    let mut cluster = overruled(|_| ());
    cluster.changes("a", |raw| raw.unschedulable = true);
    cluster.is_a_persons("a");
    // The same, and then a cordon of Muster comes and goes above the person's.
    let mut cluster = overruled(|_| ());
    cluster.changes("a", |raw| raw.unschedulable = true);
    cluster.cordons("a");
    let raw = cluster.settles("a");
    assert_eq!(raw.annotations["muster.dev/was-unschedulable"], "true");
    cluster
        .bench
        .request(Request::Uncordon { node: "a".into() });
    cluster.is_a_persons("a");
}

#[test]
fn a_late_write_of_a_deposed_coordinator_is_undone() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.cordons("a");
    let late = cluster.settles("a").clone();
    cluster.changes("a", |raw| raw.unschedulable = false);
    let raw = cluster.settles("a");
    assert!(!raw.unschedulable && raw.annotations.is_empty(), "{raw:?}");
    // No person writes the annotations of a cordon that is over.
    for restart in [false, true] {
        cluster.changes("a", |raw| *raw = late.clone());
        if restart {
            cluster.starts();
        }
        assert_eq!(cluster.record("a").cordon, None);
        let raw = cluster.settles("a");
        assert!(!raw.unschedulable && raw.annotations.is_empty(), "{raw:?}");
    }
}

#[test]
fn a_dry_run_does_not_take_a_persons_cordon_for_one_of_muster() {
    let mut cluster = overruled(|_| ());
    cluster.changes("a", |raw| raw.unschedulable = true);
    cluster.bench.fleet.policy.kubernetes_cordon = CordonMode::DryRun;
    cluster.cordons("a");
    let raw = cluster.settles("a");
    assert!(raw.annotations.contains_key("muster.dev/would-cordon"));
    assert!(!raw.annotations.contains_key("muster.dev/cordoned-by"));
    assert!(raw.unschedulable);
}

#[test]
fn a_cordon_that_was_taken_over_can_be_ended() {
    let mut cluster = Cluster::new(&["a"]);
    cluster.cordons("a");
    cluster.settles("a");
    cluster.bench.pass(SECOND);
    cluster.starts_with(Vec::new());
    assert!(cluster.record("a").cordon.is_some());
    cluster
        .bench
        .request(Request::Uncordon { node: "a".into() });
    // The object changes before the write, and after a restart it is heard anew.
    cluster.changes("a", |raw| {
        raw.labels.insert("zone".into(), "b".into());
    });
    assert_eq!(cluster.record("a").cordon, None);
    cluster.starts();
    assert_eq!(cluster.record("a").cordon, None);
    let raw = cluster.settles("a");
    assert!(!raw.unschedulable && raw.annotations.is_empty(), "{raw:?}");
}

#[test]
fn a_store_that_is_an_old_copy_takes_newer_cordons_over() {
    for (before, ended) in [(false, false), (true, false), (true, true)] {
        let mut cluster = Cluster::new(&["a"]);
        if before {
            cluster.cordons("a");
        }
        if ended {
            cluster
                .bench
                .request(Request::Uncordon { node: "a".into() });
        }
        cluster.bench.pass(SECOND);
        let copy = cluster.record("a").clone();
        // After the copy was made, the node is cordoned anew.
        cluster
            .bench
            .request(Request::Uncordon { node: "a".into() });
        cluster.cordons("a");
        let newer = cluster.record("a").cordon.clone();
        assert!(newer.is_some() && newer != copy.cordon);
        let raw = cluster.settles("a").clone();
        cluster.starts_with(vec![copy]);
        assert_eq!(cluster.record("a").cordon, newer, "{before} {ended}");
        assert_eq!(cluster.settles("a"), &raw);
        cluster
            .bench
            .request(Request::Uncordon { node: "a".into() });
        let raw = cluster.settles("a");
        assert!(!raw.unschedulable && raw.annotations.is_empty(), "{raw:?}");
    }
}

#[test]
fn no_two_cordons_of_a_node_have_the_same_time() {
    let mut cluster = Cluster::new(&["a"]);
    let mut last = Timestamp(0);
    for again in 0..4 {
        cluster.cordons("a");
        let at = cluster.record("a").cordon.as_ref().unwrap().at;
        assert!(at > last, "{again}");
        last = at;
        if again % 2 == 0 {
            cluster
                .bench
                .request(Request::Uncordon { node: "a".into() });
        }
    }
}
