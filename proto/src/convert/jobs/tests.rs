use std::time::Duration;

use muster_core::{
    fleet::receipt::{Cause, Charged, Incident},
    id::{Generation, JobUid, NodeName},
    spec::{
        Affinity, After, AfterCondition, AfterDocument, EnvVar, Framework, GpusSaid, Inspect,
        Launch, Lifetime, Multiple, NodeMix, OnSlowRank, OnStall, Origin, Placing, Preemption,
        RestartPolicy, RestartScope, Role, RoleDocument, RuleDocument, Selection, Standbys,
        StartWhen, Toleration,
        selection::{Expression, NodeAffinity, NodeSelectorTerms, Preferred, Term},
    },
};
use proptest::{collection::vec, option, prelude::*};
use prost::Message;

use super::*;

fn spec_documents() -> impl Strategy<Value = SpecDocument> {
    let numbers = (
        option::of(any::<i64>()),
        option::of(any::<i64>()),
        option::of(any::<i64>()),
        option::of(any::<i64>()),
        option::of(any::<i64>()),
        option::of(any::<i64>()),
    );
    let lists = (
        vec(".{0,8}", 0..4),
        vec(".{0,8}", 0..4),
        vec((".{0,8}", ".{0,8}"), 0..4),
    );
    let texts = (
        option::of(".{0,8}"),
        option::of(".{0,8}"),
        option::of(".{0,8}"),
        option::of(".{0,8}"),
        option::of(".{0,8}"),
        option::of(".{0,8}"),
        option::of(".{0,8}"),
    );
    let policy = option::of((option::of(any::<i64>()), option::of(".{0,8}")));
    (numbers, lists, texts, policy).prop_map(|(n, (command, args, env), t, policy)| SpecDocument {
        replicas: n.0,
        min_replicas: n.1,
        max_replicas: n.2,
        multiple_of: n.5,
        proc_per_node: n.3,
        gpus_per_node: n.4,
        priority: n.5,
        command,
        args,
        env: env
            .into_iter()
            .map(|(name, value)| EnvVar {
                name,
                value,
                value_from: None,
            })
            .collect(),
        working_dir: t.0.clone(),
        image: t.0.clone(),
        stop_grace_period: t.1.clone(),
        scale_up_cooldown: t.2.clone(),
        fence_after: t.2,
        progress: t.3,
        launch: t.4.clone(),
        standbys: t.4.clone(),
        inspect: t.4.clone(),
        on_stall: t.4.clone(),
        on_slow_rank: t.4.clone(),
        preemption: t.4.clone(),
        queue: t.4.clone(),
        stall_after: t.4,
        checkpoint_pattern: t.5.clone(),
        step_pattern: t.5,
        node_mix: t.6.clone(),
        placement: t.6.clone(),
        node_selector: t
            .6
            .iter()
            .map(|text| (text.clone(), text.clone()))
            .collect(),
        affinity: n
            .3
            .map(|weight| affinity_of(weight, t.6.as_deref().unwrap_or("In"))),
        node_list: t.6.iter().cloned().collect(),
        exclude_nodes: t.6.iter().cloned().collect(),
        required_topology: t.6.clone(),
        preferred_topology: t.6.iter().cloned().collect(),
        tolerations: t.6.iter().map(|text| Toleration::read(text)).collect(),
        after: t
            .6
            .iter()
            .map(|text| AfterDocument {
                job: text.clone(),
                condition: t.0.clone(),
            })
            .collect(),
        start_after: t.6.clone(),
        notify: t
            .6
            .iter()
            .map(|text| notify::tests::document(text))
            .collect(),
        rules: lists_of_rules(&policy, t.6, n.5),
        suspend: n.5.map(|n| n > 0),
        active_deadline_seconds: n.0,
        start_deadline_seconds: n.1,
        ttl_seconds_after_finished: n.2,
        restart_policy: policy.map(|(max_restarts, window)| RestartPolicyDocument {
            max_restarts,
            window,
            max_same_failures: None,
        }),
        framework: t.0.clone(),
        roles: n
            .0
            .map(|_| role_document_of(n.1, t.1))
            .into_iter()
            .collect(),
        origin: n.5.map(|_| origin_of("PyTorchJob")),
    })
}

fn affinity_of(weight: i64, operator: &str) -> Affinity {
    let term = |key: &str| Term {
        match_expressions: vec![Expression {
            key: key.into(),
            operator: operator.into(),
            values: vec!["a".into(), "b".into()],
        }],
        match_fields: vec![Expression {
            key: "metadata.name".into(),
            operator: "In".into(),
            values: vec!["n1".into()],
        }],
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required: Some(NodeSelectorTerms {
                node_selector_terms: vec![term("zone"), term("rack")],
            }),
            preferred: vec![Preferred {
                weight,
                preference: term("pool"),
            }],
        }),
    }
}

fn origin_of(kind: &str) -> Origin {
    Origin {
        api_version: "kubeflow.org/v1".into(),
        kind: kind.into(),
        groups: vec!["master".into(), "worker".into()],
    }
}

/// Rules with any text in them.
fn lists_of_rules(
    policy: &Option<(Option<i64>, Option<String>)>,
    text: Option<String>,
    limit: Option<i64>,
) -> Vec<RuleDocument> {
    let rule = |(_, within): &(Option<i64>, Option<String>)| RuleDocument {
        when: text.clone().unwrap_or_default(),
        role: within.clone(),
        codes: text.clone(),
        signals: text.iter().cloned().collect(),
        of: within.clone(),
        then: "restart".into(),
        limit,
        within: within.clone(),
    };
    policy.iter().map(rule).collect()
}

/// Rules as core's check lets them through.
fn checked_rules() -> Vec<Rule> {
    let lines = [
        "exit codes 1-100,130: restart, at most 3 in 1h",
        "signal SIGUSR1, 64: restart",
        "success of first: succeed",
        "evicted: ignore",
    ];
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: "j".into(),
            namespace: None,
        },
        spec: SpecDocument {
            args: vec!["train.py".into()],
            rules: lines
                .iter()
                .map(|line| RuleDocument::read(line).unwrap())
                .collect(),
            ..SpecDocument::default()
        },
    };
    document.check().unwrap().1.rules
}

fn role_document_of(number: Option<i64>, text: Option<String>) -> RoleDocument {
    RoleDocument {
        name: text.clone().unwrap_or_default(),
        replicas: number,
        min_replicas: number,
        max_replicas: number,
        multiple_of: number,
        proc_per_node: number,
        gpus_per_node: number,
        command: text.clone().into_iter().collect(),
        args: text.clone().into_iter().collect(),
        env: Vec::new(),
        working_dir: text.clone(),
        service: number.map(|number| number > 0),
        restart_scope: text,
    }
}

/// The same job with a role of one node before the others.
fn with_roles(spec: JobSpec) -> JobSpec {
    let role = |name: &str, sizes: (u32, u32, u32), service| Role {
        name: name.into(),
        replicas: sizes.0,
        min_replicas: sizes.1,
        max_replicas: sizes.2,
        multiple_of: if service {
            Multiple::default()
        } else {
            spec.multiple_of
        },
        proc_per_node: spec.proc_per_node,
        gpus_per_node: spec.gpus_per_node,
        command: spec.command.clone(),
        args: spec.args.clone(),
        env: spec.env.clone(),
        working_dir: spec.working_dir.clone(),
        service,
        restart_scope: match spec.proc_per_node {
            1 => RestartScope::Member,
            _ => RestartScope::Job,
        },
    };
    let sizes = (spec.replicas, spec.min_replicas, spec.max_replicas);
    JobSpec {
        roles: vec![role("first", (1, 1, 1), true), role("rest", sizes, false)],
        replicas: sizes.0 + 1,
        min_replicas: sizes.1 + 1,
        max_replicas: sizes.2 + 1,
        multiple_of: Multiple::default(),
        launch: Launch::Auto,
        standbys: Standbys::Auto,
        inspect: Inspect::Stacks,
        on_stall: OnStall::Restart,
        on_slow_rank: OnSlowRank::Report,
        stall_after: None,
        framework: Framework::Plain,
        // Roles have the names of the members.
        origin: None,
        ..spec
    }
}

/// Specs as core's check lets them through.
fn checked_specs() -> impl Strategy<Value = JobSpec> {
    let sizes = (
        1_u32..8,
        0_u32..8,
        0_u32..8,
        1_u32..16,
        0_u32..8,
        -1_000..1_000_i32,
        1_u32..5,
    );
    let texts = (
        vec("[a-z]{1,8}", 1..3),
        vec("[a-z]{1,8}", 1..3),
        vec("[a-z]{0,8}", 0..4),
        option::of("/[a-z]{0,8}"),
    );
    let rest = (
        0_u32..10,
        1_u64..100_000,
        0_u64..300_000,
        0_u64..100_000,
        any::<bool>(),
        option::of(Just("step (.*)".to_owned())),
    );
    (sizes, texts, rest).prop_map(
        |(
            (min, more, most, procs, gpus, priority, multiple),
            (command, args, values, dir),
            rest,
        )| JobSpec {
            replicas: (min + more) * multiple,
            min_replicas: min * multiple,
            max_replicas: (min + more + most) * multiple,
            multiple_of: Multiple::of(multiple),
            proc_per_node: procs,
            gpus_per_node: gpus,
            gpus: Some(GpusSaid::ByJob),
            command,
            args,
            env: values
                .into_iter()
                .enumerate()
                .map(|(i, value)| EnvVar {
                    value_from: None,
                    name: format!("V{i}"),
                    value,
                })
                .collect(),
            image: dir.clone(),
            working_dir: dir,
            priority,
            restart_policy: RestartPolicy {
                max_restarts: rest.0,
                window: Duration::from_secs(rest.1),
                max_same_failures: 5,
            },
            stop_grace_period: Duration::from_millis(rest.2),
            scale_up_cooldown: rest.4.then(|| Duration::from_millis(rest.3)),
            fence_after: rest.4.then(|| Duration::from_millis(10_000 + rest.3)),
            progress: if rest.4 {
                Progress::Independent
            } else {
                Progress::Synchronous
            },
            launch: Launch::ALL[usize::from(rest.4) * 2].1,
            standbys: Standbys::ALL[usize::from(rest.4) * 2].1,
            inspect: match rest.4 {
                true => Inspect::Collectives,
                false => Inspect::Stacks,
            },
            on_stall: OnStall::ALL[usize::from(rest.4)].1,
            on_slow_rank: OnSlowRank::ALL[usize::from(rest.4)].1,
            preemption: Preemption::ALL[usize::from(rest.4)].1,
            queue: Some("night".into()),
            stall_after: rest.4.then(|| Duration::from_millis(10_000 + rest.3)),
            checkpoint_pattern: rest.5.clone(),
            step_pattern: rest.5,
            template: None,
            node_mix: NodeMix::ALL[usize::from(rest.4)].1,
            placement: Some(Placing::Spread),
            selection: match rest.4 {
                true => Selection {
                    node_selector: [("pool".to_owned(), "a".to_owned())].into(),
                    affinity: affinity_of(7, "NotIn").node_affinity,
                    node_list: vec!["n1".into(), "n2".into()],
                    exclude_nodes: vec!["n3".into()],
                    required_topology: Some("zone".into()),
                    preferred_topology: vec!["rack".into(), "block".into()],
                    tolerations: vec![Toleration::read("a=b:NoExecute")],
                },
                false => Selection::default(),
            },
            rules: if rest.4 { checked_rules() } else { Vec::new() },
            suspend: rest.4,
            start: StartWhen {
                after: AfterCondition::ALL
                    .into_iter()
                    .filter(|_| rest.4)
                    .map(|(word, condition)| After {
                        job: format!("job-{word}"),
                        condition,
                    })
                    .collect(),
                start_after: rest.4.then_some(Timestamp(rest.1)),
            },
            lifetime: Lifetime {
                active_deadline_seconds: rest.4.then_some(rest.1),
                start_deadline_seconds: rest.4.then_some(rest.1 + 1),
                ttl_seconds_after_finished: rest.4.then_some(u64::from(rest.0)),
            },
            notify: rest.4.then(notify::tests::checked).into_iter().collect(),
            framework: Framework::Torch,
            roles: Vec::new(),
            origin: rest.4.then(|| origin_of("ElasticJob")),
        },
    )
}

proptest! {
    #[test]
    fn a_document_crosses_the_wire_unchanged(spec in spec_documents(), name in ".{0,12}", namespace in option::of(".{1,12}")) {
        let sent = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata { name, namespace },
            spec,
        };
        let (reference, spec) = document_to_wire(&sent);
        let reference = v1::JobRef::decode(reference.encode_to_vec().as_slice()).unwrap();
        let spec = v1::JobSpec::decode(spec.encode_to_vec().as_slice()).unwrap();
        prop_assert_eq!(document(Some(reference), Some(spec)), sent);
    }

    #[test]
    fn a_checked_spec_survives_being_a_document(spec in checked_specs()) {
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata { name: "j".into(), namespace: None },
            spec: checked_document(&spec),
        };
        prop_assert_eq!(document.check(), Ok((JobName { namespace: "default".into(), name: "j".into() }, spec.clone())));
        let spec = with_roles(spec);
        let document = JobDocument { spec: checked_document(&spec), ..document };
        prop_assert_eq!(document.check().map(|(_, spec)| spec), Ok(spec));
    }

    #[test]
    fn phases_of_a_receipt_add_up(steps in vec(0_u64..10_000_000, 6)) {
        let mut at = 1_000_000;
        let mut next = |step: u64| { at += step; Timestamp(at) };
        let receipt = Incident {
            detected_at: next(steps[0]),
            decided_at: Some(next(steps[1])),
            stopped_at: Some(next(steps[2])),
            launched_at: Some(next(steps[3])),
            joined_at: Some(next(steps[4])),
            first_step_at: Some(next(steps[5])),
            ..bare_incident()
        };
        let shown = incident(&receipt);
        let phases = [shown.detect_us, shown.decide_us, shown.stop_us, shown.launch_us, shown.join_us, shown.first_step_us];
        prop_assert_eq!(phases.map(Option::unwrap).to_vec(), steps.clone());
        prop_assert_eq!(shown.total_us, Some(steps.iter().sum()));
        let start = shown.start.unwrap_or_default();
        prop_assert_eq!((start.join_us, start.first_step_us), (shown.join_us, shown.first_step_us));
        prop_assert_eq!((start.fork_us, start.imports_us, start.nccl_us), (None, None, None));
    }
}

fn bare_incident() -> Incident {
    Incident {
        cause: Cause::NodeLost,
        message: "node-2 was not heard for 5 s".into(),
        class: Some(muster_core::error_class::ErrorClass::Infrastructure),
        charged: Charged::Node,
        culprit: None,
        rule: None,
        restarted_ranks: Vec::new(),
        stall: None,
        collateral: Vec::new(),
        collateral_more: 0,
        from: Some(Generation(1)),
        to: None,
        from_nodes: 3,
        to_nodes: 2,
        event_at: Timestamp(1_000_000),
        detected_at: Timestamp(1_000_000),
        decided_at: None,
        stopped_at: None,
        launched_at: None,
        joined_at: None,
        first_step_at: None,
        seen: Default::default(),
        last_step_before: Some(40),
        first_step_after: None,
        node: None,
        waited: Duration::ZERO,
    }
}

#[test]
fn what_was_not_measured_is_unset() {
    let shown = incident(&bare_incident());
    assert_eq!(
        (
            shown.detect_us,
            shown.decide_us,
            shown.launch_us,
            shown.total_us
        ),
        (Some(0), None, None, None)
    );
    assert_eq!(
        (
            shown.cause.as_str(),
            shown.charged.as_str(),
            shown.steps_lost
        ),
        ("NodeLost", "node", None)
    );
}

#[test]
fn a_generation_down_before_the_next_was_decided_cost_no_stop() {
    let receipt = Incident {
        stopped_at: Some(Timestamp(1_000_000)),
        decided_at: Some(Timestamp(3_000_000)),
        launched_at: Some(Timestamp(3_500_000)),
        ..bare_incident()
    };
    let shown = incident(&receipt);
    assert_eq!(
        (shown.decide_us, shown.stop_us, shown.launch_us),
        (Some(2_000_000), Some(0), Some(500_000))
    );
}

#[test]
fn a_wrong_reference_names_its_field() {
    let name = |namespace: &str, name: &str| {
        job_name(
            "ref",
            Some(v1::JobRef {
                namespace: namespace.into(),
                name: name.into(),
            }),
        )
    };
    assert_eq!(name("", "digits").unwrap().to_string(), "default/digits");
    assert_eq!(name("team", "digits").unwrap().to_string(), "team/digits");
    assert_eq!(
        job_name("ref", None).unwrap_err().to_string(),
        "ref.name: must not be empty"
    );
    assert_eq!(name("-", "digits").unwrap_err().field, "ref.namespace");
    assert_eq!(
        name("", "Digits").unwrap_err().to_string(),
        "ref.name: \"Digits\" has 'D': only lower-case letters, digits and '-' are allowed"
    );
}

#[test]
fn an_event_says_whom_it_is_about() {
    let about = Event {
        sequence: 7,
        at: Timestamp(9),
        warning: true,
        reason: "NodeLost".into(),
        message: "silent".into(),
        job: Some((
            JobUid::from("u"),
            JobName {
                namespace: "default".into(),
                name: "digits".into(),
            },
        )),
        node: Some(NodeName::from("node-2")),
        generation: Some(Generation(3)),
        actor: None,
    };
    let shown = event(&about);
    assert_eq!(
        (shown.sequence, shown.at_unix_us, shown.severity()),
        (7, 9, v1::EventSeverity::Warning)
    );
    assert_eq!(
        (
            shown.job_uid.as_str(),
            shown.namespace.as_str(),
            shown.job.as_str()
        ),
        ("u", "default", "digits")
    );
    assert_eq!((shown.node.as_str(), shown.generation), ("node-2", 3));
    let shown = event(&Event {
        warning: false,
        job: None,
        node: None,
        generation: None,
        ..about
    });
    assert_eq!(
        (
            shown.job.as_str(),
            shown.node.as_str(),
            shown.generation,
            shown.severity()
        ),
        ("", "", 0, v1::EventSeverity::Normal)
    );
}

#[test]
fn an_address_can_be_dialled() {
    assert_eq!(
        address(&Endpoint {
            host: "10.0.0.1".into(),
            port: 1
        }),
        "10.0.0.1:1"
    );
    assert_eq!(
        address(&Endpoint {
            host: "fd00::1".into(),
            port: 1
        }),
        "[fd00::1]:1"
    );
}
