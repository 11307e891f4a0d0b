use super::*;
use crate::{
    node::turn::tests::assignment,
    node_report::gpu::{Mig, MigInstance},
    run::RankReport,
};

const GIB: u64 = 1 << 30;

/// A node with two GPUs of 80 GiB, and a job on both.
struct Node {
    job: Assignment,
    lane: Lane,
    most: Most,
    available: Option<u64>,
    driver: Option<Driver>,
    gpus: Vec<Gpu>,
    memory: BTreeMap<String, Space>,
    sets: Vec<String>,
    failed: Option<String>,
    has: Option<Mode>,
}

fn node(standbys: Standbys) -> Node {
    let uuids = ["GPU-0", "GPU-1"].map(str::to_owned);
    let gpus = uuids.iter().map(|uuid| Gpu {
        uuid: uuid.clone(),
        memory_bytes: 80 * GIB,
        ..Gpu::default()
    });
    let space = Space {
        available: 30 * GIB,
        total: 80 * GIB,
    };
    Node {
        job: Assignment {
            gpus: uuids.to_vec(),
            proc_per_node: 2,
            standbys,
            ..assignment("a", 1)
        },
        lane: Lane::Fork,
        most: Most::Open,
        available: Some(100 * GIB),
        driver: Some(driver("580.159.04")),
        gpus: gpus.collect(),
        memory: uuids.map(|uuid| (uuid, space)).into(),
        sets: vec!["OMP_NUM_THREADS".into()],
        failed: None,
        has: None,
    }
}

fn driver(version: &str) -> Driver {
    Driver {
        version: version.into(),
        ..Driver::default()
    }
}

impl Node {
    fn decide(&self) -> Result<Mode, No> {
        decide(&Facts {
            assignment: &self.job,
            lane: self.lane,
            most: self.most,
            available: self.available,
            driver: self.driver.as_ref(),
            gpus: &self.gpus,
            memory: &self.memory,
            set_by_script: &self.sets,
            failed: self.failed.as_deref(),
            has: self.has,
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Node)) -> Result<Mode, No> {
        change(&mut self);
        self.decide()
    }

    fn free(&mut self, gpu: &str, bytes: u64) {
        self.memory.get_mut(gpu).unwrap().available = bytes;
    }
}

#[test]
fn auto_parks_where_the_driver_can_and_else_needs_ample_memory() {
    assert_eq!(node(Standbys::Auto).decide(), Ok(Mode::Parked));
    let old = |n: &mut Node| n.driver = Some(driver("565.57.01"));
    assert_eq!(node(Standbys::Auto).with(old), Ok(Mode::Open));
    let short = |gpu: &'static str, bytes| {
        move |n: &mut Node| {
            old(n);
            n.free(gpu, bytes);
        }
    };
    for (gpu, free) in [("GPU-1", 7 * GIB), ("GPU-0", 19 * GIB)] {
        let not = No::NotAmple {
            gpu: gpu.into(),
            free,
            driver: "565.57.01".into(),
        };
        assert_eq!(node(Standbys::Auto).with(short(gpu, free)), Err(not));
        assert_eq!(
            node(Standbys::Open).with(short(gpu, free)),
            Ok(Mode::Open),
            "who asks gets it"
        );
    }
    let no = node(Standbys::Parked).with(old);
    assert_eq!(
        no,
        Err(No::CannotPark {
            driver: "565.57.01".into()
        })
    );
    let unknown = node(Standbys::Parked).with(|n| n.driver = None);
    assert!(matches!(unknown, Err(No::CannotPark { .. })));
    assert_eq!(node(Standbys::Open).decide(), Ok(Mode::Open));
}

#[test]
fn a_job_that_asks_for_nothing_gets_one_only_where_there_is_room_enough() {
    let tight = |asked, free| node(asked).with(|n| n.free("GPU-1", free));
    assert_eq!(tight(Standbys::Auto, ROOMY), Ok(Mode::Parked));
    let (gpu, free) = ("GPU-1".to_owned(), ROOMY - 1);
    assert_eq!(tight(Standbys::Auto, free), Err(No::NotRoomy { gpu, free }));
    assert_eq!(tight(Standbys::Parked, ROOMY - 1), Ok(Mode::Parked));

    // Two standbys of 2 GiB.
    let host = |asked, available| node(asked).with(|n| n.available = available);
    for (asked, least) in [(Standbys::Auto, 16 * GIB), (Standbys::Parked, 8 * GIB)] {
        assert_eq!(host(asked, Some(least)), Ok(Mode::Parked));
        let available = least - 1;
        assert_eq!(
            host(asked, Some(available)),
            Err(No::Host { available, least })
        );
        assert!(host(asked, None).is_err(), "nobody knows");
        let kept = node(asked).with(|n| {
            n.has = Some(Mode::Parked);
            n.available = Some(least - 2 * HOST_NEED);
        });
        assert_eq!(kept, Ok(Mode::Parked), "it is no reason against itself");
    }
    assert_eq!(host(Standbys::Open, None), Ok(Mode::Open));
}

#[test]
fn never_with_less_than_twice_its_need_free_whatever_was_asked() {
    for asked in [Standbys::Auto, Standbys::Open, Standbys::Parked] {
        let at = |bytes| node(asked).with(|n| n.free("GPU-1", bytes));
        assert!(asked == Standbys::Auto || at(FREE_MIN).is_ok());
        let (gpu, free) = ("GPU-1".to_owned(), FREE_MIN - 1);
        assert_eq!(at(free), Err(No::Memory { gpu, free }));
        let unknown = node(asked).with(|n| {
            n.memory.remove("GPU-0");
        });
        assert!(matches!(unknown, Err(No::MemoryUnknown { .. })));
    }
    // What an open one holds itself is not counted against it. A parked one holds nothing.
    let kept = |mode| {
        node(Standbys::Open).with(move |n| {
            n.has = Some(mode);
            n.free("GPU-0", FREE_MIN - NEED);
        })
    };
    assert_eq!(kept(Mode::Open), Ok(Mode::Open));
    assert!(matches!(kept(Mode::Parked), Err(No::Memory { .. })));
}

#[test]
fn every_no_has_its_reason() {
    type Change = fn(&mut Node);
    let instance = |n: &mut Node, bytes| {
        let instances = vec![MigInstance {
            uuid: "MIG-a".into(),
            memory_bytes: bytes,
            ..MigInstance::default()
        }];
        n.gpus[0].mig = Some(Mig {
            enabled: true,
            pending: true,
            instances,
        });
        n.job.gpus[0] = "MIG-a".into();
        n.memory.insert("MIG-a".into(), n.memory["GPU-1"]);
    };
    let cases: [(Change, &str); 10] = [
        (|n| n.job.gpus.clear(), "the job has no GPU"),
        (
            |n| n.job.standbys = Standbys::Off,
            "the job says standbys: off",
        ),
        (|n| n.most = Most::Off, "the operator allows none"),
        (|n| n.lane = Lane::Cold, "only ranks of lane fork"),
        (|n| n.lane = Lane::Direct, "only ranks of lane fork"),
        (|n| n.job.proc_per_node = 4, "4 ranks and 2 GPUs"),
        (
            |n| n.gpus[1].compute_mode = ComputeMode::ExclusiveProcess,
            "GPU-1 may be used by one process only",
        ),
        (
            |n| n.sets.push("CUDA_VISIBLE_DEVICES".into()),
            "the script sets CUDA_VISIBLE_DEVICES",
        ),
        (
            |n| n.sets.push("PYTORCH_CUDA_ALLOC_CONF".into()),
            "the script sets PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            |n| n.failed = Some("error 801".into()),
            "an earlier one failed: error 801",
        ),
    ];
    for (change, said) in cases {
        let no = node(Standbys::Auto).with(change).unwrap_err().to_string();
        assert!(no.contains(said), "{no}");
    }
    let small = node(Standbys::Auto).with(|n| instance(n, 5 * GIB));
    assert!(matches!(small, Err(No::SmallInstance { .. })), "{small:?}");
    let large = node(Standbys::Auto).with(|n| instance(n, 20 * GIB));
    assert_eq!(large, Ok(Mode::Parked));
}

#[test]
fn an_operator_who_allows_parked_ones_gets_no_open_ones() {
    let parked = |n: &mut Node| n.most = Most::Parked;
    assert_eq!(node(Standbys::Open).with(parked), Ok(Mode::Parked));
    let old = node(Standbys::Open).with(|n| {
        parked(n);
        n.driver = Some(driver("550.1"));
    });
    assert_eq!(old, Err(No::Operator(Most::Parked)));
}

#[test]
fn a_run_must_have_trained_for_a_while() {
    let rank = |started, stepped| RankReport {
        started_at: Some(Timestamp(started)),
        first_step_at: Some(Timestamp(stepped)).filter(|at| at.0 > 0),
        ..RankReport::bare(0, 0)
    };
    let run = |ranks| RunReport {
        phase: RunPhase::Running,
        ranks,
        ..RunReport::preparing(assignment("a", 1).run, crate::id::Term(1))
    };
    let now = Timestamp(100_000_000);
    let due = |ranks| super::due(now, &run(ranks));
    let after = |at| Some(Timestamp(at) + TRAINED);
    assert_eq!(
        due(vec![rank(5_000_000, 0), rank(7_000_000, 0)]),
        after(7_000_000)
    );
    assert_eq!(
        due(vec![rank(5_000_000, 9_000_000), rank(7_000_000, 0)]),
        after(9_000_000)
    );
    assert_eq!(due(Vec::new()), None);
    let mut ended = rank(1, 0);
    ended.exit = Some(crate::exit::Exit::Code(0));
    assert_eq!(due(vec![rank(1, 0), ended]), None);
    let mut stopping = run(vec![rank(1, 0)]);
    stopping.phase = RunPhase::Stopping;
    assert_eq!(super::due(now, &stopping), None);
}
