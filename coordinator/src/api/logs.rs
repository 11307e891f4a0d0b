//! `JobService.Logs`: logs of ranks and launchers, read through the agents of the nodes that have
//! them.
//!
//! Without `follow` the logs come one after the other, each up to its present end. With `follow`
//! all wanted logs are read at once. When the job is re-formed, the logs of every new generation
//! are read as well, until the job is over. If a node is not connected, a `notice` says that its
//! logs are missing. A read that broke with its session goes on where it was when the node is back.
//!
//! Every byte of a log has a position. A read that broke goes on at its last position, whether the
//! session broke or the client lost its coordinator. If bytes were overwritten meanwhile, a notice
//! says so.

use std::{collections::BTreeMap, fmt, sync::Arc};

use muster_core::{
    fleet::{
        job::{GenerationRecord, JobRecord},
        view::JobView,
    },
    id::{Generation, JobName, JobUid, NodeName},
};
use muster_proto::v1;
use tonic::Status;

use super::{
    context::Context,
    feed::Out,
    job::{job_name, no_such},
    status,
};

mod members;
mod run_log;

use run_log::RunLog;

use crate::trust::Rights;

/// Logs that one client follows at the same time. Each costs its session a read, and the
/// coordinator up to 128 KiB.
const FOLLOWED_MAX: u32 = 256;

/// The logs of a generation that the client asked for.
#[derive(Clone, Debug)]
struct Wanted {
    launcher: bool,
    rank: Option<u32>,
    node: Option<NodeName>,
    /// Its name, as [`muster_core::spec::JobSpec::member`] has it.
    member: Option<String>,
}

/// One of the logs of a generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Rank(u32),
    /// The log of what starts the ranks on this node.
    Launcher(NodeName),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Rank(rank) => write!(f, "rank {rank}"),
            Source::Launcher(node) => write!(f, "the launcher on {node}"),
        }
    }
}

/// A read that is about to start.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    context: Context,
    name: JobName,
    uid: JobUid,
    wanted: Wanted,
    tail: Option<u32>,
    follow: bool,
    /// Byte for byte.
    raw: bool,
    /// How far the client came before.
    positions: BTreeMap<(Generation, Source), v1::LogPosition>,
    /// Only this generation. `None`: the latest one, and with `follow` those after it.
    fixed: Option<Generation>,
    /// With `follow`: begin with this generation instead of the latest one.
    since: Option<Generation>,
}

impl Logs {
    /// Checks the request against the job's present state.
    pub(crate) async fn open(
        context: &Context,
        rights: &mut Rights,
        request: v1::LogsRequest,
    ) -> Result<Self, Status> {
        let name = job_name(rights, request.r#ref.clone()).await?;
        let view = context.handle.job(&name).ok_or_else(|| no_such(&name))?;
        let record = &view.record;
        if request.previous && request.generation != 0 {
            return Err(status::invalid(
                "previous",
                "cannot be asked for together with a generation",
            ));
        }
        let fixed = if request.previous {
            Some(previous(record)?)
        } else {
            (request.generation != 0).then_some(Generation(request.generation))
        };
        let since = (request.since_generation != 0).then_some(Generation(request.since_generation));
        if since.is_some() && (fixed.is_some() || !request.follow) {
            return Err(status::invalid(
                "since_generation",
                "needs follow, and excludes a generation of its own",
            ));
        }
        // A client that goes on may find a smaller world without the rank or node that it asked
        // for. The next world may have it again.
        let goes_on = !request.positions.is_empty();
        let logs = Self {
            context: context.clone(),
            uid: record.uid.clone(),
            wanted: wanted(&request)?,
            tail: request.tail,
            follow: request.follow,
            raw: request.raw,
            positions: request
                .positions
                .into_iter()
                .map(|at| ((Generation(at.generation), source_of(&at)), at))
                .collect(),
            fixed,
            since,
            name,
        };
        match logs.generation(record)? {
            Some(_) if goes_on => {}
            Some(generation) => drop(logs.sources(record, generation)?),
            None if logs.follow && !record.phase.is_over() => {}
            None => {
                let why = if record.message.is_empty() {
                    record.reason.to_string()
                } else {
                    record.message.clone()
                };
                return Err(Status::failed_precondition(format!(
                    "job {} has not started: {why}",
                    logs.name
                )));
            }
        }
        Ok(logs)
    }

    pub(crate) async fn run(self, out: Out<v1::LogsResponse>) {
        if self.follow {
            self.follow(out).await
        } else {
            self.once(out).await
        }
    }

    async fn once(&self, out: Out<v1::LogsResponse>) {
        let Some(view) = self.job() else { return };
        let Ok(Some(generation)) = self.generation(&view.record) else {
            return;
        };
        for source in self.sources(&view.record, generation).unwrap_or_default() {
            RunLog::new(self, generation, source, 1, out.clone())
                .copy()
                .await;
            if out.is_closed() {
                return;
            }
        }
    }

    /// Starts a task for each log of each generation. The stream ends when this task and all of
    /// those have ended.
    async fn follow(&self, out: Out<v1::LogsResponse>) {
        let mut jobs = self.context.handle.jobs();
        // The newest generation that is being read.
        let mut started = None;
        loop {
            let view = jobs
                .borrow_and_update()
                .get(&self.name)
                .filter(|view| view.record.uid == self.uid)
                .cloned();
            let Some(view) = view else {
                let _ = out
                    .send(Ok(notice(format!("job {} was deleted", self.name))))
                    .await;
                return;
            };
            let new = self.new_generations(&view.record, started);
            // `tail` applies to the first generation only: a new one is sent from its first line.
            let tail = self.tail.filter(|_| started.is_none());
            for generation in new {
                let expected = started
                    .map(Generation::next)
                    .or(self.since)
                    .unwrap_or(generation.number);
                if expected < generation.number {
                    let last = generation.number.0 - 1;
                    let forgotten = format!(
                        "logs of generations {expected} to {last} are missing: the job has had too many since"
                    );
                    let _ = out.send(Ok(notice(forgotten))).await;
                }
                started = Some(generation.number);
                self.follow_generation(&view.record, generation, tail, &out)
                    .await;
            }
            if view.record.phase.is_over() || (self.fixed.is_some() && started.is_some()) {
                return;
            }
            tokio::select! {
                changed = jobs.changed() => if changed.is_err() { return },
                () = out.closed() => return,
            }
        }
    }

    /// The generations to read that are newer than those being read, oldest first. Several may have
    /// come since the last look, and some of them may be over already.
    fn new_generations<'a>(
        &self,
        record: &'a JobRecord,
        started: Option<Generation>,
    ) -> Vec<&'a GenerationRecord> {
        if self.fixed.is_some() {
            return self
                .generation(record)
                .ok()
                .flatten()
                .filter(|_| started.is_none())
                .into_iter()
                .collect();
        }
        let latest = record.latest().map(|generation| generation.number);
        let from = started.map(Generation::next).or(self.since).or(latest);
        let mut new: Vec<_> = record
            .history
            .iter()
            .chain(record.unproven_generations())
            .filter(|g| Some(g.number) >= from)
            .collect();
        new.sort_by_key(|generation| generation.number);
        new
    }

    async fn follow_generation(
        &self,
        record: &JobRecord,
        generation: &GenerationRecord,
        tail: Option<u32>,
        out: &Out<v1::LogsResponse>,
    ) {
        match self.sources(record, generation) {
            Ok(sources) => {
                for source in &sources {
                    let mut log =
                        RunLog::new(self, generation, source.clone(), sources.len(), out.clone());
                    log.tail = tail;
                    self.context.scope.spawn("follow a log", log.copy());
                }
            }
            // A smaller world may lack the rank or node that the client asked for. The next world
            // may have it again.
            Err(lacking) => {
                let _ = out.send(Ok(notice(lacking.message().to_owned()))).await;
            }
        }
    }

    fn job(&self) -> Option<Arc<JobView>> {
        self.context
            .handle
            .job(&self.name)
            .filter(|view| view.record.uid == self.uid)
    }

    fn generation<'a>(
        &self,
        record: &'a JobRecord,
    ) -> Result<Option<&'a GenerationRecord>, Status> {
        let Some(number) = self.fixed else {
            return Ok(record.latest());
        };
        let found = record.generation(number);
        found.map(Some).ok_or_else(|| {
            let known: Vec<String> = record
                .history
                .iter()
                .chain(record.unproven_generations())
                .map(|g| g.number.to_string())
                .collect();
            let known = if known.is_empty() {
                "none is".into()
            } else {
                format!("{} are", known.join(", "))
            };
            Status::not_found(format!(
                "generation {number} of job {} is not known; {known}",
                self.name
            ))
        })
    }

    /// The logs to read.
    fn sources(
        &self,
        record: &JobRecord,
        generation: &GenerationRecord,
    ) -> Result<Vec<Source>, Status> {
        let Wanted {
            launcher,
            rank,
            node,
            member,
        } = &self.wanted;
        let holder = match member {
            Some(member) => Some(members::holder(record, generation, member)?),
            None => None,
        };
        if let Some(node) = node.as_ref().filter(|node| !generation.has(node)) {
            let members: Vec<&str> = generation
                .members
                .iter()
                .map(|member| member.node.as_str())
                .collect();
            let members = members.join(", ");
            return Err(status::invalid(
                "node",
                format!(
                    "is {node}, generation {} is on {members}",
                    generation.number
                ),
            ));
        }
        let world = generation.world_size();
        if let Some(rank) = rank.filter(|rank| *rank >= world) {
            let last = world.saturating_sub(1);
            return Err(status::invalid(
                "rank",
                format!(
                    "is {rank}, generation {} has ranks 0 to {last}",
                    generation.number
                ),
            ));
        }
        let is_wanted = |on: &NodeName| {
            node.as_ref().is_none_or(|node| node == on)
                && holder.is_none_or(|(_, holder)| holder == on)
        };
        let sources: Vec<Source> = match launcher {
            true => {
                let nodes = generation
                    .members
                    .iter()
                    .map(|member| &member.node)
                    .filter(|node| is_wanted(node));
                nodes.cloned().map(Source::Launcher).collect()
            }
            false => {
                let of_member = |rank: &u32| {
                    holder.is_none_or(|(number, _)| generation.ranks(number).contains(rank))
                };
                let on_it = |rank: &u32| {
                    of_member(rank) && generation.node_of(*rank).is_some_and(is_wanted)
                };
                (0..world)
                    .filter(|other| rank.is_none_or(|rank| rank == *other))
                    .filter(on_it)
                    .map(Source::Rank)
                    .collect()
            }
        };
        if sources.is_empty() {
            let (field, it) = match (node, member) {
                (Some(_), Some(_)) => ("node", "does not have that member"),
                (Some(_), None) => ("node", "does not have that rank"),
                (None, _) => ("member", "does not have that rank"),
            };
            return Err(status::invalid(
                field,
                format!("{it} in generation {}", generation.number),
            ));
        }
        if self.follow && sources.len() > FOLLOWED_MAX as usize {
            let many = sources.len();
            let (field, what) = if *launcher {
                ("node", "nodes")
            } else {
                ("rank", "ranks")
            };
            return Err(status::invalid(
                field,
                format!(
                    "must name one: {many} {what} are too many to follow, at most {FOLLOWED_MAX} are"
                ),
            ));
        }
        Ok(sources)
    }
}

fn wanted(request: &v1::LogsRequest) -> Result<Wanted, Status> {
    if request.launcher && request.rank.is_some() {
        return Err(status::invalid(
            "rank",
            "cannot be asked for together with the launcher's log",
        ));
    }
    let node = (!request.node.is_empty()).then(|| NodeName::from(request.node.as_str()));
    Ok(Wanted {
        launcher: request.launcher,
        rank: request.rank,
        node,
        member: (!request.member.is_empty()).then(|| request.member.clone()),
    })
}

fn source_of(position: &v1::LogPosition) -> Source {
    match position.node.as_str() {
        "" => Source::Rank(position.rank),
        node => Source::Launcher(NodeName::from(node)),
    }
}

fn previous(record: &JobRecord) -> Result<Generation, Status> {
    let latest = record.latest().map(|generation| generation.number);
    let all = record
        .history
        .iter()
        .chain(record.unproven_generations())
        .map(|generation| generation.number);
    all.filter(|number| Some(*number) < latest)
        .max()
        .ok_or_else(|| Status::not_found(format!("job {} has no previous generation", record.name)))
}

fn notice(text: String) -> v1::LogsResponse {
    v1::LogsResponse {
        notice: text,
        ..v1::LogsResponse::default()
    }
}
