//! How a run is started on this node: all of it as values, which the agent carries out.
//!
//! A start is decided in three steps, because not all is known at once. [`ahead`] is the process of a member
//! before anybody knows where the generation meets; it is what is checked, and what a launcher is kept for.
//! When its interpreter has answered, [`Plan::of`] says in which lane the run is started, what is to be had before
//! (ports, a key), whether a launcher serves it, and what it falls back to without one. When the coordinator says
//! where the ranks meet, [`start`] is all that the runner is told.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    caches,
    interpreter::Interpreter,
    lane::{self, Lane},
    mpi, peers,
    torchrun::{self, Launch, Meeting, Site},
};
use crate::{
    exit::PEER_LOST_SIGNS,
    run::{Assignment, Endpoint, Key, Start},
    spec::{self, entry::Entry},
};

/// The process of one member before its meeting point is known. Nothing that is done with it depends on that.
/// The error is for the user.
pub fn ahead(assignment: &Assignment, site: &Site) -> Result<Launch, String> {
    let anywhere = Endpoint {
        host: site.report.address.clone(),
        port: 1,
    };
    torchrun::launch(assignment, Meeting::Served(&anywhere), site)
}

/// What a member needs of its node's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The program that the runner executes.
    pub first: String,
    pub script: Option<String>,
    /// The program of the ranks, if they are not Python.
    pub ranks: Option<String>,
    /// The first is an interpreter, which is asked for its torch.
    pub asks_torch: bool,
    /// The ranks are not Python.
    pub is_program: bool,
}

/// Which programs a member needs here. `shared`: it shares the node with others. The error is for the user.
pub fn programs(
    assignment: &Assignment,
    shared: bool,
    launch: &Launch,
) -> Result<Programs, String> {
    let (script, ranks) = match torchrun::entry(assignment)? {
        Entry::Script { script, .. } => (Some(script), None),
        Entry::Program { program, .. } => (None, Some(program)),
        Entry::Module { .. } => (None, None),
    };
    let is_program = ranks.is_some();
    // A program may make its environment itself, as a shell that activates one. Then torch is where no one can
    // ask for it before, and only torchrun would need it.
    let alone = is_program && (shared || assignment.launch == spec::Launch::Direct);
    let asks_torch = assignment.framework.is_torch() && !alone;
    // Without torchrun a rank is the first program.
    let rank = torchrun::rank_command(assignment).into_iter().next();
    Ok(Programs {
        first: { rank.filter(|_| !asks_torch) }.unwrap_or_else(|| launch.program.clone()),
        script,
        ranks,
        asks_torch,
        is_program,
    })
}

/// Whether torchrun would try to serve a TCPStore on the host on which this generation's is, with a torch that
/// does not forgive that ([`torchrun::FORGIVES_BIND`]).
pub fn meets_its_own_store(
    assignment: &Assignment,
    shared: bool,
    interpreter: &Interpreter,
    site: &Site,
) -> bool {
    let address = site.report.address.parse();
    let store_is_here = assignment.hosts_store || address.is_ok_and(|a: IpAddr| a.is_loopback());
    let (lane, _) = lane::of(assignment, shared, interpreter);
    assignment.node_rank == 0
        && store_is_here
        && interpreter.torch < torchrun::FORGIVES_BIND
        && lane.runs_torchrun()
        && !lane::brings_store(assignment, lane, interpreter)
}

/// How a run is started, before it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub lane: Lane,
    /// Why, for the user.
    pub why: String,
    /// Its torchrun serves a TCPStore itself ([`torchrun::alone`]).
    pub alone: bool,
    /// Whether each member is to have a port, and this one a key.
    pub needs: Needs,
    /// Where its workers start.
    pub dir: String,
    /// Its job has a folder for compile caches.
    pub caches: bool,
}

/// What is to be had before a run can be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// So many ports.
    pub ports: usize,
    pub key: bool,
}

/// What is known of the launcher that could serve a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// It was ready before.
    Ready,
    /// It was waited for.
    Awaited,
    /// It came from the warm pool, and was waited for.
    Pooled,
}

impl Plan {
    /// `first`: the process of the first member, which stands for all.
    pub fn of(assignment: &Assignment, first: &Launch, interpreter: &Interpreter) -> Self {
        let (lane, why) = lane::of(assignment, assignment.is_shared(), interpreter);
        Self {
            alone: lane::brings_store(assignment, lane, interpreter),
            lane,
            why,
            needs: Needs {
                ports: match assignment.framework.tells_peers() {
                    true => assignment.each().len(),
                    false => 0,
                },
                key: assignment.lends(),
            },
            dir: first.dir.clone(),
            caches: first.env.keys().any(|name| caches::is_variable(name)),
        }
    }

    /// Whether a launcher serves it. `ready`: nothing has to be waited for.
    pub fn takes_launcher(&self, ready: bool) -> bool {
        // Lane direct does not wait for a launcher, but uses one that is ready.
        self.lane.has_launcher() && (self.lane != Lane::Direct || ready)
    }

    /// A launcher serves it.
    pub fn served(&mut self, how: Serving) {
        self.why += match how {
            Serving::Ready => "; its launcher was ready",
            Serving::Pooled => "; its launcher came from the warm pool",
            Serving::Awaited => "; its launcher imported torch first",
        };
    }

    /// Its launcher has failed, and why. Whether torchrun is run stays, and with it whose TCPStore it uses.
    pub fn fall_back(&mut self, why: &str) {
        self.lane = self.lane.without_launcher();
        self.why = format!("its launcher on this node failed: {why}");
    }
}

/// The lane of an accepted run whose launcher has failed by itself, and why it has this. `None`: it had none.
pub fn fallen_back(lane: Lane) -> Option<(Lane, String)> {
    lane.has_launcher().then(|| {
        let why = "its launcher on this node failed by itself: launcher.log says why";
        (lane.without_launcher(), why.to_owned())
    })
}

/// Whether runs like this one may be forked from a launcher, as far as is known before an interpreter is asked.
pub fn may_be_forked(assignment: &Assignment) -> bool {
    assignment.launch.may_have_launcher() && torchrun::ranks(assignment).is_some()
}

/// Whether the first run of a job waits for a launcher, which is started for it.
pub fn waits_for_launcher(assignment: &Assignment) -> bool {
    may_be_forked(assignment) && assignment.launch != spec::Launch::Direct
}

/// The lane for which a launcher of this job is kept, or why there is none.
pub fn launcher_lane(assignment: &Assignment, interpreter: &Interpreter) -> Result<Lane, String> {
    match lane::of(assignment, assignment.is_shared(), interpreter) {
        (lane, why) if !lane.has_launcher() => Err(why),
        _ if torchrun::ranks(assignment).is_none() => Err("only Python has a launcher".into()),
        (lane, _) => Ok(lane),
    }
}

/// What was noted about a run when it was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted<'a> {
    pub lane: Lane,
    pub alone: bool,
    /// The value of `LC_CTYPE` that torchrun's interpreter leaves to ranks.
    pub ctype: Option<&'a str>,
    /// The whole version of torch.
    pub torch: &'a str,
    /// The key that was made for it.
    pub key: Option<&'a Key>,
}

/// All that a start is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// In place of the execution of torchrun. `None`: torchrun is executed.
    pub order: Option<Order>,
    /// The process of the only member, or of the first.
    pub launch: Launch,
    pub env_files: BTreeMap<String, String>,
    pub ranks: u32,
    pub first_rank: u32,
    pub mpi: Option<Mpi>,
    /// The members, if the node holds several.
    pub members: Vec<Member>,
    /// The only member may be started again alone.
    pub restartable: bool,
}

/// How ranks are started without executing torchrun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Parked, fork or direct.
    pub lane: Lane,
    /// The interpreter's options.
    pub options: Vec<String>,
    pub argv: Vec<String>,
    /// The command of one rank.
    pub command: Vec<String>,
    pub run_id: String,
    pub peer_lost: Vec<String>,
    /// What this version of torch lacks.
    pub lacks: Vec<String>,
    pub inspect: bool,
    pub collectives: bool,
}

/// One of several members on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub number: u32,
    pub first_rank: u32,
    pub ranks: u32,
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub env_files: BTreeMap<String, String>,
    pub dir: String,
    pub restartable: bool,
}

/// This node's part in an MPI job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mpi {
    Launcher(mpi::Launcher),
    Lender(mpi::Lender, Key),
}

/// All that the runner of an accepted run is told when its ranks are to start. `inspects`: ranks may be asked where
/// they are. The error is for the user.
pub fn start(
    assignment: &Assignment,
    start: &Start,
    noted: &Noted<'_>,
    site: &Site,
    inspects: bool,
) -> Result<Started, String> {
    let meeting = match noted.alone {
        true => Meeting::Own,
        false => Meeting::Served(&start.store),
    };
    let mut launches = Vec::new();
    for member in assignment.each() {
        let mut launch = torchrun::launch(&member, meeting, site)?;
        if let Some(ctype) = noted.ctype.filter(|_| !noted.lane.runs_torchrun()) {
            // No interpreter stands above these ranks to set LC_CTYPE for them. One that forks them sets the
            // same.
            launch.env.insert("LC_CTYPE".into(), ctype.to_owned());
        }
        launch.env.extend(peers::told(&member, &start.peers));
        launches.push((member, launch));
    }
    let members = match assignment.is_shared() {
        true => launches.iter().map(member).collect(),
        false => Vec::new(),
    };
    let (_, mut launch) = { launches.into_iter().next() }
        .ok_or("the coordinator did not tell what its members run")?;
    let mpi = match mpi::part(assignment, &start.peers, &start.keys, site)? {
        None => None,
        Some(mpi::Part::Launcher(launcher)) => {
            let told = mpi::environment(&launch.env, site);
            launch.env.extend(told);
            Some(Mpi::Launcher(launcher))
        }
        Some(mpi::Part::Lender(lender)) => {
            let key = noted
                .key
                .ok_or("the key of this run is not known any more")?;
            Some(Mpi::Lender(lender, key.clone()))
        }
    };
    Ok(Started {
        order: order(assignment, &launch, noted, inspects),
        launch,
        env_files: assignment.env_files.clone(),
        ranks: assignment.proc_per_node,
        first_rank: assignment.first_rank,
        mpi,
        members,
        restartable: !assignment.is_shared() && assignment.restarts_alone(assignment.node_rank),
    })
}

fn member((member, launch): &(Assignment, Launch)) -> Member {
    Member {
        number: member.node_rank,
        first_rank: member.first_rank,
        ranks: member.proc_per_node,
        command: torchrun::rank_command(member),
        env: launch.env.clone(),
        env_files: member.env_files.clone(),
        dir: launch.dir.clone(),
        restartable: member.restarts_alone(member.node_rank),
    }
}

fn order(
    assignment: &Assignment,
    launch: &Launch,
    noted: &Noted<'_>,
    inspects: bool,
) -> Option<Order> {
    let (options, argv) = torchrun::ranks(assignment).unwrap_or_default();
    let (lane, argv, command) = match noted.lane {
        Lane::Cold => return None,
        Lane::Parked => (
            Lane::Parked,
            torchrun::own_arguments(launch).to_vec(),
            Vec::new(),
        ),
        Lane::Fork => (Lane::Fork, argv, torchrun::rank_command(assignment)),
        // A run in lane exec has no launcher, and without one both are the same to its runner.
        Lane::Direct | Lane::Exec => (Lane::Direct, argv, torchrun::rank_command(assignment)),
    };
    Some(Order {
        lane,
        options,
        argv,
        command,
        run_id: assignment.rendezvous.clone(),
        peer_lost: PEER_LOST_SIGNS.map(str::to_owned).to_vec(),
        lacks: torchrun::lacks(noted.torch),
        inspect: inspects && assignment.inspect != spec::Inspect::Off,
        collectives: inspects && assignment.inspect == spec::Inspect::Collectives,
    })
}

#[cfg(test)]
mod tests;
