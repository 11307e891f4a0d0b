//! Which launcher a job may take, and which ones the pool makes and gives up.

use super::*;
use crate::{
    node::{
        torchrun::{EnvIs, Meeting, Site, launch},
        turn::tests::assignment,
    },
    node_report::NodeReport,
    run::Endpoint,
};

const GIB: u64 = 1 << 30;
const NOW: Timestamp = Timestamp(1_000_000_000_000);
const ROOMY: Space = Space {
    total: 64 * GIB,
    available: 32 * GIB,
};

fn job(env: &[(&str, &str)]) -> Assignment {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect();
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Assignment {
        command: words("/opt/py/python3 -O"),
        args: words("train.py --lr 1"),
        env,
        ..assignment("a", 3)
    }
}

fn started(assignment: &Assignment, agents: &[(&str, &str)]) -> Launch {
    let env = agents
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let report = NodeReport {
        address: "127.0.0.1".into(),
        ..NodeReport::default()
    };
    let site = Site {
        node: "n1".into(),
        report,
        run_dir: format!("/runs/{}", assignment.run.job),
        env,
        env_is: EnvIs::Agents,
        account: None,
    };
    launch(
        assignment,
        Meeting::Served(&Endpoint {
            host: "127.0.0.1".into(),
            port: 1,
        }),
        &site,
    )
    .unwrap()
}

fn key_in(assignment: &Assignment, agents: &[(&str, &str)]) -> Result<Key, Unfit> {
    let launch = started(assignment, agents);
    let bare = without_job(assignment, &launch.program);
    key(assignment, &launch, &started(&bare, agents))
}

fn key_of(assignment: &Assignment) -> Result<Key, Unfit> {
    key_in(assignment, &[("PATH", "/bin"), ("HOME", "/home/u")])
}

#[test]
fn a_launcher_of_one_user_is_never_that_of_another() {
    let account = |uid| Account {
        name: "same".into(),
        uid,
        gid: 100,
        groups: Vec::new(),
        home: "/home/same".into(),
        shell: "/bin/sh".into(),
    };
    let key = |account: Option<Account>| {
        let started = |assignment: &Assignment| Launch {
            account: account.clone(),
            ..started(assignment, &[("PATH", "/bin")])
        };
        let (job, bare) = (job(&[]), without_job(&job(&[]), "/opt/py/python3"));
        super::key(&job, &started(&job), &started(&bare)).unwrap()
    };
    assert_eq!(key(Some(account(1007))), key(Some(account(1007))));
    assert_ne!(key(Some(account(1007))), key(Some(account(1008))));
    assert_ne!(key(Some(account(1007))), key(None));
    assert_eq!(key(Some(account(1007))).account(), Some(&account(1007)));
}

#[test]
fn a_job_takes_a_launcher_only_if_its_own_would_be_started_alike() {
    let plain = key_of(&job(&[])).unwrap();
    let alike = [
        Assignment {
            args: ["other.py".to_owned()].into(),
            ..job(&[])
        },
        Assignment {
            working_dir: Some("/elsewhere".into()),
            restart_count: 4,
            ..job(&[])
        },
        job(&[
            ("NCCL_DEBUG", "INFO"),
            ("GLOO_SOCKET_IFNAME", "eth7"),
            ("WANDB_API_KEY", "secret"),
        ]),
        Assignment {
            run: RunId {
                job: JobUid::from("b"),
                generation: Generation(9),
            },
            ..job(&[])
        },
    ];
    for other in alike {
        assert_eq!(key_of(&other), Ok(plain.clone()), "{other:?}");
    }
    let options = Assignment {
        command: ["/opt/py/python3".to_owned()].into(),
        ..job(&[])
    };
    let python = Assignment {
        command: ["/opt/other/python3".to_owned(), "-O".to_owned()].into(),
        ..job(&[])
    };
    let ranks = Assignment {
        proc_per_node: 2,
        ..job(&[])
    };
    let gpus = Assignment {
        gpus: ["GPU-a".to_owned()].into(),
        ..job(&[])
    };
    let threads = job(&[("OMP_NUM_THREADS", "4")]);
    for other in [options, python, ranks, gpus, threads] {
        assert_ne!(key_of(&other).unwrap(), plain, "{other:?}");
    }
    let other_home = key_in(&job(&[]), &[("PATH", "/bin"), ("HOME", "/home/v")]).unwrap();
    assert_ne!(other_home, plain);
}

#[test]
fn a_job_with_variables_that_may_be_read_at_a_start_takes_none() {
    for name in [
        "PYTHONPATH",
        "LD_PRELOAD",
        "LC_ALL",
        "LANG",
        "PYTHONHASHSEED",
        "TORCH_LOGS",
        "MALLOC_CONF",
        "OWN",
        "PATH",
        "HOME",
    ] {
        assert_eq!(
            key_of(&job(&[(name, "/x")])),
            Err(Unfit::OwnVariable(name.into()))
        );
    }
    for list in ["/a:b", ":/a", "/a:", "."] {
        assert_eq!(
            key_in(&job(&[]), &[("PYTHONPATH", list)]),
            Err(Unfit::Relative("PYTHONPATH".into())),
            "{list}"
        );
    }
    assert!(key_in(&job(&[]), &[("PYTHONPATH", "/a:/b")]).is_ok());
    let relative = Assignment {
        command: ["env/bin/python3".to_owned()].into(),
        ..job(&[])
    };
    assert_eq!(
        key_of(&relative),
        Err(Unfit::Relative("env/bin/python3".into()))
    );
    let program = Assignment {
        command: ["./train".to_owned()].into(),
        ..job(&[])
    };
    assert_eq!(key_of(&program), Err(Unfit::NotPython));
}

#[test]
fn a_launcher_of_the_pool_has_nothing_of_the_job() {
    let own = [
        ("WANDB_API_KEY", "secret"),
        ("OMP_NUM_THREADS", "4"),
        ("NCCL_DEBUG", "INFO"),
        ("OWN", "x"),
    ];
    let bare = without_job(
        &Assignment {
            working_dir: Some("/w".into()),
            ..job(&own)
        },
        "/opt/py/python3",
    );
    let launch = started(&bare, &[]);
    assert_eq!(
        (launch.program.as_str(), launch.dir.as_str()),
        ("/opt/py/python3", "/")
    );
    assert_eq!(launch.env["OMP_NUM_THREADS"], "4");
    for name in ["WANDB_API_KEY", "NCCL_DEBUG", "OWN"] {
        assert!(!launch.env.contains_key(name), "{name}");
    }
    assert!(!format!("{:?} {:?}", launch.args, launch.env).contains("train.py"));
}

fn keys(count: usize) -> Vec<Key> {
    let one = |at: usize| Key {
        program: format!("/py{at}"),
        options: Vec::new(),
        env: BTreeMap::new(),
        ranks: 1,
        account: None,
    };
    (0..count).map(one).collect()
}

fn member(number: u32, key: &Key, bytes: Option<u64>) -> Member {
    Member {
        number,
        key: key.clone(),
        started_at: NOW,
        bytes,
    }
}

fn held<'a>(limit: usize, launchers: &'a [Member], used: &'a [Key]) -> Held<'a> {
    Held {
        limit,
        launchers,
        used,
        busy_at: None,
        memory: ROOMY,
        size: GIB,
        bytes_max: None,
        bytes_of_jobs: 0,
    }
}

#[test]
fn there_is_one_for_each_of_the_newest_interpreters_and_more_for_the_newest() {
    let used = keys(3);
    assert_eq!(plan(NOW, &held(0, &[], &used)), Plan::default(), "off");
    assert_eq!(
        plan(NOW, &held(2, &[], &[])),
        Plan::default(),
        "nothing was used yet"
    );
    assert_eq!(plan(NOW, &held(2, &[], &used)).start, Some(used[0].clone()));
    let first = [member(1, &used[0], None)];
    assert_eq!(
        plan(NOW, &held(2, &first, &used)).start,
        None,
        "one at a time"
    );
    let first = [member(1, &used[0], Some(GIB))];
    assert_eq!(
        plan(NOW, &held(2, &first, &used)).start,
        Some(used[1].clone())
    );
    assert_eq!(
        plan(NOW, &held(2, &first, &used[..1])).start,
        Some(used[0].clone()),
        "two jobs may come at once"
    );
    let full = [
        member(1, &used[0], Some(GIB)),
        member(2, &used[1], Some(GIB)),
    ];
    assert_eq!(
        plan(NOW, &held(2, &full, &used)),
        Plan {
            look_again: Some(NOW + LOOK),
            ..Plan::default()
        }
    );
    let third = [used[2].clone(), used[0].clone(), used[1].clone()];
    let turned = plan(NOW, &held(2, &full, &third));
    assert_eq!(
        (turned.start, turned.end),
        (None, vec![(2, Cause::Unused)]),
        "the one that was used longest ago"
    );
    let shrunk = plan(NOW, &held(0, &full, &used));
    assert_eq!(shrunk.end, [(1, Cause::Unused), (2, Cause::Unused)]);
}

#[test]
fn none_is_started_beside_a_job_that_starts_or_has_just_fallen() {
    let used = keys(1);
    let busy = |busy_at| {
        plan(
            NOW,
            &Held {
                busy_at: Some(busy_at),
                ..held(1, &[], &used)
            },
        )
    };
    assert_eq!(busy(NOW).start, None);
    let almost = NOW - CALM + Duration::from_secs(1);
    assert_eq!(
        (busy(almost).start, busy(almost).look_again),
        (None, Some(NOW + Duration::from_secs(1)))
    );
    assert_eq!(busy(NOW - CALM).start, Some(used[0].clone()));
}

#[test]
fn it_gives_way_where_memory_is_short_and_does_not_come_back_at_once() {
    let used = keys(2);
    let full = [
        member(1, &used[0], Some(GIB)),
        member(2, &used[1], Some(GIB)),
    ];
    let left = |available| Held {
        memory: Space {
            total: 100 * GIB,
            available,
        },
        ..held(2, &full, &used)
    };
    assert_eq!(plan(NOW, &left(10 * GIB)).end, []);
    let low = plan(NOW, &left(10 * GIB - 1));
    assert_eq!(
        (low.end, low.start),
        (vec![(1, Cause::MemoryLow), (2, Cause::MemoryLow)], None)
    );
    let none = |available| {
        plan(
            NOW,
            &Held {
                memory: Space {
                    total: 100 * GIB,
                    available,
                },
                ..held(2, &[], &used)
            },
        )
        .start
    };
    assert_eq!(
        (none(20 * GIB - 1), none(20 * GIB)),
        (None, Some(used[0].clone()))
    );

    let bound = |launchers, bytes_of_jobs| Held {
        bytes_max: Some(3 * GIB),
        bytes_of_jobs,
        ..held(2, launchers, &used)
    };
    assert_eq!(plan(NOW, &bound(&full, GIB)).end, []);
    assert_eq!(
        plan(NOW, &bound(&full, 2 * GIB)).end,
        [(2, Cause::TooMuch)],
        "the one that was used last is kept"
    );
    assert_eq!(
        plan(NOW, &bound(&full[..1], 2 * GIB)).start,
        None,
        "it would have to end again"
    );
    assert_eq!(
        plan(NOW, &bound(&full[..1], GIB)).start,
        Some(used[1].clone())
    );
}

#[test]
fn an_old_one_is_renewed() {
    let used = keys(1);
    let old = [member(1, &used[0], Some(GIB))];
    assert_eq!(
        plan(
            NOW + AGE_MAX - Duration::from_secs(1),
            &held(1, &old, &used)
        )
        .end,
        []
    );
    assert_eq!(
        plan(NOW + AGE_MAX, &held(1, &old, &used)).end,
        [(1, Cause::Old)]
    );
}
