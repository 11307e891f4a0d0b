//! The coordinator's own presence: since when it has been there without a break, and whether it
//! listens.
//!
//! What did not happen before it was there may be its own fault. So after a start, and after it
//! stood still for so long that agents may have given it up, it listens: until everybody it knows
//! is back, or the hold is over (R8).

use crate::{
    fleet::{
        job::JobRecord,
        policy::Policy,
        registry::{Node, Registry},
    },
    planted::{self, Mistake},
    time::Timestamp,
};

/// A stall of the coordinator itself longer than this many ticks is not held against the nodes.
const STALL_TICKS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Presence {
    /// Since when this coordinator has been there without a break.
    pub since: Timestamp,
    /// The end of the hold.
    pub listen_until: Timestamp,
    last_turn: Timestamp,
    /// When it went on after it had stood still, if ever.
    woke_at: Option<Timestamp>,
    /// Nodes that came back without anything having happened to them, since they were told of last.
    pub returned: u32,
    /// People know who is back.
    pub told_return: bool,
}

impl Presence {
    pub(crate) fn started(now: Timestamp, policy: &Policy, nodes: &Registry) -> Self {
        Self {
            since: now,
            listen_until: now + policy.listen_for(nodes.present()),
            last_turn: now,
            woke_at: None,
            returned: 0,
            told_return: false,
        }
    }

    /// A turn begins. What time has passed unseen is not held against the nodes.
    pub(crate) fn turn_begins(&mut self, now: Timestamp, policy: &Policy, nodes: &mut Registry) {
        let stall = now.since(self.last_turn);
        if stall > policy.tick * STALL_TICKS {
            nodes.discount(stall - policy.tick);
        }
        if stall >= nodes.heartbeat(policy) * policy.suspect_missed {
            // Agents may have given this coordinator up: it listens again, as after a start.
            nodes.unhear();
            *self = Self {
                woke_at: Some(now),
                ..Self::started(now, policy, nodes)
            };
        }
        self.last_turn = now;
    }

    /// Whether it still listens. A node that was gone before is waited for only where a generation
    /// counts on it: that would be broken, and the node blamed, unheard.
    pub(crate) fn is_listening<'a, I: Iterator<Item = &'a JobRecord>>(
        &self,
        now: Timestamp,
        nodes: &Registry,
        jobs: impl Fn() -> I,
    ) -> bool {
        let is_member = |node: &Node| {
            jobs().any(|job| {
                job.current
                    .as_ref()
                    .is_some_and(|generation| generation.has(&node.record.name))
            })
        };
        let is_awaited = |node: &Node| !node.record.gone || is_member(node);
        !planted::on(Mistake::NoListening)
            && now < self.listen_until
            && nodes.unheard().any(is_awaited)
    }

    /// What piled up while this coordinator stood still still tells of agents that gave it up, in
    /// any order with their last words.
    pub(crate) fn has_just_woken(&self, now: Timestamp, policy: &Policy, nodes: &Registry) -> bool {
        self.woke_at
            .is_some_and(|at| now.since(at) < nodes.heartbeat(policy) * policy.suspect_missed)
    }
}
