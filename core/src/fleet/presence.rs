//! The coordinator's own presence: since when it has been there without a break, and whether it
//! listens.
//!
//! If something did not happen before that, the coordinator itself may be the cause. So it listens
//! after a start. It also listens after it stood still for so long that agents may have given it
//! up. It listens until all nodes that it knows are back, or until the hold is over (decision
//! 0022). The hold does not end while nodes still come back one after the other.

use std::time::Duration;

use crate::{
    fleet::{
        job::JobRecord,
        policy::Policy,
        registry::{Node, Registry},
    },
    time::Timestamp,
};

/// A pause longer than this many ticks is the coordinator's own stall, and not silence of the
/// nodes. Four default ticks are one second.
const STALL_TICKS: u32 = 4;

/// The hold ends when no node has come back for this many heartbeats.
const STILL_COMING: u32 = 2;
/// The hold is at most this many times as long as it would be if no node came.
const HOLD_MAX: u32 = 4;

#[derive(Debug)]
pub(crate) struct Presence {
    /// Since when this coordinator has been there without a break.
    pub since: Timestamp,
    /// The end of the hold.
    pub listen_until: Timestamp,
    last_turn: Timestamp,
    /// When it went on after it had stood still, if ever.
    woke_at: Option<Timestamp>,
    /// Nodes that came back unchanged since the last event about returning nodes.
    pub returned: u32,
    /// The event about returning nodes was written.
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

    /// A turn begins. Returns for how long the coordinator stood still before it. That time is not held
    /// against the nodes.
    pub(crate) fn turn_begins(
        &mut self,
        now: Timestamp,
        policy: &Policy,
        nodes: &mut Registry,
    ) -> Duration {
        let stall = now.since(self.last_turn);
        let slept = match stall > policy.tick * STALL_TICKS {
            true => stall - policy.tick,
            false => Duration::ZERO,
        };
        nodes.discount(slept);
        // It did not listen meanwhile. A node that dialled in vain waits before it dials again.
        if self.last_turn < self.listen_until {
            self.listen_until = self.listen_until + slept;
        }
        if stall >= nodes.heartbeat(policy) * policy.suspect_missed {
            // Agents may have given this coordinator up, so it listens again, as after a start.
            nodes.unhear();
            *self = Self {
                woke_at: Some(now),
                ..Self::started(now, policy, nodes)
            };
        }
        self.last_turn = now;
        slept
    }

    /// Whether the hold was not over at the last turn.
    pub(crate) fn holds(&self) -> bool {
        self.last_turn < self.listen_until
    }

    /// A node that had not been heard since the start is back. If all agents dial at once and each
    /// handshake takes its time, the last of them come long after the first.
    pub(crate) fn came_back(&mut self, now: Timestamp, policy: &Policy, nodes: &Registry) {
        let longest = self.since + policy.listen_for(nodes.present()) * HOLD_MAX;
        let until = (now + nodes.heartbeat(policy) * STILL_COMING).min(longest);
        if now < self.listen_until {
            self.listen_until = self.listen_until.max(until);
        }
    }

    /// Whether the coordinator still listens. It waits for a node that was gone before only if a
    /// current generation has it as a member. Otherwise that generation would be broken, and the
    /// node blamed, without having been heard.
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
        now < self.listen_until && nodes.unheard().any(is_awaited)
    }

    /// Whether the coordinator has only just gone on after it stood still. Messages that piled up
    /// meanwhile may come from agents that have since given it up, and the order of such messages
    /// and the ends of their sessions is arbitrary.
    pub(crate) fn has_just_woken(&self, now: Timestamp, policy: &Policy, nodes: &Registry) -> bool {
        self.woke_at
            .is_some_and(|at| now.since(at) < nodes.heartbeat(policy) * policy.suspect_missed)
    }
}
