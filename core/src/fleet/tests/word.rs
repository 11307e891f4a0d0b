//! Whose word counts for which job: a node that says more of a job than the store knows.

use std::sync::Arc;

use super::{
    worker_pods::{pod, tell, with_pods},
    *,
};
use crate::fleet::{
    word::{Counts, Discounted, counts},
    worker_pod::WorkerPod,
};

/// The node connects and says that it holds workers of this generation of the job.
pub(super) fn claims(bench: &mut Bench, node: &str, job: &JobUid, number: u64) {
    let mut run = RunReport::preparing(
        RunId {
            job: job.clone(),
            generation: Generation(number),
        },
        Term(1),
    );
    run.phase = RunPhase::Running;
    let seen = Obeyed {
        generation: Generation(number),
        over: false,
    };
    let agent = bench.agents.entry(node.into()).or_default();
    agent.seen.insert(job.clone(), seen);
    agent.runs.insert(run.run.clone(), run);
    bench.connect(node);
    bench.pass(SECOND);
}

fn scale(bench: &mut Bench, job: &str, nodes: u32) -> Answer {
    let name = bench.job(job).name.clone();
    let answer = bench.request(Request::Scale { name, nodes });
    bench.pass(20 * SECOND);
    answer
}

fn halt_of(bench: &Bench, node: &str) -> Option<String> {
    let halt = bench.stored_nodes[&node.into()].halt.clone();
    halt.map(|halt| halt.why)
}

/// The job is decided about as ever: it is scaled, broken and replaced.
fn goes_on(bench: &mut Bench, job: &str) {
    let before = bench.job(job).last_generation;
    let answer = scale(bench, job, 1);
    assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
    let record = bench.job(job);
    assert_eq!(
        (record.phase, record.last_generation),
        (Phase::Running, before.next()),
        "{}",
        record.message
    );
    bench.rank_exits(job, 0, Exit::Signal(11), None);
    bench.pass(5 * SECOND);
    let record = bench.job(job);
    assert_eq!(record.last_generation, before.next().next());
    assert_ne!(record.reason, Reason::StoreBehind);
}

#[test]
fn a_stranger_s_pod_that_is_labelled_as_a_job_s_holds_nothing_up() {
    let mut bench = Bench::new(&["h1", "h2"]);
    bench.submit("two", document(1, 2, 2));
    let victim = bench.job("two").uid.clone();
    let forged = WorkerPod {
        namespace: "team-b".into(),
        ..pod("evil", &victim, "h1")
    };
    tell(&mut bench, forged.clone());
    claims(&mut bench, "evil.team-b.pod", &victim, 900);
    assert_eq!(halt_of(&bench, "evil.team-b.pod"), None);
    goes_on(&mut bench, "two");
    // Nor does it when it says so in the middle of a session, or again, or to the next coordinator.
    bench.restart_coordinator();
    ["h1", "h2"].iter().for_each(|node| bench.connect(node));
    claims(&mut bench, "evil.team-b.pod", &victim, 900);
    tell(&mut bench, forged);
    claims(&mut bench, "evil.team-b.pod", &victim, 901);
    assert_ne!(bench.job("two").reason, Reason::StoreBehind);
    let name = bench.job("two").name.clone();
    assert!(!matches!(
        bench.request(Request::Cancel { name }),
        Answer::Refused(_)
    ));
}

#[test]
fn a_job_s_own_pod_that_knows_more_holds_it_up() {
    let mut bench = Bench::new(&["h1"]);
    let uid = with_pods(&mut bench, (1, 1), &["p1"]);
    // It has not been a member yet.
    tell(&mut bench, pod("p2", &uid, "h1"));
    claims(&mut bench, "p2.default.pod", &uid, 9);
    let why = halt_of(&bench, "p2.default.pod").expect("halted, and stored");
    assert!(
        why.contains("nothing is decided about this node and its jobs"),
        "{why}"
    );
    assert_eq!(bench.job("one").reason, Reason::StoreBehind);
}

#[test]
fn a_host_that_was_never_given_a_job_is_left_alone_by_itself() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(1, 2, 2));
    assert_eq!(bench.members("digits"), ["a", "b"]);
    let uid = bench.job("digits").uid.clone();
    claims(&mut bench, "c", &uid, 900);
    let why = halt_of(&bench, "c").expect("halted, and stored");
    assert!(
        why.starts_with("it has obeyed generation 900 of default/digits, the store says 1; the store has never given it that job")
            && why.contains("--accept-store"),
        "{why}"
    );
    let held = bench.agents[&"c".into()].runs.clone();
    goes_on(&mut bench, "digits");
    assert_eq!(bench.agents[&"c".into()].runs, held, "nothing is stopped");
    assert!(!bench.members("digits").contains(&"c"));
}

#[test]
fn a_host_that_was_a_member_once_is_believed() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(1, 1, 1));
    assert_eq!(bench.members("digits"), ["a"]);
    bench.cut("a");
    bench.pass(20 * SECOND);
    bench.agents.get_mut(&"a".into()).unwrap().boot = 1;
    bench.connect("a");
    bench.pass(20 * SECOND);
    assert_eq!(bench.members("digits"), ["b"]);
    assert!(bench.job("digits").retiring.is_empty());
    let uid = bench.job("digits").uid.clone();
    claims(&mut bench, "a", &uid, 7);
    assert!(halt_of(&bench, "a").unwrap().contains("generation 7"));
    assert_eq!(bench.job("digits").reason, Reason::StoreBehind);
}

/// An old copy of the store: the job has gone from one node to another that this copy does not know as
/// a member, and the first was booted anew. Nobody is left whose word counts. The second is left alone,
/// which is said, and the job begins anew beside it.
#[test]
fn what_an_old_store_loses_is_said_and_an_operator_mends_it() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(1, 1, 1));
    assert_eq!(bench.members("digits"), ["a"]);
    let (jobs, nodes) = (bench.stored_jobs.clone(), bench.stored_nodes.clone());
    bench.cut("a");
    bench.pass(20 * SECOND);
    assert_eq!(bench.members("digits"), ["b"]);
    let ran = bench.agents[&"b".into()].runs.clone();

    (bench.stored_jobs, bench.stored_nodes) = (jobs.clone(), nodes.clone());
    bench.restart_coordinator();
    bench.agents.get_mut(&"a".into()).unwrap().boot = 1;
    ["b", "a"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    let behind = |event: &&Event| event.reason == "StoreBehind";
    let said = bench.events.iter().find(behind).expect("it is told");
    assert!(
        said.message.contains("b: it has obeyed generation 2")
            && said
                .message
                .contains("the store has never given it that job"),
        "{}",
        said.message
    );
    assert_eq!(bench.agents[&"b".into()].runs, ran, "nothing is stopped");
    assert_eq!(bench.members("digits"), ["a"]);

    // With the operator's word no number is given out twice, and only one world is left.
    (bench.stored_jobs, bench.stored_nodes) = (jobs, nodes);
    bench.agents.get_mut(&"a".into()).unwrap().runs.clear();
    bench.restart_coordinator();
    bench.fleet.policy.accept_store = true;
    ["b", "a"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation),
        (Phase::Running, Generation(3)),
        "{}",
        job.message
    );
    let lives = |run: &&RunReport| !run.phase.is_over();
    let alive = bench.agents.values().flat_map(|agent| agent.runs.values());
    assert_eq!(alive.filter(lives).count(), 1);
}

#[test]
fn the_rule_says_why() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(1, 1, 1));
    let mut job = bench.job("digits").clone();
    let own = Some(job.uid.clone());
    let other = Some(JobUid::from("another"));
    job.nodes_used.insert("b".into());
    let of = |node: &str, pod_of: &Option<JobUid>, job: Option<&JobRecord>| {
        counts(&node.into(), pod_of.as_ref(), job)
    };
    assert_eq!(of("a", &None, Some(&job)), Ok(Counts::Member));
    assert_eq!(of("b", &None, Some(&job)), Ok(Counts::WasMember));
    assert_eq!(of("c", &own, Some(&job)), Ok(Counts::OwnPod));
    assert_eq!(of("c", &other, Some(&job)), Err(Discounted::Stranger));
    assert_eq!(of("c", &None, Some(&job)), Err(Discounted::Stranger));
    assert_eq!(of("a", &own, None), Err(Discounted::NoSuchJob));
    // Whatever a pod's label says: its namespace is another.
    let forged = Arc::new(WorkerPod {
        namespace: "team-b".into(),
        ..pod("p", &job.uid, "a")
    });
    bench.fleet.pods.all.insert(forged.node(), forged.clone());
    assert_eq!(bench.fleet.owner_of(&forged.node()), None);
}
