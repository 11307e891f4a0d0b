//! A second machine that claims the name of a node.
//!
//! A new boot of a node proves that all processes of its old boot are dead (decision 0014),
//! provided that it is the same machine. A machine was rebooted only if its new boot is younger
//! than the silence of the old one. A machine that was already up while the other was heard is a
//! second machine with the same name. If it were accepted, it would prove live workers dead, and
//! their GPUs would be given away.
//!
//! Such a machine is refused while the first may still hold workers. Without workers there is
//! nothing to protect, and the name may move.

use std::time::Duration;

use crate::{
    fleet::{registry::Node, state::Fleet},
    hello::Hello,
    node_report::NodeReport,
    period,
    time::Timestamp,
};

/// How far an uptime may exceed the silence on one and the same machine: a second or two for a slow
/// network, and more to be safe.
const MARGIN: Duration = Duration::from_secs(5);

/// Clocks run up to one percent wrong, and two clocks are involved.
const DRIFT_PERCENT: u32 = 2;

/// Whether a boot with this uptime was already up at a moment that is `ago` in the past.
fn was_up(uptime: Duration, ago: Duration) -> bool {
    uptime > ago + ago * DRIFT_PERCENT / 100 + MARGIN
}

fn machine(report: &NodeReport) -> String {
    let address = if report.address.is_empty() {
        "no known address"
    } else {
        &report.address
    };
    match report.hostname.as_str() {
        "" => address.to_owned(),
        host => format!("{host} ({address})"),
    }
}

fn seconds(time: Duration) -> String {
    period::format(Duration::from_secs(time.as_secs()))
}

impl Fleet {
    /// Why this agent is refused as a second machine: another machine has its name and may still
    /// hold workers.
    pub(crate) fn namesake(&self, hello: &Hello, now: Timestamp) -> Option<String> {
        let node = self
            .nodes
            .get(&hello.node)
            .filter(|node| node.record.boot_id != hello.boot_id)?;
        if node.session.is_some() && node.is_ready() {
            return Some(format!(
                "another machine is connected as {}: {}. Start the agent of this one, {}, with a name of its own (--node-name)",
                hello.node,
                machine(&node.report),
                machine(&hello.report)
            ));
        }
        let uptime = hello.uptime?;
        // `heard` may be late by this much: a message may have waited. A longer stall is noticed
        // (`presence`), and then `spoke` stays as it was.
        let waited = self.nodes.heartbeat(&self.policy) * self.policy.suspect_missed;
        let (job, number, heard) = node
            .jobs
            .iter()
            .filter_map(|uid| self.jobs.get(uid))
            .find_map(|job| {
                job.unproven_generations().find_map(|generation| {
                    let member =
                        &generation.members[generation.members.rank_of(&hello.node)? as usize];
                    let unproven =
                        member.boot_id != hello.boot_id && !generation.dead.contains(&hello.node);
                    let heard = last_heard(node, &member.boot_id)?;
                    (unproven && was_up(uptime, now.since(heard) + waited)).then_some((
                        &job.name,
                        generation.number,
                        heard,
                    ))
                })
            })?;
        Some(format!(
            "another machine has the name {} and may still run generation {number} of {job}: {}, last heard {} ago. This one, {}, has been up \
             for {}, so it is not that machine after a reboot. Start its agent with a name of its own (--node-name); or, if the other \
             machine is gone and none of its workers runs any more, strike it off (muster delete node {})",
            hello.node,
            machine(&node.report),
            seconds(now.since(heard)),
            machine(&hello.report),
            seconds(uptime),
            hello.node
        ))
    }
}

/// The last time this boot of the node was known to be up, by the coordinator's clock. `None`: this
/// coordinator has not heard that boot. The time at which a generation was opened proves nothing,
/// because an earlier coordinator's clock may have been wrong. And after this coordinator stood
/// still, a node may look Ready because of a message that it sent before its reboot.
fn last_heard(node: &Node, boot: &str) -> Option<Timestamp> {
    node.spoke.filter(|_| node.record.boot_id == boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_is_never_older_than_the_silence_before_it() {
        let seconds = Duration::from_secs;
        assert!(
            !was_up(seconds(0), seconds(0)) && !was_up(seconds(5), seconds(0)),
            "the margin"
        );
        assert!(was_up(seconds(6), seconds(0)) && was_up(seconds(3_600), seconds(10)));
        assert!(
            !was_up(seconds(40), seconds(60)),
            "booted a while after the last word"
        );
        // The node rebooted at once, and was compared two days later by a clock that is two percent
        // slower.
        let two_days = seconds(48 * 3_600);
        assert!(!was_up(two_days + two_days * 2 / 100, two_days));
    }
}
