//! Round trips over real bytes.

use std::{collections::BTreeMap, net::IpAddr};

use muster_core::{
    exit::Exit,
    id::{Generation, JobName, JobUid},
    layout::{Layout, RoleShare},
    nccl::{
        profile::{Profile, Shared, Transport},
        stack::Stack,
    },
    node_report::{
        Gpu, NodeReport, WarmPool,
        holders::{Holder, Holders},
        taint::Taint,
        trial::Trial,
    },
    protocol,
    run::{
        Assignment, CheckpointReport, Desired, DesiredRun, Disobedience, DueTo, Endpoint, Import,
        Imports, Key, LaneReport, LauncherReport, LauncherState, Leftover, NcclPart, NcclTimes,
        NestedWorld, Owner, PhasesReport, Program, RankException, RankReport, RunId, RunPhase,
        RunReport, Seated, Start, StepPatternFault, StepsShown, Target, WorldReport,
    },
    slow::{Arrivals, Clock, InGroup},
    spec::{Framework, Inspect, Launch, Standbys},
    stall::Still,
};
use proptest::{collection, option, prelude::*};
use prost::Message;

use super::*;
use crate::v1::{desired_run, launcher::State};

mod largest;
mod ranks;
mod refused;
mod seats;
mod versions;

use ranks::rank;

const NOW: Timestamp = Timestamp(5_000_000_000);

fn seen() -> impl Strategy<Value = BTreeMap<JobUid, Obeyed>> {
    let obeyed = (1..9_000u64, any::<bool>()).prop_map(|(number, over)| Obeyed {
        generation: Generation(number),
        over,
    });
    collection::btree_map(name().prop_map(JobUid::from), obeyed, 0..4)
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,12}[a-z0-9]"
}

fn run_id() -> impl Strategy<Value = RunId> {
    ("[0-9a-f]{8}-[0-9a-f]{4}", 1..1u64 << 53).prop_map(|(job, generation)| RunId {
        job: JobUid::from(job),
        generation: Generation(generation),
    })
}

fn exit() -> impl Strategy<Value = Exit> {
    prop_oneof![
        (0..256i32).prop_map(Exit::Code),
        (1..65i32).prop_map(Exit::Signal)
    ]
}

fn time() -> impl Strategy<Value = Option<Timestamp>> {
    option::of((0..=NOW.0).prop_map(Timestamp))
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    ("[a-z0-9.:]{1,20}", 1..=u16::MAX).prop_map(|(host, port)| Endpoint { host, port })
}

fn phase() -> impl Strategy<Value = RunPhase> {
    prop_oneof![
        Just(RunPhase::Preparing),
        Just(RunPhase::Ready),
        Just(RunPhase::Running),
        Just(RunPhase::Stopping),
        Just(RunPhase::Dead),
        "[ -~]{0,40}".prop_map(RunPhase::Refused)
    ]
}

fn run_report() -> impl Strategy<Value = RunReport> {
    let ranks = (0..4u32).prop_flat_map(|ranks| (0..ranks).map(rank).collect::<Vec<_>>());
    let first = (
        run_id(),
        any::<u64>(),
        phase(),
        option::of(endpoint()),
        collection::vec(any::<u32>(), 0..6),
    );
    (
        first,
        (
            time(),
            time(),
            option::of(exit()),
            option::of("[ -~]{1,40}"),
            time(),
        ),
        ranks,
    )
        .prop_map(
            |(
                (run, term, phase, store, joined_ranks),
                (all_joined_at, launched_at, torchrun_exit, torchrun_error, dead_at),
                ranks,
            )| {
                RunReport {
                    run,
                    term: Term(term),
                    phase,
                    refused_due_to: [
                        DueTo::Unknown,
                        DueTo::Job,
                        DueTo::Node,
                        DueTo::Stranger,
                        DueTo::Account,
                    ][term as usize % 5],
                    store,
                    port: u16::try_from(term % 70_000).ok().filter(|port| *port > 0),
                    ports: (1..).take(term as usize % 4).collect(),
                    key: (term % 2 == 0).then(|| Key(format!("{term:032x}"))),
                    joined_ranks,
                    all_joined_at,
                    launched_at,
                    torchrun_exit,
                    torchrun_error,
                    dead_at,
                    fenced: term % 2 == 1,
                    checkpoint: (term % 3 > 0).then(|| CheckpointReport {
                        saved_at: (term % 3 == 1).then_some(NOW),
                    }),
                    lane: LaneReport {
                        name: "fork".into(),
                        reason: "asked for".into(),
                        launcher_bytes: term,
                    },
                    stack: Stack {
                        torch: format!("2.15.{term}"),
                        cuda: "13.2".into(),
                        nccl: "2.30.7".into(),
                        nccl2: (term % 3).to_string(),
                    },
                    ranks,
                    world: WorldReport {
                        announced: (term % 2 == 0).then_some(term as u32),
                        nested: (term % 3 == 0).then(|| NestedWorld {
                            rank: 1,
                            pid: term as u32,
                            launcher: "torchrun".into(),
                            world_size: 2,
                        }),
                    },
                    step_pattern_fault: [
                        None,
                        Some(StepPatternFault::TooLarge),
                        Some(StepPatternFault::TooSlow),
                    ][term as usize % 3],
                    disobedience: (term % 5 == 0).then(|| Disobedience {
                        grace: Duration::from_millis(term),
                        late: Duration::from_secs(20),
                        answered: term % 2 == 0,
                    }),
                    phases: PhasesReport {
                        script_at: all_joined_at,
                        gpu_at: launched_at,
                        communicator_at: dead_at,
                        imports: (term % 2 == 0).then(|| Imports {
                            time: Duration::from_micros(term),
                            by: vec![Import {
                                name: "scipy".into(),
                                time: Duration::from_micros(term / 2),
                                why: "asks for RANK".into(),
                            }],
                        }),
                        nccl: (term % 3 == 0).then(|| NcclTimes {
                            time: Duration::from_micros(term),
                            parts: vec![NcclPart {
                                name: "topo".into(),
                                time: Duration::from_micros(term / 3),
                            }],
                        }),
                    },
                    leftovers: (1..)
                        .take(term as usize % 4)
                        .map(|pid| Leftover {
                            pid,
                            program: format!("python3 export{pid}.py"),
                            killed: pid % 2 == 0,
                        })
                        .collect(),
                }
            },
        )
}

/// Reports of different runs, because a list that names a run twice is not well-formed.
fn runs() -> impl Strategy<Value = Vec<RunReport>> {
    collection::vec(run_report(), 0..5).prop_map(|mut runs| {
        runs.sort_by(|a, b| a.run.cmp(&b.run));
        runs.dedup_by(|a, b| a.run == b.run);
        runs
    })
}

fn node_report() -> impl Strategy<Value = NodeReport> {
    let gpu = (
        "GPU-[0-9a-f]{8}",
        any::<u32>(),
        "[A-Za-z0-9 ]{0,20}",
        any::<u64>(),
    );
    let gpus = collection::vec(
        gpu.prop_map(|(uuid, index, model, memory_bytes)| Gpu {
            uuid,
            index,
            model,
            memory_bytes,
            ..Gpu::default()
        }),
        0..9,
    );
    let labels = collection::btree_map("[a-z.]{1,20}(/[a-z]{1,9})?", "[a-z0-9]{0,63}", 0..6);
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(std::net::IpAddr::from),
        any::<[u8; 16]>().prop_map(std::net::IpAddr::from)
    ];
    (
        (address, "[ -~]{0,30}", name(), "[ -~]{0,30}", labels),
        (any::<u32>(), any::<u32>(), any::<u64>()),
        gpus,
        option::of("[ -~]{1,40}"),
        option::of(
            any::<(u32, u32, u64)>().prop_map(|(limit, ready, bytes)| WarmPool {
                limit,
                ready,
                bytes,
            }),
        ),
        (holders(), any::<bool>(), collection::vec(trial(), 0..3)),
    )
        .prop_map(
            |(
                (address, agent_version, hostname, kernel, labels),
                (slots, cpus, memory_bytes),
                gpus,
                gpu_error,
                warm_pool,
                (holders, senses_only, trials),
            )| {
                NodeReport {
                    address: address.to_string(),
                    agent_version,
                    hostname,
                    kernel,
                    labels,
                    slots,
                    cpus,
                    memory_bytes,
                    gpus,
                    gpu_error,
                    warm_pool,
                    holders,
                    run_as_owner: !senses_only,
                    container_runtime: if senses_only { "" } else { "podman 4.3.1" }.into(),
                    senses_only,
                    trials,
                    taints: { senses_only.then_some("a=b:NoExecute").into_iter() }
                        .map(|text| Taint::read(text).unwrap())
                        .collect(),
                    ..NodeReport::default()
                }
            },
        )
}

fn trial() -> impl Strategy<Value = Trial> {
    let words = "[ -~]{0,30}";
    (
        (words, words, words, words),
        any::<u64>(),
        collection::vec(words, 0..3),
    )
        .prop_map(
            |((program, torch, python, suite), at_unix_us, differs)| Trial {
                program,
                torch,
                python,
                suite,
                at_unix_us,
                differs,
            },
        )
}

fn holders() -> impl Strategy<Value = Holders> {
    let holder = (name(), name(), name()).prop_map(|(gpu, namespace, pod)| Holder {
        gpu,
        namespace,
        pod,
    });
    let known = collection::btree_set(holder, 0..5).prop_map(|all| all.into_iter().collect());
    prop_oneof![
        Just(Holders::NotAsked),
        Just(Holders::Unknown),
        known.prop_map(Holders::Known)
    ]
}

fn profile() -> impl Strategy<Value = Profile> {
    let transport = prop_oneof![
        Just(Transport::Socket),
        Just(Transport::Infiniband),
        Just(Transport::Roce),
        Just(Transport::Efa)
    ];
    let shared = ("[A-Z_]{1,9}", "[ -~]{0,9}", "[ -~]{0,20}")
        .prop_map(|(name, value, why)| Shared { name, value, why });
    (transport, 0..9u32, collection::vec(shared, 0..4)).prop_map(|(transport, rails, shared)| {
        Profile {
            transport,
            rails,
            shared,
        }
    })
}

fn share(name: &str, members: u32, procs: u32) -> RoleShare {
    RoleShare {
        name: name.into(),
        members,
        procs,
        slots: procs - 1,
        service: members > 1,
        restarts_alone: procs == 1,
    }
}

fn assignment(run: RunId) -> impl Strategy<Value = Assignment> {
    let words = || collection::vec("[ -~]{0,20}", 0..5);
    let env = collection::btree_map("[A-Z_]{1,9}", "[ -~]{0,20}", 0..5);
    let rest = (
        option::of("/[a-z]{1,9}"),
        collection::vec("GPU-[0-9]{1,9}", 0..4),
        0..3_000_000u64,
        option::of("[ -~]{1,20}"),
        any::<u32>(),
        collection::vec(any::<IpAddr>(), 0..4),
    );
    let rest = (rest, profile());
    (
        (name(), name(), name(), "[ -~]{1,30}"),
        (1..9u32, 1..9u32, any::<bool>()),
        (words(), words(), env),
        rest,
    )
        .prop_map(
            move |(
                (namespace, job, store_host, rendezvous),
                (nodes, procs, hosts_store),
                (command, args, env),
                (rest, profile),
            )| {
                // One node holds all members, or the last one.
                let (first, own) = match rest.4 % 3 {
                    0 => (0, nodes),
                    _ => (nodes - 1, 1),
                };
                let seated = (first..nodes).map(|number| Seated {
                    number,
                    program: number as usize % 2,
                    procs,
                    first_rank: number * procs,
                    gpus: rest.1.clone(),
                });
                let program = Program {
                    command: command.clone(),
                    args: args.clone(),
                    env: env.clone(),
                    env_files: env.clone(),
                    working_dir: rest.0.clone(),
                };
                Assignment {
                    run: run.clone(),
                    name: JobName {
                        namespace,
                        name: job,
                    },
                    rendezvous,
                    node_rank: first,
                    node_count: nodes,
                    proc_per_node: own * procs,
                    first_rank: first * procs,
                    members: seated.filter(|_| own > 1).collect(),
                    programs: vec![program; if own > 1 { 2 } else { 0 }],
                    world_size: nodes * procs,
                    store_host: NodeName::from(store_host),
                    hosts_store,
                    store_clients: rest.5,
                    command,
                    args,
                    env_files: env.clone(),
                    env,
                    image: rest.0.clone().filter(|image| !image.is_empty()),
                    working_dir: rest.0,
                    gpus: rest.1,
                    hides_gpus: rest.4 % 2 == 1,
                    launch: Launch::ALL[rest.4 as usize % Launch::ALL.len()].1,
                    standbys: Standbys::ALL[rest.4 as usize % Standbys::ALL.len()].1,
                    inspect: Inspect::ALL[rest.4 as usize % Inspect::ALL.len()].1,
                    stop_grace: Duration::from_millis(rest.2),
                    checkpoint_pattern: rest.3.clone(),
                    step_pattern: rest.3,
                    restart_count: rest.4,
                    profile_hash: profile.hash(),
                    profile,
                    fence_after: Some(Duration::from_millis(rest.2))
                        .filter(|after| !after.is_zero()),
                    framework: Framework::ALL[rest.4 as usize % Framework::ALL.len()].1,
                    layout: match rest.4 % 2 {
                        0 => Layout::default(),
                        _ => Layout(vec![
                            share("one", 1, procs),
                            share("rest", nodes - 1, procs),
                        ]),
                    },
                    owner: match rest.4 % 3 {
                        0 => None,
                        1 => Some(Owner::User("ann".into())),
                        _ => Some(Owner::Local(rest.4)),
                    },
                }
            },
        )
}

fn target(run: RunId) -> impl Strategy<Value = Target> {
    prop_oneof![
        assignment(run.clone()).prop_map(|a| Target::Ready(Box::new(a))),
        (
            assignment(run),
            endpoint(),
            collection::vec(endpoint(), 0..3),
            collection::vec(
                prop_oneof![Just(String::new()), Just("0a".repeat(16))],
                0..3
            ),
            collection::btree_map(0..9u32, 2..5u32, 0..3)
        )
            .prop_map(|(a, store, peers, keys, attempts)| {
                let keys = keys.into_iter().map(Key).collect();
                Target::Running(
                    Box::new(a),
                    Start {
                        store,
                        peers,
                        keys,
                        attempts,
                    },
                )
            }),
        (0..1_000_000u64, "[ -~]{0,30}").prop_map(|(ms, reason)| Target::Stopped {
            grace: Duration::from_millis(ms),
            reason
        }),
        any::<bool>().prop_map(|purge| Target::Gone { purge }),
    ]
}

fn desired() -> impl Strategy<Value = Desired> {
    let one = run_id().prop_flat_map(|run| {
        target(run.clone()).prop_map(move |target| DesiredRun {
            run: run.clone(),
            target,
        })
    });
    let labels = collection::btree_map("[a-z.]{1,20}", "[a-z0-9]{0,63}", 0..3);
    let prewarm = collection::vec(run_id().prop_flat_map(assignment), 0..3);
    (
        any::<u64>(),
        any::<u64>(),
        collection::vec(one, 0..5),
        labels,
        prewarm,
        proptest::option::of("[ -~]{1,60}"),
    )
        .prop_map(|(term, epoch, mut runs, labels, mut prewarm, retire)| {
            prewarm.sort_by(|a, b| a.run.job.cmp(&b.run.job));
            prewarm.dedup_by(|a, b| a.run.job == b.run.job);
            runs.sort_by(|a, b| a.run.cmp(&b.run));
            runs.dedup_by(|a, b| a.run == b.run);
            Desired {
                term: Term(term),
                epoch: NodeEpoch(epoch),
                runs,
                labels: labels.into(),
                prewarm,
                retire,
            }
        })
}

fn launchers() -> impl Strategy<Value = Vec<LauncherReport>> {
    let state = prop_oneof![
        Just(LauncherState::Ready),
        "[ -~]{1,30}".prop_map(LauncherState::Without),
        "[ -~]{1,30}".prop_map(LauncherState::Refused),
    ];
    let by_job = collection::btree_map("[a-z0-9-]{1,20}", state, 0..4);
    by_job.prop_map(|launchers| {
        launchers
            .into_iter()
            .map(|(job, state)| LauncherReport {
                job: JobUid::from(job),
                state,
            })
            .collect()
    })
}

/// Goes through real bytes, so that a field that is missing on the wire is noticed.
fn over_the_wire<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

proptest! {
    #[test]
    fn hello_comes_back(node in name(), uptime in proptest::option::of(1..u64::MAX), ids in (any::<u64>(), 0..1u64 << 53, 0..1u64 << 53), report in node_report(), runs in runs(), seen in seen()) {
        let hello = Hello {
            node: NodeName::from(node),
            boot_id: "boot".into(),
            uptime: uptime.map(Duration::from_micros),
            incarnation: ids.0,
            speaks: Speaks::OURS,
            term_seen: Term(ids.1),
            epoch_seen: NodeEpoch(ids.2),
            jobs_seen: seen,
            report,
            runs,
        };
        let back = hello_from_wire(over_the_wire(&hello_to_wire(&hello, NOW)), NOW).unwrap();
        prop_assert_eq!(format!("{back:?}"), format!("{hello:?}"));
    }

    #[test]
    fn runs_come_back_shifted_by_the_clocks_difference(runs in runs(), ahead in 0..1_000_000u64) {
        let wire = over_the_wire(&runs_to_wire(&runs, None, NOW));
        prop_assert_eq!(&runs_from_wire(wire.clone(), NOW).unwrap(), &runs);
        let there = runs_from_wire(wire, NOW + Duration::from_micros(ahead)).unwrap();
        for (there, here) in there.iter().zip(&runs) {
            prop_assert_eq!(there.dead_at, here.dead_at.map(|at| at + Duration::from_micros(ahead)));
        }
    }

    #[test]
    fn arrivals_come_back_with_the_clock_of_their_node(ahead in any::<i64>(), runs in runs()) {
        let clock = Clock { ahead_us: ahead, error_us: 7 };
        let wire = over_the_wire(&runs_to_wire(&runs, Some(clock), NOW));
        let back = runs_from_wire(wire, NOW).unwrap();
        for (back, rank) in back.iter().zip(&runs).flat_map(|(back, run)| back.ranks.iter().zip(&run.ranks)) {
            let told = rank.arrivals.as_ref().map(|arrivals| Arrivals { clock: Some(clock), ..(**arrivals).clone() });
            prop_assert_eq!(back.arrivals.as_deref(), told.as_ref());
        }
    }

    #[test]
    fn launchers_come_back(launchers in launchers()) {
        prop_assert_eq!(launchers_from_wire(over_the_wire(&launchers_to_wire(&launchers))).unwrap(), launchers);
    }

    #[test]
    fn desired_comes_back(desired in desired()) {
        prop_assert_eq!(desired_from_wire(over_the_wire(&desired_to_wire(&desired))).unwrap(), desired);
    }

    /// Hostile bytes are refused or decoded, and what is decoded survives the way back.
    #[test]
    fn any_bytes_are_refused_or_understood(bytes in collection::vec(any::<u8>(), 0..400)) {
        if let Ok(wire) = v1::Desired::decode(bytes.as_slice())
            && let Ok(desired) = desired_from_wire(wire)
        {
            prop_assert_eq!(desired_from_wire(desired_to_wire(&desired)), Ok(desired));
        }
        if let Ok(wire) = v1::RunReports::decode(bytes.as_slice())
            && let Ok(runs) = runs_from_wire(wire, NOW)
        {
            prop_assert_eq!(runs_from_wire(runs_to_wire(&runs, None, NOW), NOW), Ok(runs));
        }
    }
}
