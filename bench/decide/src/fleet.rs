//! A fleet in memory: the brain alone, with nodes that have said hello and jobs that hold them. No agent answers, so a job that
//! got its nodes keeps them, as one that trains does.

use std::time::{Duration, Instant};

use muster_core::{
    fleet::{Actor, Answer, Effect, Fleet, Input, Policy, Rate, Request, RequestId, Stored},
    hello::Hello,
    id::{JobName, JobUid, NodeEpoch, NodeName, SessionId, Term},
    node_report::{Gpu, NodeReport},
    protocol::Speaks,
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    time::Timestamp,
};

/// GPUs of a node.
pub(crate) const GPUS: usize = 8;
const RACK: usize = 32;

pub(crate) struct Bench {
    fleet: Fleet,
    now: Timestamp,
    next: u64,
}

impl Bench {
    /// A fleet whose nodes are all ready, and which listens to nobody any more.
    pub(crate) fn new(nodes: usize) -> Self {
        let policy = Policy {
            jobs_max: 1_000_000,
            namespace_jobs_max: 1_000_000,
            submits_per_second: 1_000_000,
            submits_burst: 1_000_000,
            plans: Rate {
                per_second: 1_000_000,
                burst: 1_000_000,
            },
            // Nobody's silence is judged while the clock stands.
            prepare_timeout: Duration::from_secs(1_000_000),
            ..Policy::default()
        };
        let now = Timestamp(1_000_000_000);
        let fleet = Fleet::new(policy, Term(1), Stored::default(), now);
        let mut bench = Self {
            fleet,
            now,
            next: 0,
        };
        let hellos = (0..nodes).map(|number| Input::Connected {
            session: SessionId(1 + number as u64),
            hello: hello(number),
        });
        bench.fleet.turn_all(now, hellos.collect::<Vec<_>>());
        bench
    }

    /// One turn, and what it took.
    pub(crate) fn turn(&mut self, input: Input) -> (Vec<Effect>, Duration) {
        self.now = self.now + Duration::from_micros(100);
        let began = Instant::now();
        let turn = self.fleet.turn(self.now, input);
        let took = began.elapsed();
        (turn.effects, took)
    }

    fn request(&mut self, request: Request) -> (Answer, Duration) {
        self.next += 1;
        let id = RequestId(self.next);
        let actor = Actor::Local { uid: 0 };
        let (effects, took) = self.turn(Input::Request { id, actor, request });
        let answer = effects.into_iter().find_map(|effect| match effect {
            Effect::Answer { answer, .. } => Some(answer),
            _ => None,
        });
        (answer.expect("every request is answered in its turn"), took)
    }

    /// A job of so many nodes with so many GPUs on each. `check`: it is only asked what would happen.
    pub(crate) fn submit(
        &mut self,
        nodes: u32,
        gpus: u32,
        priority: i32,
        check: bool,
    ) -> (Answer, Duration) {
        let number = self.next;
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: format!("job-{number}"),
                namespace: None,
            },
            spec: SpecDocument {
                replicas: Some(nodes.into()),
                min_replicas: Some(nodes.into()),
                max_replicas: Some(nodes.into()),
                gpus_per_node: Some(gpus.into()),
                priority: Some(priority.into()),
                args: vec!["train.py".into()],
                ..SpecDocument::default()
            },
        };
        let (name, spec) = document.check().expect("it is valid");
        self.request(Request::Submit {
            name,
            spec,
            uid: JobUid::from(format!("uid-{number}")),
            request_id: String::new(),
            validate_only: check,
        })
    }

    /// A node gets no new work, or gets it again: the smallest news about capacity.
    pub(crate) fn cordon(&mut self, node: usize, cordoned: bool) -> Duration {
        let node = name(node);
        let request = match cordoned {
            true => Request::Cordon {
                node,
                reason: String::new(),
            },
            false => Request::Uncordon { node },
        };
        self.request(request).1
    }

    pub(crate) fn scale(&mut self, job: &JobName, nodes: u32) -> Duration {
        let request = Request::Scale {
            name: job.clone(),
            nodes,
        };
        self.request(request).1
    }

    pub(crate) fn heartbeat(&mut self, node: usize) -> Duration {
        let session = SessionId(1 + node as u64);
        self.turn(Input::Heartbeat { session }).1
    }
}

fn name(number: usize) -> NodeName {
    format!("node-{number:05}").as_str().into()
}

fn hello(number: usize) -> Hello {
    let node = name(number);
    let gpu = |index: usize| Gpu {
        uuid: format!("GPU-{number:05}-{index}"),
        index: index as u32,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        ..Gpu::default()
    };
    let labels = [
        (
            "topology.kubernetes.io/zone",
            format!("z{}", number / 4_096),
        ),
        ("topology.kubernetes.io/rack", format!("r{}", number / RACK)),
        (
            "node-type",
            if number.is_multiple_of(2) {
                "on-demand"
            } else {
                "spot"
            }
            .to_owned(),
        ),
    ];
    Hello {
        node,
        boot_id: format!("boot-{number}"),
        uptime: None,
        incarnation: 1,
        speaks: Speaks::OURS,
        term_seen: Term(0),
        epoch_seen: NodeEpoch(0),
        jobs_seen: Default::default(),
        report: NodeReport {
            address: format!(
                "10.{}.{}.{}",
                number / 65_536,
                number / 256 % 256,
                number % 256
            ),
            labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
            slots: 1,
            gpus: (0..GPUS).map(gpu).collect(),
            ..NodeReport::default()
        },
        runs: Vec::new(),
    }
}
