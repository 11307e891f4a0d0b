//! A job's record stays small, however large the job is and however often it starts again.

use super::*;
use crate::fleet::receipt::COLLATERAL_MAX;

const NODES: usize = 48;

fn fleet() -> Bench {
    fleet_of(NODES)
}

fn fleet_of(nodes: usize) -> Bench {
    let names: Vec<String> = (0..nodes).map(|n| format!("node-{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = Bench::new(&names);
    bench.submit("digits", document(1, nodes as i64, nodes as i64));
    bench.pass(2 * SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Running);
    bench
}

/// The members of all generations of which the record has more than the name.
fn in_detail(job: &JobRecord) -> usize {
    let generations = job.unproven_generations().chain(&job.history);
    let members = generations.flat_map(|generation| generation.members.iter());
    members.filter(|member| !member.boot_id.is_empty()).count()
}

fn bytes(job: &JobRecord) -> usize {
    serde_json::to_vec(job).unwrap().len()
}

/// Each node that falls silent leaves a generation behind that is never proven dead as a whole.
#[test]
fn a_generation_that_waits_for_one_node_keeps_the_details_of_that_one() {
    let mut bench = fleet();
    for lost in 0..10 {
        bench.cut(&format!("node-{lost:02}"));
        bench.pass(15 * SECOND);
    }
    let job = bench.job("digits");
    assert_eq!((job.phase, job.retiring.len()), (Phase::Running, 10));
    // The current generation, the one unproven member of each before it, and nothing of the rest.
    assert_eq!(in_detail(job), NODES - 10 + 10);
    // A node that comes back is judged by its boot, as before.
    bench.agents.get_mut(&"node-00".into()).unwrap().boot += 1;
    bench.connect("node-00");
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").retiring.len(), 9);
    assert_eq!(bench.stored_jobs.values().next(), Some(bench.job("digits")));
}

#[test]
fn twenty_restarts_cost_a_record_little() {
    twenty_restarts(NODES);
}

/// The largest job. It takes minutes:
/// `cargo test -p muster-core --release --lib -- --ignored --nocapture twenty_restarts_of_the_largest`
#[test]
#[ignore = "a measurement"]
fn twenty_restarts_of_the_largest_job() {
    twenty_restarts(crate::spec::NODES_MAX as usize);
}

fn twenty_restarts(nodes: usize) {
    let mut bench = fleet_of(nodes);
    let first = bytes(bench.job("digits"));
    for _ in 0..20 {
        // The node's fault: it never spends the job's budget.
        bench.agents.get_mut(&"node-07".into()).unwrap().boot += 1;
        bench.cut("node-07");
        bench.connect("node-07");
        bench.pass(40 * SECOND);
    }
    let job = bench.job("digits");
    assert_eq!(job.phase, Phase::Running);
    assert!(job.last_generation.0 > 20, "{}", job.last_generation);
    let generations = job.unproven_generations().chain(&job.history);
    let known: usize = generations.map(|g| g.members.len()).sum();
    println!(
        "{nodes} nodes: {first} bytes at first, {} after {} generations; {known} members known, {} in detail",
        bytes(job),
        job.last_generation,
        in_detail(job)
    );
    assert!(in_detail(job) <= 2 * nodes, "{}", in_detail(job));
}

#[test]
fn a_receipt_names_some_of_those_that_fell_and_counts_the_rest() {
    let mut bench = fleet();
    let generation = bench.job("digits").current.clone().unwrap();
    for rank in 1..NODES as u32 {
        bench.rank_ends("digits", &generation, rank, Exit::Code(1), PEER);
    }
    bench.rank_ends("digits", &generation, 0, Exit::Signal(9), None);
    let said = |agent: &Agent| {
        let runs = agent.runs.values().cloned().collect();
        (agent.session.unwrap(), runs)
    };
    let all: Vec<_> = bench.agents.values().map(said).collect();
    for (session, runs) in all {
        bench.input(Input::Runs { session, runs });
    }
    bench.obey();
    bench.pass(SECOND);
    let job = bench.job("digits");
    let incident = job
        .incidents
        .iter()
        .find(|one| one.culprit.is_some())
        .unwrap();
    assert_eq!(incident.culprit.as_deref(), Some("rank 0 on node-00"));
    assert_eq!(incident.collateral.len(), COLLATERAL_MAX);
    assert_eq!(
        incident.collateral_more as usize,
        NODES - 1 - COLLATERAL_MAX
    );
}
