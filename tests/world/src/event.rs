//! Everything that can happen in the world, as values in the queue.
//!
//! Many events name the life they are meant for: an agent's process, a boot, or a group. If that
//! has died in between, they do nothing.

use std::time::Duration;

use muster_core::{
    exit::Exit,
    fleet::{Answer, RequestId},
    hello::Hello,
    id::{JobUid, NodeEpoch, SessionId, Term},
    node_object::{Correction, Raw},
    node_report::NodeReport,
    run::{Desired, Endpoint, LauncherReport, RunId, RunReport},
    stacks::RankStack,
    time::Timestamp,
};

use crate::{fault::Fault, pods::PodEvent};

#[derive(Clone, Debug)]
pub(crate) enum Event {
    CoordinatorStarts {
        seat: usize,
    },
    /// A coordinator learns that its term is over.
    Deposed {
        process: u64,
    },
    /// A coordinator decides on the inputs that wait.
    Drain {
        process: u64,
    },
    /// A person repairs what made the agent of this machine refuse to start.
    OperatorMends {
        machine: usize,
    },
    /// A person restarts the coordinator with a term above the one that nodes have obeyed.
    OperatorRaisesTerm {
        at_least: Term,
    },
    /// A person starts the coordinator with --accept-store, or removes that flag again.
    OperatorAcceptsStore {
        accepts: bool,
    },
    /// A person gives the agent of this machine its earlier state directory back.
    OperatorSwapsBack {
        machine: usize,
        state_dir: u32,
    },
    /// A second coordinator takes the term. New callers do not find the first one any more.
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
    /// Everything on a machine that stood still has had time to go on.
    AllAwake {
        machine: usize,
    },
    /// A rank fails in the group that trains on a sick machine.
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
    /// The coordinator, or the agent, notices the end of a connection.
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
    /// A slow write of the ledger is over.
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
    /// A runner reports the state of its group at the moment when this arrives.
    Speak {
        machine: usize,
        run: RunId,
    },

    /// Checks whether a group's workers have heard of the coordinator recently enough.
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
    /// The next attempt of a rank that has failed.
    StartsAgain {
        machine: usize,
        run: RunId,
        life: u64,
        local: usize,
    },
    RankEnds {
        machine: usize,
        run: RunId,
        life: u64,
        local: usize,
        exit: Exit,
        error: Option<&'static str>,
    },
    /// Checks whether a group must be killed, or is dead.
    GroupMoves {
        machine: usize,
        run: RunId,
        life: u64,
    },

    Step {
        world: u64,
    },
    /// A rank that stood still goes on, if its time is over.
    StandEnds {
        machine: usize,
        run: RunId,
        life: u64,
        local: usize,
    },
    /// A runner looks which ranks of its group move.
    LookMovement {
        machine: usize,
        run: RunId,
        life: u64,
    },
    /// An agent finds out where ranks are.
    Locates {
        machine: usize,
        agent: u64,
        look: u64,
        run: RunId,
        ranks: Vec<u32>,
    },
    /// Nobody waits any longer for what agents say of ranks.
    LookEnds {
        process: u64,
        look: u64,
    },
    LookAtStalls,
    /// Peers of this machine in this training learn that it is gone.
    PeersNotice {
        world: u64,
        machine: usize,
    },
    FabricTimeout {
        a: usize,
        b: usize,
        cut: u64,
    },

    /// A coordinator has read all Node objects of the cluster.
    ObjectsListed {
        process: u64,
    },
    /// A coordinator hears of an object as it was then.
    ObjectHeard {
        process: u64,
        machine: usize,
        version: u64,
        raw: Box<Raw>,
    },
    /// A coordinator looks which objects lack something.
    WriterLooks {
        process: u64,
    },
    /// The write on an object that was read in this version.
    WriteArrives {
        machine: usize,
        version: u64,
        correction: Box<Correction>,
    },
    PersonAtObjects,
    Pods(PodEvent),

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
    /// The effect of a fault ends.
    Mends {
        fault: Fault,
        machine: usize,
        other: usize,
    },
    EverythingHeals,
    LookAtJobs,
}

/// From an agent. Its times are on the agent's clock, and `sent` is what that clock showed.
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
    Launchers(Vec<LauncherReport>),
    Heartbeat {
        number: u64,
    },
    Located {
        look: u64,
        ranks: Vec<RankStack>,
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
    /// Where are these ranks?
    Locate {
        look: u64,
        run: RunId,
        ranks: Vec<u32>,
    },
}

/// An order from an agent to a runner.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// `heard`: when the coordinator was last heard.
    Start {
        store: Endpoint,
        heard: Option<Timestamp>,
    },
    Renew {
        heard: Timestamp,
    },
    Restart {
        rank: u32,
        attempt: u32,
    },
    Stop {
        grace: Duration,
    },
    Release,
}
