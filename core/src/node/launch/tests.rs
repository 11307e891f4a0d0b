use super::*;
use crate::{
    layout::{Layout, RoleShare},
    node::torchrun::EnvIs,
    node_report::NodeReport,
    spec::Framework,
};

fn site() -> Site {
    Site {
        node: "n1".into(),
        report: NodeReport {
            address: "10.0.0.1".into(),
            ..NodeReport::default()
        },
        run_dir: "/runs/a-g1".into(),
        env: BTreeMap::from([("HOME".to_owned(), "/home/u".to_owned())]),
        env_is: EnvIs::Agents,
        account: None,
    }
}

fn job(launch: spec::Launch) -> Assignment {
    Assignment {
        launch,
        command: vec!["python3".into()],
        args: vec!["train.py".into()],
        node_count: 1,
        ..crate::node::turn::tests::assignment("a", 1)
    }
}

fn interpreter(torch: (u32, u32)) -> Interpreter {
    Interpreter {
        torch,
        build: format!("{}.{}.0", torch.0, torch.1),
        implementation: "cpython".into(),
        python: (3, 11),
        system: "linux".into(),
        trial: None,
    }
}

fn plan(assignment: &Assignment, torch: (u32, u32)) -> Plan {
    let first = ahead(assignment, &site()).unwrap();
    Plan::of(assignment, &first, &interpreter(torch))
}

fn at(host: &str, port: u16) -> Endpoint {
    let host = host.to_owned();
    Endpoint { host, port }
}

fn told(peers: Vec<Endpoint>) -> Start {
    Start {
        store: at("10.0.0.7", 4711),
        peers,
        keys: Vec::new(),
        attempts: BTreeMap::new(),
    }
}

#[test]
fn a_plan_says_whose_launcher_serves_and_what_is_without_it() {
    let mut forked = plan(&job(spec::Launch::Fork), (2, 15));
    assert!(forked.takes_launcher(false) && !forked.alone);
    forked.served(Serving::Awaited);
    assert_eq!(forked.why, "asked for; its launcher imported torch first");
    forked.fall_back("no memory");
    assert_eq!(
        (forked.lane, &*forked.why),
        (Lane::Exec, "its launcher on this node failed: no memory")
    );
    // Lane direct takes one that is ready, and waits for none.
    let direct = plan(&job(spec::Launch::Direct), (2, 15));
    assert!(direct.takes_launcher(true) && !direct.takes_launcher(false));
    assert!(!waits_for_launcher(&job(spec::Launch::Direct)));
    assert!(may_be_forked(&job(spec::Launch::Direct)));
    assert!(!plan(&job(spec::Launch::Exec), (2, 15)).takes_launcher(true));
    assert!(!may_be_forked(&job(spec::Launch::Cold)));
    assert_eq!(
        launcher_lane(&job(spec::Launch::Fork), &interpreter((2, 15))),
        Ok(Lane::Fork)
    );
    assert!(launcher_lane(&job(spec::Launch::Cold), &interpreter((2, 15))).is_err());
}

#[test]
fn without_its_launcher_a_run_keeps_torchrun_and_with_it_its_tcpstore() {
    for launch in [
        spec::Launch::Parked,
        spec::Launch::Fork,
        spec::Launch::Direct,
    ] {
        let job = job(launch);
        let before = plan(&job, (2, 6));
        let mut after = before.clone();
        after.fall_back("x");
        assert_eq!(
            after.alone,
            lane::brings_store(&job, after.lane, &interpreter((2, 6))),
            "{launch:?}"
        );
        assert_eq!(before.alone, launch == spec::Launch::Parked, "{launch:?}");
        let (lane, why) = fallen_back(before.lane).unwrap();
        assert_eq!(lane, after.lane);
        assert!(why.contains("launcher.log"), "{why}");
    }
    assert_eq!(fallen_back(Lane::Exec), None);
}

#[test]
fn what_is_to_be_had_before_is_said_by_the_framework_and_the_role() {
    let needs = |assignment: &Assignment| plan(assignment, (2, 15)).needs;
    let none = Needs {
        ports: 0,
        key: false,
    };
    assert_eq!(needs(&job(spec::Launch::Auto)), none);
    let jax = Assignment {
        framework: Framework::Jax,
        ..job(spec::Launch::Auto)
    };
    assert_eq!(needs(&jax), Needs { ports: 1, ..none });
    let lender = lender();
    assert_eq!(
        needs(&lender),
        Needs {
            ports: 1,
            key: true
        }
    );
}

/// A worker of an MPI job.
fn lender() -> Assignment {
    let share = |name: &str| RoleShare {
        name: name.into(),
        members: 1,
        procs: 1,
        slots: 1,
        service: false,
        restarts_alone: false,
    };
    Assignment {
        framework: Framework::Mpi,
        node_rank: 1,
        node_count: 2,
        layout: Layout(vec![share(spec::LAUNCHER), share("worker")]),
        ..job(spec::Launch::Auto)
    }
}

#[test]
fn a_start_is_the_same_process_with_its_meeting_point_and_what_was_noted() {
    let noted = Noted {
        lane: Lane::Fork,
        ctype: Some("C.UTF-8"),
        torch: "2.15.0",
        ..Noted::default()
    };
    let job = job(spec::Launch::Fork);
    let started = start(&job, &told(Vec::new()), &noted, &site(), true).unwrap();
    assert_eq!(started.launch.env["MASTER_ADDR"], "10.0.0.7");
    assert_eq!(started.launch.env["LC_CTYPE"], "C.UTF-8");
    assert_eq!(ahead(&job, &site()).unwrap().env["MASTER_ADDR"], "10.0.0.1");
    let order = started.order.unwrap();
    assert_eq!(
        (order.lane, &order.argv[..], order.inspect),
        (Lane::Fork, &["train.py".to_owned()][..], true)
    );
    assert!(started.members.is_empty() && started.mpi.is_none());
    // torchrun's interpreter sets it itself, and torchrun is executed.
    let noted = Noted {
        lane: Lane::Cold,
        alone: true,
        ..noted
    };
    let started = start(&job, &told(Vec::new()), &noted, &site(), true).unwrap();
    assert_eq!(started.order, None);
    assert!(!started.launch.env.contains_key("LC_CTYPE"));
    assert!(
        started
            .launch
            .args
            .contains(&"--rdzv-endpoint=localhost:0".to_owned()),
        "{:?}",
        started.launch.args
    );
    // A run in lane exec is direct to its runner.
    let exec = Noted {
        lane: Lane::Exec,
        ..Noted::default()
    };
    let started = start(&job, &told(Vec::new()), &exec, &site(), false).unwrap();
    let order = started.order.unwrap();
    assert_eq!((order.lane, order.inspect), (Lane::Direct, false));
    assert_eq!(order.command, ["python3", "-u", "train.py"]);
}

#[test]
fn a_lender_without_its_key_is_refused() {
    let peers = vec![at("10.0.0.2", 1), at("10.0.0.1", 2)];
    let key = Key("aa".into());
    let noted = |key| Noted {
        lane: Lane::Direct,
        key,
        ..Noted::default()
    };
    let started = |key| start(&lender(), &told(peers.clone()), &noted(key), &site(), false);
    let Some(Mpi::Lender(lender, has)) = started(Some(&key)).unwrap().mpi else {
        panic!("it lends its node");
    };
    assert_eq!((lender.listen, has), (at("10.0.0.1", 2), key.clone()));
    assert_eq!(
        started(None).unwrap_err(),
        "the key of this run is not known any more"
    );
}

#[test]
fn what_a_member_needs_of_the_nodes_files() {
    let first = |assignment: &Assignment, shared| {
        let launch = ahead(assignment, &site()).unwrap();
        programs(assignment, shared, &launch).unwrap()
    };
    let script = first(&job(spec::Launch::Auto), false);
    assert_eq!(
        (&*script.first, script.script.as_deref(), script.asks_torch),
        ("python3", Some("train.py"), true)
    );
    let program = Assignment {
        command: vec!["./train".into()],
        ..job(spec::Launch::Auto)
    };
    // torchrun runs it, unless the member shares its node.
    for (shared, program_first) in [(false, "python3"), (true, "./train")] {
        let needs = first(&program, shared);
        assert_eq!(needs.first, program_first);
        assert_eq!(needs.asks_torch, !shared);
        assert_eq!(needs.ranks.as_deref(), Some("./train"));
    }
    // In lane direct nothing runs it, and a script still has its interpreter asked.
    let direct = Assignment {
        launch: spec::Launch::Direct,
        ..program
    };
    let needs = first(&direct, false);
    assert_eq!((&*needs.first, needs.asks_torch), ("./train", false));
    assert!(first(&job(spec::Launch::Direct), false).asks_torch);
}

#[test]
fn an_old_torchrun_does_not_serve_where_the_store_is() {
    let two = Assignment {
        node_count: 2,
        node_rank: 0,
        hosts_store: true,
        ..job(spec::Launch::Cold)
    };
    let meets = |assignment: &Assignment, torch| {
        meets_its_own_store(assignment, false, &interpreter(torch), &site())
    };
    assert!(meets(&two, (2, 6)));
    assert!(!meets(&two, (2, 7)));
    let alone = job(spec::Launch::Cold);
    assert!(!meets(&alone, (2, 6)), "it brings its own");
    let executed = Assignment {
        launch: spec::Launch::Exec,
        ..two.clone()
    };
    assert!(!meets(&executed, (2, 6)), "no torchrun");
    let elsewhere = Assignment {
        hosts_store: false,
        ..two
    };
    assert!(!meets(&elsewhere, (2, 6)));
}
