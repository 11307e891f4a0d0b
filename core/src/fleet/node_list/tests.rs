//! What is found, in which order, and what is counted.

use super::*;
use crate::{
    fleet::{node_record::NodeRecord, view::NodeRun},
    health::Remedy,
    id::{Generation, JobName, JobUid, NodeEpoch},
    node_report::NodeReport,
    run::{RunId, RunPhase},
    time::Timestamp,
};

/// A node of a list, by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    liveness: Liveness,
    cordoned: bool,
    unhealthy: bool,
    texts: Vec<&'static str>,
}

impl Listed for Node {
    fn name(&self) -> &str {
        &self.name
    }

    fn liveness(&self) -> Liveness {
        self.liveness
    }

    fn is_cordoned(&self) -> bool {
        self.cordoned
    }

    fn is_unhealthy(&self) -> bool {
        self.unhealthy
    }

    fn gpus(&self) -> Gpus {
        Gpus {
            all: 8,
            held_by_jobs: 2,
            withheld: usize::from(self.unhealthy),
        }
    }

    fn add_texts(&self, texts: &mut Texts) {
        self.texts.iter().for_each(|text| texts.add(text));
    }
}

fn node(name: &str, liveness: Liveness) -> Node {
    Node {
        name: name.into(),
        liveness,
        cordoned: false,
        unhealthy: false,
        texts: Vec::new(),
    }
}

fn names<T: Listed>(found: &Found<T>) -> Vec<&str> {
    found.nodes.iter().map(Listed::name).collect()
}

fn all(text: &str) -> Wanted<'_> {
    Wanted {
        text,
        skip: 0,
        most: usize::MAX,
    }
}

/// Four nodes in disorder, of which two are well.
fn four() -> Vec<Node> {
    let mut cordoned = node("b", Liveness::Ready);
    cordoned.cordoned = true;
    let mut sick = node("a2", Liveness::Lost);
    sick.unhealthy = true;
    vec![
        node("c", Liveness::Ready),
        cordoned,
        sick,
        node("a1", Liveness::Ready),
    ]
}

#[test]
fn trouble_comes_first_and_then_names() {
    assert_eq!(names(&find(four(), all(""))), ["a2", "b", "a1", "c"]);
    let silent = [Liveness::Suspect, Liveness::Unknown].map(|state| node("z", state));
    let found = find(four().into_iter().chain(silent), all(""));
    assert_eq!(names(&found), ["a2", "b", "z", "z", "a1", "c"]);
}

#[test]
fn a_part_is_cut_out_and_all_are_counted() {
    let part = |skip, most| {
        let found = find(
            four(),
            Wanted {
                text: "",
                skip,
                most,
            },
        );
        assert_eq!((found.matching, found.sums.nodes), (4, 4));
        names(&found).join(" ")
    };
    assert_eq!(part(0, 2), "a2 b");
    assert_eq!(part(2, 2), "a1 c");
    assert_eq!(part(3, 2), "c");
    assert_eq!(part(4, 2), "");
    assert_eq!(part(usize::MAX, usize::MAX), "");
    assert_eq!(part(0, 0), "");
}

#[test]
fn sums_are_of_all_nodes_whatever_is_found() {
    let mut nodes = four();
    nodes.push(node("d", Liveness::Suspect));
    nodes.push(node("e", Liveness::Unknown));
    let expected = Sums {
        nodes: 6,
        ready: 3,
        suspect: 1,
        lost: 1,
        cordoned: 1,
        unhealthy: 1,
        gpus: Gpus {
            all: 48,
            held_by_jobs: 12,
            withheld: 1,
        },
    };
    for text in ["", "a1", "nothing has this"] {
        assert_eq!(find(nodes.clone(), all(text)).sums, expected, "{text}");
    }
    let empty = find(Vec::<Node>::new(), all(""));
    assert_eq!((empty.matching, empty.sums), (0, Sums::default()));
}

#[test]
fn a_text_is_found_in_whatever_case_and_never_across_two() {
    let mut one = node("Node-1", Liveness::Suspect);
    one.cordoned = true;
    one.unhealthy = true;
    one.texts = vec!["rack=A7", "H100", "STRASSE-Ä"];
    let finds = |text: &str| find([one.clone()], all(text)).matching == 1;
    for text in [
        "",
        "node-1",
        "NODE",
        "suspect",
        "CORDONED, un",
        "=a7",
        "rack=a7",
        "h100",
        "straSSe-ä",
    ] {
        assert!(finds(text), "{text}");
    }
    let hostile = [
        "node-2", "A7H100", "A7\0H100", "\0", "ready", "%", ".*", "<script>", "\u{202e}",
    ];
    for text in hostile {
        assert!(!finds(text), "{text:?}");
    }
    assert!(!finds(&"node-1".repeat(100_000)), "longer than any node");
}

#[test]
fn a_state_says_all_that_is_wrong() {
    let mut one = node("n", Liveness::Lost);
    assert_eq!(one.state_in_words(), "Lost");
    (one.cordoned, one.unhealthy) = (true, true);
    assert_eq!(one.state_in_words(), "Lost, cordoned, unhealthy");
    assert!(!one.is_well() && node("n", Liveness::Ready).is_well());
}

fn run(namespace: &str, job: &str, gpus: &[&str]) -> NodeRun {
    NodeRun {
        run: RunId {
            job: JobUid::from("u"),
            generation: Generation(1),
        },
        job: Some(JobName {
            namespace: namespace.into(),
            name: job.into(),
        }),
        phase: RunPhase::Running,
        gpus: gpus.iter().map(|uuid| (*uuid).to_owned()).collect(),
    }
}

fn published() -> NodeView {
    let finding = |severity, subject| Finding {
        check: "xid:79".into(),
        subject,
        severity,
        remedy: Remedy::None,
        reason: "it fell off the bus".into(),
        since_unix_us: 1,
        runs: Vec::new(),
    };
    let gpu = |uuid: &str| Gpu {
        uuid: uuid.into(),
        model: "NVIDIA H100".into(),
        ..Gpu::default()
    };
    let mut report = NodeReport {
        hostname: "box-17".into(),
        gpus: vec![gpu("g0"), gpu("g1"), gpu("g2")],
        labels: [("rack".to_owned(), "a7".to_owned())].into(),
        ..NodeReport::default()
    };
    report.health.findings = vec![
        finding(Severity::Drain, Subject::Gpu("g2".into())),
        finding(Severity::FailNow, Subject::Gpu("g2".into())),
        finding(Severity::Warn, Subject::Gpu("g1".into())),
    ];
    NodeView {
        record: NodeRecord {
            name: "n1".into(),
            epoch: NodeEpoch(1),
            boot_id: String::new(),
            first_seen: Timestamp(1),
            gone: false,
            gone_since: None,
            cordon: None,
            pod_of: None,
            hold_off: None,
            ended: None,
            overruled: None,
            told_excluded: None,
            halt: None,
            marks: Vec::new(),
        },
        report: Arc::new(report),
        liveness: Liveness::Ready,
        slots_free: 0,
        last_heard: None,
        runs: vec![
            run("ours", "digits", &["g0", "g1"]),
            run("theirs", "secret", &["g1"]),
        ],
        conditions: Vec::new(),
        object: None,
        no_new_work: None,
        unmarked: None,
        place: None,
        bars_pods: None,
        mass_loss: false,
    }
}

#[test]
fn a_published_node_is_found_by_what_its_caller_may_see() {
    let view = Arc::new(published());
    let ours = |namespace: &str| namespace == "ours";
    let seen = Seen {
        view: &view,
        may_see: &ours,
    };
    let finds = |text: &str| find([seen], all(text)).matching == 1;
    for text in [
        "n1",
        "ready, unhealthy",
        "rack=a7",
        "hostname=box-17",
        "gpu.product=nvidia-h100",
        "nvidia h100",
        "digits",
    ] {
        assert!(finds(text), "{text}");
    }
    assert!(!finds("secret") && !finds("theirs") && !finds("g0"));
    let everything = |_: &str| true;
    let of_all = Seen {
        view: &view,
        may_see: &everything,
    };
    assert_eq!(find([of_all], all("secret")).matching, 1);
    // GPUs are counted once, and whoever holds them.
    assert_eq!(
        seen.gpus(),
        Gpus {
            all: 3,
            held_by_jobs: 2,
            withheld: 1,
        }
    );
    assert!(!seen.is_well());
}
