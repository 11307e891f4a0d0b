//! Histories that the world and the drills found, each reduced to what matters.

use super::*;
use crate::{
    fleet::live::AVOID,
    run::{DesiredRun, Target},
};

/// A node's agent falls silent, and its connection does not break.
fn falls_silent(bench: &mut Bench, node: &str) {
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    (agent.frozen, agent.session) = (true, None);
}

fn last_incident(bench: &Bench, job: &str) -> crate::fleet::receipt::Incident {
    bench.job(job).incidents.last().unwrap().clone()
}

/// Time passes, and this coordinator does nothing.
fn stands_still(bench: &mut Bench, time: Duration) {
    bench.now = bench.now + time;
}

#[test]
fn a_mass_loss_freezes_what_nobody_can_tell_of_and_nothing_else() {
    let names: Vec<String> = (0..10).map(|i| format!("n{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = Bench::new(&names);
    bench.submit("alone", document(2, 2, 2));
    bench.submit("half", document(2, 2, 2));
    assert_eq!(
        (bench.members("alone"), bench.members("half")),
        (vec!["n0", "n1"], vec!["n2", "n3"])
    );
    ["n0", "n1", "n2"]
        .iter()
        .for_each(|node| falls_silent(&mut bench, node));
    bench.pass(6 * SECOND);
    let job = bench.job("alone");
    assert_eq!(
        (job.phase, job.reason, job.last_generation.0),
        (Phase::Running, Reason::MassLoss, 1),
        "{}",
        job.message
    );
    assert!(
        job.message.contains("3 of 10 nodes fell silent within 1m"),
        "{}",
        job.message
    );
    assert_eq!(
        bench.job("half").last_generation.0,
        2,
        "of n3 something is known"
    );
    assert!(
        bench
            .events
            .iter()
            .any(|event| event.reason == "MassLoss" && event.warning)
    );
    let view = bench.fleet.node_view(&"n0".into()).unwrap();
    assert_eq!(
        view.conditions,
        ["MassLoss: 3 of 10 nodes fell silent within 1m"]
    );

    bench.agents.get_mut(&"n0".into()).unwrap().frozen = false;
    bench.connect("n0");
    let is_over = |bench: &Bench| {
        let mut events = bench.events.iter();
        events.any(|event| event.reason == "MassLossOver")
    };
    assert!(!is_over(&bench), "the others may come back as well");
    bench.pass(11 * SECOND);
    assert!(
        is_over(&bench),
        "2 silent nodes of 10 are too few for a mass loss"
    );
    assert_ne!(bench.job("alone").reason, Reason::MassLoss);
    assert!(
        bench
            .fleet
            .node_view(&"n1".into())
            .unwrap()
            .conditions
            .is_empty()
    );
}

#[test]
fn a_killed_runner_costs_the_job_nothing() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    let run = agent.runs.values_mut().next().unwrap();
    (run.phase, run.dead_at) = (RunPhase::Dead, Some(bench.now));
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.pass(SECOND);
    let incident = last_incident(&bench, "digits");
    assert_eq!(
        (incident.charged, incident.node),
        (Charged::Node, Some("b".into()))
    );
    assert_eq!(
        (
            bench.job("digits").phase,
            bench.job("digits").restarts.len()
        ),
        (Phase::Running, 0)
    );
}

#[test]
fn ranks_that_their_own_torchrun_ended_are_victims() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit(
        "digits",
        SpecDocument {
            proc_per_node: Some(2),
            ..document(2, 2, 2)
        },
    );
    let ends = |bench: &mut Bench, node: &str, first: (Exit, Option<&str>), ms: u64| {
        let at = bench.now - Duration::from_millis(ms);
        let agent = bench.agents.get_mut(&node.into()).unwrap();
        let run = agent.runs.values_mut().next().unwrap();
        for (rank, (exit, error)) in run.ranks.iter_mut().zip([first, (Exit::Signal(15), None)]) {
            (rank.exit, rank.first_error) = (Some(exit), error.map(str::to_owned));
            rank.exited_at = Some(at + Duration::from_millis(rank.local_rank.into()));
        }
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        bench.input(Input::Runs { session, runs });
    };
    // The culprit's report has a later time than its victim's, because it took longer to arrive.
    ends(&mut bench, "a", (Exit::Code(1), PEER), 40);
    ends(&mut bench, "b", (Exit::Signal(11), None), 20);
    bench.pass(SECOND);
    assert_eq!(
        last_incident(&bench, "digits").culprit.as_deref(),
        Some("rank 2 on b")
    );
}

#[test]
fn who_was_killed_did_not_fall_first_where_all_times_are_alike() {
    let mut bench = Bench::new(&["a"]);
    bench.submit(
        "digits",
        SpecDocument {
            proc_per_node: Some(2),
            ..document(1, 1, 1)
        },
    );
    // After a reboot all earlier times are equal to the node's clock.
    let at = bench.now;
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    let run = agent.runs.values_mut().next().unwrap();
    for (rank, exit) in run
        .ranks
        .iter_mut()
        .zip([Exit::Signal(15), Exit::Signal(11)])
    {
        (rank.exit, rank.exited_at) = (Some(exit), Some(at));
    }
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    assert_eq!(
        last_incident(&bench, "digits").culprit.as_deref(),
        Some("rank 1 on a")
    );
}

#[test]
fn victims_wait_until_who_is_silent_is_known_to_be() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    falls_silent(&mut bench, "c");
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.rank_exits("digits", 1, Exit::Code(1), PEER);
    bench.pass(2 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "somebody has not spoken since"
    );
    bench.pass(3 * SECOND);
    let incident = last_incident(&bench, "digits");
    assert_eq!(
        (
            incident.cause,
            incident.charged,
            incident.culprit.as_deref()
        ),
        (Cause::NodeLost, Charged::Node, Some("c"))
    );
    assert_eq!(bench.members("digits"), ["a", "b"]);
}

#[test]
fn a_network_that_parts_members_costs_nobody_while_the_job_gets_on() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let parts = |bench: &mut Bench| {
        bench.rank_exits("digits", 0, Exit::Code(1), PEER);
        bench.rank_exits("digits", 1, Exit::Code(1), PEER);
        bench.pass(SECOND);
        last_incident(bench, "digits")
    };
    for step in 1..5 {
        bench.step("digits", step);
        let incident = parts(&mut bench);
        assert_eq!(
            (incident.cause, incident.charged, incident.node),
            (Cause::PeersLost, Charged::Nobody, None)
        );
    }
    assert_eq!(bench.job("digits").restarts.len(), 0);
    let charged: Vec<Charged> = (0..3).map(|_| parts(&mut bench).charged).collect();
    assert_eq!(
        charged,
        [Charged::Nobody, Charged::Nobody, Charged::Job],
        "three in vain after the last step, then it pays"
    );
    bench.pass(SECOND);
    bench.step("digits", 9);
    assert_eq!(parts(&mut bench).charged, Charged::Nobody);
}

#[test]
fn last_words_lost_with_the_runner_accuse_nobody() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    let run = agent.runs.values_mut().next().unwrap();
    (run.phase, run.dead_at) = (RunPhase::Dead, Some(bench.now));
    (run.ranks[0].exit, run.ranks[0].exited_at) = (Some(Exit::Code(1)), Some(bench.now));
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    assert_eq!(last_incident(&bench, "digits").charged, Charged::Node);
}

#[test]
fn a_coordinator_that_stood_still_blames_nobody_for_giving_it_up() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 3));
    bench.connect("c");
    stands_still(&mut bench, 20 * SECOND);
    // These messages piled up: a heartbeat from before, then the end of the stream.
    let sessions: Vec<SessionId> = bench
        .agents
        .values_mut()
        .filter_map(|agent| agent.session.take())
        .collect();
    for session in sessions {
        bench.input(Input::Heartbeat { session });
        bench.input(Input::Disconnected { session });
    }
    bench.pass(2 * SECOND);
    assert!(
        bench
            .fleet
            .node_views()
            .iter()
            .all(|node| node.liveness == Liveness::Unknown)
    );
    bench.connect("b");
    bench.pass(6 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "it listens as after a start: {}",
        bench.job("digits").message
    );
    bench.connect("a");
    bench.connect("c");
    bench.pass(20 * SECOND);
    assert_eq!(
        (
            bench.job("digits").phase,
            bench.job("digits").incidents.len()
        ),
        (Phase::Running, 1)
    );
}

#[test]
fn a_coordinator_that_stood_still_waits_for_those_whose_end_it_did_not_hear() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 2, 3));
    stands_still(&mut bench, 20 * SECOND);
    bench
        .agents
        .values_mut()
        .for_each(|agent| agent.session = None);
    bench.pass(8 * SECOND);
    assert!(
        bench
            .fleet
            .node_views()
            .iter()
            .all(|node| node.liveness == Liveness::Unknown)
    );
    assert_eq!(bench.job("digits").last_generation.0, 1);
}

#[test]
fn a_start_is_not_late_because_the_coordinator_was_away() {
    let mut bench = Bench::new(&["a", "b"]);
    bench
        .agents
        .values_mut()
        .for_each(|agent| agent.frozen = true);
    bench.submit("digits", document(2, 2, 2));
    stands_still(&mut bench, 60 * SECOND);
    bench.restart_coordinator();
    bench
        .agents
        .values_mut()
        .for_each(|agent| agent.frozen = false);
    bench.connect("a");
    bench.pass(SECOND);
    bench.connect("b");
    bench.pass(SECOND);
    assert_eq!(
        (
            bench.job("digits").phase,
            bench.job("digits").last_generation.0
        ),
        (Phase::Running, 1)
    );
}

#[test]
fn a_fresh_coordinator_looks_at_jobs_whose_timers_it_lost() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("solo", document(1, 1, 1));
    bench.cut("a");
    bench.request(Request::DeleteNode { node: "a".into() });
    bench.restart_coordinator();
    assert!(
        bench.job("solo").current.is_some(),
        "the break was still being gathered"
    );
    bench.pass(SECOND);
    assert_eq!(
        (bench.job("solo").phase, bench.job("solo").reason),
        (Phase::Pending, Reason::BelowMinimum)
    );
}

#[test]
fn a_node_deleted_and_back_is_told_of_its_work() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let held = bench.agents[&"a".into()].runs.clone();
    bench.cut("a");
    bench.request(Request::DeleteNode { node: "a".into() });
    // This comes at once, so that the deletion is still being gathered.
    bench.agents.get_mut(&"a".into()).unwrap().runs = held;
    bench.connect("a");
    assert!(
        bench.fleet.nodes[&"a".into()]
            .jobs
            .contains(&bench.job("digits").uid.clone())
    );
}

#[test]
fn a_generation_that_lost_a_member_is_not_started() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    bench.submit("digits", document(2, 2, 2));
    let uid = bench.job("digits").uid.clone();
    let generation = bench
        .fleet
        .jobs
        .get_mut(&uid)
        .unwrap()
        .current
        .as_mut()
        .unwrap();
    generation.dead.insert("b".into());
    bench.agents.get_mut(&"a".into()).unwrap().frozen = false;
    bench.connect("a");
    let phases: Vec<&RunPhase> = bench.agents[&"a".into()]
        .runs
        .values()
        .map(|run| &run.phase)
        .collect();
    assert_eq!(phases, [&RunPhase::Ready]);
    assert!(!bench.job("digits").current.as_ref().unwrap().started);
}

#[test]
fn a_node_booted_anew_begins_nothing_of_a_generation_sealed_before() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.submit("digits", document(2, 2, 2));
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    (agent.frozen, agent.boot, agent.desired) = (false, 1, None);
    let session = agent.session.take().unwrap();
    bench.input(Input::Disconnected { session });
    bench.connect("b");
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "the break is still being gathered"
    );
    assert!(bench.agents[&"b".into()].runs.is_empty());
    bench.pass(SECOND);
    assert_eq!(
        (
            bench.job("digits").phase,
            bench.job("digits").last_generation.0
        ),
        (Phase::Running, 2)
    );
}

#[test]
fn what_a_node_holds_it_must_stop_whatever_was_recorded() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench
        .agents
        .values_mut()
        .for_each(|agent| agent.frozen = true);
    bench.request(Request::Cancel {
        name: bench.job("digits").name.clone(),
    });
    let uid = bench.job("digits").uid.clone();
    bench.fleet.jobs.get_mut(&uid).unwrap().retiring[0]
        .dead
        .insert("b".into());
    let agent = &bench.agents[&"b".into()];
    let (session, mut runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect::<Vec<_>>(),
    );
    runs[0].ranks[0].last_step = Some(3);
    bench.fleet.nodes.get_mut(&"b".into()).unwrap().published = None;
    let effects = bench.input(Input::Runs { session, runs });
    let told = effects.into_iter().find_map(|effect| match effect {
        Effect::SendDesired {
            session: to,
            desired,
        } if to == session => desired.runs.into_iter().next(),
        _ => None,
    });
    assert!(
        matches!(
            told,
            Some(DesiredRun {
                target: Target::Stopped { .. },
                ..
            })
        ),
        "{told:?}"
    );
}

/// Found by the drills: a receipt that lasted fifty-six years.
#[test]
fn a_failure_without_a_moment_began_when_it_was_seen() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.runs.values_mut().next().unwrap().torchrun_exit = Some(Exit::Code(2));
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    let incident = last_incident(&bench, "digits");
    assert_eq!(
        (incident.cause, incident.event_at),
        (Cause::WorkerFailed, incident.detected_at)
    );
}

/// Found with other people's programs. A restarted agent knows of a lost runner only what its
/// journal says.
#[test]
fn who_had_trained_did_not_fail_to_start_though_its_node_has_forgotten() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(SECOND);
    assert!(last_incident(&bench, "digits").launched_at.is_some());
    let agent = bench.agents.get_mut(&"b".into()).unwrap();
    let run = agent.runs.values_mut().next().unwrap();
    (run.phase, run.dead_at, run.launched_at) = (RunPhase::Dead, Some(bench.now), None);
    run.ranks.clear();
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    let incident = last_incident(&bench, "digits");
    assert_eq!(
        (incident.cause, incident.charged),
        (Cause::WorkerKilled, Charged::Node)
    );
}

/// Found by the drills. Two of three nodes were cut off and came back one after the other.
#[test]
fn who_comes_back_first_does_not_cost_the_others_their_workers() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    ["a", "b"]
        .iter()
        .for_each(|node| falls_silent(&mut bench, node));
    bench.pass(8 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "there is nothing better to go to"
    );
    for node in ["a", "b"] {
        bench.agents.get_mut(&node.into()).unwrap().frozen = false;
        bench.connect(node);
        bench.pass(2 * SECOND);
        let job = bench.job("digits");
        assert_eq!(
            (job.phase, job.last_generation.0, job.reason),
            (Phase::Running, 1, Reason::Running),
            "{node} is back: {}",
            job.message
        );
    }
    // The job waits for a node that does not come back as long as a restarted coordinator listens,
    // and no longer.
    ["a", "b"]
        .iter()
        .for_each(|node| falls_silent(&mut bench, node));
    bench.pass(8 * SECOND);
    bench.agents.get_mut(&"a".into()).unwrap().frozen = false;
    bench.connect("a");
    bench.pass(15 * SECOND);
    assert_eq!(
        (
            bench.job("digits").last_generation.0,
            bench.members("digits")
        ),
        (2, vec!["a", "c"])
    );
}

#[test]
fn a_job_grows_back_onto_a_node_that_had_refused_it_without_any_news() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.agents.get_mut(&"c".into()).unwrap().frozen = true;
    bench.submit("digits", document(2, 3, 3));
    let run = bench
        .job("digits")
        .current
        .as_ref()
        .unwrap()
        .run(&bench.job("digits").uid);
    let agent = bench.agents.get_mut(&"c".into()).unwrap();
    agent.frozen = false;
    let refused = RunReport {
        phase: RunPhase::Refused("no room in /dev/shm".into()),
        ..RunReport::preparing(run.clone(), Term(1))
    };
    agent.runs.insert(run, refused.clone());
    let session = agent.session.unwrap();
    bench.input(Input::Runs {
        session,
        runs: vec![refused],
    });
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["a", "b"]);
    bench.pass(AVOID - 2 * SECOND);
    assert_eq!(
        bench.members("digits"),
        ["a", "b"],
        "it is left alone for a while"
    );
    bench.pass(2 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "b", "c"]);
}

#[test]
fn steps_are_shown_and_decide_nothing() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.step("digits", 1);
    let (uid, agent) = (bench.job("digits").uid.clone(), &bench.agents[&"a".into()]);
    let session = agent.session.unwrap();
    let mut runs: Vec<RunReport> = agent.runs.values().cloned().collect();
    runs[0].ranks[0].last_step = Some(7);
    let effects = bench.input(Input::Runs { session, runs });
    assert_eq!(effects, [Effect::JobChanged(uid.clone())]);
    assert_eq!(bench.fleet.job_view(&uid).unwrap().last_step, Some(7));
}

/// Small seed 126293. The coordinator stores a death and then dies itself. The agent comes back
/// with another state directory.
#[test]
fn a_death_of_which_nobody_can_tell_any_more_ends_its_generation() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    bench.rank_exits("digits", 0, Exit::Signal(11), None);
    assert!(
        bench
            .stored_jobs
            .values()
            .all(|job| job.current.as_ref().is_none_or(|g| g.dead.len() == 1)),
        "the death is stored"
    );
    bench.restart_coordinator();
    bench.agents.get_mut(&"a".into()).unwrap().runs.clear();
    bench.connect("a");
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 2),
        "{}",
        job.message
    );
}
