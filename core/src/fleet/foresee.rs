//! Plays the ends of jobs that are [expected](expected_end), one after the other, and asks after each whether those that wait would
//! start. It asks the same placement as a turn does, with the same reservations, limits and quotas, and changes nothing of the fleet.
//!
//! A job whose end nobody knows keeps what it has for ever. So an estimate is never built on a guess; if such a job ends, those
//! that wait may start earlier. A job that would start here holds its nodes until its own expected end, or for ever. Workers that are being
//! stopped count as stopped, and an elastic job that has fewer nodes than it wants grows, as it would.
//!
//! Nobody gives up nodes for others or waits for a save, nodes stay as they are, no job comes, and no generation breaks. Only the first that wait are
//! looked at, and only so many ends.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    fleet::{
        capacity::Capacity,
        eligible::{self, Eligibility},
        expected_end::{self, ExpectedEnd, TimesTaken},
        held_back::HeldBack,
        job::{Ending, GenerationRecord, JobRecord, Phase, Reason, Stage, Stopping, Why},
        job_turn::Facts,
        ledger::Ledger,
        live::Live,
        members::{Member, size},
        open,
        placement::{Demand, Placement},
        policy::GpusMax,
        prewarm,
        receipt::Cause,
        reservations::{self, RESERVING_MAX, Reservations},
        settle_order::{self, Rank},
        start_estimate::{Before, NoEstimate, Start},
        state::Fleet,
        unhealthy, voluntary,
        yields::Yields,
    },
    id::{JobUid, NodeName},
    nccl::profile::Profile,
    time::Timestamp,
};

mod answers;

/// Jobs that may grow, and jobs that wait for something else than nodes, of which the first are looked at. As many as of those
/// that wait for nodes.
const OTHERS_MAX: usize = RESERVING_MAX;

/// Nodes that placement is asked about, all questions together, each time once for itself and once for each job that keeps something of
/// it. One costs some 100 ns, so an answer costs some 100 ms at most beside what a turn costs that places a job.
const LOOKED_MAX: usize = 1_000_000;

/// Moments at which something changes. Each costs a look at the jobs that are played, if placement need not be asked.
const MOMENTS_MAX: usize = 1_000;

/// Who starts may leave room that was kept for it, and who ends leaves all that it had: so often all are asked, as by a turn.
const PASSES: usize = 3;

/// What happens to a job, in this order if it is at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Ends,
    /// Its time, or the end of its back-off, has come.
    MayStart,
    MayGrow,
    /// Its deadline has come before its start.
    IsTooLate,
}

/// The fleet as it will be.
struct Foresight<'f> {
    fleet: &'f Fleet,
    now: Timestamp,
    /// Those that hold nodes, and those that wait.
    jobs: BTreeMap<JobUid, JobRecord>,
    capacity: Capacity,
    reservations: OnceCell<Reservations>,
    ledger: OnceCell<Ledger>,
    no_yields: BTreeMap<JobUid, Yields>,
    unknown_live: Live,
    times: TimesTaken,
    /// For how long each job had nodes when this began.
    ran: BTreeMap<JobUid, Duration>,
    due: BTreeSet<(Timestamp, Happens, JobUid)>,
    ends: BTreeMap<JobUid, ExpectedEnd>,
    /// Those that are asked whether they start, or grow.
    asking: BTreeSet<JobUid>,
    /// Those whose start is looked for.
    wanted: BTreeSet<JobUid>,
    /// Who has ended, and whose ends have freed something of each node.
    ended: Vec<Before>,
    freed: BTreeMap<NodeName, Vec<usize>>,
    found: BTreeMap<JobUid, Start>,
    looked: usize,
}

impl Fleet {
    /// When the jobs that wait will start, and this one if it were submitted now. Jobs with worker pods are not there: Kubernetes
    /// places them; nor are those about which nothing is decided.
    pub(crate) fn foresee(
        &self,
        planned: Option<JobRecord>,
        now: Timestamp,
    ) -> BTreeMap<JobUid, Start> {
        let standings = self.fair_share.standings();
        let mut foresight = Foresight::of(self, now);
        let of_fleet = self.active.iter().filter_map(|uid| self.jobs.get(uid));
        let taken: Vec<&JobRecord> = of_fleet
            .chain(&planned)
            .filter(|job| job.spec.template.is_none())
            .collect();
        foresight.times = TimesTaken::of(&self.history, taken.iter().copied());
        let (mut waiting, mut others, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for job in taken {
            let Some(kind) = foresight.take(job) else {
                continue;
            };
            let is_planned = planned.as_ref().is_some_and(|own| own.uid == job.uid);
            match kind {
                Kind::Runs => running.push(job),
                Kind::Waits(_) if is_planned => foresight.look_for(job, kind),
                Kind::Waits(_) if reservations::waits_for_room(job) => waiting.push((job, kind)),
                Kind::Waits(_) => others.push((job, kind)),
            }
        }
        for (all, most) in [(waiting, RESERVING_MAX), (others, OTHERS_MAX)] {
            let mut all = all;
            all.sort_by_cached_key(|(job, _)| Rank::of(job, standings));
            for (place, (job, kind)) in all.into_iter().enumerate() {
                match place < most {
                    true => foresight.look_for(job, kind),
                    false => foresight.no_estimate(&job.uid, NoEstimate::TooFarBack),
                }
            }
        }
        running.retain(|job| wants_more(job));
        running.sort_by_cached_key(|job| Rank::of(job, standings));
        for job in running.into_iter().take(OTHERS_MAX) {
            foresight.due_at(now, Happens::MayGrow, &job.uid);
        }
        foresight.play();
        foresight.found
    }
}

/// What a job is to those that wait.
#[derive(Clone, Copy)]
enum Kind {
    /// It holds nodes, or may.
    Runs,
    /// It takes nodes from this time on.
    Waits(Timestamp),
}

/// Whether a job trains on fewer nodes than it wants.
fn wants_more(job: &JobRecord) -> bool {
    job.training()
        .is_some_and(|generation| generation.size() < job.replicas)
}

fn is_set(limit: &GpusMax) -> bool {
    limit.others.is_some() || !limit.named.is_empty()
}

impl<'f> Foresight<'f> {
    fn of(fleet: &'f Fleet, now: Timestamp) -> Self {
        Self {
            fleet,
            now,
            jobs: BTreeMap::new(),
            capacity: fleet.capacity.copy(),
            reservations: OnceCell::new(),
            ledger: OnceCell::new(),
            no_yields: BTreeMap::new(),
            unknown_live: Live::default(),
            times: TimesTaken::default(),
            ran: BTreeMap::new(),
            due: BTreeSet::new(),
            ends: BTreeMap::new(),
            asking: BTreeSet::new(),
            wanted: BTreeSet::new(),
            ended: Vec::new(),
            freed: BTreeMap::new(),
            found: BTreeMap::new(),
            looked: 0,
        }
    }

    /// Takes the job in, as if all that is being stopped had stopped. `None`: it takes no part.
    fn take(&mut self, job: &JobRecord) -> Option<Kind> {
        let (fleet, uid) = (self.fleet, &job.uid);
        let stays = unhealthy::frees_nothing(&fleet.halted, &fleet.nodes, job);
        let (kind, end) = match job.stage() {
            Stage::Over(_) => (Kind::Runs, None),
            _ if stays => (Kind::Runs, None),
            Stage::Forming(..) | Stage::Training(_) => {
                let ran = expected_end::ran(job, self.now);
                let end = expected_end::expected_end(job, ran, &self.times, self.now);
                (Kind::Runs, end)
            }
            Stage::Ending(_) => {
                self.capacity.keep_only(uid, None);
                return None;
            }
            Stage::Waiting(_) => {
                self.capacity.keep_only(uid, None);
                let held_back = match eligible::judge(job, self.now) {
                    _ if job.suspended => Some(HeldBack::Suspended),
                    Eligibility::Never(never) => Some(HeldBack::Never(never)),
                    Eligibility::Waits(waits) if !waits.jobs.is_empty() => {
                        Some(HeldBack::Waits(waits))
                    }
                    _ if fleet.is_listening(self.now) => Some(HeldBack::Listening),
                    Eligibility::Waits(_) | Eligibility::Eligible => None,
                };
                if let Some(held_back) = held_back {
                    self.no_estimate(uid, NoEstimate::HeldBack(held_back));
                    return None;
                }
                let until = job.spec.start.start_after.filter(|_| !job.is_eligible());
                let until = until.max(job.not_before).unwrap_or(self.now);
                (Kind::Waits(until.max(self.now)), None)
            }
        };
        let mut taken = job.clone();
        if !stays && !job.is_over() && !job.retiring.is_empty() {
            self.capacity.keep_only(uid, job.current.as_ref());
            taken.history.append(&mut taken.retiring);
        }
        self.jobs.insert(uid.clone(), taken);
        if let Some(end) = end {
            self.expect(uid, end);
        }
        Some(kind)
    }

    fn look_for(&mut self, job: &JobRecord, kind: Kind) {
        if let Kind::Waits(from) = kind {
            self.wanted.insert(job.uid.clone());
            let ran = expected_end::ran(job, self.now);
            self.ran.insert(job.uid.clone(), ran);
            self.due_at(from, Happens::MayStart, &job.uid);
        }
    }

    fn due_at(&mut self, at: Timestamp, happens: Happens, uid: &JobUid) {
        self.due.insert((at, happens, uid.clone()));
    }

    fn expect(&mut self, uid: &JobUid, end: ExpectedEnd) {
        self.ends.insert(uid.clone(), end);
        self.due_at(end.at, Happens::Ends, uid);
    }

    fn no_estimate(&mut self, uid: &JobUid, why: NoEstimate) {
        self.found.insert(uid.clone(), Start::Unknown(why));
    }

    fn is_answered(&self) -> bool {
        self.wanted.iter().all(|uid| self.found.contains_key(uid))
    }

    fn play(&mut self) {
        let mut moments = 0;
        let mut given_up = false;
        while let Some((at, _, _)) = self.due.first().filter(|_| !self.is_answered()) {
            given_up = moments == MOMENTS_MAX || self.looked > LOOKED_MAX;
            if given_up {
                break;
            }
            moments += 1;
            self.now = *at;
            let mut due: BTreeMap<JobUid, Vec<Happens>> = BTreeMap::new();
            while let Some((at, happens, uid)) = self.due.pop_first() {
                if at > self.now {
                    self.due.insert((at, happens, uid));
                    break;
                }
                due.entry(uid).or_default().push(happens);
            }
            self.settle(due);
        }
        for uid in std::mem::take(&mut self.wanted) {
            if self.found.contains_key(&uid) {
                continue;
            }
            let why = match given_up {
                true => NoEstimate::TooManyEnds,
                false => self.why_never(&uid),
            };
            self.no_estimate(&uid, why);
        }
    }

    fn happen(&mut self, happens: Happens, uid: &JobUid) {
        match happens {
            Happens::Ends => {
                let Some((job, end)) = self.jobs.remove(uid).zip(self.ends.remove(uid)) else {
                    return;
                };
                for node in self.capacity.held_by(uid) {
                    let freed = self.freed.entry(node.clone()).or_default();
                    freed.push(self.ended.len());
                }
                let name = job.name.clone();
                self.ended.push(Before { job: name, end });
                self.drop_out(job);
            }
            Happens::MayStart => {
                let Some(job) = self.jobs.get_mut(uid) else {
                    return;
                };
                if !job.is_eligible() {
                    job.eligible = Some(self.now);
                }
                let late = job
                    .active_deadline()
                    .into_iter()
                    .chain(job.start_deadline());
                if let Some(late) = late.min() {
                    self.due_at(late.max(self.now), Happens::IsTooLate, uid);
                }
                self.asking.insert(uid.clone());
            }
            Happens::MayGrow => {
                let Some(job) = self.jobs.get(uid).filter(|job| wants_more(job)) else {
                    return;
                };
                let training = job.training();
                let since = training.and_then(|generation| generation.started_at);
                let from = training.map_or(0, GenerationRecord::size);
                let rest = voluntary::rest(job, from, job.replicas).0;
                let cooled_down = since.unwrap_or(self.now) + rest;
                match cooled_down > self.now {
                    true => self.due_at(cooled_down, Happens::MayGrow, uid),
                    false => drop(self.asking.insert(uid.clone())),
                }
            }
            Happens::IsTooLate if !self.found.contains_key(uid) => {
                if let Some(job) = self.jobs.remove(uid) {
                    let deadline = self.now;
                    self.no_estimate(uid, NoEstimate::TooLate { deadline });
                    self.drop_out(job);
                }
            }
            Happens::IsTooLate => {}
        }
    }

    /// The job is gone, and all that it had.
    fn drop_out(&mut self, mut job: JobRecord) {
        self.asking.remove(&job.uid);
        self.capacity.keep_only(&job.uid, None);
        let (ending, stopping) = (
            Ending {
                phase: Phase::Succeeded,
                reason: Reason::Completed,
                message: String::new(),
            },
            Stopping {
                reason: String::new(),
                grace: Duration::ZERO,
            },
        );
        job.end(ending, stopping);
        job.retiring.clear();
        job.close(self.now);
        self.follow(&job);
    }

    /// What the job holds, or that it waits, counts for the others from now on.
    fn follow(&mut self, job: &JobRecord) {
        if let Some(reservations) = self.reservations.get_mut() {
            reservations.follow(job, self.fleet.fair_share.standings());
        }
        if let Some(ledger) = self.ledger.get_mut() {
            ledger.follow(&self.fleet.policy.queues, job);
            ledger.forget_claims();
        }
    }

    /// These jobs, the first to choose first.
    fn in_order<'u>(&self, jobs: impl Iterator<Item = &'u JobUid>) -> Vec<JobUid> {
        settle_order::in_order(&self.jobs, jobs, self.fleet.fair_share.standings())
    }

    /// What is due happens, and all that would take nodes are asked, as in the turns of this moment.
    fn settle(&mut self, mut due: BTreeMap<JobUid, Vec<Happens>>) {
        for uid in self.in_order(due.keys()) {
            for happens in due.remove(&uid).unwrap_or_default() {
                self.happen(happens, &uid);
            }
        }
        let policy = &self.fleet.policy;
        let is_limited = is_set(&policy.gpus_max) || is_set(&policy.user_gpus_max);
        for _ in 0..PASSES {
            // What one may keep depends on how much others of its namespace have.
            if !self.turn() || !is_limited {
                break;
            }
        }
        let grow = self.asking.iter().filter(|uid| self.is_asked_last(uid));
        for uid in self.in_order(grow) {
            self.ask_about(&uid);
        }
    }

    /// All that would take nodes are asked, the first to choose first, until nothing changes. Returns whether anything has.
    fn turn(&mut self) -> bool {
        let mut any = false;
        for _ in 0..PASSES {
            let mut changed = false;
            if let Some(reservations) = self.reservations.get_mut() {
                self.looked += reservations.chosen() * self.fleet.nodes.len();
                reservations.forget_keeps();
            }
            for uid in self.in_order(self.asking.iter()) {
                if !self.is_asked_last(&uid) {
                    changed |= self.ask_about(&uid);
                }
            }
            if !changed {
                break;
            }
            any = true;
        }
        any
    }

    /// Whether it has its launchers made before it grows. Meanwhile it does not hold the room that it grows into, and
    /// all that wait are asked.
    fn is_asked_last(&self, uid: &JobUid) -> bool {
        let job = self.jobs.get(uid);
        job.is_some_and(|job| wants_more(job) && prewarm::grows_prewarmed(&job.spec))
    }

    fn ask_about(&mut self, uid: &JobUid) -> bool {
        if !self.asking.contains(uid) {
            return false;
        }
        let Some(mut job) = self.jobs.remove(uid) else {
            return false;
        };
        let changed = self.ask(&mut job);
        self.jobs.insert(uid.clone(), job);
        changed
    }

    /// Lets the job start, or grow, if it would. Returns whether something has changed for others.
    fn ask(&mut self, job: &mut JobRecord) -> bool {
        let gang = self.place(job);
        let before = job.training().map(|generation| generation.members.clone());
        match (gang, before) {
            (Some(gang), None) => {
                let estimate = self.estimate(&gang);
                self.found
                    .insert(job.uid.clone(), Start::Expected(estimate));
                self.give(job, gang);
                let ran = self.ran.get(&job.uid).copied().unwrap_or_default();
                let end = expected_end::expected_end(job, ran, &self.times, self.now);
                if let Some(end) = end {
                    self.expect(&job.uid, end);
                }
                true
            }
            (Some(gang), Some(before)) => {
                let stays = |node| gang.iter().any(|member| &member.node == node);
                let grows = size(&gang) > before.size();
                if !grows || !before.iter().all(|member| stays(&member.node)) {
                    return false;
                }
                // It was asked at once for what it would pay for soonest.
                let since = job.training().and_then(|generation| generation.started_at);
                let rest = voluntary::rest(job, before.size(), size(&gang)).0;
                let pays_at = since.unwrap_or(self.now) + rest;
                if pays_at > self.now {
                    self.asking.remove(&job.uid);
                    self.due_at(pays_at, Happens::MayGrow, &job.uid);
                    return false;
                }
                self.give(job, gang);
                true
            }
            (None, None) if !job.waits_for_nodes() => {
                job.found(Some(Why::BelowMinimum));
                job.waiting_since.get_or_insert(self.now);
                self.follow(job);
                true
            }
            (None, _) => false,
        }
    }

    /// The gang that the job would get.
    fn place(&mut self, job: &JobRecord) -> Option<Vec<Member>> {
        let (gang, looked) = {
            let facts = self.facts(job);
            let demand = facts.asks().ok()?;
            if has_too_few(&self.capacity, job, &demand) {
                return None;
            }
            let reserved = facts.reserved();
            let all = || facts.candidates(facts.capacity, &reserved);
            // What is wrong with nodes without room is nobody's question here.
            let few = facts.with_room(&reserved, &demand).unwrap_or_else(all);
            let looked = few.len() * (1 + reserved.len());
            let gang = match facts.choose(facts.capacity, few, &demand) {
                Placement::Gang(gang) => Some(gang),
                Placement::Short(_) => None,
            };
            debug_assert_eq!(
                gang.is_some(),
                matches!(facts.place_beside(&reserved, &demand), Placement::Gang(_)),
                "it is what a turn finds"
            );
            (gang, looked)
        };
        self.looked += looked;
        gang
    }

    fn facts<'a>(&'a self, job: &'a JobRecord) -> Facts<'a> {
        let fleet = self.fleet;
        Facts {
            uid: &job.uid,
            job,
            live: fleet.live.get(&job.uid).unwrap_or(&self.unknown_live),
            nodes: &fleet.nodes,
            others: &self.jobs,
            first: job,
            presence: &fleet.presence,
            brake: fleet.brake.as_ref(),
            pods: &fleet.pods,
            halted: &fleet.halted,
            policy: &fleet.policy,
            standings: fleet.fair_share.standings(),
            now: self.now,
            capacity: &self.capacity,
            reservations: &self.reservations,
            ledger: &self.ledger,
            yields: &self.no_yields,
        }
    }

    /// The job trains with this gang from now on.
    fn give(&mut self, job: &mut JobRecord, gang: Vec<Member>) {
        self.capacity.keep_only(&job.uid, None);
        self.capacity.occupy(&job.uid, gang.clone());
        let number = job.last_generation.next();
        job.last_generation = number;
        let (cause, profile) = (Cause::FirstStart, Profile::default());
        let generation = open::next_generation(job, number, cause, gang.into(), profile, self.now);
        job.open_generation(generation);
        job.start_generation(self.now);
        self.asking.remove(&job.uid);
        if wants_more(job) {
            let from = job.training().map_or(0, GenerationRecord::size);
            let cooled_down = self.now + voluntary::rest(job, from, job.replicas).0;
            self.due_at(cooled_down, Happens::MayGrow, &job.uid);
        }
        self.follow(job);
    }
}

/// Whether fewer nodes than the job has members have room for one, by their number alone. Most ends are too few for most jobs, and a
/// look at each node would be all that an answer costs.
fn has_too_few(capacity: &Capacity, job: &JobRecord, demand: &Demand) -> bool {
    let gpus = demand.roles.iter().map(|role| role.gpus).min();
    let gpus = gpus.unwrap_or_default();
    if gpus == 0 || job.latest().is_some() {
        return false;
    }
    let mut with_room = capacity.with_free(gpus).map(BTreeSet::len);
    match demand.per_node {
        1 => with_room.sum::<usize>() < demand.min() as usize,
        _ => with_room.next().is_none(),
    }
}
