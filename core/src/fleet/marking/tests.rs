use super::*;
use crate::{
    fleet::{budget::tests::node as record, node_record::Halt, registry::Withheld},
    health::{Finding, Health, Remedy, Subject},
    node_object::Raw,
    node_report::NodeReport,
};

const AT: Timestamp = Timestamp(1_795_453_236_000_000);

fn node() -> Node {
    let mut node = Node::stored(record("a"), AT);
    node.liveness = Liveness::Ready;
    node.object = Some(NodeObject::default().into());
    node
}

fn cordoned(by: &str) -> Node {
    let mut node = node();
    node.record.cordon = Some(Cordon {
        by: by.into(),
        reason: "why".into(),
        at: AT,
        jobs: vec!["default/a", "team/b"]
            .into_iter()
            .map(|text| {
                let (namespace, name) = text.split_once('/').unwrap();
                crate::id::JobName {
                    namespace: namespace.into(),
                    name: name.into(),
                }
            })
            .collect(),
    });
    node
}

fn due_in(node: &Node, mode: CordonMode) -> Option<Marking> {
    let policy = Policy {
        kubernetes_cordon: mode,
        ..Policy::default()
    };
    due(node, false, &policy)
}

fn verdict(node: &Node) -> (Status, String) {
    let health = due_in(node, CordonMode::On).unwrap().health.unwrap();
    (health.status, health.reason)
}

#[test]
fn each_mode_writes_what_it_may() {
    let node = cordoned("muster");
    assert_eq!(due_in(&node, CordonMode::Off), None);
    let on = due_in(&node, CordonMode::On).unwrap();
    let note = on.cordon.unwrap();
    assert_eq!(
        (note.by.as_str(), note.job.as_str()),
        ("muster", "default/a,team/b")
    );
    assert_eq!((note.at, on.would_cordon), (AT.rfc3339(), None));
    let dry = due_in(&node, CordonMode::DryRun).unwrap();
    assert_eq!(
        (dry.cordon, dry.would_cordon.as_deref()),
        (None, Some("muster: why"))
    );
    assert_eq!(dry.health.unwrap().reason, "RestartStorm");
}

#[test]
fn a_dry_run_leaves_what_stands_until_the_cordon_ends() {
    let mut node = cordoned("ann");
    let marking = Marking {
        cordon: Some(note(node.record.cordon.as_ref().unwrap())),
        ..Marking::default()
    };
    let object = NodeObject {
        marking,
        unschedulable: true,
        ..NodeObject::read(Raw::default())
    };
    node.object = Some(object.into());
    let dry = due_in(&node, CordonMode::DryRun).unwrap();
    assert!(
        dry.cordon.is_some() && dry.would_cordon.is_none(),
        "{dry:?}"
    );
    node.record.cordon = None;
    assert_eq!(due_in(&node, CordonMode::DryRun).unwrap().cordon, None);
}

#[test]
fn what_the_object_carries_already_is_not_due() {
    let mut node = node();
    let marking = due_in(&node, CordonMode::On).unwrap();
    assert_eq!(verdict(&node), (Status::True, "NoFaultKnown".into()));
    let object = NodeObject {
        marking,
        ..NodeObject::default()
    };
    node.object = Some(object.into());
    assert_eq!(due_in(&node, CordonMode::On), None);
    node.object = None;
    assert_eq!(
        due_in(&node, CordonMode::On),
        None,
        "there is none to write"
    );
    node.object = Some(NodeObject::default().into());
    node.record.halt = Some(Halt {
        at: AT,
        why: String::new(),
    });
    assert_eq!(due_in(&node, CordonMode::On), None, "the store is old");
}

#[test]
fn the_condition_says_what_muster_thinks_and_nothing_while_it_cannot_tell() {
    let reason = |node: &Node| verdict(node).1;
    assert_eq!(reason(&cordoned("muster")), "RestartStorm");
    assert_eq!(reason(&cordoned("ann")), "NoFaultKnown", "a fan is no GPU");
    let mut storm = node();
    storm.withheld = Some(Withheld {
        reason: "restart storm".into(),
        veto: "1 of 3 nodes are cordoned by Muster already".into(),
    });
    let marking = due_in(&storm, CordonMode::On).unwrap();
    assert!(marking.withheld.unwrap().contains("1 of 3 nodes"));
    assert_eq!(verdict(&storm), (Status::False, "CordonWithheld".into()));
    let finding = |severity| Finding {
        check: "xid:79".into(),
        subject: Subject::Gpu("GPU-a".into()),
        severity,
        remedy: Remedy::NodeReboot,
        reason: "off the bus".into(),
        since_unix_us: 0,
        runs: Vec::new(),
    };
    let reports = |severity| {
        let mut node = node();
        let findings = vec![finding(severity), finding(severity)];
        let health = Health { findings };
        node.report = NodeReport {
            health,
            ..NodeReport::default()
        }
        .into();
        node
    };
    let sick = reports(Severity::FailNow);
    let health = due_in(&sick, CordonMode::On).unwrap().health.unwrap();
    assert_eq!(health.reason, "HardwareUnhealthy");
    assert_eq!(health.message, "xid:79 (fail_now): off the bus; and 1 more");
    assert_eq!(reason(&reports(Severity::Warn)), "NoFaultKnown");
    let mut blind = node();
    blind.report = NodeReport {
        gpu_error: Some("no NVML".into()),
        ..NodeReport::default()
    }
    .into();
    assert_eq!(verdict(&blind), (Status::Unknown, "GPUsUnreadable".into()));

    let mut silent = node();
    silent.liveness = Liveness::Lost;
    assert_eq!(verdict(&silent), (Status::Unknown, "AgentLost".into()));
    let on = Policy {
        kubernetes_cordon: CordonMode::On,
        ..Policy::default()
    };
    assert_eq!(due(&silent, true, &on), None, "many are silent");
    silent.liveness = Liveness::Unknown;
    assert_eq!(due(&silent, false, &on), None, "not heard yet");
    silent.liveness = Liveness::Suspect;
    assert!(due(&silent, false, &on).unwrap().health.is_some());
}
