//! Opens the next generation when it is due and there are nodes for it. It never ends a generation, and
//! `start` starts it.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use crate::{
    fleet::{
        account, agreement, default_gpus,
        eligible::{self, Eligibility},
        equal_asks::{Ask, Lack},
        job::{GenerationRecord, JobRecord, Reason, Stage, Why},
        job_turn::{Facts, JobTurn},
        live::Condition,
        members::{Member, Members, size},
        placement::Placement,
        preempt::{self, Preempt},
        receipt::{Cause, Incident},
        reservations,
        shortage::Shortage,
        unhealthy,
    },
    id::Generation,
    nccl::profile::Profile,
    run::RunId,
    time::Timestamp,
};

/// The most addresses of one member. Machines have a handful. With a part of its addresses, the
/// TCPStore could refuse the member. So a longer list counts as none, and then the TCPStore lets
/// every address in.
const ADDRESSES_MAX: usize = 16;

/// How long a job that has enough nodes waits for its other scheduled pods. Pods come up within
/// seconds of each other if their image is on the host. Pulling an image takes minutes, so the job
/// does not wait for that.
const PODS_COME: Duration = Duration::from_secs(10);

/// The longest time that earlier generations may take to stop. No node is ready before its runs of all
/// of them are over.
fn longest_grace(retiring: &[GenerationRecord]) -> Duration {
    let stopping = retiring.iter().filter_map(|g| g.stopping.as_ref());
    stopping.map(|s| s.grace).max().unwrap_or_default()
}

impl JobTurn<'_> {
    /// Opens the next generation, if one is due and there are nodes for it.
    pub(crate) fn open(&mut self) {
        let job = &*self.job;
        if !matches!(job.stage(), Stage::Waiting(_)) {
            return;
        }
        if self.hold_back() {
            return;
        }
        if self.job.why.is_some_and(Why::lacks_nodes) {
            self.job.forget_stacks(self.now);
        }
        self.propose_gpus();
        let gang = match self.place() {
            Ok(gang) => gang,
            Err(lack) => {
                let made = self.make_room();
                return self.wait_for_nodes(&lack, made);
            }
        };
        if !self.wait_for_pods(size(&gang) as usize) {
            self.keep_gpus();
            self.open_on(&gang);
        }
    }

    /// Places the job, unless one that asks for the same has just been placed in vain.
    fn place(&mut self) -> Result<Vec<Member>, Lack> {
        let facts = self.facts();
        let short = |shortfall| Lack::of(&shortfall);
        let demand = facts.asks().map_err(short)?;
        let reserved = facts.reserved();
        let by = reserved.iter().map(|one| one.by);
        let ask = Ask::of(facts.job, facts.live, facts.capacity, &demand, by);
        let known = ask
            .as_ref()
            .and_then(|ask| self.scratch.equal_asks.lack_of(ask));
        let placed = || match facts.place_beside(&reserved, &demand) {
            Placement::Gang(gang) => Ok(gang),
            Placement::Short(shortfall) => Err(short(shortfall)),
        };
        if let Some(known) = known {
            debug_assert_eq!(
                placed().as_ref(),
                Err(known),
                "equal asks are answered equally"
            );
            return Err(known.clone());
        }
        let placed = placed();
        if let (Some(ask), Err(lack)) = (ask, &placed) {
            self.scratch.equal_asks.remember(ask, lack.clone());
        }
        placed
    }

    /// Holds the job back, with the reason in its record, if it must not begin yet: it is suspended,
    /// or waits for other jobs or its time, or its back-off is not over, or the coordinator listens. Returns whether it does.
    fn hold_back(&mut self) -> bool {
        let job = &*self.job;
        if job.suspended {
            let message = match unhealthy::unkillable(self.nodes, self.job) {
                Some(message) => message,
                None if job.unproven_generations().next().is_some() => {
                    "suspended; its workers are being stopped".to_owned()
                }
                None => "suspended; it holds no nodes until it is resumed".to_owned(),
            };
            self.job.found(Some(Why::Suspended));
            self.job.say(Reason::Suspended, message);
            account::waits(self.job, self.now);
            return true;
        }
        if let Eligibility::Waits(waits) = eligible::judge(job, self.now) {
            self.job.found(Some(waits.why()));
            self.job.say(waits.reason(), waits.to_string());
            return true;
        }
        if let Some(at) = job.not_before.filter(|at| *at > self.now) {
            let crash_loop = job
                .crash_loop
                .as_ref()
                .and_then(|found| Some(format!("; {}: {}", found.sentence()?, found.symptom)));
            let message = format!(
                "restart {} waits for its back-off{}",
                job.restart_count + 1,
                crash_loop.unwrap_or_default()
            );
            self.job.found(Some(Why::BackOff));
            self.job.say(Reason::BackOff, message);
            account::waits(self.job, self.now);
            self.wake(at);
            return true;
        }
        if self.is_listening() {
            self.wake(self.presence.listen_until);
            return true;
        }
        false
    }

    /// Lets jobs of lower priority give up what this one needs, and returns what to say of it.
    fn make_room(&mut self) -> Option<String> {
        match preempt::preempt(self.facts()) {
            Preempt::Nothing => None,
            Preempt::Coming => Some("what it lacks is being freed".to_owned()),
            Preempt::NotBefore(at) => {
                self.wake(at);
                None
            }
            Preempt::From(yields) => {
                let jobs = yields.len();
                let lent = yields.values().any(|given| given.lent_by.is_some());
                self.scratch.yields.extend(yields);
                if !reservations::room_is_made(self.job) {
                    self.job.room_made = Some(self.now);
                }
                // One of them may not give anything at this moment.
                self.wake(self.now + preempt::AGAIN);
                let message = match (jobs, lent) {
                    (1, false) => "a job of lower priority makes room for it".to_owned(),
                    (_, false) => format!("{jobs} jobs of lower priority make room for it"),
                    (1, true) => "a job gives back what its queue has lent".to_owned(),
                    (_, true) => format!("{jobs} jobs give back what its queue has lent"),
                };
                Some(message)
            }
        }
    }

    fn wait_for_nodes(&mut self, lack: &Lack, made: Option<String>) {
        let waits = self.pods.why_waiting(self.job, self.nodes);
        let cause = waits.as_ref().map(|(cause, _)| *cause);
        let waits = waits.map(|(_, why)| why);
        // The reason why pods wait comes first: the nodes that are named after it may be many, and
        // long texts are cut.
        let waits = waits.map(|why| format!("{why}; ")).unwrap_or_default();
        let message = format!(
            "{waits}{}{}{}",
            made.map(|made| format!("{made}; ")).unwrap_or_default(),
            lack.sentence,
            default_gpus::default_gpus_hint(self.facts())
        );
        self.live.shortage = cause.or_else(|| {
            // Nothing is wrong with pods of which nobody has heard yet.
            let no_pods = self.job.spec.template.is_some() && lack.no_nodes;
            Some(match no_pods {
                true => Shortage::PodsStarting,
                false => lack.word,
            })
        });
        if !self.job.why.is_some_and(Why::lacks_nodes) {
            self.warn("BelowMinimum", message.clone());
            self.live.shortage_told = self.live.shortage;
        }
        let (why, reason) = match self.job.why {
            Some(Why::Preempted) => (Why::Preempted, Reason::Preempted),
            _ => (Why::BelowMinimum, Reason::BelowMinimum),
        };
        self.job.found(Some(why));
        self.job.say(reason, message);
        account::waits(self.job, self.now);
        self.wake_when_unavoided();
        self.wake_without_gpus();
        if let Some(at) = self.job.asks_again_at() {
            self.wake(at);
        }
    }

    /// Opens the next generation on these nodes.
    fn open_on(&mut self, gang: &[Member]) {
        let (profile, mismatches) = agreement::agree(self.nodes, &self.job.spec, gang);
        let members = with_addresses(self.facts(), gang);
        let job = &mut *self.job;
        job.restart_count += u32::from(job.latest().is_some_and(|before| before.started));
        let number = job.last_generation.next();
        let size = size(gang);
        let cause = self.answer_incident(number, size);
        let (job, nodes) = (&mut *self.job, &*self.nodes);
        job.use_nodes(gang.iter().map(|member| &member.node), |name| {
            nodes.get(name).is_some()
        });
        job.last_generation = number;
        let generation = next_generation(job, number, cause, members, profile, self.now);
        job.open_generation(generation);
        for mismatch in mismatches {
            self.warn("MixedNodes", mismatch.to_string())
                .in_generation(number);
        }
        self.live.scaled = false;
        self.live.condition = Condition::Sound;
        self.live.pods_since = None;
        self.nodes.note_members(self.job);
    }

    /// Notes in the job's incident that this generation is the answer to it, and returns its cause. A
    /// first start and a job that had too few nodes have no incident yet, so one is opened.
    fn answer_incident(&mut self, number: Generation, size: u32) -> Cause {
        let job = &mut *self.job;
        if job.incidents.is_empty() {
            job.open_incident(Incident {
                message: "first start".into(),
                ..Incident::at(job.created)
            });
        }
        account::goes_on(job, self.now);
        let waited = job.why.is_some_and(Why::lacks_nodes)
            && job
                .incidents
                .last()
                .is_some_and(|incident| incident.to.is_some());
        if waited {
            job.open_incident(Incident {
                cause: Cause::Resumed,
                message: "enough nodes again".into(),
                ..Incident::at(self.now)
            });
        }
        match job.incidents.last_mut() {
            Some(incident) => {
                incident.to = Some(number);
                incident.to_nodes = size;
                incident.decided_at = Some(self.now);
                incident.cause
            }
            None => Cause::FirstStart,
        }
    }

    /// Lets a job that begins wait for more of its pods, and returns whether it does. They were made
    /// together, and come up one after another. If it began with the first of them, it would end a generation for each of the
    /// others, and train with too few until its cool-down is over.
    fn wait_for_pods(&mut self, have: usize) -> bool {
        if !self.job.begins() || have >= self.job.replicas as usize {
            return false;
        }
        let coming = self
            .pods
            .with_host(self.job, self.nodes)
            .min(self.job.replicas as usize);
        if have >= coming {
            return false;
        }
        let until = *self.live.pods_since.get_or_insert(self.now) + PODS_COME;
        if until <= self.now {
            return false;
        }
        let message = format!("{have} of its {coming} pods are ready; the others come");
        self.live.shortage = Some(Shortage::PodsStarting);
        self.job.say_of_same(message);
        account::waits(self.job, self.now);
        self.wake(until);
        true
    }
}

/// The next generation of a job.
pub(crate) fn next_generation(
    job: &JobRecord,
    number: Generation,
    cause: Cause,
    members: Members,
    profile: Profile,
    now: Timestamp,
) -> GenerationRecord {
    GenerationRecord {
        number,
        cause,
        // If possible, the TCPStore is not on node rank 0, because torch before 2.7 cannot
        // share that node with it.
        store_host: members
            .last()
            .expect("a gang has at least one member")
            .node
            .clone(),
        proc_per_node: job.spec.proc_per_node,
        layout: job.spec.layout(members.size()),
        members,
        restart_count: job.restart_count,
        store: None,
        peers: Vec::new(),
        keys: Vec::new(),
        rendezvous: RunId {
            job: job.uid.clone(),
            generation: number,
        }
        .to_string(),
        opened: now,
        started: false,
        started_at: None,
        launched: false,
        previous_grace: longest_grace(&job.retiring),
        stopping: None,
        dead: Default::default(),
        fenced: Default::default(),
        profile,
        ends: Default::default(),
        left_behind: Default::default(),
        forced: Default::default(),
        disobeyed: Default::default(),
        step_pattern_told: false,
        won: None,
        member_restarts: Default::default(),
        stall: None,
        slow: None,
    }
}

/// The gang, with the addresses that its nodes have now.
fn with_addresses(facts: Facts<'_>, gang: &[Member]) -> Members {
    let addresses = |member: &Member| {
        let report = &facts.nodes.get(&member.node)?.report;
        let more = report.address.parse().ok();
        let all = report.network.addresses.iter().copied();
        let all: BTreeSet<IpAddr> = all.chain(more).collect();
        // Without the agent's list, only the one address that the coordinator sees is known. The
        // TCPStore would refuse the member's others.
        let tells = !report.network.addresses.is_empty() && all.len() <= ADDRESSES_MAX;
        tells.then(|| all.into_iter().collect())
    };
    let with = gang.iter().map(|member| Member {
        addresses: addresses(member).unwrap_or_default(),
        ..member.clone()
    });
    with.collect::<Vec<_>>().into()
}
