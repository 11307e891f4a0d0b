//! The coordinators' shell for pods, as `operator/src/pods/controller.rs`: it hears the
//! watch, asks core what to do next for each job, and sends requests. It is always a little late.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::{
        Change, Input, PodNews,
        pod_plan::{Host, PodState},
        pod_work::{Deleted, PodWork, PodsByNode},
        view::JobView,
        worker_pod::{WorkerPod, is_pod, node_of},
    },
    id::{JobUid, NodeName},
    time::Timestamp,
};
use muster_runtime::backoff::{Backoff, USEFUL};

use super::{Did, PodEvent, Write};
use crate::{event::Event, trace::note, world::World};

/// As in the controller of production.
const AT_ONCE: usize = 16;
const LOOK: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// What one coordinator knows of pods.
#[derive(Debug, Default)]
pub(crate) struct Shell {
    /// The number of its watch. `None`: it has none now.
    pub(super) watch: Option<u64>,
    /// When the last news of this watch arrives.
    pub(super) last: Timestamp,
    /// When it asked for all pods first, and whether it has them.
    asked: Option<Timestamp>,
    listed: bool,
    works: BTreeMap<JobUid, Work>,
    under_way: usize,
    next_look: Option<Timestamp>,
}

#[derive(Debug)]
struct Work {
    pods: PodWork,
    backoff: Backoff,
    not_before: Timestamp,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            pods: PodWork::default(),
            backoff: Backoff::new(RETRY_MAX, USEFUL),
            not_before: Timestamp(0),
        }
    }
}

impl Shell {
    /// Until when the job pauses before it gets new pods, on the coordinator's clock.
    pub(crate) fn pauses_until(&self, job: &JobUid) -> Option<Timestamp> {
        self.works.get(job)?.pods.pauses_until()
    }

    /// Whether this pod was in its first list.
    pub(super) fn has_found(&self, pod: &WorkerPod) -> bool {
        let work = self.works.get(&pod.job);
        let knows = |work: &Work| work.pods.pods().any(|known| known.uid == pod.uid);
        self.asked.is_some_and(|at| pod.created <= at) && work.is_some_and(knows)
    }
}

impl World {
    /// A coordinator has started.
    pub(crate) fn pods_are_listed(&mut self, process: u64) {
        self.pods_wait(10, 1_500, PodEvent::Lists { process });
    }

    fn shell(&mut self, process: u64) -> Option<&mut Shell> {
        let seat = self.seat_of(process)?;
        self.seats[seat].process.as_mut().map(|it| &mut it.shell)
    }

    /// The watch breaks, and what happens until the next list is never told.
    pub(super) fn watch_breaks(&mut self, process: u64) {
        if let Some(shell) = self.shell(process)
            && shell.watch.take().is_some()
        {
            self.pods_wait(50, 5_000, PodEvent::Lists { process });
        }
    }

    pub(super) fn lists_pods(&mut self, process: u64) {
        let watch = self.fresh();
        let (now, Some(pods)) = (self.now, &mut self.pods) else {
            return;
        };
        if now < pods.away_until {
            return self.pods_wait(100, 5_000, PodEvent::Lists { process });
        }
        let known = pods.objects.iter();
        let all: PodsByNode = known
            .map(|(name, object)| (name.clone(), Arc::new(object.pod.clone())))
            .collect();
        let at = now + pods.rng.ms(1, 500);
        if let Some(shell) = self.shell(process) {
            (shell.watch, shell.last) = (Some(watch), at);
            shell.asked.get_or_insert(now);
            self.queue
                .push(at, Event::Pods(PodEvent::Listed { process, all }));
        }
    }

    pub(super) fn pods_listed(&mut self, process: u64, all: PodsByNode) {
        let Some(seat) = self.seat_of(process) else {
            return;
        };
        note!(self, "coordinator {process} has listed {} pods", all.len());
        let news = PodNews::Listed(all.clone());
        self.decide(seat, Input::Pods(news), None);
        let now = self.now;
        let Some(seat) = self.seat_of(process) else {
            return;
        };
        let brain = self.seats[seat].process.as_mut().expect("it is there");
        let clock = brain.clock.at(now);
        let shell = &mut brain.shell;
        let mut of: BTreeMap<JobUid, PodsByNode> = BTreeMap::new();
        for (node, pod) in all {
            of.entry(pod.job.clone()).or_default().insert(node, pod);
        }
        for (job, work) in &mut shell.works {
            work.pods
                .watch_listed(of.remove(job).unwrap_or_default(), clock);
        }
        for (job, known) in of {
            shell
                .works
                .entry(job)
                .or_default()
                .pods
                .watch_listed(known, clock);
        }
        shell.listed = true;
        self.shell_is_to_look(process, Duration::ZERO);
    }

    pub(super) fn pod_heard(&mut self, process: u64, watch: u64, pod: Arc<WorkerPod>, gone: bool) {
        let is_its = |shell: &mut Shell| shell.watch == Some(watch);
        if !self.shell(process).is_some_and(is_its) {
            return;
        }
        let (seat, node) = (self.seat_of(process), pod.node());
        let news = match gone {
            true => PodNews::Deleted(node.clone(), pod.clone()),
            false => PodNews::Applied(node.clone(), pod.clone()),
        };
        self.decide(seat.expect("it has a shell"), Input::Pods(news), None);
        let Some(seat) = self.seat_of(process) else {
            return;
        };
        let brain = self.seats[seat].process.as_mut().expect("it is there");
        let clock = brain.clock.at(self.now);
        let shell = &mut brain.shell;
        let work = shell.works.entry(pod.job.clone()).or_default();
        match gone {
            true => work.pods.watch_deleted(&node, &pod),
            false => work.pods.watch_applied(node, pod, clock),
        }
        self.shell_is_to_look(process, Duration::ZERO);
    }

    /// The jobs on the board have changed.
    pub(crate) fn shell_hears(&mut self, process: u64, changes: &[Change]) {
        let told = |change: &Change| matches!(change, Change::PutJob(_) | Change::DeleteJob(_));
        if changes.iter().any(told) {
            self.shell_is_to_look(process, Duration::ZERO);
        }
    }

    fn shell_is_to_look(&mut self, process: u64, after: Duration) {
        let (now, Some(pods)) = (self.now, &mut self.pods) else {
            return;
        };
        let at = now + after + pods.rng.ms(1, 40);
        let Some(shell) = self.shell(process) else {
            return;
        };
        if shell.next_look.is_none_or(|next| at < next || next <= now) {
            shell.next_look = Some(at);
            self.queue
                .push(at, Event::Pods(PodEvent::ShellLooks { process, at }));
        }
    }

    pub(super) fn shell_looks(&mut self, process: u64, at: Timestamp) {
        let Some(shell) = self.shell(process) else {
            return;
        };
        if shell.next_look != Some(at) || !shell.listed {
            return;
        }
        shell.next_look = None;
        let seat = self.seat_of(process).expect("it has a shell");
        let brain = self.seats[seat].process.as_ref().expect("it is there");
        let views = brain.fleet.node_views().into_iter();
        let (mut hosts, mut states) = (BTreeMap::new(), BTreeMap::new());
        for view in views {
            let name = view.record.name.clone();
            match is_pod(&name) {
                true => drop(states.insert(name, PodState::of(Some(&view)))),
                false => drop(hosts.insert(name, Host::of(&view))),
            }
        }
        let jobs: Vec<_> = brain.fleet.job_views();
        let is_there = |uid: &JobUid| jobs.iter().any(|view| view.record.uid == *uid);
        let clock = brain.clock.at(self.now);
        let shell = self.shell(process).expect("looked at above");
        shell
            .works
            .retain(|uid, work| is_there(uid) || !work.pods.is_empty());
        let mut next = LOOK;
        for view in jobs
            .iter()
            .filter(|view| view.record.spec.template.is_some())
        {
            let after = self.works_on(process, view, &hosts, &states, clock);
            next = next.min(after);
        }
        self.shell_is_to_look(process, next);
    }

    /// Begins what is to be done for one job. Returns when to look again.
    fn works_on(
        &mut self,
        process: u64,
        view: &JobView,
        hosts: &BTreeMap<NodeName, Host>,
        states: &BTreeMap<NodeName, PodState>,
        clock: Timestamp,
    ) -> Duration {
        let now = self.now;
        let random = self.pods.as_mut().map_or(0, |pods| pods.rng.number());
        let job = &view.record;
        let most = self.most_pods(job);
        let Some(shell) = self.shell(process) else {
            return LOOK;
        };
        let work = shell.works.entry(job.uid.clone()).or_default();
        let next = work.pods.next(
            job,
            &view.pods_unneeded,
            |host| hosts.get(host).copied().unwrap_or(Host::Unknown),
            |node| states.get(node).copied().unwrap_or(PodState::Healthy),
            clock,
            random,
        );
        let again = next.look_at.map_or(LOOK, |at| at.since(clock)).min(LOOK);
        if now < work.not_before {
            let again = again.min(work.not_before.since(now));
            self.tells_fleet(process, &job.uid, next.tell);
            return again;
        }
        let avoided = hosts.iter().filter(|(_, host)| host.takes_no_new_pods());
        let avoided: BTreeSet<NodeName> = avoided.map(|(name, _)| name.clone()).collect();
        let room = AT_ONCE.saturating_sub(shell.under_way);
        let mut writes = Vec::new();
        let mut told = Vec::new();
        for unneeded in next.delete.into_iter().take(room) {
            work.pods.begin_delete(&unneeded, clock);
            told.push(format!("{} goes: {}", unneeded.pod, unneeded.why));
            writes.push(Write::Delete {
                by: process,
                job: job.uid.clone(),
                node: node_of(&job.name.namespace, &unneeded.pod),
                uid: unneeded.uid,
            });
        }
        for number in 0..(next.create as usize).min(room - writes.len()) {
            let random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64) << 40;
            let name = work.pods.begin_create(&job.name.name, random >> 3);
            told.push(format!("{name} is asked for"));
            writes.push(Write::Create {
                job: Box::new((job.name.clone(), job.uid.clone())),
                name,
                avoided: avoided.clone(),
                most,
            });
        }
        shell.under_way += writes.len();
        let doomed = writes.iter().filter_map(|write| match write {
            Write::Delete { uid, .. } => Some(uid.clone()),
            Write::Create { .. } => None,
        });
        if let Some(pods) = &mut self.pods {
            pods.doomed.extend(doomed);
        }
        if next.gives_back {
            note!(self, "{} gives its pods back", job.uid);
        }
        for line in told {
            note!(self, "coordinator {process}: {}: {line}", job.uid);
        }
        for write in writes {
            self.pods_wait(1, 300, PodEvent::Written { process, write });
        }
        self.tells_fleet(process, &job.uid, next.tell);
        again
    }

    fn tells_fleet(&mut self, process: u64, job: &JobUid, unneeded: Option<BTreeSet<String>>) {
        if let (Some(seat), Some(unneeded)) = (self.seat_of(process), unneeded) {
            let news = PodNews::Unneeded(job.clone(), unneeded);
            self.decide(seat, Input::Pods(news), None);
            self.shell_is_to_look(process, Duration::from_millis(5));
        }
    }

    pub(super) fn pod_answered(&mut self, process: u64, job: &JobUid, did: Did) {
        let (now, Some(seat)) = (self.now, self.seat_of(process)) else {
            return;
        };
        let random = self.pods.as_mut().map_or(0, |pods| pods.rng.number());
        let brain = self.seats[seat].process.as_mut().expect("it is there");
        let clock = brain.clock.at(now);
        let shell = &mut brain.shell;
        shell.under_way = shell.under_way.saturating_sub(1);
        let work = shell.works.entry(job.clone()).or_default();
        let failed = match did {
            Did::Create(name, made) => {
                work.pods.create_answered(&name, made, clock);
                made != muster_core::fleet::pod_work::Created::Yes
            }
            Did::Delete(uid, removed) => {
                work.pods.delete_answered(&uid, removed);
                matches!(removed, Deleted::No | Deleted::Unknown)
            }
        };
        if failed {
            work.not_before = now + work.backoff.after(Duration::ZERO, random);
        }
        self.shell_is_to_look(process, Duration::ZERO);
    }
}
