//! Launchers that nodes have ready for jobs that are about to come. Most are ready after some
//! seconds, some never are, and some nodes cannot make one.
//!
//! This file owns what an agent was asked for and what it reports. It decides nothing.

use muster_core::{
    id::JobUid,
    protocol,
    run::{Desired, LauncherReport, LauncherState},
};

use crate::{
    event::{Event, Up},
    trace::note,
    world::World,
};

/// Of a hundred launchers this many never get ready while faults go on.
const NEVER: u64 = 5;
const WITHOUT: u64 = 5;
const REFUSED: u64 = 5;

impl World {
    /// An agent begins the new jobs in this desired state, and forgets those that are not in it any
    /// more.
    pub(crate) fn asked_to_prewarm(&mut self, machine: usize, desired: &Desired) {
        let healed = self.healed.is_some();
        let Some(agent) = self.machines[machine]
            .agent
            .as_mut()
            .filter(|agent| agent.speaks.newest >= protocol::SHARED)
        else {
            return;
        };
        let asked = |job: &JobUid| {
            desired
                .prewarm
                .iter()
                .any(|assignment| assignment.run.job == *job)
        };
        let before = agent.prewarm.len();
        agent.prewarm.retain(|job, _| asked(job));
        let dropped = agent.prewarm.len() < before;
        let id = agent.id;
        let new: Vec<JobUid> = desired
            .prewarm
            .iter()
            .map(|assignment| assignment.run.job.clone())
            .filter(|job| !agent.prewarm.contains_key(job))
            .collect();
        for job in new {
            let never = !healed && self.rng.percent(NEVER);
            let takes = self.rng.ms(100, 15_000);
            let agent = self.machines[machine].agent.as_mut().expect("found above");
            agent.prewarm.insert(job.clone(), None);
            if !never {
                self.after(
                    takes,
                    Event::Warmed {
                        machine,
                        agent: id,
                        job,
                    },
                );
            }
        }
        if dropped {
            self.tell_launchers(machine);
        }
    }

    pub(crate) fn warmed(&mut self, machine: usize, agent: u64, job: &JobUid) {
        let healed = self.healed.is_some();
        let (without, refused) = (
            self.rng.percent(WITHOUT),
            self.rng.percent(REFUSED) && !healed,
        );
        let Some(agent) = self.machines[machine]
            .agent
            .as_mut()
            .filter(|process| process.id == agent)
        else {
            return;
        };
        let Some(state) = agent.prewarm.get_mut(job) else {
            return;
        };
        *state = Some(match (without, refused) {
            (true, _) => LauncherState::Without("only Python can be started ahead".into()),
            (false, true) => LauncherState::Refused("no such file".into()),
            (false, false) => LauncherState::Ready,
        });
        self.tell_launchers(machine);
    }

    /// Reports the state of the launchers, if the agent has a connection.
    pub(crate) fn tell_launchers(&mut self, machine: usize) {
        let Some(agent) = &self.machines[machine].agent else {
            return;
        };
        let Some(conn) = agent.conn else { return };
        let said = agent.prewarm.iter().filter_map(|(job, state)| {
            Some(LauncherReport {
                job: job.clone(),
                state: state.clone()?,
            })
        });
        let launchers: Vec<LauncherReport> = said.collect();
        note!(
            self,
            "n{machine} says of the launchers it was to have ready: {launchers:?}"
        );
        self.send_up(conn, Up::Launchers(launchers));
    }
}
