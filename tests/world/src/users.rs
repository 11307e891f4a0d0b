//! People and their programs. They submit, submit again when no answer comes, scale, cancel, delete
//! and cordon. The operator declares a node gone for good only when its machine has no power.

use std::collections::BTreeMap;

use muster_core::{
    fleet::{Answer, Input, Refusal, Request, RequestId, job::JobRecord},
    id::{JobName, JobUid},
    spec::{
        API_VERSION, AfterDocument, EnvVar, JobDocument, JobSpec, KIND, Metadata,
        RestartPolicyDocument, RoleDocument, RuleDocument, SpecDocument,
    },
    time::Timestamp,
};

use crate::{
    event::Event,
    pairs,
    planted::{Planted, on},
    trace::note,
    troubles::Kind,
    world::World,
};

#[derive(Debug, Default)]
pub(crate) struct Users {
    pub(crate) wishes: Vec<Wish>,
    pub(crate) asked: BTreeMap<RequestId, Asked>,
}

impl Users {
    /// A job has been over for as long as its user wanted to see it.
    pub(crate) fn is_deleted_by_itself(&mut self, job: &JobRecord) {
        let of = |wish: &&mut Wish| wish.name == job.name && wish.spec.env == job.spec.env;
        self.wishes
            .iter_mut()
            .filter(of)
            .for_each(|wish| wish.deleting = true);
    }
}

/// A job that a user wants, however often it is submitted.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) name: JobName,
    pub(crate) spec: JobSpec,
    pub(crate) request_id: String,
    /// The job that the user was told.
    pub(crate) accepted: Option<JobUid>,
    /// Its deletion was requested, whatever the answer.
    pub(crate) deleting: bool,
}

#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) wish: Option<usize>,
    pub(crate) answered: bool,
    tries: u32,
}

/// How often a user asks again who is refused because the job to wait for is not there yet.
const TRIES_MAX: u32 = 10;

/// The number of jobs wanted in one world, including those that use a name again.
const WISHES_MAX: usize = 8;

impl World {
    pub(crate) fn users_begin(&mut self) {
        for number in 0..self.plan.jobs {
            let wish = self.wish(number, format!("job-{number}"));
            self.users.wishes.push(wish);
            let delay = self.rng.ms(0, 15_000);
            let id = self.prepare_submit(number, 0);
            self.after(delay, Event::RequestArrives { id });
        }
        let first = self.rng.ms(1_000, 10_000);
        self.after(first, Event::UserActs);
    }

    fn wish(&mut self, number: usize, name: String) -> Wish {
        let nodes = self.plan.members_max;
        let min = self.rng.range(1, nodes.min(3));
        let replicas = self.rng.range(min, nodes.max(min));
        let max = self.rng.range(replicas, nodes.max(replicas) + 1);
        let gpus = if self.plan.gpus > 0 && self.rng.percent(70) {
            self.rng.range(1, self.plan.gpus.into())
        } else {
            0
        };
        let procs = self.rng.range(1, 2);
        let grace = *self
            .rng
            .pick(&["0s", "1s", "10s", "25s"])
            .expect("there are four");
        let cooldown = *self
            .rng
            .pick(&["0s", "5s", "30s"])
            .expect("there are three");
        let progress = if self.rng.percent(85) {
            "synchronous"
        } else {
            "independent"
        };
        let restarts = self.rng.range(0, 6) as i64;
        let priority = self.rng.range(0, 2) as i64;
        let fenced = self.plan.fences && self.traits.percent(80);
        let fence_after = fenced.then(|| {
            (*self
                .traits
                .pick(&["10s", "15s", "20s", "30s"])
                .expect("there are four"))
            .to_owned()
        });
        let (replicas, min) = match fenced && self.traits.percent(70) {
            // With one member, no other member's end proves anything.
            true => (1, 1),
            false => (replicas, min),
        };
        let spec = SpecDocument {
            replicas: Some(replicas as i64),
            min_replicas: Some(min as i64),
            max_replicas: Some(max as i64),
            proc_per_node: Some(procs as i64),
            gpus_per_node: Some(gpus as i64),
            args: vec!["train.py".into()],
            env: vec![EnvVar {
                value_from: None,
                name: "WISH".into(),
                value: number.to_string(),
            }],
            priority: Some(priority),
            restart_policy: Some(RestartPolicyDocument {
                max_restarts: Some(restarts),
                window: Some("1h".into()),
                max_same_failures: None,
            }),
            stop_grace_period: Some(grace.into()),
            // A job that does not say it grows when that pays.
            scale_up_cooldown: (cooldown != "30s").then(|| cooldown.into()),
            progress: Some(progress.into()),
            fence_after,
            rules: self.rules(),
            active_deadline_seconds: self.seconds(10, 20..90),
            start_deadline_seconds: self.seconds(10, 5..60),
            ttl_seconds_after_finished: self.seconds(25, 0..40),
            suspend: self.traits.percent(5).then_some(true),
            ..self.stall_words()
        };
        let spec = self.with_waits(number, &name, spec);
        let spec = match number % 4 {
            0 | 2 | 3 if self.plan.restarts => with_restarts(number, spec),
            3 => with_roles(number, spec),
            // Nothing is drawn for it either.
            1 => SpecDocument {
                placement: Some("pack".into()),
                ..spec
            },
            _ => spec,
        };
        let spec = match self.plan.crowded {
            true => self.whole_nodes(spec),
            false => spec,
        };
        let spec = match self.plan.in_pairs {
            true => pairs::in_pairs(spec),
            false => spec,
        };
        let (namespace, queue) = self.plan.queue_of(number);
        let spec = SpecDocument { queue, ..spec };
        let metadata = Metadata { name, namespace };
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata,
            spec,
        };
        let (name, mut spec) = document
            .check()
            .expect("the world's users write good documents");
        spec.template = self.template();
        let request_id = if self.rng.percent(50) {
            format!("request-{number}")
        } else {
            String::new()
        };
        Wish {
            name,
            spec,
            request_id,
            accepted: None,
            deleting: false,
        }
    }

    /// In some worlds jobs wait for others that are submitted before them, or for a time.
    fn with_waits(&mut self, number: usize, name: &str, spec: SpecDocument) -> SpecDocument {
        if !self.plan.pipelines {
            return spec;
        }
        let earlier = self.users.wishes.iter().map(|wish| wish.name.name.clone());
        let earlier: Vec<String> = earlier.take(number).filter(|other| other != name).collect();
        let waits = self.waits.percent(60);
        let other = self.waits.pick(&earlier).cloned().filter(|_| waits);
        let after = other.map(|job| AfterDocument {
            job,
            condition: (self.waits)
                .pick(&["succeeded", "failed", "ended", "ended"])
                .map(ToString::to_string),
        });
        let at = self.now + self.waits.ms(1_000, 30_000);
        let timed = self.waits.percent(20);
        SpecDocument {
            after: after.into_iter().collect(),
            start_after: timed.then(|| at.rfc3339()),
            ..spec
        }
    }

    /// Some jobs say what their ends mean.
    fn rules(&mut self) -> Vec<RuleDocument> {
        if !self.traits.percent(40) {
            return Vec::new();
        }
        const SOME: [&[&str]; 8] = [
            &["exit codes 1-127: fail"],
            &["exit codes 128-255: restart, at most 9", "failure: fail"],
            &[
                "signal SIGSEGV: restart, at most 1",
                "failure: restart, at most 2 in 30s",
            ],
            &["exit codes 137: restart", "exit codes 1-255: fail"],
            &["success of any: succeed", "any signal: restart, at most 3"],
            &[
                "success of first: succeed",
                "nodeLost: ignore",
                "failure: restart, at most 2",
            ],
            &["nodeLost: fail", "exit codes 1: succeed"],
            &["evicted: fail", "failure: fail"],
        ];
        let lines = *self.traits.pick(&SOME).expect("there are eight");
        let read = |line: &&str| RuleDocument::read(line).expect("it is a rule");
        lines.iter().map(read).collect()
    }

    /// Some jobs have a limit of their life.
    fn seconds(&mut self, percent: u64, range: std::ops::Range<u64>) -> Option<i64> {
        let limited = self.traits.percent(percent);
        limited.then(|| self.traits.range(range.start, range.end) as i64)
    }

    fn prepare_submit(&mut self, number: usize, tries: u32) -> RequestId {
        let uid = JobUid::from(format!("uid{}", self.fresh()));
        // Enough work for a while. Some jobs outlast the world.
        let short = if self.plan.crowded { 60 } else { 30 };
        let steps = if self.rng.percent(short) {
            self.rng.range(5, 100)
        } else {
            self.rng.range(200, 3_000)
        };
        self.truth.steps_wanted.insert(uid.clone(), steps);
        let wish = &self.users.wishes[number];
        let (mut name, mut request_id) = (wish.name.clone(), wish.request_id.clone());
        if on(Planted::RetryIsNew) && tries > 0 {
            name.name = format!("{}-{tries}", name.name);
            request_id = String::new();
        }
        let request = Request::Submit {
            name,
            spec: wish.spec.clone(),
            uid,
            request_id,
            validate_only: false,
        };
        self.asks(request, Some(number), tries)
    }

    pub(crate) fn asks(&mut self, request: Request, wish: Option<usize>, tries: u32) -> RequestId {
        let id = RequestId(self.fresh());
        self.users.asked.insert(
            id,
            Asked {
                request,
                wish,
                answered: false,
                tries,
            },
        );
        id
    }

    pub(crate) fn request_arrives(&mut self, id: RequestId) {
        let Some(asked) = self.users.asked.get(&id) else {
            return;
        };
        let patience = std::time::Duration::from_secs(5);
        let (request, wish) = (asked.request.clone(), asked.wish);
        self.after(patience, Event::NoAnswer { id });
        if let Request::DeleteNode { node } = &request
            && self
                .machines
                .iter()
                .any(|place| &place.name == node && place.powered)
        {
            return;
        }
        if let Request::DeleteNode { node } = &request
            && let Some(machine) = self.machine_named(node)
        {
            self.befalls(machine, Kind::StruckOff);
            // The coordinator may never have heard this host, and only know pods on it. Whoever declares
            // it gone deletes its Node object as well.
            if !self.store.nodes.contains_key(node) {
                self.pods_of_gone_host(machine);
            }
        }
        if let (Request::Delete { .. }, Some(wish)) = (&request, wish) {
            let name = self.users.wishes[wish].name.clone();
            // The request is refused for a job that is not over.
            let over = self
                .store
                .jobs
                .values()
                .any(|job| job.name == name && job.phase.is_over());
            self.users
                .wishes
                .iter_mut()
                .filter(|_| over)
                .filter(|other| other.name == name)
                .for_each(|other| other.deleting = true);
        }
        note!(self, "a user asks: {}", short(&request));
        if let Some(seat) = self.some_seat() {
            let actor = self.actor(wish);
            self.decide(seat, Input::Request { id, actor, request }, None);
        }
    }

    /// Until when this request is not read, because no coordinator goes on.
    pub(crate) fn request_waits(&self, _: RequestId) -> Timestamp {
        let living = || self.seats.iter().filter(|seat| seat.process.is_some());
        living()
            .map(|seat| seat.paused_until)
            .min()
            .unwrap_or(Timestamp(0))
    }

    pub(crate) fn answer_arrives(&mut self, id: RequestId, answer: Answer) {
        self.answered(id, answer);
        crate::invariants::accepted_jobs_exist(self);
    }

    fn answered(&mut self, id: RequestId, answer: Answer) {
        let Some(asked) = self.users.asked.get_mut(&id) else {
            return;
        };
        asked.answered = true;
        let asked_again = asked.tries;
        let Some(wish) = asked.wish else { return };
        if !matches!(asked.request, Request::Submit { .. }) {
            return;
        }
        match answer {
            Answer::Job { job, .. } => {
                let uid = job.record.uid;
                let wish = &mut self.users.wishes[wish];
                if let Some(before) = wish.accepted.replace(uid.clone())
                    && before != uid
                    && !wish.deleting
                    && !self.truth.has_forgotten(&before)
                {
                    let name = wish.name.clone();
                    self.fail_about(
                        Some(&before),
                        "I4",
                        format!("{name} was accepted as {before} and then as {uid}"),
                    );
                }
            }
            Answer::Refused(refusal) if self.must_be_known(wish, &refusal) => {
                self.fail(
                    "I4",
                    format!("a submission said again was refused: {refusal}"),
                );
            }
            // What it is to wait for is not there yet.
            Answer::Refused(Refusal::Invalid { .. }) if asked_again < TRIES_MAX => {
                let again = self.prepare_submit(wish, asked_again + 1);
                let later = std::time::Duration::from_secs(2);
                self.after(later, Event::RequestArrives { id: again });
            }
            _ => {}
        }
    }

    /// A repeated submission means the same job. As long as the job is there, the name cannot
    /// belong to another. The request id identifies the job even when it is over.
    fn must_be_known(&self, wish: usize, refusal: &Refusal) -> bool {
        let asked = &self.users.wishes[wish];
        // An earlier copy of the submission came before the job that it is to wait for.
        if matches!(refusal, Refusal::Invalid { .. }) && !asked.spec.start.after.is_empty() {
            return false;
        }
        let by_id = !asked.request_id.is_empty();
        self.is_stored(wish) && (by_id || matches!(refusal, Refusal::JobExists { .. }))
    }

    /// Whether the job with this wish's name belongs to this wish.
    fn is_stored(&self, wish: usize) -> bool {
        let wish = &self.users.wishes[wish];
        self.store
            .jobs
            .values()
            .any(|job| job.name == wish.name && job.spec.env == wish.spec.env)
    }

    /// A client that hears nothing asks again. For a submission that must be safe.
    pub(crate) fn no_answer(&mut self, id: RequestId) {
        if let Some(Request::DeleteNode { node }) =
            self.users.asked.get(&id).map(|asked| &asked.request)
            && self.store.nodes.contains_key(node)
            && let Some(machine) = self.machines.iter().position(|place| &place.name == node)
        {
            return self.declare_gone(machine);
        }
        let Some(asked) = self.users.asked.get(&id).filter(|asked| !asked.answered) else {
            return;
        };
        let (wish, tries) = (asked.wish, asked.tries);
        let Some(wish) = wish.filter(|_| matches!(asked.request, Request::Submit { .. })) else {
            return;
        };
        if self.users.wishes[wish].deleting {
            return;
        }
        let again = self.prepare_submit(wish, tries + 1);
        let delay = self.rng.ms(0, 500);
        self.after(delay, Event::RequestArrives { id: again });
    }

    pub(crate) fn user_acts(&mut self) {
        if self.healed.is_some() || !self.plan.users_act {
            return;
        }
        let gap = self.rng.ms(0, 2 * self.plan.user_gap.as_millis() as u64);
        self.after(gap, Event::UserActs);
        let wish = self.rng.below(self.users.wishes.len());
        let machine = self.rng.below(self.plan.machines);
        let node = self.machines[machine].name.clone();
        let (name, min, max) = {
            let wish = &self.users.wishes[wish];
            (
                wish.name.clone(),
                wish.spec.min_replicas,
                wish.spec.max_replicas,
            )
        };
        let over = self
            .store
            .jobs
            .values()
            .any(|job| job.name == name && job.phase.is_over());
        let id = match self.rng.below(12) {
            0..=4 => {
                let nodes = self.rng.range(min.into(), max.into()) as u32;
                let nodes = self.users.wishes[wish].spec.size_within(nodes);
                self.asks(Request::Scale { name, nodes }, Some(wish), 0)
            }
            5 if self.rng.percent(60) => self.asks(Request::Cancel { name }, Some(wish), 0),
            5 => {
                let mut jobs = self.store.jobs.values();
                let known = jobs.find(|job| job.name == name);
                let suspended = !known.is_some_and(|job| job.suspended);
                self.asks(Request::Suspend { name, suspended }, Some(wish), 0)
            }
            6 | 7 if over && self.rng.percent(60) => {
                self.asks(Request::Delete { name }, Some(wish), 0)
            }
            8 if self.rng.percent(50) => self.asks(Request::Delete { name }, Some(wish), 0),
            6 | 7 => {
                let gone = self.users.wishes[wish].deleting;
                let taken = self.store.jobs.values().any(|job| job.name == name);
                match gone {
                    false => self.prepare_submit(wish, 0),
                    // The name is free again for another job.
                    true if !taken && self.users.wishes.len() < WISHES_MAX => {
                        let number = self.users.wishes.len();
                        let next = self.wish(number, name.name);
                        self.users.wishes.push(next);
                        self.prepare_submit(number, 0)
                    }
                    true => return,
                }
            }
            8 => self.asks(
                Request::Cordon {
                    node,
                    reason: "fan".into(),
                },
                None,
                0,
            ),
            9 | 10 => self.asks(Request::Uncordon { node }, None, 0),
            _ if !self.machines[machine].powered => {
                self.asks(Request::DeleteNode { node }, None, 0)
            }
            _ => return,
        };
        self.queue.push(self.now, Event::RequestArrives { id });
    }
}

fn short(request: &Request) -> String {
    match request {
        Request::Submit {
            name, uid, spec, ..
        } => {
            format!(
                "submit {name} as {uid}: {} nodes of {}..{}, priority {}",
                spec.replicas, spec.min_replicas, spec.max_replicas, spec.priority
            )
        }
        other => format!("{other:?}"),
    }
}

/// The same job with a role of one node before workers that are started again alone. In every fourth
/// of them members share nodes.
fn with_restarts(number: usize, spec: SpecDocument) -> SpecDocument {
    let mut spec = with_roles(number, spec);
    spec.framework = Some("plain".into());
    for role in &mut spec.roles {
        match role.name == "worker" {
            true => (role.proc_per_node, role.restart_scope) = (Some(1), Some("member".into())),
            false => (role.name, role.proc_per_node) = ("head".into(), None),
        }
    }
    SpecDocument {
        placement: (number % 4 == 2).then(|| "pack".into()),
        ..spec
    }
}

/// The same job with a role of one node before the others. Nothing is drawn for it, so the rest of a
/// history does not depend on it.
fn with_roles(number: usize, spec: SpecDocument) -> SpecDocument {
    let mpi = [7, 11].contains(&(number % 16));
    let less = |nodes: Option<i64>| nodes.map(|nodes| nodes - 1);
    let head = RoleDocument {
        name: if mpi { "launcher" } else { "head" }.into(),
        // Where no worker can be, the launcher needs a slot of its own.
        proc_per_node: (mpi && spec.max_replicas == Some(1)).then_some(1),
        ..RoleDocument::default()
    };
    let worker = RoleDocument {
        name: "worker".into(),
        replicas: less(spec.replicas),
        min_replicas: less(spec.min_replicas),
        max_replicas: less(spec.max_replicas),
        ..RoleDocument::default()
    };
    // Every other rule is about the workers.
    let mut rules = spec.rules;
    for rule in rules.iter_mut().step_by(2) {
        // MPI's workers are a service.
        if !(mpi && rule.when == "success") {
            rule.role = Some("worker".into());
        }
        if rule.when == "success" && rule.role.is_some() && number % 8 == 3 {
            rule.of = Some("all".into());
        }
    }
    let framework = match mpi {
        true => "mpi",
        false if number % 8 == 3 => "plain",
        false => "torch",
    };
    SpecDocument {
        framework: Some(framework.into()),
        roles: vec![head, worker],
        rules,
        min_replicas: None,
        max_replicas: None,
        ..spec
    }
}
