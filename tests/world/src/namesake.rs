//! A second machine with the name of a node whose workers live. It booted long before that node was
//! last heard, knows nothing, and has no workers. It soon goes away.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    fleet::{Input, view::Liveness},
    hello::Hello,
    id::{NodeEpoch, SessionId, Term},
    protocol::Speaks,
};

use crate::{event::Event, fault::Fault, trace::note, world::World};

/// An uptime that is longer than any history.
const UP: Duration = Duration::from_secs(7 * 24 * 3_600);

impl World {
    /// The agent dies and its workers go on. An agent with its name is started on another machine.
    pub(crate) fn name_is_taken(&mut self, machine: usize, back_in: Duration) -> bool {
        let place = &self.machines[machine];
        // A coordinator that stood still, or has an old store, may not have heard the first
        // machine.
        let may_forget = [Fault::CoordinatorPause, Fault::StoreRestored];
        if place.agent.is_none()
            || place.working().next().is_none()
            || may_forget.into_iter().any(|fault| self.plan.has(fault))
        {
            return false;
        }
        self.agent_dies(machine, Some(back_in));
        let comes = self.rng.ms(50, 8_000);
        self.after(comes, Event::NamesakeComes { machine });
        true
    }

    /// The second machine says hello, if the coordinator has heard the first one and knows of its
    /// workers.
    pub(crate) fn namesake_comes(&mut self, machine: usize) {
        let place = &self.machines[machine];
        let (name, boot) = (place.name.clone(), format!("boot-{machine}-{}", place.boot));
        let works = |run: &muster_core::run::RunId| {
            let job = self.store.jobs.get(&run.job);
            let generation = job.and_then(|job| job.generation(run.generation));
            generation.is_some_and(|generation| {
                let here = |node| node == &name;
                !generation.dead.contains(&name)
                    && generation
                        .members
                        .iter()
                        .any(|m| here(&m.node) && m.boot_id == boot)
            })
        };
        let at_risk = place.working().any(|(run, _)| works(run));
        let known = self
            .store
            .nodes
            .get(&name)
            .is_some_and(|node| node.boot_id == boot);
        let hello = Hello {
            node: name.clone(),
            boot_id: format!("boot-{machine}-namesake"),
            uptime: Some(UP),
            incarnation: 1,
            speaks: Speaks::OURS,
            term_seen: Term(0),
            epoch_seen: NodeEpoch(0),
            jobs_seen: BTreeMap::new(),
            report: place.report(0),
            runs: Vec::new(),
        };
        let Some(leader) = self.leader().map(|leader| leader.id) else {
            return;
        };
        let seat = self.seat_of(leader).expect("the leader has a seat");
        let process = self.seats[seat].process.as_mut().expect("it leads");
        let heard = process
            .fleet
            .node_view(&name)
            .is_some_and(|node| matches!(node.liveness, Liveness::Ready | Liveness::Suspect));
        if self.healed.is_some() || !at_risk || !known || !heard {
            return;
        }
        process.next_session += 1;
        let session = SessionId(process.next_session);
        self.count(Fault::NameTaken);
        note!(self, "a second machine says hello as {name}");
        self.decide(seat, Input::Connected { session, hello }, Some(machine));
        let goes = Event::NamesakeGoes {
            process: leader,
            session,
        };
        self.after(Duration::from_secs(2), goes);
    }

    pub(crate) fn namesake_goes(&mut self, process: u64, session: SessionId) {
        if let Some(seat) = self.seat_of(process) {
            self.decide(seat, Input::Disconnected { session }, None);
        }
    }
}
