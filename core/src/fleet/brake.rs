//! The brake for mass losses (decision 0017). When many nodes fall silent at once, the nodes are
//! rarely the cause.
//!
//! If the network fails, or the coordinator is cut off, every node looks Lost while all of them go
//! on training. So while the brake is on, Muster cordons no node, and does not replace a generation
//! whose members are all silent. Such a generation is left as it is, and goes on when the silence
//! ends. If any member of a job can be heard, the job is re-formed as usual.
//!
//! The brake goes on when more than [`Policy::mass_loss_percent`] of the nodes that were there, and
//! at least [`Policy::mass_loss_min`] of them, fell silent within [`Policy::mass_loss_window`]. It
//! is judged when a node becomes Lost. Nodes that are Suspect then count too, because the limit of
//! silence passes for one node after another. A worker pod counts with its host, and a host is silent
//! when nothing on it is heard: one host that loses its power is one loss, however many pods it had.
//!
//! While it is on, the worker pods that are silent are not replaced either (`pod_plan`).
//!
//! When these nodes are back, or deleted by an operator, but for a fifth of the fleet or a single host, the
//! others get [`Policy::listen`] to come back as well. Then it goes off. In a small fleet more than a fifth may
//! be silent when the brake would not go on again. That shows that the outage ends, and not that the silent
//! hosts are dead: agents find their coordinator at different times. So those get a whole
//! [`Policy::mass_loss_window`]. It also goes off when no node has become Lost for
//! [`Policy::mass_loss_hold`]. A silence of that length is no passing disturbance.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        policy::Policy,
        registry::{Liveness, Node, Registry},
    },
    id::NodeName,
    period,
    time::Timestamp,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Brake {
    pub since: Timestamp,
    /// The last time a node became Lost.
    pub last_loss: Timestamp,
    pub silent: u32,
    pub of: u32,
    /// `Some`: enough nodes are back, and the brake goes off at this moment.
    pub enough_back: Option<Timestamp>,
}

impl Brake {
    /// When the brake goes off by itself if nothing happens.
    pub(crate) fn until(&self, policy: &Policy) -> Timestamp {
        let held = self.last_loss + policy.mass_loss_hold;
        self.enough_back.map_or(held, |at| at.min(held))
    }

    /// Whether this node is one of those whose loss put the brake on. A node that was lost long before is
    /// not.
    pub(crate) fn is_about(&self, node: &Node, policy: &Policy) -> bool {
        let with_them = |at| at + policy.mass_loss_window >= self.since;
        node.liveness == Liveness::Lost && node.lost_at.is_some_and(with_them)
    }

    pub(crate) fn sentence(&self, policy: &Policy) -> String {
        let Self { silent, of, .. } = self;
        format!(
            "{silent} of {of} nodes fell silent within {}",
            period::format(policy.mass_loss_window)
        )
    }
}

/// What is known of a host that was there. A host has the greatest value of its agent and its pods.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// Nothing on it has been heard since this coordinator started or stood still.
    Awaited,
    Silent,
    Heard,
}

/// Where the node is: itself, or the host of the worker pod that it is.
fn host(node: &Node) -> &NodeName {
    let host = node.pod.as_ref().and_then(|pod| pod.host.as_ref());
    host.unwrap_or(&node.record.name)
}

/// The brake as it should be now.
pub(crate) fn decide(
    brake: Option<&Brake>,
    nodes: &Registry,
    policy: &Policy,
    now: Timestamp,
) -> Option<Brake> {
    // While the brake is on, a loss counts for as long as the brake may hold.
    let window = if brake.is_some() {
        policy.mass_loss_hold.max(policy.mass_loss_window)
    } else {
        policy.mass_loss_window
    };
    let mut hosts: BTreeMap<&NodeName, Seen> = BTreeMap::new();
    let (mut last_loss, mut silent_nodes) = (None, 0);
    for node in nodes.iter() {
        let lost = node
            .lost_at
            .filter(|at| node.liveness == Liveness::Lost && now.since(*at) < window);
        last_loss = last_loss.max(lost);
        let seen = match node.liveness {
            Liveness::Ready => Seen::Heard,
            Liveness::Suspect => Seen::Silent,
            Liveness::Unknown => Seen::Awaited,
            Liveness::Lost if lost.is_some() => Seen::Silent,
            // It was lost long ago, so it does not belong to the nodes that were there.
            Liveness::Lost => continue,
        };
        silent_nodes += u32::from(seen == Seen::Silent);
        let of_host = hosts.entry(host(node)).or_insert(seen);
        *of_host = seen.max(*of_host);
    }
    let last_loss = last_loss?;
    let is_silent = |seen: &&Seen| **seen == Seen::Silent;
    let silent = hosts.values().filter(is_silent).count() as u32;
    let of = hosts.len() as u32;
    // If nobody at all is heard, it is the coordinator that is alone. Two hosts with their pods show that,
    // too.
    let enough = match silent == of {
        true => silent_nodes >= policy.mass_loss_min,
        false => silent >= policy.mass_loss_min,
    };
    let more_than_a_part = silent * 100 > policy.mass_loss_percent * of;
    let many = enough && more_than_a_part;
    let listens = match silent > 1 && more_than_a_part {
        true => policy.mass_loss_window,
        false => policy.listen_for(nodes.len()),
    };
    let next = match brake {
        None if !many => return None,
        Some(brake) if !many => Brake {
            last_loss,
            // The more are back, the sooner.
            enough_back: Some(match brake.enough_back {
                Some(at) => at.min(now + listens),
                None => now + listens,
            }),
            ..brake.clone()
        },
        _ => Brake {
            since: brake.map_or(now, |brake| brake.since),
            last_loss,
            silent,
            of,
            enough_back: None,
        },
    };
    (now < next.until(policy)).then_some(next)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::fleet::{budget::tests::node, tests::worker_pods::pod};

    const NOW: Timestamp = Timestamp(1_000_000_000);

    /// A fleet of `ready` nodes, nodes that were lost so many seconds ago, and suspects.
    fn fleet(ready: u32, lost: &[u64], suspect: u32) -> Registry {
        let mut registry = Registry::default();
        let mut add = |liveness, lost_at| {
            let name = NodeName::from(format!("n{}", registry.len()));
            let node = Node {
                liveness,
                lost_at,
                ..Node::stored(node(name.as_str()), NOW)
            };
            registry.insert(node);
        };
        (0..ready).for_each(|_| add(Liveness::Ready, None));
        lost.iter()
            .for_each(|s| add(Liveness::Lost, Some(NOW - Duration::from_secs(*s))));
        (0..suspect).for_each(|_| add(Liveness::Suspect, None));
        registry
    }

    fn on(ready: u32, lost: &[u64], suspect: u32) -> bool {
        decide(None, &fleet(ready, lost, suspect), &Policy::default(), NOW).is_some()
    }

    #[test]
    fn more_than_a_fifth_within_a_minute() {
        assert!(!on(12, &[1, 2, 3], 0), "a fifth is not more than a fifth");
        assert!(on(11, &[1, 2, 3], 0));
        assert!(!on(11, &[1, 2, 60], 0), "one of them was lost a minute ago");
        assert!(
            on(11, &[1], 2),
            "those that are silent and not Lost yet will be"
        );
        assert!(
            !on(9, &[], 5),
            "before anybody is Lost nothing is decided anyway"
        );
    }

    #[test]
    fn a_small_cluster_may_lose_two_nodes() {
        assert!(!on(2, &[1], 0) && !on(1, &[1, 2], 0));
        assert!(
            on(0, &[1, 2, 3], 0),
            "nobody is left: it is the coordinator that is alone"
        );
    }

    #[test]
    fn a_host_that_is_lost_with_its_pods_is_one_loss() {
        let mut registry = fleet(7, &[1], 0);
        let mut add_pod = |name: &str, host: &str, liveness| {
            let pod = pod(name, &"u1".into(), host);
            let node = Node {
                liveness,
                lost_at: (liveness == Liveness::Lost).then_some(NOW),
                pod: Some(Arc::new(pod.clone())),
                ..Node::stored(node(pod.node().as_str()), NOW)
            };
            registry.insert(node);
        };
        // `n7` is the host that is lost. On `n0` only a pod is silent.
        for number in 0..9 {
            add_pod(&format!("p{number}"), "n7", Liveness::Lost);
        }
        add_pod("q", "n0", Liveness::Lost);
        // Nobody but a pod speaks of its host.
        add_pod("r", "elsewhere", Liveness::Ready);
        let decided = |registry: &Registry| {
            let brake = decide(None, registry, &Policy::default(), NOW);
            brake.map(|brake| (brake.silent, brake.of))
        };
        assert_eq!(decided(&registry), None);
        for name in ["n1", "n2"] {
            let node = Node {
                liveness: Liveness::Suspect,
                ..Node::stored(node(name), NOW)
            };
            registry.insert(node);
        }
        assert_eq!(decided(&registry), Some((3, 9)));
        // Two hosts, and nobody on them is heard.
        let mut registry = fleet(0, &[1, 1], 0);
        assert_eq!(
            decided(&registry),
            None,
            "two nodes lost at once may be dead"
        );
        let pod = pod("p", &"u1".into(), "n0");
        let node = Node {
            liveness: Liveness::Lost,
            lost_at: Some(NOW),
            pod: Some(Arc::new(pod.clone())),
            ..Node::stored(node(pod.node().as_str()), NOW)
        };
        registry.insert(node);
        assert_eq!(decided(&registry), Some((2, 2)));
    }

    #[test]
    fn who_was_lost_long_ago_counts_neither_way() {
        let mut registry = fleet(11, &[1, 2, 3], 0);
        for i in 0..50 {
            let name = NodeName::from(format!("gone{i}"));
            registry.insert(Node {
                liveness: Liveness::Lost,
                ..Node::stored(node(name.as_str()), NOW)
            });
        }
        assert_eq!(
            decide(None, &registry, &Policy::default(), NOW).map(|brake| (brake.silent, brake.of)),
            Some((3, 14))
        );
    }

    #[test]
    fn it_is_not_about_who_was_lost_long_before() {
        let registry = fleet(5, &[1, 59, 61], 1);
        let policy = Policy::default();
        let brake = Brake {
            since: NOW,
            last_loss: NOW,
            silent: 3,
            of: 8,
            enough_back: None,
        };
        let about = registry.iter().filter(|node| brake.is_about(node, &policy));
        let names: Vec<&str> = about.map(|node| node.record.name.as_str()).collect();
        assert_eq!(names, ["n5", "n6"]);
    }

    /// Seen on a cluster of three nodes: their agents found the new leader one by one, 41 s apart.
    #[test]
    fn one_of_three_that_is_back_does_not_say_that_the_others_are_dead() {
        let policy = Policy::default();
        let later = |s| NOW + Duration::from_secs(s);
        let all = decide(None, &fleet(0, &[1, 1, 1], 0), &policy, NOW);
        let one_back = fleet(1, &[1, 1], 0);
        let waits = decide(all.as_ref(), &one_back, &policy, later(20));
        assert!(decide(waits.as_ref(), &one_back, &policy, later(62)).is_some());
        assert!(decide(waits.as_ref(), &one_back, &policy, later(80)).is_none());
    }

    #[test]
    fn it_holds_until_enough_are_back_or_it_has_become_the_state_of_things() {
        let policy = Policy::default();
        let brake = decide(None, &fleet(5, &[1, 1, 1], 0), &policy, NOW);
        let later = |s| NOW + Duration::from_secs(s);
        assert!(
            decide(
                brake.as_ref(),
                &fleet(5, &[1, 1, 1], 0),
                &policy,
                later(120)
            )
            .is_some(),
            "older than the window, and still on"
        );
        let two_lost = fleet(6, &[1, 1], 0);
        let waits = decide(brake.as_ref(), &two_lost, &policy, later(120));
        assert!(waits.is_some(), "one came back, and the others may");
        assert!(decide(waits.as_ref(), &two_lost, &policy, later(179)).is_some());
        assert!(decide(waits.as_ref(), &two_lost, &policy, later(180)).is_none());
        let one_lost = fleet(7, &[1], 0);
        let waits = decide(waits.as_ref(), &one_lost, &policy, later(130));
        assert!(decide(waits.as_ref(), &one_lost, &policy, later(139)).is_some());
        assert!(decide(waits.as_ref(), &one_lost, &policy, later(141)).is_none());
        let again = decide(
            waits.as_ref(),
            &fleet(5, &[1, 1, 1], 0),
            &policy,
            later(129),
        );
        assert_eq!(again.unwrap().enough_back, None, "one fell silent again");
        assert!(
            decide(brake.as_ref(), &fleet(8, &[], 0), &policy, later(120)).is_none(),
            "all are back"
        );
        assert!(
            decide(
                brake.as_ref(),
                &fleet(5, &[1, 1, 1], 0),
                &policy,
                later(598)
            )
            .is_some()
        );
        assert!(
            decide(
                brake.as_ref(),
                &fleet(5, &[1, 1, 1], 0),
                &policy,
                later(599)
            )
            .is_none()
        );
    }
}
