//! Applies rules to readings. Time comes in as an argument. Baselines, and findings that only a
//! reboot clears, are kept in [`Memory`]. The agent stores it, so that its own restart neither
//! forgets a fault nor counts an old one again.
//!
//! A *live* finding exists as long as the last look of its source shows it. A finding that *holds*
//! stays for its time, or for the boot.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Finding, Health, Remedy, Severity, Subject, Table,
    table::{Holds, Rule, Trigger},
    xid::{Counts, Xid},
};
use crate::{id::RunId, time::Timestamp};

mod repeated;
mod share;

use repeated::BURST;

/// The present moment, by the clock that never runs backwards and by the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub now: Timestamp,
    pub unix_us: u64,
}

/// The origin of readings. Each look of a source is complete: a problem that it no longer shows is
/// over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// NVML, quick values: handles, recovery action, remap flags, throttling, link states.
    Gpus,
    /// NVML, counters.
    Counters,
    /// NVML, slow: inventory.
    Inventory,
    /// NICs, from sysfs: states.
    Network,
    /// NICs, from sysfs: counters.
    NicCounters,
    /// Everything else about the node.
    Node,
    /// Whether the NVML thread answers at all.
    Watchdog,
    /// Other machines that this node waits for.
    Peers,
    /// The notice that the machine will be taken away.
    Notice,
    /// The coordinator's clock compared with this node's.
    Clock,
    /// The agent's knowledge about the runs that the node holds.
    Runs,
    /// How long the agent's own writes take, and whether they fail.
    StateDisk,
    /// How much of the machine is in use.
    Usage,
    /// What the kubelet says about GPUs.
    Kubelet,
}

/// One value of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub check: &'static str,
    pub subject: Subject,
    pub value: Value,
    /// The observation in words for people: `link 3 inactive`. The judge adds numbers.
    pub words: String,
    /// The runs that it is about, if it is about runs that the node holds.
    pub runs: Vec<RunId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Flag(bool),
    Level(u64),
    /// A counter that only grows, unless it is reset.
    Counter(u64),
    /// A counter that grows all the time, and begins anew when the device is reset. It breaks no rule.
    SinceReset(u64),
    /// A part of a whole, which changes all the time. The rule's limit is in percent. The finding
    /// names the limit, not the value, and stays until the value is a fifth beyond the limit,
    /// because every change of a finding sends a report.
    Share {
        part: u64,
        of: u64,
    },
}

type Key = (String, Subject);

/// What a finding says beyond its rule and its subject.
struct Said {
    reason: String,
    runs: Vec<RunId>,
}

impl From<String> for Said {
    fn from(reason: String) -> Self {
        Self {
            reason,
            runs: Vec::new(),
        }
    }
}

/// What must outlive the agent within one boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    boot_id: String,
    baselines: Vec<(Key, u64)>,
    held: Vec<Held>,
    xids: Vec<((String, u32), Counts)>,
    /// For each kind of device, the most that were ever seen together in this boot.
    most: BTreeMap<String, u64>,
    /// The highest [`Value::SinceReset`] of each device, in steps of a quarter, so that it is seldom written.
    /// It is stored because people usually stop the agent when they reset a GPU.
    reached: Vec<(Subject, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    finding: Finding,
    /// `None`: for the rest of the boot.
    until: Option<Timestamp>,
}

/// Applies the rules of a table to the readings of one boot.
#[derive(Debug)]
pub struct Judge {
    table: Table,
    boot_id: String,
    baselines: BTreeMap<Key, u64>,
    held: BTreeMap<Key, Held>,
    xids: BTreeMap<(String, u32), Counts>,
    most: BTreeMap<String, u64>,
    reached: BTreeMap<Subject, u64>,
    /// The same, exactly.
    latest: BTreeMap<Subject, u64>,
    /// The devices for which it was less in the last look.
    fell: BTreeSet<Subject>,
    live: BTreeMap<Key, (Source, Finding)>,
    /// When a flag was set that counts only after some time without a break.
    rising: BTreeMap<Key, (Source, Timestamp)>,
    /// A counter's value in the last look.
    last: BTreeMap<Key, u64>,
    /// The start of the window of a counter's rate, and the counter's value then.
    windows: BTreeMap<Key, (Timestamp, u64)>,
    /// When bursts of grave XIDs began, by GPU.
    bursts: BTreeMap<Subject, VecDeque<Timestamp>>,
    /// For each job, the GPUs on which it had faults that programs cause, and the time of the last
    /// one.
    faults: BTreeMap<String, BTreeMap<Subject, Timestamp>>,
}

/// Distinct XIDs that are remembered in a boot. 16 GPUs with all known codes have fewer. A wild log
/// is cut off.
const XIDS_MAX: usize = 4_096;

impl Judge {
    /// Continues with the memory of an earlier agent of the same boot.
    pub fn new(table: Table, boot_id: &str, memory: Memory) -> Self {
        let memory = if memory.boot_id == boot_id {
            memory
        } else {
            Memory::default()
        };
        Self {
            table,
            boot_id: boot_id.to_owned(),
            baselines: memory.baselines.into_iter().collect(),
            held: memory
                .held
                .into_iter()
                .map(|held| {
                    (
                        (held.finding.check.clone(), held.finding.subject.clone()),
                        held,
                    )
                })
                .collect(),
            xids: memory.xids.into_iter().collect(),
            most: memory.most,
            reached: memory.reached.into_iter().collect(),
            latest: BTreeMap::new(),
            fell: BTreeSet::new(),
            live: BTreeMap::new(),
            rising: BTreeMap::new(),
            last: BTreeMap::new(),
            windows: BTreeMap::new(),
            bursts: BTreeMap::new(),
            faults: BTreeMap::new(),
        }
    }

    /// What the agent must store, so that a later agent of the same boot can go on.
    pub fn memory(&self) -> Memory {
        Memory {
            boot_id: self.boot_id.clone(),
            baselines: self
                .baselines
                .iter()
                .map(|(key, value)| (key.clone(), *value))
                .collect(),
            held: self.held.values().cloned().collect(),
            xids: self
                .xids
                .iter()
                .map(|(key, counts)| (key.clone(), counts.clone()))
                .collect(),
            most: self.most.clone(),
            reached: (self.reached.iter())
                .map(|(subject, value)| (subject.clone(), *value))
                .collect(),
        }
    }

    /// Takes one complete look of one source.
    pub fn look(&mut self, source: Source, readings: &[Reading], at: Moment) {
        let before: BTreeMap<Key, Finding> = self
            .live
            .iter()
            .filter(|(_, (s, _))| *s == source)
            .map(|(key, (_, finding))| (key.clone(), finding.clone()))
            .collect();
        self.live.retain(|_, (s, _)| *s != source);
        let mut rising = BTreeSet::new();
        for reading in readings {
            if let Value::SinceReset(value) = reading.value {
                self.reaches(&reading.subject, value);
                continue;
            }
            let Some(rule) = self.table.rule(reading.check).cloned() else {
                continue;
            };
            let key = (reading.check.to_owned(), reading.subject.clone());
            let known = before.contains_key(&(key.0.clone(), self.about(&rule, &key.1)));
            let Some(numbers) = self.triggered(&rule, &key, reading, known, at.now) else {
                continue;
            };
            rising.insert(key.clone());
            let since = self.rising.entry(key.clone()).or_insert((source, at.now)).1;
            if at.now.since(since) < rule.sustained {
                continue;
            }
            let said = Said {
                reason: format!("{}{numbers}", reading.words),
                runs: reading.runs.clone(),
            };
            self.find(
                source,
                &rule,
                key,
                said,
                at,
                before.get(&(
                    reading.check.to_owned(),
                    self.about(&rule, &reading.subject),
                )),
            );
        }
        self.rising
            .retain(|key, (s, _)| *s != source || rising.contains(key));
        self.expire(at.now);
    }

    fn about(&self, rule: &Rule, subject: &Subject) -> Subject {
        if rule.whole_node {
            Subject::Node
        } else {
            subject.clone()
        }
    }

    fn find(
        &mut self,
        source: Source,
        rule: &Rule,
        key: Key,
        said: Said,
        at: Moment,
        before: Option<&Finding>,
    ) {
        let key = (key.0, self.about(rule, &key.1));
        let known = before.or_else(|| self.held.get(&key).map(|held| &held.finding));
        let since = known.map_or(at.unix_us, |known| known.since_unix_us);
        let finding = Finding {
            check: key.0.clone(),
            subject: key.1.clone(),
            severity: rule.severity,
            remedy: rule.remedy,
            reason: said.reason,
            since_unix_us: since,
            runs: said.runs,
        };
        match rule.holds {
            Holds::Live => {
                self.live.insert(key, (source, finding));
            }
            Holds::For(time) => {
                self.held.insert(
                    key,
                    Held {
                        finding,
                        until: Some(at.now + time),
                    },
                );
            }
            Holds::Boot => {
                self.held.insert(
                    key,
                    Held {
                        finding,
                        until: None,
                    },
                );
            }
        }
    }

    /// The numbers for people if the reading breaks its rule. `known`: the last look of its source
    /// broke the rule as well.
    fn triggered(
        &mut self,
        rule: &Rule,
        key: &Key,
        reading: &Reading,
        known: bool,
        now: Timestamp,
    ) -> Option<String> {
        match (rule.trigger, reading.value) {
            (Trigger::Set, Value::Flag(set)) => set.then(String::new),
            (Trigger::Above(limit), Value::Level(value)) => {
                (value > limit).then(|| format!(": {value}, above {limit}"))
            }
            (Trigger::Below(limit), Value::Level(value)) => {
                (value < limit).then(|| format!(": {value}, below {limit}"))
            }
            (Trigger::Grew { more_than, per }, Value::Counter(value)) => {
                self.grew(key, value, more_than, per, now)
            }
            (trigger, Value::Share { part, of }) => share::triggered(trigger, part, of, known),
            // The rule and the reading are of different kinds, because an operator's file asks for
            // something that cannot be measured.
            _ => None,
        }
    }

    fn grew(
        &mut self,
        key: &Key,
        value: u64,
        more_than: u64,
        per: Option<Duration>,
        now: Timestamp,
    ) -> Option<String> {
        let baseline = *self.baselines.entry(key.clone()).or_insert(value);
        let last = self.last.insert(key.clone(), value).unwrap_or(baseline);
        if value < last {
            // The device or its driver was reset.
            self.baselines.insert(key.clone(), value);
            self.windows.remove(key);
            self.was_reset(&key.1);
            return None;
        }
        let Some(per) = per else {
            let grown = value - baseline;
            return (grown > more_than)
                .then(|| format!(": {} since this boot's baseline", in_steps(grown)));
        };
        let (begun, first) = *self.windows.entry(key.clone()).or_insert((now, value));
        if value < first {
            self.windows.insert(key.clone(), (now, value));
            return None;
        }
        let (grown, span) = (value - first, now.since(begun));
        if span >= per {
            self.windows.insert(key.clone(), (now, value));
        }
        // A look may come later than the window is long, so the allowance grows with the time.
        let allowed = more_than as f64 * (span.as_secs_f64() / per.as_secs_f64()).max(1.0);
        (grown as f64 > allowed)
            .then(|| format!(": more than {more_than} in {}", crate::period::format(per)))
    }

    fn reaches(&mut self, subject: &Subject, value: u64) {
        let stored = self.reached.entry(subject.clone()).or_insert(value);
        let latest = self.latest.entry(subject.clone()).or_insert(*stored);
        if value >= *latest {
            *latest = value;
            if value > stored.saturating_add(*stored / 4) {
                *stored = value;
            }
            self.fell.remove(subject);
            return;
        }
        // One wrong answer of the driver must not make a sick GPU well.
        if self.fell.insert(subject.clone()) {
            return;
        }
        (*stored, *latest) = (value, value);
        self.fell.remove(subject);
        self.was_reset(subject);
    }

    /// The device was reset, so every finding that a reset remedies is over.
    fn was_reset(&mut self, subject: &Subject) {
        let remedied = |finding: &Finding| {
            &finding.subject == subject
                && matches!(
                    finding.remedy,
                    Remedy::None | Remedy::RestartApp | Remedy::GpuReset
                )
        };
        self.held.retain(|_, held| !remedied(&held.finding));
        self.bursts.remove(subject);
    }

    /// The driver was loaded again, so every GPU was reset.
    pub fn driver_reloaded(&mut self) {
        let gpus: BTreeSet<Subject> = self
            .held
            .keys()
            .map(|key| key.1.clone())
            .filter(|s| matches!(s, Subject::Gpu(_)))
            .collect();
        gpus.iter().for_each(|gpu| self.was_reset(gpu));
    }

    /// The most devices of this kind that were ever seen together in this boot, including `now`.
    pub fn most_seen(&mut self, kind: &str, now: u64) -> u64 {
        let most = self.most.entry(kind.to_owned()).or_default();
        *most = now.max(*most);
        *most
    }

    /// Takes one XID from the event channel or the log. True: it is grave enough to look at the GPU
    /// at once.
    pub fn xid(&mut self, xid: &Xid, gpu: &Subject, at: Moment) -> bool {
        let key = (xid.pci.clone(), xid.code);
        if self.xids.len() >= XIDS_MAX && !self.xids.contains_key(&key) {
            return true;
        }
        let counts = self.xids.entry(key).or_default();
        let news = counts.hear(xid);
        let (fatal, times) = (counts.fatal, counts.in_words());
        let detail = if counts.detail.is_empty() {
            String::new()
        } else {
            format!(": {}", counts.detail)
        };
        let Some((name, rule)) = self
            .table
            .xid(xid.code, fatal)
            .map(|(name, rule)| (name, rule.clone()))
        else {
            return false;
        };
        // An unknown code keeps its number.
        let check = if name == "xid:*" {
            format!("xid:{}", xid.code)
        } else {
            name
        };
        if fatal.is_some() {
            // The log tells more than the event did, so its finding replaces the event's.
            self.held
                .remove(&(format!("xid:{}", xid.code), self.about(&rule, gpu)));
        }
        let reason = format!("XID {} on {}{times}{detail}", xid.code, xid.pci);
        self.find(
            Source::Gpus,
            &rule,
            (check, gpu.clone()),
            reason.into(),
            at,
            None,
        );
        if news && rule.severity >= Severity::FailNow {
            self.burst(gpu, at);
        }
        self.expire(at.now);
        news
    }

    /// Takes one event from the kernel log.
    pub fn event(&mut self, check: &'static str, subject: &Subject, text: &str, at: Moment) {
        let Some(rule) = self.table.rule(check).cloned() else {
            return;
        };
        // Nobody can look at an event again, so its finding holds for a while at least.
        let rule = if rule.holds == Holds::Live {
            Rule {
                holds: Holds::For(BURST),
                ..rule
            }
        } else {
            rule
        };
        self.find(
            Source::Node,
            &rule,
            (check.to_owned(), subject.clone()),
            text.to_owned().into(),
            at,
            None,
        );
    }

    fn expire(&mut self, now: Timestamp) {
        self.held
            .retain(|_, held| held.until.is_none_or(|until| until > now));
    }

    /// When the next finding ends by itself. `None`: no finding ends by itself.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.held.values().filter_map(|held| held.until).min()
    }

    /// All findings at `now`, the worst first.
    pub fn health(&mut self, now: Timestamp) -> Health {
        self.expire(now);
        let held = self.held.values().map(|held| &held.finding);
        let mut findings: Vec<Finding> = held
            .chain(self.live.values().map(|(_, finding)| finding))
            .cloned()
            .collect();
        findings.sort_by(|a, b| {
            b.severity
                .cmp(&a.severity)
                .then_with(|| (&a.subject, &a.check).cmp(&(&b.subject, &b.check)))
        });
        Health { findings }
    }
}

/// Small numbers exactly, large ones in steps, so that a running counter does not make a report for
/// each of its values.
fn in_steps(count: u64) -> String {
    match count {
        0..=10 => count.to_string(),
        _ => format!("more than {}", 10_u64.pow((count - 1).ilog10())),
    }
}

#[cfg(test)]
#[path = "judge/tests.rs"]
mod tests;
