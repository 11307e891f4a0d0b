//! `JobService.Logs`: rank logs, read through the agents of the nodes that have them.
//!
//! Without `follow` the ranks come one after the other and end where they end now. With `follow` all wanted ranks are read at once,
//! and when the job is re-formed, the ranks of every new generation are read as well, until the job is over. What cannot be read,
//! because a node is not connected, is said in a `notice`; a read that broke with a session goes on where it was when the node is back.
//!
//! A followed log ends in one of two ways. Its agent says that the run is over and that this was all; or the fleet knows that the run
//! is proven dead, and one last read brings what was written until then. So it does not matter which of agent and coordinator hears
//! of a run, or of its end, first.

use std::{sync::Arc, time::Duration};

use muster_core::{
    fleet::{
        job::{GenerationRecord, JobRecord},
        view::JobView,
    },
    id::{Generation, JobName, JobUid, NodeName},
};
use muster_proto::v1;
use tokio::sync::watch;
use tonic::Status;

use super::{
    Context,
    feed::Out,
    jobs::{job_name, no_such},
    logs::place::Place,
    status,
};
use crate::board::Jobs;

mod place;

/// Ranks that one client follows at the same time; each costs its session a read and the coordinator up to 128 KiB.
const FOLLOWED_MAX: u32 = 256;

/// A broken read is followed by the end of its session within this time, or it was the session that ended the read.
const SESSION_END: Duration = Duration::from_secs(2);

/// A read that is about to start.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    context: Context,
    name: JobName,
    uid: JobUid,
    rank: Option<u32>,
    tail: Option<u32>,
    follow: bool,
    /// Only this generation; `None`: the latest, and with `follow` those after it.
    fixed: Option<Generation>,
    /// With `follow`: from this generation on instead of the latest.
    since: Option<Generation>,
}

impl Logs {
    /// Checks the request against the job as it is.
    pub(crate) fn open(context: &Context, request: v1::LogsRequest) -> Result<Self, Status> {
        let name = job_name(request.r#ref)?;
        let view = context.handle.job(&name).ok_or_else(|| no_such(&name))?;
        let record = &view.record;
        if request.previous && request.generation != 0 {
            return Err(status::invalid("previous", "cannot be asked for together with a generation"));
        }
        let fixed = if request.previous {
            Some(previous(record)?)
        } else {
            (request.generation != 0).then_some(Generation(request.generation))
        };
        let since = (request.since_generation != 0).then_some(Generation(request.since_generation));
        if since.is_some() && (fixed.is_some() || !request.follow) {
            return Err(status::invalid("since_generation", "needs follow, and excludes a generation of its own"));
        }
        let logs = Self {
            context: context.clone(),
            uid: record.uid.clone(),
            rank: request.rank,
            tail: request.tail,
            follow: request.follow,
            fixed,
            since,
            name,
        };
        match logs.generation(record)? {
            Some(generation) => drop(logs.ranks(generation)?),
            None if logs.follow && !record.phase.is_over() => {}
            None => {
                let why = if record.message.is_empty() { &record.reason } else { &record.message };
                return Err(Status::failed_precondition(format!("job {} has not started: {why}", logs.name)));
            }
        }
        Ok(logs)
    }

    pub(crate) async fn run(self, out: Out<v1::LogsResponse>) {
        if self.follow { self.follow(out).await } else { self.once(out).await }
    }

    async fn once(&self, out: Out<v1::LogsResponse>) {
        let Some(view) = self.job() else { return };
        let Ok(Some(generation)) = self.generation(&view.record) else { return };
        for rank in self.ranks(generation).unwrap_or_default() {
            RankLog::new(self, generation, rank, 1, out.clone()).copy().await;
            if out.is_closed() {
                return;
            }
        }
    }

    /// Starts a task per rank and generation; the stream ends when this one and all of those have ended.
    async fn follow(&self, out: Out<v1::LogsResponse>) {
        let mut jobs = self.context.handle.jobs();
        // The newest generation whose ranks are being read.
        let mut started = None;
        loop {
            let view = jobs.borrow_and_update().get(&self.name).filter(|view| view.record.uid == self.uid).cloned();
            let Some(view) = view else {
                let _ = out.send(Ok(notice(format!("job {} was deleted", self.name)))).await;
                return;
            };
            for generation in self.new_generations(&view.record, started) {
                started = Some(generation.number);
                self.follow_generation(generation, &out).await;
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

    /// Generations to be read that are newer than those being read, oldest first. Several may have come since the last look, and some of
    /// them may be over already.
    fn new_generations<'a>(&self, record: &'a JobRecord, started: Option<Generation>) -> Vec<&'a GenerationRecord> {
        if self.fixed.is_some() {
            return self.generation(record).ok().flatten().filter(|_| started.is_none()).into_iter().collect();
        }
        let latest = record.latest().map(|generation| generation.number);
        let from = started.map(Generation::next).or(self.since).or(latest);
        let mut new: Vec<_> = record.history.iter().chain(record.unburied()).filter(|g| Some(g.number) >= from).collect();
        new.sort_by_key(|generation| generation.number);
        new
    }

    async fn follow_generation(&self, generation: &GenerationRecord, out: &Out<v1::LogsResponse>) {
        match self.ranks(generation) {
            Ok(ranks) => {
                for &rank in &ranks {
                    let log = RankLog::new(self, generation, rank, ranks.len(), out.clone());
                    self.context.scope.spawn("follow a rank's log", log.copy());
                }
            }
            // A smaller world may lack the rank that was asked for; the next one may have it again.
            Err(lacking) => {
                let _ = out.send(Ok(notice(lacking.message().to_owned()))).await;
            }
        }
    }

    fn job(&self) -> Option<Arc<JobView>> {
        self.context.handle.job(&self.name).filter(|view| view.record.uid == self.uid)
    }

    fn generation<'a>(&self, record: &'a JobRecord) -> Result<Option<&'a GenerationRecord>, Status> {
        let Some(number) = self.fixed else { return Ok(record.latest()) };
        let found = record.generation(number);
        found.map(Some).ok_or_else(|| {
            let known: Vec<String> = record.history.iter().chain(record.unburied()).map(|g| g.number.to_string()).collect();
            let known = if known.is_empty() { "none is".into() } else { format!("{} are", known.join(", ")) };
            Status::not_found(format!("generation {number} of job {} is not known; {known}", self.name))
        })
    }

    /// The global ranks to read.
    fn ranks(&self, generation: &GenerationRecord) -> Result<Vec<u32>, Status> {
        let world = generation.world_size();
        match self.rank {
            Some(rank) if rank < world => Ok(vec![rank]),
            Some(rank) => {
                let last = world.saturating_sub(1);
                Err(status::invalid("rank", format!("is {rank}, generation {} has ranks 0 to {last}", generation.number)))
            }
            None if self.follow && world > FOLLOWED_MAX => Err(status::invalid(
                "rank",
                format!("must name one: {world} ranks are too many to follow, at most {FOLLOWED_MAX} are"),
            )),
            None => Ok((0..world).collect()),
        }
    }
}

fn previous(record: &JobRecord) -> Result<Generation, Status> {
    let latest = record.latest().map(|generation| generation.number);
    let all = record.history.iter().chain(record.unburied()).map(|generation| generation.number);
    all.filter(|number| Some(*number) < latest)
        .max()
        .ok_or_else(|| Status::not_found(format!("job {} has no previous generation", record.name)))
}

fn notice(text: String) -> v1::LogsResponse {
    v1::LogsResponse { notice: text, ..v1::LogsResponse::default() }
}

/// One rank's log of one generation, on its way to one client.
struct RankLog {
    context: Context,
    job: JobName,
    uid: JobUid,
    generation: Generation,
    rank: u32,
    node: NodeName,
    tail: Option<u32>,
    follow: bool,
    /// Reads that share the client's credit.
    shared: usize,
    out: Out<v1::LogsResponse>,
}

impl RankLog {
    fn new(logs: &Logs, generation: &GenerationRecord, rank: u32, shared: usize, out: Out<v1::LogsResponse>) -> Self {
        Self {
            context: logs.context.clone(),
            job: logs.name.clone(),
            uid: logs.uid.clone(),
            generation: generation.number,
            rank,
            node: generation.node_of(rank).expect("the rank was checked against this generation").clone(),
            tail: logs.tail,
            follow: logs.follow,
            shared,
            out,
        }
    }

    async fn copy(self) {
        let mut connections = self.context.connections.follow();
        let mut jobs = self.context.handle.jobs();
        let mut place = Place::default();
        let mut missing = false;
        loop {
            let connection = connections.borrow_and_update().get(&self.node).cloned();
            jobs.mark_unchanged();
            let grows = self.follow && self.may_grow();
            if let Some(connection) = connection {
                missing = false;
                match self.read(&connection, grows, &mut jobs, &mut place).await {
                    ReadEnd::Done => return,
                    ReadEnd::Proven => continue,
                    ReadEnd::Broken => {}
                }
                // The session that carried the read has ended, or will have in a moment.
                let session = connection.session();
                let ended = connections.wait_for(|all| all.get(&self.node).is_none_or(|now| now.session() != session));
                if tokio::time::timeout(SESSION_END, ended).await.is_err() {
                    let notice =
                        format!("the log of rank {} is cut off here: {} serves too many log readers", self.rank, self.node);
                    self.send(v1::LogsResponse { notice, ..self.blank() }).await;
                    return;
                }
            } else {
                let waits = grows && !self.is_job_over();
                if !std::mem::replace(&mut missing, true) && !self.say_missing(waits, place.is_at_start()).await {
                    return;
                }
                if !waits {
                    return;
                }
                tokio::select! {
                    changed = connections.changed() => if changed.is_err() { return },
                    changed = jobs.changed() => if changed.is_err() { return },
                    () = self.out.closed() => return,
                }
            }
        }
    }

    /// Reads through one session, what there is or, if the log may grow, until its end.
    async fn read(
        &self,
        connection: &super::connections::Connection,
        grows: bool,
        jobs: &mut watch::Receiver<Jobs>,
        place: &mut Place,
    ) -> ReadEnd {
        let read = v1::LogRead {
            job_uid: self.uid.to_string(),
            generation: self.generation.0,
            rank: self.rank,
            follow: grows,
            // To go on where the last read broke, all is read again and what was seen is skipped.
            tail: self.tail.filter(|_| place.is_at_start()),
            ..v1::LogRead::default()
        };
        let Some(mut reading) = self.context.connections.read(connection, read, self.shared).await else {
            return ReadEnd::Broken;
        };
        place.restart();
        loop {
            let chunk = tokio::select! {
                chunk = reading.next() => chunk,
                changed = jobs.changed(), if grows => match changed {
                    Ok(()) if self.may_grow() => continue,
                    Ok(()) => return ReadEnd::Proven,
                    Err(_) => return ReadEnd::Done,
                },
                () = self.out.closed() => return ReadEnd::Done,
            };
            let Some(v1::LogChunk { lines, end, error, .. }) = chunk else { return ReadEnd::Broken };
            let lines = place.unseen(lines);
            if !lines.is_empty() && !self.send(v1::LogsResponse { lines, ..self.blank() }).await {
                return ReadEnd::Done;
            }
            if !error.is_empty() && self.expects_a_log() {
                let notice = format!("rank {} of generation {} on {}: {error}", self.rank, self.generation, self.node);
                self.send(v1::LogsResponse { notice, ..self.blank() }).await;
            }
            if end || !error.is_empty() {
                return ReadEnd::Done;
            }
        }
    }

    fn job(&self) -> Option<Arc<JobView>> {
        self.context.handle.job(&self.job).filter(|view| view.record.uid == self.uid)
    }

    /// Whether this node's share of the generation may still write: nothing has proven it dead.
    fn may_grow(&self) -> bool {
        self.job().is_some_and(|view| {
            view.record.unburied().any(|generation| generation.number == self.generation && !generation.dead.contains(&self.node))
        })
    }

    fn is_job_over(&self) -> bool {
        self.job().is_none_or(|view| view.record.phase.is_over())
    }

    /// Whoever follows a job was not promised anything of a generation that was given up before it was started.
    fn expects_a_log(&self) -> bool {
        let view = self.job();
        let generation = view.as_ref().and_then(|view| view.record.generation(self.generation));
        !self.follow || generation.is_none_or(|generation| generation.started)
    }

    async fn say_missing(&self, waits: bool, at_start: bool) -> bool {
        let what = if at_start { "is missing" } else { "is cut off here" };
        let then = if waits { "; it goes on when the node is back" } else { "" };
        let notice = format!("{} is not connected: the log of rank {} {what}{then}", self.node, self.rank);
        self.send(v1::LogsResponse { notice, ..self.blank() }).await
    }

    fn blank(&self) -> v1::LogsResponse {
        v1::LogsResponse {
            rank: self.rank,
            node: self.node.to_string(),
            generation: self.generation.0,
            ..v1::LogsResponse::default()
        }
    }

    async fn send(&self, response: v1::LogsResponse) -> bool {
        self.out.send(Ok(response)).await.is_ok()
    }
}

/// How a read through one session ended.
enum ReadEnd {
    /// There is no more to be had, or nobody to give it to.
    Done,
    /// The run is proven dead: what it wrote is complete now, and can be read to its end.
    Proven,
    /// The session broke.
    Broken,
}
