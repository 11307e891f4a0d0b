//! Jobs whose members share nodes.

use super::{
    agent::{PORT, told},
    fences::connect_with,
    *,
};
use crate::{fleet::capacity, protocol, spec::RoleDocument};

/// The node has so many slots from now on.
fn slots(bench: &mut Bench, node: &str, slots: u32) {
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots,
        ..NodeReport::default()
    };
    let session = bench.agents[&node.into()].session.unwrap();
    bench.input(Input::Report { session, report });
    bench.obey();
}

/// Nodes with two slots each.
fn bench(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(nodes);
    nodes.iter().for_each(|node| slots(&mut bench, node, 2));
    bench
}

/// A chief and two workers of two processes each, and a parameter server.
fn document() -> SpecDocument {
    let role = |name: &str, replicas, procs| RoleDocument {
        name: name.into(),
        replicas: Some(replicas),
        proc_per_node: Some(procs),
        args: vec![format!("{name}.py")],
        service: Some(name == "ps"),
        ..RoleDocument::default()
    };
    SpecDocument {
        framework: Some("plain".into()),
        roles: vec![role("chief", 1, 1), role("worker", 2, 2), role("ps", 1, 1)],
        ..SpecDocument::default()
    }
}

/// The nodes of the current generation, with the numbers of their members.
fn seats(bench: &Bench) -> Vec<(String, Vec<u32>)> {
    let generation = bench.job("digits").current.as_ref().unwrap();
    let shares = (0..).zip(&generation.members);
    let numbers = |rank| {
        let seats = generation.members.seats(rank);
        seats.iter().map(|seat| seat.number).collect()
    };
    shares
        .map(|(rank, share)| (share.node.to_string(), numbers(rank)))
        .collect()
}

fn at(node: &str, numbers: &[u32]) -> (String, Vec<u32>) {
    (node.to_owned(), numbers.to_vec())
}

/// A rank ends, and its node's other ranks go on.
fn ends_well(bench: &mut Bench, rank: u32) {
    let job = bench.job("digits");
    let (uid, generation) = (job.uid.clone(), job.current.clone().unwrap());
    let now = bench.now;
    let node = generation.node_of(rank).unwrap().clone();
    let agent = bench.agents.get_mut(&node).unwrap();
    let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
    let report = run.ranks.iter_mut().find(|r| r.rank == rank).unwrap();
    (report.exit, report.exited_at) = (Some(Exit::Code(0)), Some(now));
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.obey();
}

#[test]
fn two_nodes_hold_four_members_and_each_knows_its_own() {
    let mut bench = bench(&["a", "b", "c"]);
    bench.submit("digits", document());
    let job = bench.job("digits");
    assert_eq!(job.phase, Phase::Running, "{}", job.message);
    assert_eq!(job.message, "world 6 on 2 nodes with 4 members");
    assert_eq!(seats(&bench), [at("a", &[0, 1]), at("b", &[2, 3])]);
    let (assignment, start) = told(&bench, "b");
    assert_eq!((assignment.node_rank, assignment.node_count), (2, 4));
    assert_eq!((assignment.proc_per_node, assignment.first_rank), (3, 3));
    assert_eq!(assignment.ranks(), [(3, 0), (4, 1), (5, 0)]);
    let each = assignment.each();
    let args: Vec<&str> = each.iter().map(|member| &*member.args[0]).collect();
    assert_eq!(args, ["worker.py", "ps.py"]);
    assert_eq!((each[1].first_rank, each[1].world_size), (5, 6));
    // Every member has a port of its own, by number.
    let ports: Vec<u16> = start.peers.iter().map(|peer| peer.port).collect();
    assert_eq!(ports, [PORT, PORT + 1, PORT, PORT + 1]);
    let view = bench.fleet.job_view(&bench.job("digits").uid).unwrap();
    let members: Vec<(&str, &str)> = view
        .members
        .iter()
        .map(|member| (member.role.as_deref().unwrap(), member.node.as_str()))
        .collect();
    let expected = [
        ("chief-0", "a"),
        ("worker-0", "a"),
        ("worker-1", "b"),
        ("ps-0", "b"),
    ];
    assert_eq!(members, expected);
    assert_eq!(view.nodes_running, 4);
}

#[test]
fn each_member_without_gpus_takes_a_slot() {
    let mut bench = bench(&["a", "b"]);
    bench.submit("digits", document());
    let free = |bench: &Bench, node: &str| {
        let fleet = &bench.fleet;
        capacity::slots_free(&fleet.nodes[&node.into()], &fleet.jobs)
    };
    assert_eq!(["a", "b"].map(|node| free(&bench, node)), [0, 0]);
    bench.submit("other", super::document(1, 1, 1));
    assert_eq!(bench.job("other").reason, Reason::BelowMinimum);
    cancel(&mut bench, "digits");
    bench.pass(SECOND);
    assert_eq!(bench.job("other").phase, Phase::Running);
}

#[test]
fn without_room_the_job_waits_and_counts_members() {
    let mut bench = bench(&["a", "b"]);
    slots(&mut bench, "b", 1);
    bench.submit("digits", document());
    let job = bench.job("digits");
    assert_eq!(job.reason, Reason::BelowMinimum);
    assert!(
        job.message.contains("3 of at least 4 members available"),
        "{}",
        job.message
    );
    slots(&mut bench, "b", 2);
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Running);
}

#[test]
fn a_job_that_asks_for_it_has_a_node_for_each_member() {
    let mut bench = bench(&["a", "b", "c", "d"]);
    let spread = SpecDocument {
        placement: Some("spread".into()),
        ..document()
    };
    bench.submit("digits", spread);
    let one_each = [at("a", &[0]), at("b", &[1]), at("c", &[2]), at("d", &[3])];
    assert_eq!(seats(&bench), one_each);
    assert_eq!(bench.job("digits").message, "world 6 on 4 nodes");
}

#[test]
fn a_job_of_nodes_shares_them_only_if_it_asks_for_it() {
    let mut bench = bench(&["a", "b", "c"]);
    bench.submit("digits", super::document(3, 3, 3));
    assert_eq!(bench.members("digits").len(), 3);
    cancel(&mut bench, "digits");
    bench.pass(SECOND);
    bench.request(Request::Delete {
        name: bench.job("digits").name.clone(),
    });
    bench.pass(SECOND);
    let pack = SpecDocument {
        placement: Some("pack".into()),
        ..super::document(3, 3, 3)
    };
    bench.submit("digits", pack);
    assert_eq!(seats(&bench), [at("a", &[0, 1]), at("b", &[2])]);
    let (assignment, _) = told(&bench, "a");
    assert_eq!((assignment.node_count, assignment.world_size), (3, 3));
}

#[test]
fn the_failed_member_is_named_and_its_node_is_to_blame_no_more_than_before() {
    let mut bench = bench(&["a", "b", "c"]);
    bench.submit("digits", document());
    bench.rank_exits("digits", 4, Exit::Code(1), None);
    bench.pass(SECOND);
    let job = bench.job("digits");
    let incident = job.incidents.last().unwrap();
    assert_eq!(incident.culprit.as_deref(), Some("rank 4 (worker-1) on b"));
    assert_eq!(incident.charged, Charged::Job);
    assert_eq!((job.phase, job.last_generation.0), (Phase::Running, 2));
    assert_eq!(
        seats(&bench),
        [at("a", &[0, 1]), at("b", &[2, 3])],
        "everybody stays"
    );
}

#[test]
fn members_of_a_lost_node_move_together_and_the_others_stay() {
    let mut bench = bench(&["a", "b", "c"]);
    bench.submit("digits", document());
    bench.cut("a");
    bench.pass(30 * SECOND);
    let job = bench.job("digits");
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeLost);
    // The worker that stays is the first now, and the parameter server is beside it as before.
    assert_eq!(seats(&bench), [at("c", &[0, 2]), at("b", &[1, 3])]);
}

#[test]
fn the_job_is_over_when_only_services_run_also_beside_a_worker() {
    let mut bench = bench(&["a", "b"]);
    bench.submit("digits", document());
    for rank in [0, 1, 2, 3] {
        ends_well(&mut bench, rank);
    }
    bench.pass(SECOND);
    assert_eq!(
        bench.job("digits").phase,
        Phase::Running,
        "rank 4 still runs"
    );
    ends_well(&mut bench, 4);
    bench.pass(10 * SECOND);
    let job = bench.job("digits");
    assert_eq!(job.phase, Phase::Succeeded, "{}", job.message);
    assert!(
        job.unproven_generations().next().is_none(),
        "the service was stopped"
    );
}

#[test]
fn one_members_success_decides_although_its_node_goes_on() {
    let mut bench = bench(&["a", "b"]);
    let rule = crate::spec::RuleDocument {
        when: "success".into(),
        of: Some("first".into()),
        then: "succeed".into(),
        ..Default::default()
    };
    bench.submit(
        "digits",
        SpecDocument {
            rules: vec![rule],
            ..document()
        },
    );
    ends_well(&mut bench, 1);
    ends_well(&mut bench, 2);
    assert!(
        bench.job("digits").current.as_ref().unwrap().won.is_none(),
        "worker-0 is not first"
    );
    ends_well(&mut bench, 0);
    let job = bench.job("digits");
    let won = job.current.as_ref().unwrap().won.as_ref().unwrap();
    assert_eq!((won.node.as_str(), won.number), ("a", Some(0)));
    assert!(
        job.message.starts_with("all ranks of chief-0 on a ended"),
        "{}",
        job.message
    );
    bench.pass(60 * SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Succeeded);
}

#[test]
fn an_agent_of_the_version_before_gets_one_member() {
    let mut bench = Bench::new(&[]);
    let before = protocol::Speaks {
        oldest: protocol::SHARED - 1,
        newest: protocol::SHARED - 1,
    };
    let effects = connect_with(&mut bench, "a", before);
    assert!(
        matches!(&effects[..], [Effect::Welcome { protocol: 4, .. }, ..]),
        "{effects:?}"
    );
    bench.connect("b");
    ["a", "b"]
        .iter()
        .for_each(|node| slots(&mut bench, node, 3));
    bench.submit("digits", document());
    assert_eq!(seats(&bench), [at("b", &[0, 1, 2]), at("a", &[3])]);
    // It is told of one member of four, because it knows no shares.
    let (assignment, _) = told(&bench, "a");
    assert!(assignment.members.is_empty());
    assert_eq!((assignment.node_rank, assignment.node_count), (3, 4));
    bench.submit(
        "other",
        SpecDocument {
            placement: Some("pack".into()),
            ..super::document(3, 3, 3)
        },
    );
    let said = "a has an agent that holds one member of a job only: upgrade it";
    let message = &bench.job("other").message;
    assert!(message.contains(said), "{message}");
}

#[test]
fn a_job_of_an_older_coordinator_keeps_its_meaning() {
    // Before members could share nodes, nothing was said of it.
    let mut bench = bench(&["a", "b"]);
    bench.submit("digits", super::document(2, 2, 2));
    let mut record = serde_json::to_value(bench.job("digits")).unwrap();
    record["spec"].as_object_mut().unwrap().remove("placement");
    let record: JobRecord = serde_json::from_value(record).unwrap();
    assert_eq!(record.spec.placement, None);
    assert!(!record.spec.packs());
    assert_eq!(record.spec.differences(&bench.job("digits").spec), [""; 0]);
    assert_eq!(record.current.unwrap().size(), 2);
}
