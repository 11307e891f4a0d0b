//! What ranks leave behind: finds it, tells it to end, and says how long it is waited for.
//!
//! In a stop it is told as soon as its rank has ended: a program behind a shell that dies of SIGTERM is
//! in effect the rank, and has what is left of the grace. At a good end it has the job's grace of its
//! own, and is named. After a failure nobody waits for it, so this is not asked.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_runner::procfs;

use super::Runner;
use crate::group::Leaving;
use crate::tell::{self, Left};
use crate::time;

/// What ends with its rank, such as a resource tracker, needs a moment for that. Nobody hears of it.
const QUIET: Duration = Duration::from_millis(500);

/// The gap between two looks is a tenth of the time since the end began, within these bounds. A look
/// reads a file for each process of the machine.
const LOOK_AT_FIRST: Duration = Duration::from_millis(50);
const LOOK_LATER: Duration = Duration::from_secs(1);

/// What the runner remembers of it between turns.
#[derive(Default)]
pub(super) struct Told {
    /// Pid and start time of what was told to end.
    told: BTreeSet<(i32, u64)>,
    /// The command lines of the ranks that lived when a stop was asked for.
    commands: BTreeSet<Vec<String>>,
    next: Duration,
    awaited: bool,
}

impl Runner {
    /// Looks for what ranks have left behind if that is due. Returns whether it is waited for, and when
    /// to look again.
    pub(super) fn mind_leftovers(&mut self, now: Duration) -> (bool, Option<Duration>) {
        if self.group.killing.is_some() || self.group.dead.is_some() {
            return (false, None);
        }
        if self.group.ended_well() && self.group.leaving.is_none() {
            let grace = Duration::from_millis(self.hold.term_grace_ms);
            self.group.leaving = Some(Leaving {
                told_at: now + QUIET,
                deadline: now + QUIET + grace,
            });
        }
        let stop = self.group.stop.as_ref().map(|stop| stop.asked);
        let leaving = self.group.leaving.as_ref().map(|leaving| leaving.told_at);
        let Some(since) = stop.or(leaving) else {
            return (false, None);
        };
        if now < since {
            return (true, Some(since));
        }
        let (living, ended) = self.group.rank_pids();
        if ended.is_empty() {
            return (false, None);
        }
        if now >= self.state.left.next {
            let left = self.left_behind(&living, &ended);
            self.tell_left(&left, stop.is_none());
            self.state.left.awaited = left.may_save || stop.is_none() && !left.roots.is_empty();
            let gap = (now.saturating_sub(since) / 10).clamp(LOOK_AT_FIRST, LOOK_LATER);
            self.state.left.next = time::boot().max(now) + gap;
        }
        (self.state.left.awaited, Some(self.state.left.next))
    }

    /// Notes what the ranks run, before they are told to end.
    pub(super) fn note_commands(&mut self) {
        let (living, _) = self.group.rank_pids();
        self.state.left.commands = living.into_iter().map(tell::words).collect();
    }

    fn left_behind(&self, living: &BTreeSet<i32>, ended: &BTreeSet<i32>) -> Left {
        let launcher = self
            .group
            .launcher
            .as_ref()
            .map(|launcher| &launcher.process);
        let launcher = launcher.filter(|process| process.end.is_none());
        let launcher = launcher.map(|process| process.pid);
        let shims: BTreeSet<i32> = self.ranks.shims().collect();
        let me = std::process::id() as i32;
        let group = tell::Group {
            // What a launcher has started itself is its own.
            adopters: shims
                .iter()
                .copied()
                .filter(|pid| Some(*pid) != launcher)
                .chain([me])
                .collect(),
            own: shims
                .iter()
                .chain(living)
                .copied()
                .chain(launcher)
                .collect(),
            sessions: (!living.is_empty()).then(|| ended.clone()),
            commands: (!self.group.ended_by_term()).then(|| self.state.left.commands.clone()),
        };
        tell::left(&group, &procfs::all().unwrap_or_default())
    }

    /// Tells what was not told yet, and names it if that is asked for.
    fn tell_left(&mut self, left: &Left, named: bool) {
        for root in &left.roots {
            if !self.state.left.told.insert((root.pid, root.start_time)) {
                continue;
            }
            let name = tell::name(root.pid);
            say!(
                "{} left behind, and told to end: {name} (pid {})",
                time::stamp(),
                root.pid
            );
            if named {
                self.group.left_behind(root.pid, name, false);
                self.state.urgent = true;
            }
            tell::to_end(root.pid);
        }
    }

    /// What is there when the grace is over, by pid and name.
    pub(super) fn overdue(&self) -> Vec<(i32, String)> {
        let (living, ended) = self.group.rank_pids();
        if ended.is_empty() {
            return Vec::new();
        }
        let left = self.left_behind(&living, &ended);
        let roots = left.roots.iter();
        roots.map(|root| (root.pid, tell::name(root.pid))).collect()
    }
}
