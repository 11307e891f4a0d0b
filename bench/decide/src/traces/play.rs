//! Plays a trace against the brain, in virtual time. Time goes from one moment to the next at which something happens: a job comes or is
//! done, agents answer, the brain wants to be woken, somebody looks at the fleet. Equal traces are played equally.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::{Duration, Instant},
};

use muster_core::{
    fleet::{
        Actor, Answer, Change, Effect, Fleet, Input, Policy, Request, RequestId, Stored, TurnOutput,
    },
    id::{JobUid, RunId, Term},
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    time::Timestamp,
};

use super::{
    agent::{Agent, Did, node_of, session},
    books::Books,
    free::Free,
    trace::{Job, START, Trace, seconds},
};

/// How long an agent takes to do what it is told, its answer included.
const AGENT: Duration = Duration::from_millis(10);
/// For how long the brain may still act by itself when nothing else happens any more. Room is kept, and back-offs last, for minutes.
const PATIENCE: Duration = Duration::from_secs(2 * 3_600);
/// How often somebody looks at the fleet.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What jobs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// As many members as they wanted, neither more nor fewer.
    Fixed,
    /// Elastic jobs have from their least to their most members.
    Elastic,
    /// The same. Elastic jobs have a lower priority, so that they give up members for others.
    Yielding,
}

/// What a trace says nothing of.
#[derive(Clone, Copy)]
pub(super) struct World {
    pub(super) sizes: Sizes,
    /// Seconds in which a job that begins, or begins anew in another size, does no work.
    pub(super) start_cost: f64,
    /// What each GPU of a job still does when there are twice as many.
    pub(super) efficiency: f64,
    /// After how long a job that waits keeps room from those that came later.
    pub(super) reserve_after: Duration,
}

/// How a trace went.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) books: Books,
    /// What each turn of the brain took.
    pub(super) turns: Vec<Duration>,
    /// GPUs that were given to two runs at once, as sentences.
    pub(super) held_twice: Vec<String>,
}

impl Played {
    pub(super) fn without_turns(books: Books) -> Self {
        Self {
            books,
            turns: Vec::new(),
            held_twice: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Agents do what they were told.
    Answer,
    /// The work of this run begins.
    Works(RunId),
    /// The work of this run is done.
    Done(RunId),
    Comes(usize),
    Look,
}

/// One generation of a job, from its first member's start.
struct Running {
    run: RunId,
    nodes: Vec<usize>,
    members: u32,
    gpus: u32,
    /// All members are there, and it works since then.
    works_since: Option<Timestamp>,
}

struct Play<'t> {
    trace: &'t Trace,
    world: World,
    fleet: Fleet,
    now: Timestamp,
    agents: Vec<Agent>,
    free: Free,
    /// Agents that have been told something.
    told: BTreeSet<usize>,
    events: BinaryHeap<Reverse<(Timestamp, Event)>>,
    wake_at: Option<Timestamp>,
    /// When something else than the brain's own clock last had something to do.
    last_event: Timestamp,
    running: BTreeMap<usize, Running>,
    /// GPU-seconds that each job has done.
    done: Vec<f64>,
    played: Played,
}

pub(super) fn play(trace: &Trace, world: World) -> Played {
    let mut play = Play::new(trace, world);
    while play.moment() {}
    play.played.books.close();
    play.played
}

/// The defaults, except for bounds that a trace on one namespace reaches, and for silence, which nobody judges: no agent is ever silent,
/// and heartbeats of 2,000 nodes would be nearly all of the turns.
fn policy(reserve_after: Duration) -> Policy {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
    Policy {
        jobs_max: 1_000_000,
        namespace_jobs_max: 1_000_000,
        submits_per_second: 1_000_000,
        submits_burst: 1_000_000,
        heartbeat: NEVER / 10,
        tick: NEVER / 10,
        reserve_after,
        ..Policy::default()
    }
}

impl<'t> Play<'t> {
    fn new(trace: &'t Trace, world: World) -> Self {
        let fleet = Fleet::new(
            policy(world.reserve_after),
            Term(1),
            Stored::default(),
            START,
        );
        let agent = |(number, gpus): (usize, &u32)| Agent::new(number, *gpus);
        let mut play = Self {
            trace,
            world,
            fleet,
            now: START,
            agents: trace.nodes.iter().enumerate().map(agent).collect(),
            free: Free::new(&trace.nodes),
            told: BTreeSet::new(),
            events: BinaryHeap::new(),
            wake_at: None,
            last_event: START,
            running: BTreeMap::new(),
            done: vec![0.0; trace.jobs.len()],
            played: Played::without_turns(Books::new(trace)),
        };
        let hello = |(number, agent): (usize, &Agent)| Input::Connected {
            session: session(number),
            hello: agent.hello(),
        };
        let hellos: Vec<Input> = play.agents.iter().enumerate().map(hello).collect();
        play.turn(hellos);
        play.schedule(trace.window.0, Event::Look);
        if let Some(first) = trace.jobs.first() {
            play.schedule(first.at, Event::Comes(0));
        }
        play
    }

    fn schedule(&mut self, at: Timestamp, event: Event) {
        self.events.push(Reverse((at, event)));
    }

    /// Goes on to the next moment, and does all that happens then. Returns whether there was one.
    fn moment(&mut self) -> bool {
        let next = self.events.peek().map(|Reverse((at, _))| *at);
        self.last_event = next.unwrap_or(self.last_event);
        let still = |at: &Timestamp| at.since(self.last_event) < PATIENCE;
        let wake_at = self.wake_at.filter(still);
        let Some(now) = next.into_iter().chain(wake_at).min() else {
            return false;
        };
        self.now = now.max(self.now);
        let mut changed: BTreeSet<usize> = BTreeSet::new();
        let mut comes = Vec::new();
        while let Some(Reverse((at, event))) = self.events.peek().cloned()
            && at <= self.now
        {
            self.events.pop();
            match event {
                Event::Answer => self.agents_answer(&mut changed),
                Event::Works(run) => self.works(&run, &mut changed),
                Event::Done(run) => self.finish(&run, &mut changed),
                Event::Comes(job) => comes.push(job),
                Event::Look => self.look(),
            }
        }
        let reports: Vec<Input> = changed.iter().map(|node| self.report(*node)).collect();
        if !reports.is_empty() || self.wake_at.is_some_and(|at| at <= self.now) {
            self.turn(reports.into_iter().chain([Input::Tick]));
        }
        comes.into_iter().for_each(|job| self.submit(job));
        true
    }

    fn report(&mut self, node: usize) -> Input {
        self.free.set(node, self.agents[node].free());
        Input::Runs {
            session: session(node),
            runs: self.agents[node].report(),
        }
    }

    fn turn(&mut self, inputs: impl IntoIterator<Item = Input>) -> Option<Answer> {
        let began = Instant::now();
        let turn = self.fleet.turn_all(self.now, inputs);
        self.played.turns.push(began.elapsed());
        self.heed(turn)
    }

    fn heed(&mut self, turn: TurnOutput) -> Option<Answer> {
        self.wake_at = turn.wake_at;
        for change in turn.changes {
            if let Change::Event(event) = change
                && let Some((uid, _)) = &event.job
            {
                self.read(number(uid), &event.reason, &event.message);
            }
        }
        let mut answered = None;
        for effect in turn.effects {
            match effect {
                Effect::SendDesired { session, desired } => {
                    let node = node_of(session);
                    self.agents[node].desired = Some(desired);
                    if self.told.is_empty() {
                        self.schedule(self.now + AGENT, Event::Answer);
                    }
                    self.told.insert(node);
                }
                Effect::Answer { answer, .. } => answered = Some(answer),
                Effect::Refuse { why, .. } => panic!("a session is refused: {why}"),
                _ => {}
            }
        }
        answered
    }

    /// What the brain tells people of a job.
    fn read(&mut self, job: usize, reason: &str, message: &str) {
        match reason {
            "Succeeded" => self.played.books.ends(job, self.now),
            "Preempted" if message.starts_with("preempted by") => {
                self.played.books.lives[job].evicted += 1
            }
            _ => {}
        }
    }

    fn submit(&mut self, number: usize) {
        let trace = self.trace;
        let document = document(number, &trace.jobs[number], self.world.sizes);
        let (name, spec) = document.check().expect("it is valid");
        self.played.books.submitted(number);
        let submit = Input::Request {
            id: RequestId(number as u64),
            actor: Actor::Local { uid: 0 },
            request: Request::Submit {
                name,
                spec,
                uid: JobUid::from(format!("{number:07}")),
                request_id: String::new(),
                validate_only: false,
            },
        };
        let answer = self.turn([submit]);
        assert!(matches!(answer, Some(Answer::Job { .. })), "{answer:?}");
        if let Some(next) = trace.jobs.get(number + 1) {
            self.schedule(next.at, Event::Comes(number + 1));
        }
    }

    fn agents_answer(&mut self, changed: &mut BTreeSet<usize>) {
        for node in std::mem::take(&mut self.told) {
            let mut did = Vec::new();
            if self.agents[node].obey(self.now, &mut did) {
                changed.insert(node);
            }
            did.into_iter().for_each(|one| self.note(node, one));
        }
    }

    fn note(&mut self, node: usize, did: Did) {
        match did {
            Did::HeldTwice(sentence) => self.played.held_twice.push(sentence),
            Did::Stopped(run) => {
                let job = number(&run.job);
                if self.running.get(&job).is_some_and(|one| one.run == run) {
                    self.halt(job);
                }
            }
            Did::Started {
                run,
                members,
                gpus,
                of,
            } => {
                let job = number(&run.job);
                let running = self.running.entry(job).or_insert_with(|| Running {
                    run: run.clone(),
                    nodes: Vec::new(),
                    members: 0,
                    gpus: 0,
                    works_since: None,
                });
                running.nodes.push(node);
                running.members += members;
                running.gpus += gpus;
                if running.members == of {
                    self.begin(job);
                }
            }
        }
    }

    /// All members of a generation are there.
    fn begin(&mut self, number: usize) {
        let (job, world, now) = (&self.trace.jobs[number], self.world, self.now);
        let running = self.running.get_mut(&number).expect("it has just started");
        let speed = job.speed(running.members, world.efficiency);
        let since = now + seconds(world.start_cost);
        running.works_since = Some(since);
        let left = seconds((job.work - self.done[number]).max(0.0) / speed);
        let works = Event::Works(running.run.clone());
        let done = Event::Done(running.run.clone());
        let books = &mut self.played.books;
        books.begins(number, now, running.gpus, speed);
        books.lost(now, speed * world.start_cost);
        self.schedule(since, works);
        self.schedule(since + left, done);
    }

    /// The ranks of this run have joined and begin to work, if it still runs.
    fn works(&mut self, run: &RunId, changed: &mut BTreeSet<usize>) {
        let running = self.running.get(&number(&run.job));
        let running = running.filter(|one| one.run == *run);
        for node in running.into_iter().flat_map(|one| one.nodes.clone()) {
            self.agents[node].join(run, self.now);
            changed.insert(node);
        }
    }

    /// Its generation does no more work.
    fn halt(&mut self, number: usize) -> Option<Running> {
        let running = self.running.remove(&number)?;
        if let Some(since) = running.works_since {
            let job = &self.trace.jobs[number];
            let speed = job.speed(running.members, self.world.efficiency);
            self.done[number] += speed * self.now.since(since).as_secs_f64();
            self.played.books.stops(self.now, running.gpus, speed);
        }
        Some(running)
    }

    /// The work of this run is done, if it still runs.
    fn finish(&mut self, run: &RunId, changed: &mut BTreeSet<usize>) {
        let job = number(&run.job);
        if self.running.get(&job).is_none_or(|one| one.run != *run) {
            return;
        }
        for node in self.halt(job).into_iter().flat_map(|one| one.nodes) {
            self.agents[node].finish(run, self.now);
            changed.insert(node);
        }
    }

    fn look(&mut self) {
        let (jobs, sizes) = (&self.trace.jobs, self.world.sizes);
        let least = |job: usize| least(&jobs[job], sizes);
        self.played
            .books
            .look(self.trace, self.now, &self.free, least);
        let next = self.now + LOOK_EVERY;
        if next < self.trace.window.1 {
            self.schedule(next, Event::Look);
        }
    }
}

fn least(job: &Job, sizes: Sizes) -> u32 {
    match sizes {
        Sizes::Fixed => job.wanted,
        Sizes::Elastic | Sizes::Yielding => job.min,
    }
}

/// The place of a job in its trace.
fn number(uid: &JobUid) -> usize {
    uid.as_str().parse().expect("it is the job's number")
}

fn document(number: usize, job: &Job, sizes: Sizes) -> JobDocument {
    let most = match sizes {
        Sizes::Fixed => job.wanted,
        Sizes::Elastic | Sizes::Yielding => job.max,
    };
    let least = least(job, sizes);
    let lower = sizes == Sizes::Yielding && least < most;
    JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: format!("job-{number}"),
            namespace: None,
        },
        spec: SpecDocument {
            replicas: Some(most.into()),
            min_replicas: Some(least.into()),
            max_replicas: Some(most.into()),
            gpus_per_node: Some(job.gpus_per_member.into()),
            proc_per_node: Some(1),
            placement: Some("pack".into()),
            priority: lower.then_some(-1),
            args: vec!["train.py".into()],
            ttl_seconds_after_finished: Some(0),
            ..SpecDocument::default()
        },
    }
}
