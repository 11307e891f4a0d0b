//! Jobs that run in a container image on hosts: which nodes they get, and how long these may take to get ready.

use super::{
    selection::{plan, wait},
    *,
};
use crate::{
    container::START_MAX,
    fleet::{generation::ready_deadline, prewarm::PREWARM_MAX},
    node_report::Gpu,
};

const IMAGE: &str = "quay.io/me/train:1";
const MINUTE: Duration = Duration::from_secs(60);

fn in_image(image: &str, spec: SpecDocument) -> SpecDocument {
    SpecDocument {
        image: Some(image.into()),
        ..spec
    }
}

impl Bench {
    /// A node says what runs images there, and how many GPUs it has.
    fn reports(&mut self, node: &str, runtime: &str, gpus: u32) {
        let gpu = |index| Gpu {
            uuid: format!("{node}-{index}"),
            index,
            ..Gpu::default()
        };
        let report = NodeReport {
            address: "127.0.0.1".into(),
            slots: 4,
            container_runtime: runtime.into(),
            gpus: (0..gpus).map(gpu).collect(),
            ..NodeReport::default()
        };
        let session = self.agents[&node.into()].session.unwrap();
        self.input(Input::Report { session, report });
        self.obey();
    }

    /// The clock goes on in steps of a second, and every node is heard.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + SECOND;
            for session in { self.agents.values() }
                .filter_map(|agent| agent.session)
                .collect::<Vec<_>>()
            {
                self.input(Input::Heartbeat { session });
            }
            self.input(Input::Tick);
            self.obey();
        }
    }
}

#[test]
fn a_node_may_pull_an_image_for_half_an_hour() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    let generation = bench.job("digits").current.as_ref().unwrap();
    let policy = Policy::default();
    let deadline = |in_image| ready_deadline(generation, in_image, Timestamp(0), &policy);
    assert_eq!(deadline(true), deadline(false) + START_MAX);
}

#[test]
fn a_job_that_grows_waits_for_the_image_of_who_joins() {
    for (image, waits) in [(true, true), (false, false)] {
        let mut bench = Bench::new(&["b", "c"]);
        bench.reports("b", "podman 4.3.1", 0);
        bench.reports("c", "podman 4.3.1", 0);
        let spec = document(2, 3, 3);
        bench.submit("digits", if image { in_image(IMAGE, spec) } else { spec });
        bench.agents.entry("a".into()).or_default().imports = true;
        bench.connect("a");
        bench.reports("a", "podman 4.3.1", 0);
        bench.wait(PREWARM_MAX + MINUTE);
        assert_eq!(
            bench.job("digits").last_generation.0 == 1,
            waits,
            "image: {image}"
        );
    }
}

/// GPUs of nodes that cannot run the image are not what the job would get.
#[test]
fn the_default_of_gpus_counts_nodes_that_can_run_the_image() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.reports("a", "", 8);
    bench.reports("b", "podman 4.3.1", 0);
    let spec = || SpecDocument {
        gpus_per_node: None,
        ..document(1, 1, 1)
    };
    bench.submit("image", in_image(IMAGE, spec()));
    assert_eq!(bench.members("image"), ["b"]);
    bench.submit("plain", spec());
    assert_eq!(bench.members("plain"), ["a"]);
    let gpus = bench.job("plain").current.as_ref().unwrap().members[0]
        .gpus
        .len();
    assert_eq!(gpus, 1);
}

/// Also one that its job has had: an older agent would run the job outside of its image.
#[test]
fn only_nodes_that_can_run_the_jobs_image_get_it() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.reports("b", "podman 4.3.1", 0);
    bench.reports("c", "apptainer 1.4.0", 0);
    let of = |image: &str, nodes| in_image(image, document(nodes, nodes, nodes));
    bench.submit("file", of("/shared/train.sif", 1));
    assert_eq!(bench.members("file"), ["c"]);
    bench.submit("digits", of(IMAGE, 2));
    assert_eq!(bench.members("digits"), ["c", "b"]);
    let why = |bench: &mut Bench, nodes| {
        let wait = wait(plan(bench, of(IMAGE, nodes)));
        let excluded = wait.excluded.into_iter();
        excluded
            .map(|(node, _, why)| format!("{node} {why}"))
            .collect::<Vec<_>>()
    };
    let none = "runs no images (its agent has neither podman nor apptainer nor enroot)";
    assert_eq!(why(&mut bench, 3), [format!("a {none}")]);
    // Its agent is an older one now.
    bench.reports("b", "", 0);
    assert_eq!(
        why(&mut bench, 2),
        [format!("a {none}"), format!("b {none}")]
    );
    // The next generation of the job that has it goes without.
    bench.pass(10 * SECOND);
    bench.rank_exits("digits", 0, Exit::Signal(9), None);
    bench.pass(20 * SECOND);
    let next = bench.job("digits").current.as_ref();
    assert!(next.is_none_or(|generation| !generation.has(&"b".into())));
}

/// What one lacks because of its image says nothing of another that asks for as much.
#[test]
fn a_job_is_not_refused_for_the_image_of_another() {
    let mut bench = Bench::new(&["a"]);
    bench.reports("a", "", 1);
    let one = || SpecDocument {
        gpus_per_node: Some(1),
        ..document(1, 1, 1)
    };
    bench.submit("holds", one());
    bench.submit("image", in_image(IMAGE, one()));
    bench.submit("plain", one());
    let name = bench.job("holds").name.clone();
    bench.request(Request::Cancel { name });
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("plain"), ["a"]);
    assert!(bench.job("image").current.is_none());
}
