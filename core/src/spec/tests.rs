use super::*;

fn from_file(name: &str, value: &str, file: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: value.into(),
        value_from: Some(ValueFrom { file: file.into() }),
    }
}

pub(super) fn document() -> JobDocument {
    JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: "digits".into(),
            namespace: None,
        },
        spec: SpecDocument {
            args: vec!["train.py".into()],
            ..SpecDocument::default()
        },
    }
}

fn paths(document: &JobDocument) -> Vec<String> {
    document
        .check()
        .expect_err("must be refused")
        .into_iter()
        .map(|error| error.path)
        .collect()
}

#[test]
fn defaults_are_filled_in() {
    let (name, spec) = document().check().unwrap();
    assert_eq!(name.to_string(), "default/digits");
    assert_eq!(
        (spec.replicas, spec.min_replicas, spec.max_replicas),
        (1, 1, 1)
    );
    assert_eq!((spec.proc_per_node, spec.gpus_per_node), (1, 0));
    assert_eq!(spec.command, ["python3"]);
    assert_eq!(spec.stop_grace_period, STOP_GRACE);
    assert_eq!(spec.launch, Launch::Auto);
}

#[test]
fn a_program_needs_no_arguments_and_an_interpreter_a_script() {
    use super::framework::Framework;
    // A job of framework mpi has roles.
    let of_roles = |(_, framework): &(&str, Framework)| *framework == Framework::Mpi;
    for (framework, _) in Framework::ALL.into_iter().filter(|it| !of_roles(it)) {
        let with = |command: &[&str]| {
            let mut doc = document();
            doc.spec.framework = Some(framework.to_owned());
            doc.spec.args.clear();
            doc.spec.command = command.iter().map(|word| (*word).to_owned()).collect();
            doc.check().map(|(_, spec)| spec.args).map_err(|errors| {
                errors
                    .into_iter()
                    .map(|error| error.path)
                    .collect::<Vec<_>>()
            })
        };
        for program in [
            "./run.sh",
            "/app/run.sh",
            "train",
            "python3-config",
            "torchrun2",
        ] {
            assert_eq!(with(&[program]), Ok(Vec::new()), "{framework} {program}");
        }
        for interpreter in ["python", "/opt/env/bin/python3.11", "pypy3"] {
            let refused = with(&[interpreter]).expect_err("names no script");
            assert_eq!(refused, ["spec.args"], "{framework} {interpreter}");
        }
    }
}

#[test]
fn one_process_per_gpu_unless_said_otherwise() {
    let mut doc = document();
    doc.spec.gpus_per_node = Some(8);
    assert_eq!(doc.check().unwrap().1.proc_per_node, 8);
    doc.spec.proc_per_node = Some(2);
    assert_eq!(doc.check().unwrap().1.proc_per_node, 2);
}

#[test]
fn every_wrong_field_is_named() {
    type Change = fn(&mut JobDocument);
    let cases: [(&str, Change); 44] = [
        ("apiVersion", |d| d.api_version = "v1".into()),
        ("kind", |d| d.kind = "Job".into()),
        ("metadata.name", |d| d.metadata.name = String::new()),
        ("metadata.name", |d| d.metadata.name = "Digits".into()),
        ("metadata.namespace", |d| {
            d.metadata.namespace = Some("a/b".into())
        }),
        ("spec.replicas", |d| d.spec.replicas = Some(0)),
        ("spec.replicas", |d| d.spec.replicas = Some(4097)),
        ("spec.replicas", |d| {
            (d.spec.replicas, d.spec.min_replicas, d.spec.max_replicas) =
                (Some(1), Some(2), Some(3))
        }),
        ("spec.replicas", |d| {
            (d.spec.replicas, d.spec.min_replicas, d.spec.max_replicas) =
                (Some(4), Some(2), Some(3))
        }),
        ("spec.minReplicas", |d| {
            (d.spec.min_replicas, d.spec.max_replicas) = (Some(3), Some(2))
        }),
        ("spec.minReplicas", |d| d.spec.min_replicas = Some(-1)),
        ("spec.procPerNode", |d| d.spec.proc_per_node = Some(0)),
        ("spec.gpusPerNode", |d| d.spec.gpus_per_node = Some(-1)),
        ("spec.args", |d| d.spec.args.clear()),
        ("spec.queue", |d| d.spec.queue = Some("Night".into())),
        ("spec.args", |d| d.spec.args = vec!["x".into(); 257]),
        ("spec.args", |d| {
            d.spec.args = vec!["-c".into(), "print()".into()]
        }),
        ("spec.args[0]", |d| d.spec.args[0] = "a\0b".into()),
        ("spec.command[0]", |d| d.spec.command = vec![String::new()]),
        ("spec.env[0].name", |d| {
            d.spec.env = vec![EnvVar {
                value_from: None,
                name: "A B".into(),
                value: String::new(),
            }]
        }),
        ("spec.env[0].name", |d| {
            d.spec.env = vec![EnvVar {
                value_from: None,
                name: "RANK".into(),
                value: String::new(),
            }]
        }),
        ("spec.env[0].name", |d| {
            d.spec.env = vec![EnvVar {
                value_from: None,
                name: "MUSTER_RANK_CPUS".into(),
                value: "0-3".into(),
            }]
        }),
        ("spec.env[0].valueFrom", |d| {
            d.spec.env = vec![from_file("A", "x", "/etc/token")]
        }),
        ("spec.env[0].valueFrom", |d| {
            d.spec.env = vec![from_file("NCCL_SOCKET_IFNAME", "", "/etc/name")]
        }),
        ("spec.env[0].valueFrom.file", |d| {
            d.spec.env = vec![from_file("A", "", "token")]
        }),
        ("spec.env[0].valueFrom.file", |d| {
            d.spec.env = vec![from_file("A", "", "/etc/\0")]
        }),
        ("spec.env[1].name", |d| {
            d.spec.env = vec![
                EnvVar {
                    value_from: None,
                    name: "A".into(),
                    value: String::new()
                };
                2
            ]
        }),
        ("spec.workingDir", |d| {
            d.spec.working_dir = Some("work".into())
        }),
        ("spec.image", |d| d.spec.image = Some("a b".into())),
        ("spec.priority", |d| d.spec.priority = Some(i64::MAX)),
        ("spec.restartPolicy.maxRestarts", |d| {
            d.spec.restart_policy = Some(RestartPolicyDocument {
                max_restarts: Some(-1),
                window: None,
                max_same_failures: None,
            });
        }),
        ("spec.stopGracePeriod", |d| {
            d.spec.stop_grace_period = Some("901s".into())
        }),
        ("spec.fenceAfter", |d| {
            d.spec.fence_after = Some("9s".into())
        }),
        ("spec.fenceAfter", |d| {
            d.spec.fence_after = Some("soon".into())
        }),
        ("spec.progress", |d| d.spec.progress = Some("sync".into())),
        ("spec.launch", |d| d.spec.launch = Some("warm".into())),
        ("spec.standbys", |d| d.spec.standbys = Some("on".into())),
        ("spec.inspect", |d| d.spec.inspect = Some("auto".into())),
        ("spec.preemption", |d| {
            d.spec.preemption = Some("kill".into())
        }),
        ("spec.onStall", |d| d.spec.on_stall = Some("kill".into())),
        ("spec.onSlowRank", |d| {
            d.spec.on_slow_rank = Some("kill".into())
        }),
        // No slow rank would be found.
        ("spec.onSlowRank", |d| {
            d.spec.on_slow_rank = Some("replace".into())
        }),
        ("spec.stallAfter", |d| {
            d.spec.stall_after = Some("4s".into())
        }),
        ("spec.nodeMix", |d| d.spec.node_mix = Some("allow".into())),
    ];
    for (path, change) in cases {
        let mut doc = document();
        change(&mut doc);
        assert_eq!(paths(&doc), [path]);
    }
}

#[test]
fn pinning_is_all_a_job_may_switch_off_of_ours() {
    let mut doc = document();
    doc.spec.env = vec![EnvVar {
        value_from: None,
        name: "MUSTER_RANK_CPUS".into(),
        value: "off".into(),
    }];
    assert!(doc.check().is_ok());
    for name in [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "CUDA_VISIBLE_DEVICES",
        "PYTHON_EXEC",
        "MUSTER_RANK",
        "MUSTER_RUN_DIR",
        "MUSTER_RANK_CPUS_2",
        "TORCHELASTIC_RUN_ID",
        "TORCH_ELASTIC_WORKER_IDENTICAL",
        "PET_NNODES",
    ] {
        doc.spec.env = vec![EnvVar {
            value_from: None,
            name: name.into(),
            value: "off".into(),
        }];
        assert_eq!(paths(&doc), ["spec.env[0].name"], "{name} is ours");
    }
}

#[test]
fn workers_are_fenced_only_where_asked_and_within_bounds() {
    let mut doc = document();
    assert_eq!(doc.check().unwrap().1.fence_after, None);
    for (text, seconds) in [("10s", 10), ("1m30s", 90), ("1h", 3_600)] {
        doc.spec.fence_after = Some(text.into());
        let spec = doc.check().unwrap().1;
        assert_eq!(spec.fence_after, Some(Duration::from_secs(seconds)));
        let stored = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<JobSpec>(&stored).unwrap(), spec);
    }
    doc.spec.fence_after = Some("2h".into());
    let error = doc.check().unwrap_err().remove(0);
    assert_eq!(
        error.to_string(),
        "spec.fenceAfter: is 2h, must be between 10s and 1h"
    );
}

#[test]
fn all_errors_come_at_once() {
    let mut doc = document();
    doc.kind = "Job".into();
    doc.spec.priority = Some(i64::MIN);
    assert_eq!(paths(&doc), ["kind", "spec.priority"]);
}

fn role(name: &str, replicas: i64) -> RoleDocument {
    RoleDocument {
        name: name.into(),
        replicas: Some(replicas),
        ..RoleDocument::default()
    }
}

fn with_roles(framework: &str, roles: Vec<RoleDocument>) -> JobDocument {
    let mut doc = document();
    (doc.spec.framework, doc.spec.roles) = (Some(framework.into()), roles);
    doc
}

#[test]
fn a_role_takes_from_the_top_what_it_does_not_say() {
    let variable = |name: &str, value: &str| EnvVar {
        name: name.into(),
        value: value.into(),
        value_from: None,
    };
    let mut doc = with_roles("tensorflow", vec![role("chief", 1), role("ps", 2)]);
    doc.spec.env = vec![variable("A", "top"), variable("B", "top")];
    doc.spec.gpus_per_node = Some(4);
    doc.spec.roles[1].env = vec![variable("B", "own")];
    doc.spec.roles[1].command = vec!["./serve".into(), "all".into()];
    doc.spec.roles[1].gpus_per_node = Some(0);
    let spec = doc.check().unwrap().1;
    assert_eq!(
        (spec.replicas, spec.min_replicas, spec.max_replicas),
        (3, 3, 3)
    );
    let [chief, ps] = &spec.roles[..] else {
        panic!()
    };
    assert_eq!(
        (&chief.command[..], &chief.args[..]),
        (&["python3".to_owned()][..], &spec.args[..])
    );
    assert_eq!(
        (chief.gpus_per_node, chief.proc_per_node, chief.service),
        (4, 1, false)
    );
    assert_eq!(ps.args, Vec::<String>::new(), "of another program");
    assert_eq!(
        (ps.gpus_per_node, ps.service),
        (0, true),
        "parameter servers wait for ever"
    );
    let values: Vec<&str> = ps.env.iter().map(|var| &*var.value).collect();
    assert_eq!(values, ["top", "own"]);
    assert_eq!(spec.gpus_max(), 4);
}

#[test]
fn the_elastic_role_has_what_the_others_leave() {
    let mut worker = role("worker", 3);
    (worker.min_replicas, worker.max_replicas) = (Some(1), Some(4));
    let doc = with_roles("plain", vec![role("chief", 1), worker, role("ps", 2)]);
    let spec = doc.check().unwrap().1;
    assert_eq!(
        (spec.replicas, spec.min_replicas, spec.max_replicas),
        (6, 4, 7)
    );
    for (members, workers) in [(4, 1), (5, 2), (7, 4)] {
        let layout = spec.layout(members);
        let shares: Vec<u32> = layout.0.iter().map(|share| share.members).collect();
        assert_eq!(shares, [1, workers, 2]);
        assert_eq!(layout.members(), members);
    }
    assert!(document().check().unwrap().1.layout(3).is_empty());
    let jax = with_roles("jax", Vec::new()).check().unwrap().1.layout(3);
    assert_eq!((&*jax.0[0].name, jax.0[0].members), (WORKER, 3));
}

#[test]
fn the_nodes_of_mpi_are_one_role_of_any_name() {
    let mpi = |others: &[&str]| {
        let others = others.iter().map(|name| role(name, 2));
        let launcher = RoleDocument {
            command: vec!["mpirun".into()],
            ..role("launcher", 1)
        };
        let mut doc = with_roles("mpi", [launcher].into_iter().chain(others).collect());
        doc.spec.roles[1..]
            .iter_mut()
            .for_each(|role| role.command.clear());
        (doc.spec.command, doc.spec.args) = (Vec::new(), Vec::new());
        doc.check().map(|(_, spec)| spec.roles)
    };
    let roles = mpi(&["trainer"]).unwrap();
    assert_eq!((roles[1].service, roles[1].proc_per_node), (true, 1));
    assert!(roles[1].command.is_empty());
    let errors = mpi(&["trainer", "worker"]).unwrap_err();
    let [error] = &errors[..] else {
        panic!("{errors:?}")
    };
    assert!(
        error
            .message
            .starts_with("has trainer and worker beside the launcher"),
        "{error:?}"
    );
}

#[test]
fn every_wrong_role_is_named() {
    type Change = fn(&mut JobDocument);
    let cases: [(&str, Change); 16] = [
        ("spec.framework", |d| {
            d.spec.framework = Some("mxnet".into())
        }),
        ("spec.minReplicas", |d| d.spec.min_replicas = Some(1)),
        ("spec.maxReplicas", |d| d.spec.max_replicas = Some(9)),
        ("spec.replicas", |d| d.spec.replicas = Some(4)),
        ("spec.launch", |d| d.spec.launch = Some("fork".into())),
        ("spec.env[0].name", |d| {
            d.spec.env = vec![EnvVar {
                name: "TF_CONFIG".into(),
                ..EnvVar::default()
            }]
        }),
        ("spec.roles[0].name", |d| {
            d.spec.roles[0].name = "leader".into()
        }),
        ("spec.roles[1].name", |d| {
            d.spec.roles[1].name = "chief".into()
        }),
        ("spec.roles[1].name", |d| {
            d.spec.roles[1].name = "Worker".into()
        }),
        ("spec.roles[1].replicas", |d| {
            d.spec.roles[1].replicas = Some(-1)
        }),
        ("spec.roles[1].minReplicas", |d| {
            d.spec.roles[0].max_replicas = Some(2);
            d.spec.roles[1].max_replicas = Some(3);
        }),
        ("spec.roles[1].procPerNode", |d| {
            d.spec.roles[1].proc_per_node = Some(2)
        }),
        ("spec.roles[1].args", |d| {
            (d.spec.args, d.spec.roles[0].args) = (Vec::new(), vec!["a.py".into()])
        }),
        ("spec.roles[1].workingDir", |d| {
            d.spec.roles[1].working_dir = Some("here".into())
        }),
        ("spec.roles", |d| {
            d.spec
                .roles
                .iter_mut()
                .for_each(|role| role.service = Some(true))
        }),
        ("spec.roles", |d| d.spec.roles = vec![role("worker", 0)]),
    ];
    for (path, change) in cases {
        let mut doc = with_roles("tensorflow", vec![role("chief", 1), role("worker", 2)]);
        assert!(doc.check().is_ok());
        change(&mut doc);
        assert_eq!(paths(&doc), [path]);
    }
    let mut torch = with_roles("torch", vec![role("master", 1), role("worker", 2)]);
    assert!(torch.check().is_ok());
    torch.spec.roles[1].proc_per_node = Some(2);
    assert_eq!(
        paths(&torch),
        ["spec.roles[1].procPerNode"],
        "torchrun's nodes are alike"
    );
    let mut many = with_roles("jax", Vec::new());
    many.spec.max_replicas = Some(PEERS_MAX + 1);
    assert_eq!(paths(&many), ["spec.maxReplicas"]);
}
