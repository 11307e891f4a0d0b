//! Objects that cannot be written, and what people hear of it.

use super::*;

/// A coordinator beside these nodes, the first of which is [`NODE`], and their agents.
async fn with_nodes(names: &[&str], change: impl FnOnce(&mut State)) -> (Bench, Vec<FakeAgent>) {
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        names.iter().for_each(|name| state.put(name, &[]));
        change(state);
    });
    let bench = Bench::beside(cluster, tempfile::tempdir().unwrap(), CordonMode::On).await;
    let mut agents = Vec::new();
    for name in &names[1..] {
        agents.push(FakeAgent::start(&bench.server, name, &[], true).await);
    }
    (bench, agents)
}

#[tokio::test]
async fn a_missing_right_is_named_once_and_jobs_do_not_wait_for_it() {
    for (right, named) in [
        ("patch nodes", "cannot patch resource \"nodes\""),
        (
            "patch nodes/status",
            "cannot patch resource \"nodes/status\"",
        ),
    ] {
        let forbid = |state: &mut State| assert!(state.forbidden.insert(right));
        let bench = Bench::start_changed(CordonMode::On, forbid).await;
        bench.cordon("fan").await;
        let stale = |node: &v1::Node| node.conditions.iter().any(|c| c.contains(named));
        let node = bench.server.until_node(NODE, stale).await;
        assert!(node.conditions[0].contains("manifests/components/cordon"));
        bench.uncordon().await;
        bench.server.submit("works-on", spec(1)).await;
        let runs = |job: &v1::Job| phase(job) == v1::JobPhase::Running;
        bench.server.until_job("works-on", runs).await;
        bench.cluster.change(|state| state.forbidden.clear());
        bench
            .server
            .until_node(NODE, |node| node.conditions.is_empty())
            .await;
        bench.until(|object| health(object).is_some()).await;
        let count = bench.told("NodeMarksStale").await.len();
        assert_eq!((count, bench.told("NodeMarksFresh").await.len()), (1, 1));
    }
}

#[tokio::test]
async fn an_object_that_a_policy_protects_holds_up_no_other() {
    let cluster = Cluster::start().await;
    let why = "ValidatingAdmissionPolicy 'theirs' denied request: hands off";
    cluster.change(|state| {
        state.put(NODE, &[]);
        state.put("node-b", &[]);
        state.denied.insert(NODE.into(), why.into());
    });
    let bench = Bench::beside(cluster, tempfile::tempdir().unwrap(), CordonMode::On).await;
    let _other = FakeAgent::start(&bench.server, "node-b", &[], true).await;
    let is_marked = |state: &State| health(state.node("node-b")).is_some();
    bench.cluster.until(is_marked).await;
    let says = |node: &v1::Node| node.conditions.iter().any(|c| c.contains("hands off"));
    let node = bench.server.until_node("node-b", says).await;
    assert!(
        node.conditions[0].contains("node-a: "),
        "{:?}",
        node.conditions
    );
    assert!(
        bench
            .cluster
            .change(|state| health(state.node(NODE)).is_none())
    );
}

#[tokio::test]
async fn an_object_that_fails_holds_up_no_other_whatever_the_answer_says() {
    let denied = |state: &mut State| {
        let why =
            "ValidatingAdmissionPolicy 'theirs' denied request: Muster cannot change this node";
        state.denied.insert(NODE.into(), why.into());
    };
    let broken = |state: &mut State| {
        let why = "Internal error occurred: failed calling webhook \"theirs\"";
        state.broken.insert(NODE.into(), why.into());
    };
    for (is_denied, named) in [
        (true, "cannot change this node"),
        (false, "failed calling webhook"),
    ] {
        let change = |state: &mut State| {
            if is_denied {
                denied(state)
            } else {
                broken(state)
            }
        };
        let (bench, _agents) = with_nodes(&[NODE, "node-b"], change).await;
        let is_marked = |state: &State| health(state.node("node-b")).is_some();
        bench.cluster.until(is_marked).await;
        let says = |node: &v1::Node| node.conditions.iter().any(|c| c.contains(named));
        let node = bench.server.until_node("node-b", says).await;
        assert!(
            node.conditions[0].contains("node-a: "),
            "{:?}",
            node.conditions
        );
        // What is decided later is written at once.
        bench.cordon_node("node-b").await;
        let is_cordoned = |state: &State| is_cordoned(state.node("node-b"));
        bench.cluster.until(is_cordoned).await;
        assert_eq!(bench.told("NodeMarksStale").await.len(), 1);
    }
}

#[tokio::test]
async fn cordons_are_written_also_where_conditions_may_not_be() {
    let names = [NODE, "node-b", "node-c", "node-d", "node-e"];
    let forbid = |state: &mut State| assert!(state.forbidden.insert("patch nodes/status"));
    let (bench, _agents) = with_nodes(&names, forbid).await;
    for name in names {
        bench.cordon_node(name).await;
    }
    let all = |state: &State| names.iter().all(|name| is_cordoned(state.node(name)));
    bench.cluster.until(all).await;
    assert_eq!(bench.told("NodeMarksStale").await.len(), 1);
}

#[tokio::test]
async fn objects_that_are_refused_for_the_same_reason_are_counted() {
    let names = ["node-a", "node-b", "node-c", "node-d"];
    let deny = |state: &mut State| {
        for name in &names[..3] {
            let why = format!("nodes \"{name}\" is forbidden: hands off");
            state.denied.insert((*name).into(), why);
        }
    };
    let (bench, _agents) = with_nodes(&names, deny).await;
    // Two that fail before the third are told as two: a number is told again when it has doubled.
    let says = |node: &v1::Node| {
        let conditions = node.conditions.iter();
        let mut stale = conditions.filter(|c| c.starts_with("MarksStale"));
        let counted = |c: &String| (1..=2).any(|n| c.contains(&format!("node-a and {n} more: ")));
        stale.any(|c| counted(c) && c.ends_with("hands off"))
    };
    let node = bench.server.until_node("node-d", says).await;
    assert!(
        !node.conditions[0].contains("node-b"),
        "{:?}",
        node.conditions
    );
    assert_eq!(bench.told("NodeMarksStale").await.len(), 1);
}

#[tokio::test]
async fn a_server_that_fails_always_is_not_asked_about_all_objects() {
    let names: Vec<String> = (0..30).map(|number| format!("n{number:02}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.insert(0, NODE);
    let break_all = |state: &mut State| {
        for name in &names {
            state.broken.insert((*name).into(), "etcd is away".into());
        }
    };
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        break_all(state);
        // Agents are there first, so that all objects lack something at once.
        assert!(state.forbidden.insert("list"));
    });
    let bench = Bench::beside(cluster, tempfile::tempdir().unwrap(), CordonMode::On).await;
    let mut agents = Vec::new();
    for name in &names[1..] {
        agents.push(FakeAgent::start(&bench.server, name, &[], true).await);
    }
    bench.cluster.change(|state| {
        names.iter().for_each(|name| state.put(name, &[]));
        state.forbidden.clear();
    });
    let says = |node: &v1::Node| node.conditions.iter().any(|c| c.contains("etcd is away"));
    bench.server.until_node("n29", says).await;
    let patches = bench.cluster.change(|state| state.patches);
    assert!(patches < 15, "{patches}");
}

#[tokio::test]
async fn an_object_that_is_refused_is_not_tried_again_at_each_news_of_its_node() {
    let deny = |state: &mut State| drop(state.denied.insert(NODE.into(), "hands off".into()));
    let (bench, _agents) = with_nodes(&[NODE, "node-b"], deny).await;
    let says = |node: &v1::Node| node.conditions.iter().any(|c| c.contains("hands off"));
    bench.server.until_node(NODE, says).await;
    for round in 0..3 {
        let pool = round.to_string();
        bench
            .cluster
            .change(|state| state.put(NODE, &[("pool", &pool)]));
        let heard = |node: &v1::Node| node.labels.get("pool") == Some(&pool);
        bench.server.until_node(NODE, heard).await;
        // The writer has looked since.
        bench.cordon_node("node-b").await;
        let is_there = |state: &State| is_cordoned(state.node("node-b"));
        bench.cluster.until(is_there).await;
        let request = v1::UncordonRequest {
            name: "node-b".into(),
        };
        bench.server.nodes().uncordon(request).await.unwrap();
        bench.cluster.until(|state| !is_there(state)).await;
    }
    assert_eq!(bench.cluster.change(|state| state.denials), 1);
}

#[tokio::test]
async fn an_event_is_written_once_however_often_its_write_was_tried() {
    let bench = Bench::start_changed(CordonMode::On, |state| {
        let sick =
            json!({ "type": "MusterGPUHealthy", "status": "False", "reason": "R", "message": "m" });
        state.change_node(NODE, json!({ "status": { "conditions": [sick] } }));
        assert!(state.forbidden.insert("patch nodes/status"));
    })
    .await;
    bench.cluster.until(|state| state.refused >= 4).await;
    let events = |state: &mut State| -> Vec<Value> {
        state
            .events
            .iter()
            .map(|event| event["reason"].clone())
            .collect()
    };
    assert_eq!(bench.cluster.change(events), [json!(null); 0]);
    bench.cluster.change(|state| state.forbidden.clear());
    let is_well = |object: &Value| health(object).is_some_and(|h| h["status"] == json!("True"));
    bench.until(is_well).await;
    bench.cordon("fan").await;
    bench.cluster.until(|state| state.events.len() >= 2).await;
    let events = bench.cluster.change(events);
    assert_eq!(events, [json!("GPUHealthy"), json!("Cordoned")]);
}

#[tokio::test]
async fn when_nothing_is_left_to_write_no_mark_is_stale() {
    let bench = Bench::start(CordonMode::On).await;
    bench.until(|object| health(object).is_some()).await;
    let marked = |node: &v1::Node| node.conditions.is_empty();
    bench.server.until_node(NODE, marked).await;
    bench.cluster.change(|state| state.down = true);
    bench.cordon("fan").await;
    let stale = |node: &v1::Node| node.conditions.iter().any(|c| c.starts_with("MarksStale"));
    bench.server.until_node(NODE, stale).await;
    // The object carries again what it should, though nobody can be asked.
    bench.uncordon().await;
    let fresh = |node: &v1::Node| !stale(node);
    bench.server.until_node(NODE, fresh).await;
    assert_eq!(bench.told("NodeMarksFresh").await.len(), 1);
}
