//! Lives of jobs, and what their operators would say.

use super::{conditions::Condition, *};

const SECOND: u64 = 1_000_000;
/// 2026-11-24T22:00:00Z.
const BEGAN: u64 = 1_795_557_600 * SECOND;

fn after(seconds: u64) -> Option<Timestamp> {
    Some(Timestamp(BEGAN + seconds * SECOND))
}

fn origin(kind: &str) -> Origin {
    let api_version = match kind {
        "ElasticJob" => "elastic.pytorch.org/v1alpha1",
        "AITrainingJob" => "kongming.cce.baiudbce.com/v1",
        "TrainJob" => "trainer.kubeflow.org/v1alpha1",
        _ => "kubeflow.org/v1",
    };
    Origin {
        api_version: api_version.into(),
        kind: kind.into(),
        groups: Vec::new(),
    }
}

fn life<'a>(origin: &'a Origin, happened: &[(u64, What)]) -> Life<'a> {
    let member = |group: &str| Member {
        group: group.into(),
        state: MemberState::Active,
    };
    Life {
        origin,
        namespace: "team",
        name: "story",
        created: Timestamp(BEGAN),
        elastic: false,
        happened: happened
            .iter()
            .map(|(seconds, what)| Happened {
                at: after(*seconds),
                what: what.clone(),
            })
            .collect(),
        stops: false,
        members: vec![member("master"), member("worker"), member("worker")],
        restarts: 0,
        message: "",
        finished: None,
    }
}

fn failed(group: &str) -> What {
    What::Failed {
        group: Some(group.into()),
    }
}

fn kubeflows(life: &Life<'_>) -> kubeflow::Status {
    match status(life).unwrap() {
        Status::Kubeflow(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Each condition in a line: type, status, reason, transition after so many seconds, message.
fn lines(life: &Life<'_>) -> Vec<String> {
    let status = kubeflows(life);
    let line = |condition: &Condition| {
        let seconds = condition
            .last_transition_time
            .as_deref()
            .map_or("?".to_owned(), |at| {
                let at = Timestamp::from_rfc3339(at).unwrap();
                (at.since(Timestamp(BEGAN)).as_secs()).to_string()
            });
        format!(
            "{}={} {} at {seconds}: {}",
            condition.kind.name(),
            condition.status,
            condition.reason,
            condition.message
        )
    };
    status.conditions.iter().map(line).collect()
}

#[test]
fn a_job_that_restarted_runs_again_and_succeeds() {
    let origin = origin("PyTorchJob");
    let mut told = vec![(3, What::Runs), (60, failed("worker"))];
    let created = "Created=True PyTorchJobCreated at 0: PyTorchJob story is created.";
    assert_eq!(
        lines(&life(&origin, &told)),
        [
            created,
            "Restarting=True PyTorchJobRestarting at 60: PyTorchJob story is restarting because 1 Worker replica(s) failed.",
        ]
    );
    told.push((64, What::Runs));
    assert_eq!(
        lines(&life(&origin, &told)),
        [
            created,
            "Running=True PyTorchJobRunning at 64: PyTorchJob story is running.",
        ]
    );
    told.push((90, What::Succeeded));
    assert_eq!(
        lines(&life(&origin, &told)),
        [
            created,
            "Running=False PyTorchJobRunning at 64: PyTorchJob story is running.",
            "Succeeded=True PyTorchJobSucceeded at 90: PyTorchJob story is successfully completed.",
        ]
    );
}

#[test]
fn each_kind_names_the_job_in_its_own_way() {
    let last = |kind: &str, what: What| {
        let origin = origin(kind);
        let mut life = life(&origin, &[(1, what)]);
        life.members.remove(0);
        lines(&life)
            .pop()
            .unwrap()
            .split_once(": ")
            .unwrap()
            .1
            .to_owned()
    };
    assert_eq!(
        last("PyTorchJob", What::Runs),
        "PyTorchJob team/story is running."
    );
    assert_eq!(
        last("ElasticJob", What::Runs),
        "ElasticJob story is running."
    );
    assert_eq!(
        last("TFJob", What::Succeeded),
        "TFJob team/story successfully completed."
    );
    let gone = What::Ended(End::Failure {
        group: Some("ps".into()),
    });
    assert_eq!(
        last("TFJob", gone.clone()),
        "TFJob team/story has failed because 1 PS replica(s) failed."
    );
    assert_eq!(
        last("JAXJob", gone.clone()),
        "JAXJob story is failed because 1 PS replica(s) failed."
    );
    assert_eq!(last("MPIJob", gone), "MPIJob team/story has failed");
}

#[test]
fn a_lost_node_restarts_a_fixed_job_and_not_an_elastic_one() {
    let origin = origin("PyTorchJob");
    let told = [(3, What::Runs), (60, What::Moved)];
    let mut life = life(&origin, &told);
    assert_eq!(status(&life).unwrap().state(), "Restarting");
    life.elastic = true;
    assert_eq!(status(&life).unwrap().state(), "Running");
    let waits = What::Waits {
        message: "1 of at least 2 nodes available".into(),
    };
    life.happened.push(Happened {
        at: None,
        what: waits,
    });
    assert_eq!(
        lines(&life).pop().unwrap(),
        "Restarting=True PyTorchJobRestarting at ?: 1 of at least 2 nodes available"
    );
}

#[test]
fn the_operator_of_v2beta1_does_not_say_restarting() {
    let mut origin = origin("MPIJob");
    let told = [(3, What::Runs), (60, failed("launcher"))];
    assert_eq!(status(&life(&origin, &told)).unwrap().state(), "Restarting");
    origin.api_version = "kubeflow.org/v2beta1".into();
    assert_eq!(status(&life(&origin, &told)).unwrap().state(), "Running");
}

/// Sources: mpi-operator, `pkg/controller/mpi_job_controller.go`, and the Job controller of Kubernetes,
/// whose reasons it passes on.
#[test]
fn the_operator_of_v2beta1_has_words_of_its_own() {
    let origin = Origin {
        api_version: "kubeflow.org/v2beta1".into(),
        ..origin("MPIJob")
    };
    let mut told = vec![(3, What::Runs), (60, What::Suspended)];
    assert_eq!(
        lines(&life(&origin, &told)),
        [
            "Created=True MPIJobCreated at 0: MPIJob team/story is created.",
            "Running=False MPIJobSuspended at 60: MPIJob team/story is suspended.",
            "Suspended=True MPIJobSuspended at 60: MPIJob suspended",
        ]
    );
    told.push((70, What::Resumed));
    let ends = [
        (
            End::Restarts,
            "BackoffLimitExceeded at 80: Job has reached the specified backoff limit",
        ),
        (
            End::Deadline,
            "DeadlineExceeded at 80: Job was active longer than specified deadline",
        ),
        (
            End::Failure { group: None },
            "MPIJobFailed at 80: MPIJob team/story has failed",
        ),
    ];
    for (end, words) in ends {
        let mut told = told.clone();
        told.push((80, What::Ended(end)));
        let lines = lines(&life(&origin, &told));
        assert_eq!(
            lines[2..],
            [
                "Suspended=False MPIJobResumed at 70: MPIJob resumed".to_owned(),
                format!("Failed=True {words}"),
            ]
        );
    }
}

#[test]
fn a_suspended_job_shows_both() {
    let origin = origin("TFJob");
    let mut told = vec![(3, What::Runs), (60, What::Suspended)];
    assert_eq!(
        lines(&life(&origin, &told))[1..],
        [
            "Running=False TFJobSuspended at 60: TFJob story is suspended.",
            "Suspended=True TFJobSuspended at 60: TFJob story is suspended.",
        ]
    );
    told.push((99, What::Resumed));
    let resumed = life(&origin, &told);
    assert_eq!(
        kubeflows(&resumed).start_time,
        Some("2026-11-24T22:01:39Z".into())
    );
    assert_eq!(
        lines(&resumed).pop().unwrap(),
        "Suspended=False TFJobResumed at 99: TFJob story is resumed."
    );
}

#[test]
fn nothing_follows_a_failure() {
    let origin = origin("XGBoostJob");
    let told = [
        (3, What::Runs),
        (60, What::Ended(End::Restarts)),
        (70, What::Runs),
    ];
    assert_eq!(
        lines(&life(&origin, &told))[1..],
        [
            "Running=False XGBoostJobRunning at 3: XGBoostJob story is running.",
            "Failed=True XGBoostJobFailed at 60: Job story has failed because it has reached the specified backoff limit",
        ]
    );
    let cancelled = life(&origin, &[(60, What::Ended(End::Cancelled))]);
    assert_eq!(
        lines(&cancelled).pop().unwrap(),
        "Failed=True Cancelled at 60: XGBoostJob story was cancelled."
    );
}

#[test]
fn the_document_is_as_upstream_writes_it() {
    let origin = origin("PyTorchJob");
    let mut life = life(&origin, &[(3, What::Runs), (9, What::Succeeded)]);
    life.finished = after(9);
    life.members[0].state = MemberState::Succeeded;
    life.members[2].state = MemberState::Failed;
    let text = serde_saphyr::to_string(&status(&life).unwrap()).unwrap();
    let expected = r#"conditions:
- type: Created
  status: "True"
  reason: PyTorchJobCreated
  message: PyTorchJob story is created.
  lastUpdateTime: "2026-11-24T22:00:00Z"
  lastTransitionTime: "2026-11-24T22:00:00Z"
- type: Running
  status: "False"
  reason: PyTorchJobRunning
  message: PyTorchJob story is running.
  lastUpdateTime: "2026-11-24T22:00:03Z"
  lastTransitionTime: "2026-11-24T22:00:03Z"
- type: Succeeded
  status: "True"
  reason: PyTorchJobSucceeded
  message: PyTorchJob story is successfully completed.
  lastUpdateTime: "2026-11-24T22:00:09Z"
  lastTransitionTime: "2026-11-24T22:00:09Z"
startTime: "2026-11-24T22:00:00Z"
completionTime: "2026-11-24T22:00:09Z"
replicaStatuses:
  Master:
    succeeded: 1
  Worker:
    active: 1
    failed: 1
"#;
    assert_eq!(text, expected);
}

#[test]
fn kinds_have_the_names_that_kubectl_takes() {
    let pytorch = shown("PyTorchJob", "kubeflow.org/v1").unwrap();
    for word in [
        "pytorchjob",
        "pytorchjobs",
        "PyTorchJob",
        "pytorchjobs.kubeflow.org",
    ] {
        assert!(pytorch.is_called(word), "{word}");
    }
    for word in ["pytorch", "pytorchjobs.example.org", "tfjobs", "jobs"] {
        assert!(!pytorch.is_called(word), "{word}");
    }
    let baidu = shown("AITrainingJob", "kongming.cce.baiudbce.com/v1").unwrap();
    assert!(baidu.is_called("aitj") && baidu.is_called("aitrainingjobs"));
    assert!(!baidu.is_called("aitrainingjobs.elasticdeeplearning.ai"));
    let trainer = shown("TrainJob", "trainer.kubeflow.org/v1alpha1").unwrap();
    assert!(trainer.is_called("trainjob") && !trainer.is_called("aitj"));
    assert_eq!(shown("ElasticJob", "elastic.iml.github.io/v1alpha1"), None);
    assert_eq!(shown("MusterJob", "muster.dev/v1alpha1"), None);
}

/// Each phase of an AITrainingJob in a line: type, status, reason, the second of its begin, message.
fn phases(life: &Life<'_>) -> Vec<String> {
    let Some(Status::AiTraining(status)) = status(life) else {
        panic!("it is no AITrainingJob: {:?}", life.origin);
    };
    let newest = status.conditions.last().map(|newest| newest.kind);
    assert_eq!(newest, Some(status.phase));
    let line = |phase: &ai_training::Condition| {
        let at = phase.last_transition_time.as_deref();
        let second = at.map_or("?", |at| at[17..19].trim_start_matches('0'));
        let (kind, status, reason) = (phase.kind, phase.status, &phase.reason);
        format!("{kind}={status} {reason} at {second}: {}", phase.message)
    };
    status.conditions.iter().map(line).collect()
}

/// Source: trainingjob-operator, `pkg/controller/status.go`.
#[test]
fn an_ai_training_job_keeps_its_history() {
    let origin = origin("AITrainingJob");
    let starts = What::Starts {
        pods: vec!["story-x".into()],
    };
    let mut told = vec![
        (1, starts),
        (3, What::Runs),
        (40, failed("trainer")),
        (44, What::Runs),
        (50, What::Moved),
        (50, failed("trainer")),
    ];
    let past = [
        "Pending=False TrainingJobPending at : all pods are waiting for scheduling",
        "Creating=False TrainingJobCreating at 1: pods [story-x] creating containers",
        "Running=False TrainingJobRunning at 3: all pods are running",
        "Restarting=False TrainingJobRestarting at 40: All pods are restarting now",
        "Running=False TrainingJobRunning at 44: all pods are running",
    ];
    let ends = [
        (
            What::Failed { group: None },
            "Restarting=True TrainingJobRestarting at 50: All pods are restarting now",
        ),
        (
            What::Succeeded,
            "Succeed=True TrainingJobSucceed at 55: job story completed",
        ),
        (
            What::Ended(End::Restarts),
            "Failed=True TrainingJobFailed at 55: exit code 3",
        ),
        (
            What::Ended(End::Deadline),
            "Timeout=True TrainingJobTimeout at 55: exit code 3",
        ),
        (
            What::Ended(End::Cancelled),
            "Failed=True TrainingJobFailed at 55: job story was cancelled",
        ),
    ];
    for (what, newest) in ends {
        told.truncate(6);
        told.push((55, what));
        // Nothing follows an end.
        told.push((56, What::Failed { group: None }));
        let mut life = life(&origin, &told);
        life.message = "exit code 3";
        let lines = phases(&life);
        assert_eq!(lines[..5], past);
        let restarted = "Restarting=False TrainingJobRestarting at 50: All pods are restarting now";
        match newest.starts_with("Restarting") {
            true => assert_eq!(lines[5..], [newest]),
            false => assert_eq!(lines[5..], [restarted, newest]),
        }
    }
    let told = [(3, What::Runs), (5, What::Scaled), (7, What::Runs)];
    assert_eq!(
        phases(&life(&origin, &told[..2])).pop().unwrap(),
        "Scaling=True TrainingJobScaling at 5: job story is scaling"
    );
    assert_eq!(
        phases(&life(&origin, &told)).pop().unwrap(),
        "Running=True TrainingJobRunning at 7: all pods are running"
    );
    let told = [(3, What::Runs), (8, What::Suspended), (9, What::Resumed)];
    assert_eq!(
        phases(&life(&origin, &told[..2])).pop().unwrap(),
        "Pending=True TrainingJobPending at 8: job story is suspended"
    );
    assert_eq!(
        phases(&life(&origin, &told)).pop().unwrap(),
        "Pending=True TrainingJobPending at 8: all pods are waiting for scheduling"
    );
}

#[test]
fn the_document_of_an_ai_training_job_is_as_upstream_writes_it() {
    let origin = origin("AITrainingJob");
    let mut life = life(&origin, &[(3, What::Runs), (9, What::Succeeded)]);
    life.finished = after(9);
    life.restarts = 2;
    life.members.truncate(2);
    for (member, state) in life
        .members
        .iter_mut()
        .zip([MemberState::Waiting, MemberState::Succeeded])
    {
        (member.group, member.state) = ("trainer".into(), state);
    }
    let text = serde_saphyr::to_string(&status(&life).unwrap()).unwrap();
    let expected = r#"phase: Succeed
conditions:
- type: Pending
  status: "False"
  reason: TrainingJobPending
  message: all pods are waiting for scheduling
  lastProbeTime: "2026-11-24T22:00:00Z"
  lastTransitionTime: "2026-11-24T22:00:00Z"
- type: Running
  status: "False"
  reason: TrainingJobRunning
  message: all pods are running
  lastProbeTime: "2026-11-24T22:00:03Z"
  lastTransitionTime: "2026-11-24T22:00:03Z"
- type: Succeed
  status: "True"
  reason: TrainingJobSucceed
  message: job story completed
  lastProbeTime: "2026-11-24T22:00:09Z"
  lastTransitionTime: "2026-11-24T22:00:09Z"
replicaStatuses:
  trainer:
    succeeded: 1
    restarting: 1
RestartCount:
  trainer: 2
startTime: "2026-11-24T22:00:00Z"
startRunningTime: "2026-11-24T22:00:03Z"
endTime: "2026-11-24T22:00:09Z"
"#;
    assert_eq!(text, expected);
}

#[test]
fn an_ai_training_job_counts_the_replicas_of_each_role() {
    let origin = origin("AITrainingJob");
    let mut life = life(&origin, &[(3, What::Runs)]);
    for (member, role) in life
        .members
        .iter_mut()
        .zip(["launcher", "trainer", "trainer"])
    {
        member.group = role.into();
    }
    life.restarts = 2;
    let text = serde_saphyr::to_string(&status(&life).unwrap()).unwrap();
    let roles = "replicaStatuses:\n  launcher:\n    active: 1\n  trainer:\n    active: 2\n\
                 RestartCount:\n  launcher: 2\n  trainer: 2\n";
    assert!(text.contains(roles), "{text}");
}

/// Sources: kubeflow/trainer, `pkg/controller/trainjob_controller.go`; kubernetes-sigs/jobset, `pkg/constants`.
#[test]
fn a_train_job_says_whether_it_is_held_back_or_over() {
    let origin = origin("TrainJob");
    let told = |told: &[(u64, What)], state: MemberState| {
        let mut life = life(&origin, told);
        for member in &mut life.members {
            (member.group, member.state) = ("node".into(), state);
        }
        let is_end = |what: &What| matches!(what, What::Succeeded | What::Ended(_));
        let last = told.last().filter(|(_, what)| is_end(what));
        life.finished = last.and_then(|(second, _)| after(*second));
        serde_saphyr::to_string(&status(&life).unwrap()).unwrap()
    };
    let job = |numbers: [u32; 5]| {
        let [ready, succeeded, failed, active, suspended] = numbers;
        format!(
            "jobsStatus:\n- name: node\n  ready: {ready}\n  succeeded: {succeeded}\n  failed: {failed}\n  active: {active}\n  suspended: {suspended}\n"
        )
    };
    let condition = |kind: &str, status: &str, reason: &str, message: &str, second: u64| {
        let at = after(second).unwrap().rfc3339_seconds();
        format!(
            "- type: {kind}\n  status: \"{status}\"\n  reason: {reason}\n  message: {message}\n  lastTransitionTime: \"{at}\"\n"
        )
    };
    assert_eq!(
        told(&[], MemberState::Waiting),
        job([0, 0, 0, 1, 0]),
        "there is no word for a job that waits"
    );
    let mut story = vec![(3, What::Runs), (6, failed("node")), (8, What::Runs)];
    assert_eq!(told(&story, MemberState::Active), job([1, 0, 0, 1, 0]));
    story.push((9, What::Suspended));
    let held = condition("Suspended", "True", "Suspended", "TrainJob is suspended", 9);
    assert_eq!(
        told(&story, MemberState::Waiting),
        format!("conditions:\n{held}{}", job([0, 0, 0, 0, 1]))
    );
    let stops = {
        let mut life = life(&origin, &story);
        life.members[0].group = "node".into();
        life.stops = true;
        serde_saphyr::to_string(&status(&life).unwrap()).unwrap()
    };
    assert_eq!(
        stops,
        format!("conditions:\n{held}{}", job([0, 0, 0, 1, 1])),
        "its workers have their grace"
    );
    story.push((12, What::Resumed));
    let resumed = condition("Suspended", "False", "Resumed", "TrainJob is resumed", 12);
    let ends = [
        (
            What::Succeeded,
            "Complete AllJobsCompleted jobset completed successfully",
            [0, 1, 0, 0, 0],
        ),
        (
            What::Ended(End::Restarts),
            "Failed FailedJobs \"jobset failed due to one or more job failures (first failed job: story-node-0)\"",
            [0, 0, 1, 0, 0],
        ),
        (
            What::Ended(End::Deadline),
            "Failed DeadlineExceeded TrainJob exceeded its active deadline",
            [0, 0, 1, 0, 0],
        ),
    ];
    for (what, words, numbers) in ends {
        let mut story = story.clone();
        story.push((20, what));
        let mut words = words.splitn(3, ' ');
        let (kind, reason) = (words.next().unwrap(), words.next().unwrap());
        let end = condition(kind, "True", reason, words.next().unwrap(), 20);
        assert_eq!(
            told(&story, MemberState::Stopped),
            format!("conditions:\n{resumed}{end}{}", job(numbers))
        );
    }
}
