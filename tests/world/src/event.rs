//! Everything that can happen in the world, as values in the queue.
//!
//! Many events name the life of what they are meant for (an agent's process, a boot, a group): what
//! died in between is not woken by them.

use std::time::Duration;

use muster_core::{
    exit::Exit,
    fleet::{Answer, Hello, RequestId},
    id::{JobUid, NodeEpoch, SessionId, Term},
    node_report::NodeReport,
    run::{Desired, Endpoint, RunId, RunReport, SpareReport},
    time::Timestamp,
};

use crate::fault::Fault;

#[derive(Clone, Debug)]
pub(crate) enum Event {
    CoordinatorStarts {
        seat: usize,
    },
    /// A coordinator whose term is over learns of it.
    Deposed {
        process: u64,
    },
    /// What waits at a coordinator is decided.
    Drain {
        process: u64,
    },
    /// A person mends what the agent of this machine has refused to start with.
    OperatorMends {
        machine: usize,
    },
    /// A person restarts the coordinator with a term above what nodes have obeyed.
    OperatorRaisesTerm {
        at_least: Term,
    },
    /// A person starts the coordinator with the word that its store is the truth, or takes that
    /// word off the command line again.
    OperatorAcceptsStore {
        accepts: bool,
    },
    /// A person gives the agent of this machine the state directory it had before.
    OperatorSwapsBack {
        machine: usize,
        state_dir: u32,
    },
    /// A second coordinator takes the term, and the first is not found any more by who looks for
    /// one.
    TakesOver,
    OldOneReturns {
        machine: usize,
    },
    NamesakeComes {
        machine: usize,
    },
    NamesakeGoes {
        process: u64,
        session: SessionId,
    },
    /// Everything on a machine that stood still has had the time to go on.
    AllAwake {
        machine: usize,
    },
    /// A rank of the group that trains on a sick machine fails.
    SickRank {
        machine: usize,
    },
    Tick {
        process: u64,
        at: Timestamp,
    },
    /// A message reaches the coordinator.
    Up {
        conn: u64,
        serial: u64,
        message: Up,
    },
    /// A message reaches the agent.
    Down {
        conn: u64,
        serial: u64,
        message: Down,
    },
    Late {
        machine: usize,
        agent: u64,
        message: Down,
    },
    /// The end of a connection is noticed at the coordinator, or at the agent.
    UpClosed {
        conn: u64,
    },
    StreamEnded {
        conn: u64,
    },
    DownClosed {
        conn: u64,
    },

    AgentStarts {
        machine: usize,
    },
    Dial {
        machine: usize,
        agent: u64,
    },
    Beat {
        machine: usize,
        conn: u64,
    },
    Refused {
        machine: usize,
        agent: u64,
        run: RunId,
        reason: &'static str,
    },
    RunnerLost {
        machine: usize,
        agent: u64,
        run: RunId,
    },
    /// A write of the ledger that took long is over.
    LedgerWritten {
        machine: usize,
        agent: u64,
    },
    /// A launcher for a job that is about to come is ready, or will never be.
    Warmed {
        machine: usize,
        agent: u64,
        job: JobUid,
    },
    /// A runner says how its group is: as it is when this arrives.
    Speak {
        machine: usize,
        run: RunId,
    },

    /// Look whether a group's workers have heard of the coordinator lately enough.
    FenceLooks {
        machine: usize,
        run: RunId,
        life: u64,
    },
    CutUp {
        machine: usize,
    },
    PowerOn {
        machine: usize,
    },
    RunnerUp {
        machine: usize,
        run: RunId,
        life: u64,
    },
    Order {
        machine: usize,
        agent: u64,
        run: RunId,
        life: u64,
        line: u64,
        order: Order,
    },
    Launched {
        machine: usize,
        run: RunId,
        life: u64,
    },
    RankEnds {
        machine: usize,
        run: RunId,
        life: u64,
        local: usize,
        exit: Exit,
        error: Option<&'static str>,
    },
    /// Look whether a group is to be killed or is dead.
    GroupMoves {
        machine: usize,
        run: RunId,
        life: u64,
    },

    Step {
        world: u64,
    },
    /// Peers of this machine in this world learn that it is gone.
    PeersNotice {
        world: u64,
        machine: usize,
    },
    FabricTimeout {
        a: usize,
        b: usize,
        cut: u64,
    },

    UserActs,
    RequestArrives {
        id: RequestId,
    },
    AnswerArrives {
        id: RequestId,
        answer: Box<Answer>,
    },
    NoAnswer {
        id: RequestId,
    },

    FaultStrikes,
    /// A fault's effect ends.
    Mends {
        fault: Fault,
        machine: usize,
        other: usize,
    },
    EverythingHeals,
    LookAtJobs,
}

/// From an agent. Times in it are on the agent's clock, `sent` says what that clock showed.
#[derive(Clone, Debug)]
pub(crate) enum Up {
    Hello {
        hello: Box<Hello>,
        sent: Timestamp,
    },
    Report(Box<NodeReport>),
    Runs {
        runs: Vec<RunReport>,
        sent: Timestamp,
    },
    Spares(Vec<SpareReport>),
    Heartbeat {
        number: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Down {
    Welcome {
        term: Term,
        epoch: NodeEpoch,
        heartbeat: Duration,
    },
    Desired(Desired),
    HeartbeatReply {
        number: u64,
    },
}

/// What an agent tells a runner.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// `heard`: when the coordinator was heard last.
    Start {
        store: Endpoint,
        heard: Option<Timestamp>,
    },
    Renew {
        heard: Timestamp,
    },
    Stop {
        grace: Duration,
    },
    Release,
}
