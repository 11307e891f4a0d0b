//! An agent's session without the agent: the real connection, hello, heartbeats and reports. The
//! caller takes the place of the supervisor. It is for benchmarks of the coordinator, which cannot
//! distinguish it from a node. It never starts or stops anything.

use std::{path::PathBuf, sync::Arc};

use muster_core::{
    id::{NodeEpoch, NodeName, Term},
    node_report::{
        Gpu, NodeReport,
        gpu::{Driver, NvLink, NvLinkPeer, PcieLink},
    },
    run::{Desired, LauncherReport, LauncherState, RunReport},
};
use muster_rpc::Address;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    boot::Boot,
    config::Config,
    host::NoHost,
    logs::Logs,
    probe::{Facts, Probes},
    proof::Proof,
    run_dir::Runs,
    session::{Asks, Session},
    signals::RankSignals,
    stacks::Stacks,
    supervisor::{Handle, ORDERS_MAX, Order, Reports},
};

/// What the coordinator told this node.
#[derive(Debug)]
pub enum Told {
    Welcome { term: Term, epoch: NodeEpoch },
    Desired(Desired),
}

/// The supervisor's end of one session.
#[derive(Debug)]
pub struct SimulatedAgent {
    orders: mpsc::Receiver<Order>,
    reports: watch::Sender<Option<Reports>>,
    pulse: watch::Sender<u64>,
    /// Kept open, since nothing here ever ends the session.
    _end_session: watch::Sender<(u64, String)>,
}

impl SimulatedAgent {
    /// A node with one slot and this many GPUs, and its session, which the caller runs as a task.
    /// The session ends with `shutdown`. `identity`: the file of what the node shows to a coordinator
    /// that speaks TLS.
    pub fn new(
        coordinator: Address,
        identity: Option<PathBuf>,
        node: NodeName,
        gpus: u32,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let config = Arc::new(Config {
            accept_unknown: false,
            identity: identity.map(Proof::Certificate),
            server_name: None,
            coordinator,
            node: node.clone(),
            state_dir: PathBuf::new(),
            pod: None,
            senses_only: false,
            users: crate::config::Users::Agents,
            address: [127, 0, 0, 1].into(),
            follows_address: false,
            taints: Vec::new(),
            containers: None,
            labels: [("rack", "r1"), ("zone", "a")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            logs_max: 0,
            slots: 1,
            runner: PathBuf::new(),
            launchers: false,
            launcher_memory_max: None,
            proves: false,
            warm_pool: 0,
            standbys: Default::default(),
            inspects: true,
            ready_file: None,
            step_formats: None,
            port_range: None,
            probes: Probes::default(),
        });
        let (orders_in, orders) = mpsc::channel(ORDERS_MAX);
        let reports = watch::Sender::new(Some(Reports {
            term: Term(0),
            epoch: NodeEpoch(0),
            jobs_seen: Arc::default(),
            runs: Arc::default(),
            launchers: Arc::default(),
            pool: None,
        }));
        let (pulse, end_session) = (
            watch::Sender::new(0),
            watch::Sender::new((0, String::new())),
        );
        let handle = Handle {
            orders: orders_in,
            reports: reports.subscribe(),
            pulse: pulse.subscribe(),
            end_session: end_session.subscribe(),
        };
        let runs = Runs::new(&config.state_dir);
        let asks = Asks {
            logs: Logs::new(runs.clone(), reports.subscribe(), shutdown.clone()),
            signals: RankSignals::new(Arc::new(NoHost), runs.clone(), shutdown.clone()),
            stacks: Stacks::new(Arc::new(NoHost), runs, shutdown.clone()),
        };
        let fixed = NodeReport {
            address: config.address.to_string(),
            agent_version: muster_runtime::version::version().to_owned(),
            hostname: node.to_string(),
            kernel: "6.1.0".into(),
            labels: config.labels.clone(),
            taints: config.taints.clone(),
            slots: config.slots,
            cpus: 64,
            memory_bytes: 512 << 30,
            gpus: (0..gpus).map(|index| gpu(&node, index)).collect(),
            driver: Some(Driver {
                version: "570.86.15".into(),
                cuda: "12.8".into(),
                nvml: "12.570.86.15".into(),
            }),
            ..NodeReport::default()
        };
        let session = Session::new(
            config,
            handle,
            Facts::unprobed(fixed),
            asks,
            Boot::of_machine().expect("a machine that runs this has /proc"),
            watch::Sender::new(None),
            shutdown,
        );
        (
            Self {
                orders,
                reports,
                pulse,
                _end_session: end_session,
            },
            session.run(),
        )
    }

    /// The next message of the coordinator. None once the session is over for good. Heartbeats pass
    /// through here, as in an agent.
    pub async fn told(&mut self) -> Option<Told> {
        loop {
            match self.orders.recv().await? {
                Order::Heard(_) | Order::Ask(_) => {}
                Order::Pulse(sequence) => drop(self.pulse.send_replace(sequence)),
                Order::Welcome { term, epoch } => {
                    // An agent tells in its next hello what it has obeyed.
                    self.reports.send_modify(|reports| {
                        if let Some(reports) = reports {
                            (reports.term, reports.epoch) = (term, epoch);
                        }
                    });
                    return Some(Told::Welcome { term, epoch });
                }
                Order::Desired(desired) => {
                    self.report_launchers(&desired);
                    return Some(Told::Desired(desired));
                }
            }
        }
    }

    /// Reports that no launcher comes. This node runs nothing, so waiting for one would gain
    /// nothing.
    fn report_launchers(&self, desired: &Desired) {
        let state = || LauncherState::Without("nothing runs here".into());
        let launchers: Vec<LauncherReport> = desired
            .prewarm
            .iter()
            .map(|job| LauncherReport {
                job: job.run.job.clone(),
                state: state(),
            })
            .collect();
        self.reports.send_if_modified(|reports| {
            let Some(reports) = reports
                .as_mut()
                .filter(|reports| *reports.launchers != launchers)
            else {
                return false;
            };
            reports.launchers = Arc::new(launchers);
            true
        });
    }

    /// Reports everything that this node now holds.
    pub fn report(&self, runs: Vec<RunReport>) {
        self.reports.send_modify(|reports| {
            if let Some(reports) = reports {
                reports.runs = Arc::new(runs);
            }
        });
    }
}

/// A GPU as an agent reports an H100 on a baseboard with switches.
fn gpu(node: &NodeName, index: u32) -> Gpu {
    let peer = |link| NvLinkPeer::Switch(format!("0000:{:02x}:00.0", 5 + link % 4));
    Gpu {
        uuid: format!("GPU-{node}-4a1f-8c55-{index:012}"),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        pci: format!("0000:{:02x}:00.0", 0x18 + index * 0x10),
        minor: Some(index),
        serial: format!("165302{index:07}"),
        module_id: Some(index + 1),
        numa_node: Some(index / 4),
        compute_capability: "9.0".into(),
        persistence: Some(true),
        ecc: Some(true),
        pcie: Some(PcieLink {
            generation: 5,
            generation_max: 5,
            width: 16,
            width_max: 16,
        }),
        nvlinks: (0..18)
            .map(|link| NvLink {
                link,
                active: true,
                peer: peer(link),
                errors: 0,
            })
            .collect(),
        ..Gpu::default()
    }
}
