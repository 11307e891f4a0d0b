//! The world: all state, and the one place where events happen. It has one thread, one virtual
//! clock and one source of chance.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use muster_core::{
    fleet::Change,
    id::{JobUid, NodeName},
    node::{Input, Ledger},
    protocol::Speaks,
    run::Endpoint,
    time::Timestamp,
};

use crate::{
    Options, Report, Violation, cluster::Cluster, coordinator::Seat, event::Event, fault::Fault,
    invariants, liveness, looks::Look, machine::Machine, network::Conn, plan::Plan, planted,
    pods::Pods, queue::Queue, rng::Rng, stalls::Sees, store::Store, trace::Trace,
    training::Training, truth::Truth, users::Users,
};

/// More events than this at one moment mean an endless loop.
const SPIN: u64 = 50_000;
/// The clock of the coordinator counts from the Unix epoch. Any day will do.
const MORNING: Timestamp = Timestamp(1_000_000_000_000);

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) queue: Queue,
    pub(crate) rng: Rng,
    /// Draws what only some worlds have, so that the other worlds stay the same.
    pub(crate) traits: Rng,
    /// Draws which jobs wait for others.
    pub(crate) waits: Rng,
    pub(crate) plan: Plan,
    pub(crate) trace: Trace,
    pub(crate) store: Store,
    pub(crate) seats: [Seat; 2],
    /// The store before the last few commits. Only a planted mistake uses it.
    pub(crate) undurable: Option<Box<Store>>,
    /// An older copy of the store, kept somewhere.
    pub(crate) backup: Option<Box<Store>>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) conns: BTreeMap<u64, Conn>,
    /// Connections that both ends gave up, the oldest first.
    pub(crate) over: VecDeque<u64>,
    pub(crate) trainings: BTreeMap<u64, Training>,
    /// Which training meets at which TCPStore.
    pub(crate) stores: BTreeMap<Endpoint, u64>,
    /// The looks at ranks that are under way.
    pub(crate) looks: BTreeMap<u64, Look>,
    /// Machines for which this event may have changed what the rules check.
    pub(crate) changed: Vec<usize>,
    pub(crate) strikes: u64,
    /// Pairs of machines, the lower first, whose workers do not reach each other. Each has the
    /// number of its cut.
    pub(crate) fabric_cuts: BTreeMap<(usize, usize), u64>,
    pub(crate) users: Users,
    /// In worlds that have one.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) pods: Option<Pods>,
    pub(crate) truth: Truth,
    /// Until then no fault strikes.
    pub(crate) lull: Timestamp,
    /// When faults and users stop.
    pub(crate) trouble_until: Timestamp,
    pub(crate) healed: Option<Timestamp>,
    pub(crate) liveness: liveness::Watch,
    pub(crate) violation: Option<Violation>,
    faults: BTreeMap<Fault, u64>,
    numbers: u64,
}

/// Makes another source of chance of a seed.
const WAITS: u64 = 0x5741_4954_5f41_4654;

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed);
        planted::plant(options.planted);
        let mut plan = Plan::draw(&mut rng, options.size, &options.cut);
        let mut traits = Rng::new(!seed);
        plan.draw_traits(&mut traits, &options.cut);
        plan.draw_pods(seed, &options.cut);
        plan.draw_restarts(seed, &options.cut);
        plan.draw_crowds(seed, &options.cut);
        plan.draw_queues(seed);
        plan.draw_more_queues(seed);
        plan.draw_fair_share(seed, &options.cut);
        plan.draw_multiples(seed);
        plan.draw_stalls(seed, &options.cut);
        let mut waits = Rng::new(seed ^ WAITS);
        plan.pipelines = plan.queues.is_empty() && waits.percent(20);
        plan.faults.extend(Fault::later(seed, &plan, &options.cut));
        let machines = (0..plan.machines).map(|i| machine(i, &plan)).collect();
        let cluster = Cluster::drawn(seed, &plan);
        let pods = Pods::drawn(seed, &plan);
        let mut world = Self {
            now: MORNING,
            queue: Queue::default(),
            trouble_until: MORNING + plan.trouble,
            rng,
            traits,
            waits,
            plan,
            trace: Trace::new(options.log, options.whole),
            store: Store::default(),
            seats: Default::default(),
            undurable: None,
            backup: None,
            machines,
            conns: BTreeMap::new(),
            over: VecDeque::new(),
            trainings: BTreeMap::new(),
            stores: BTreeMap::new(),
            looks: BTreeMap::new(),
            changed: Vec::new(),
            strikes: 0,
            fabric_cuts: BTreeMap::new(),
            users: Users::default(),
            cluster,
            pods,
            truth: Truth::default(),
            healed: None,
            lull: MORNING,
            liveness: liveness::Watch::default(),
            violation: None,
            faults: BTreeMap::new(),
            numbers: 0,
        };
        world
            .queue
            .push(MORNING, Event::CoordinatorStarts { seat: 0 });
        for machine in 0..world.machines.len() {
            world.machines[machine].ppm = world.drift();
            world.machines[machine].speaks = world.installed();
            let at = MORNING + world.rng.ms(0, 3_000);
            world.queue.push(at, Event::AgentStarts { machine });
        }
        world.stalls_begin();
        world.users_begin();
        world.cluster_begins();
        world.pods_begin();
        let first = world.rng.ms(2_000, 6_000);
        world.queue.push(MORNING + first, Event::FaultStrikes);
        world
            .queue
            .push(world.trouble_until, Event::EverythingHeals);
        world
    }

    /// Lets everything happen until the end, or until a rule is broken.
    pub(crate) fn run(mut self) -> Report {
        let (mut events, mut spin) = (0u64, 0u64);
        while let Some((at, sequence, event)) = self.queue.pop() {
            if self
                .healed
                .is_some_and(|healed| at > healed + liveness::looked_at(&self.plan))
                || self.liveness.is_calm(self.plan.calm)
            {
                break;
            }
            spin = if at == self.now { spin + 1 } else { 0 };
            self.now = at.max(self.now);
            events += 1;
            self.trace.mix(self.now.0);
            self.trace.mix(sequence);
            self.happens(event);
            invariants::after_every_event(&mut self);
            if spin > SPIN {
                self.fail("I13", format!("more than {SPIN} events at one moment"));
            }
            if self.violation.is_some() {
                break;
            }
        }
        invariants::records_are_small(&mut self);
        let ending = format!("{:?}", self.store.jobs);
        self.trace.mix_text(&ending);
        Report {
            violation: self.violation,
            hash: self.trace.hash(),
            lines: self.trace.lines.into(),
            whole: self.trace.whole,
            strikes: self.strikes,
            machines: self.plan.machines,
            jobs: self.plan.jobs,
            trouble: self.plan.trouble,
            lasted: self.now.since(MORNING),
            kinds: self.plan.faults,
            faults: self.faults,
            events,
            generations: self
                .store
                .jobs
                .values()
                .map(|job| job.last_generation.0)
                .sum(),
            steps: self.truth.steps.values().sum(),
            blames: self.truth.blames,
        }
    }

    fn happens(&mut self, event: Event) {
        if let Some(event) = self.later(event) {
            self.at_once(event);
        }
    }

    /// Puts off an event for a process that stands still until the process goes on.
    fn later(&mut self, event: Event) -> Option<Event> {
        let until = match &event {
            Event::Tick { process, .. }
            | Event::Drain { process }
            | Event::LookEnds { process, .. }
            | Event::Deposed { process }
            | Event::ObjectsListed { process }
            | Event::ObjectHeard { process, .. }
            | Event::WriterLooks { process } => self.paused(*process),
            Event::Pods(event) => event
                .process()
                .map_or(Timestamp(0), |process| self.paused(process)),
            Event::Up { conn, .. } | Event::UpClosed { conn } | Event::StreamEnded { conn } => self
                .conns
                .get(conn)
                .map_or(Timestamp(0), |conn| self.paused(conn.process)),
            Event::RequestArrives { id } => self.request_waits(*id),
            Event::Down { conn, .. } | Event::DownClosed { conn } => {
                self.conns.get(conn).map_or(Timestamp(0), |conn| {
                    self.machines[conn.machine].agent_paused_until
                })
            }
            Event::Late { machine, .. }
            | Event::Dial { machine, .. }
            | Event::Beat { machine, .. }
            | Event::Refused { machine, .. }
            | Event::RunnerLost { machine, .. }
            | Event::LedgerWritten { machine, .. }
            | Event::Warmed { machine, .. }
            | Event::Locates { machine, .. }
            | Event::Speak { machine, .. } => self.machines[*machine].agent_paused_until,
            _ => Timestamp(0),
        };
        let until = until.max(self.stands_still(&event));
        if self.now >= until {
            return Some(event);
        }
        self.queue.push(until, event);
        None
    }

    fn paused(&self, process: u64) -> Timestamp {
        self.seat_of(process)
            .map_or(Timestamp(0), |seat| self.seats[seat].paused_until)
    }

    fn at_once(&mut self, event: Event) {
        match event {
            Event::CoordinatorStarts { seat } => self.coordinator_starts(seat),
            Event::Deposed { process } => self.deposed(process),
            Event::Drain { process } => self.drain(process),
            Event::OperatorMends { machine } => self.operator_mends(machine),
            Event::OperatorRaisesTerm { at_least } => self.operator_raises_term(at_least),
            Event::OperatorAcceptsStore { accepts } => self.operator_accepts_store(accepts),
            Event::OperatorSwapsBack { machine, state_dir } => {
                self.operator_swaps_back(machine, state_dir)
            }
            Event::TakesOver => self.takes_over(),
            Event::OldOneReturns { machine } => self.disks_change(machine),
            Event::NamesakeComes { machine } => self.namesake_comes(machine),
            Event::NamesakeGoes { process, session } => self.namesake_goes(process, session),
            Event::AllAwake { machine } => self.all_awake(machine),
            Event::SickRank { machine } => self.sick_rank(machine),
            Event::Tick { process, at } => self.tick(process, at),
            Event::Up {
                conn,
                serial,
                message,
            } => self.up_arrives(conn, serial, message),
            Event::Down {
                conn,
                serial,
                message,
            } => self.down_arrives(conn, serial, message),
            Event::Late {
                machine,
                agent,
                message,
            } => self.comes_late(machine, agent, message),
            Event::UpClosed { conn } => self.up_closed(conn),
            Event::DownClosed { conn } => self.down_closed(conn),
            Event::StreamEnded { conn } => self.stream_ended(conn),
            Event::AgentStarts { machine } => self.agent_starts(machine),
            Event::Dial { machine, agent } => self.dial(machine, agent),
            Event::Beat { machine, conn } => self.beat(machine, conn),
            Event::Refused {
                machine,
                agent,
                run,
                reason,
            } => {
                self.tell_agent(
                    machine,
                    agent,
                    Input::Refused {
                        run,
                        refusal: reason.into(),
                    },
                );
            }
            Event::RunnerLost {
                machine,
                agent,
                run,
            } => self.runner_lost(machine, agent, run),
            Event::LedgerWritten { machine, agent } => self.ledger_written(machine, agent),
            Event::Warmed {
                machine,
                agent,
                job,
            } => self.warmed(machine, agent, &job),
            Event::Speak { machine, run } => self.speak(machine, run),
            Event::CutUp { machine } => self.cut(machine, true, false),
            Event::FenceLooks { machine, run, life } => self.look_at_fence(machine, run, life),
            Event::PowerOn { machine } => self.power_on(machine),
            Event::RunnerUp { machine, run, life } => self.runner_up(machine, run, life),
            Event::Order {
                machine,
                agent,
                run,
                life,
                line,
                order,
            } => self.order_arrives(machine, agent, run, life, line, order),
            Event::Launched { machine, run, life } => self.launched(machine, run, life),
            Event::StartsAgain {
                machine,
                run,
                life,
                local,
            } => self.starts_again(machine, run, life, local),
            Event::RankEnds {
                machine,
                run,
                life,
                local,
                exit,
                error,
            } => self.rank_ends(machine, run, life, local, exit, error),
            Event::GroupMoves { machine, run, life } => self.group_moves(machine, run, life),
            Event::Step { world } => self.step(world),
            Event::StandEnds {
                machine,
                run,
                life,
                local,
            } => self.stand_ends(machine, run, life, local),
            Event::LookMovement { machine, run, life } => self.look_movement(machine, run, life),
            Event::Locates {
                machine,
                agent,
                look,
                run,
                ranks,
            } => self.locates(machine, agent, look, &run, &ranks),
            Event::LookEnds { look, .. } => self.look_ends(look),
            Event::LookAtStalls => self.look_at_stalls(),
            Event::PeersNotice { world, machine } => self.peers_notice(world, machine),
            Event::FabricTimeout { a, b, cut } => self.fabric_timeout(a, b, cut),
            Event::ObjectsListed { process } => self.objects_listed(process),
            Event::ObjectHeard {
                process,
                machine,
                version,
                raw,
            } => self.object_heard(process, machine, version, *raw),
            Event::WriterLooks { process } => self.writer_looks(process),
            Event::WriteArrives {
                machine,
                version,
                correction,
            } => self.write_arrives(machine, version, *correction),
            Event::PersonAtObjects => self.person_at_objects(),
            Event::Pods(event) => self.pod_event(event),
            Event::UserActs => self.user_acts(),
            Event::RequestArrives { id } => self.request_arrives(id),
            Event::AnswerArrives { id, answer } => self.answer_arrives(id, *answer),
            Event::NoAnswer { id } => self.no_answer(id),
            Event::FaultStrikes => self.fault_strikes(),
            Event::Mends {
                fault,
                machine,
                other,
            } => self.mends(fault, machine, other),
            Event::EverythingHeals => self.everything_heals(),
            Event::LookAtJobs => liveness::look(self),
        }
    }

    /// The versions that a machine's agent speaks at first. In a world of upgrades they are not
    /// always the newest.
    fn installed(&mut self) -> Speaks {
        let of_others = [
            Speaks {
                oldest: 3,
                newest: 3,
            },
            Speaks {
                oldest: 4,
                newest: 5,
            },
            Speaks {
                oldest: 5,
                newest: 6,
            },
        ];
        match self.plan.versions && self.traits.percent(60) {
            true => *self.traits.pick(&of_others).expect("there are three"),
            false => Speaks::OURS,
        }
    }

    /// A number that was never used before in this world.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn count(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_insert(0) += 1;
    }

    /// The machine of this name, if there is one.
    pub(crate) fn machine_named(&self, name: &NodeName) -> Option<usize> {
        if let Some(pod) = self.pods.as_ref().and_then(|pods| pods.machine(name)) {
            return Some(pod);
        }
        name.as_str()
            .strip_prefix('n')?
            .parse()
            .ok()
            .filter(|index| *index < self.machines.len())
    }

    /// Marks what this change of the store concerns, to be checked once the event is over, and lets
    /// people react to it.
    pub(crate) fn changed_by(&mut self, change: &Change) {
        if let Change::PutJob(job) = change {
            let members = job
                .unproven_generations()
                .flat_map(|generation| generation.members.iter());
            let changed: Vec<usize> = members
                .filter_map(|member| self.machine_named(&member.node))
                .collect();
            self.changed.extend(changed);
        }
        self.cluster_notes(change);
        self.pods_note(change);
        if let Change::DeleteNode(name) = change {
            self.strike_off(name);
        }
    }

    /// A rule is broken. Only the first violation is kept.
    pub(crate) fn fail(&mut self, rule: &'static str, what: String) {
        self.fail_about(None, rule, what);
    }

    /// The same, where the rule is about one job.
    pub(crate) fn fail_about(&mut self, job: Option<&JobUid>, rule: &'static str, what: String) {
        if self.violation.is_none() && !self.truth.is_forgiven(rule, job) {
            self.trace
                .line(self.now, format_args!("BROKEN {rule}: {what}"));
            self.violation = Some(Violation { rule, what });
        }
    }

    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.queue.push(self.now + delay, event);
    }
}

pub(crate) fn machine(index: usize, plan: &Plan) -> Machine {
    let name: muster_core::id::NodeName = format!("n{index}").as_str().into();
    let ledger = Ledger::new(name.clone());
    Machine {
        name,
        powered: true,
        boot: 1,
        booted: MORNING,
        slots: plan.slots,
        gpus: plan.gpus,
        agent: None,
        agents_started: 0,
        speaks: Speaks::OURS,
        ledger: ledger.clone(),
        ledger_fails: false,
        disk_slow_until: Timestamp(0),
        ledger_damaged: false,
        sick_until: Timestamp(0),
        ports: 0,
        ppm: 0,
        ledger_before: None,
        ledger_highest: ledger,
        runs: BTreeMap::new(),
        said_over: Default::default(),
        up_cut: false,
        down_cut: false,
        slow_ms: 0,
        refuse_hold: false,
        refuse_start: false,
        gpus_hidden: false,
        noticed: false,
        nic_down: false,
        unkillable: false,
        agent_paused_until: Timestamp(0),
        stands_until: Timestamp(0),
        runners_wake: Timestamp(0),
        slept: Duration::ZERO,
        state_dir: 0,
        other_dir: None,
        other_disk: None,
        struck_off: false,
        pod: None,
        kubelet_gpus: Vec::new(),
        lies: false,
        lied: false,
        sees: Sees::Stacks,
    }
}
