//! A node's Kubernetes Node object, as far as Muster reads and writes it.
//!
//! The coordinator's shell reads objects ([`Raw`]) and writes what a [`Correction`] says. Here
//! stands what an object means ([`NodeObject::read`]), and what must be written so that it carries
//! what it should ([`correction`]). What it should carry, `fleet::marking` decides. Nothing else of
//! an object is kept: in a large cluster there are 10,000 of them.
//!
//! Muster marks an object by annotations, one condition and `spec.unschedulable`. It takes away
//! only what it has set itself, and its annotations say what that is.
//!
//! | file | owns |
//! |---|---|
//! | `signs` | what other programs say on the object, as a table |

use std::collections::BTreeMap;

use crate::{
    health::{Finding, Remedy, Severity, Subject, TERMINATION_NOTICE},
    node_report::{
        labels::Labels,
        taint::{TAINTS_MAX, Taint},
    },
    time::Timestamp,
};

pub mod signs;

use signs::{LEFT_ALONE, Meaning, SIGNS};

/// All keys of Muster's annotations and labels begin with this.
pub const MUSTER_KEY: &str = "muster.dev/";
/// All of Muster's conditions begin with this.
pub const MUSTER_CONDITION: &str = "Muster";
/// What Muster thinks of the node's GPUs: True, False, or Unknown.
pub const GPU_HEALTHY: &str = "MusterGPUHealthy";
/// The kubelet's condition.
const READY: &str = "Ready";

pub const CORDONED_BY: &str = "muster.dev/cordoned-by";
/// Names the cordon: no two cordons of a node have the same time.
pub const CORDONED_AT: &str = "muster.dev/cordoned-at";
pub const CORDONED_REASON: &str = "muster.dev/cordoned-reason";
pub const CORDONED_JOB: &str = "muster.dev/cordoned-job";
pub const WAS_UNSCHEDULABLE: &str = "muster.dev/was-unschedulable";
pub const WOULD_CORDON: &str = "muster.dev/would-cordon";
pub const CORDON_WITHHELD: &str = "muster.dev/cordon-withheld";

/// Bytes of a text that Muster writes. Kubernetes allows 1 KiB for the note of an event, and much
/// more elsewhere.
pub const TEXT_MAX: usize = 1_024;
/// Bytes of a text of others that is kept.
const QUOTED_MAX: usize = 256;

/// What the shell reads of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: String,
    pub status: Status,
    pub reason: String,
    pub message: String,
    /// The last change of its status, by its author's clock.
    pub since: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    True,
    False,
    Unknown,
}

/// What is kept of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeObject {
    pub uid: String,
    pub labels: Labels,
    /// What keeps jobs away that do not tolerate it.
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    /// What Muster has written on it.
    pub marking: Marking,
    /// Since when Muster's condition has its status.
    pub health_since: Option<Timestamp>,
    /// What others say, as findings. Those that only warn have the severity `warn`.
    pub findings: Vec<Finding>,
    /// Why the node gets no new work, by a sign of others. See also [`NodeObject::excluded`].
    pub excluded: Option<String>,
    /// Why its machine will be taken away, by the word of others.
    pub leaving: Option<String>,
    /// Why Muster changes nothing on the object.
    pub left_alone: Option<String>,
    /// The cluster has not heard its kubelet for too long.
    pub kubelet_silent: bool,
}

/// What Muster writes on an object: as it is, or as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marking {
    pub cordon: Option<CordonNote>,
    /// As it should be: somebody else has made the node schedulable while Muster's cordon of this
    /// time stood there. The annotations of that cordon, and of older ones, say nothing any more.
    pub overruled: Option<Timestamp>,
    /// Why Muster would cordon the node, if it only says so.
    pub would_cordon: Option<String>,
    /// Why Muster has not cordoned a node that it should have cordoned.
    pub withheld: Option<String>,
    /// Muster's condition. As it should be: `None` means as it is.
    pub health: Option<Verdict>,
}

/// The annotations of a cordon that stands in `spec.unschedulable`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CordonNote {
    pub by: String,
    /// In the form of [`Timestamp::rfc3339`].
    pub at: String,
    pub reason: String,
    /// The jobs that failed there, with a comma between them. Empty: a person cordoned it.
    pub job: String,
    /// The node was unschedulable before, so it stays so afterwards.
    pub was_unschedulable: bool,
}

/// Status, reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub status: Status,
    /// In CamelCase.
    pub reason: String,
    pub message: String,
}

/// What is to be changed on an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Correction {
    pub unschedulable: Option<bool>,
    /// `None`: the annotation goes.
    pub annotations: BTreeMap<&'static str, Option<String>>,
    /// The event that tells of what is above.
    pub event: Option<Told>,
    pub condition: Option<Condition>,
    /// The event that tells of the condition, if there is no other.
    pub judged: Option<Told>,
}

/// An event for Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub warning: bool,
    pub reason: &'static str,
    /// What was done.
    pub action: &'static str,
    pub note: String,
}

impl NodeObject {
    pub fn read(raw: Raw) -> Self {
        let seen = |sign: &&signs::Sign| sign.on(&raw).is_some();
        let worst = |meaning: Meaning| {
            SIGNS
                .iter()
                .filter(move |s| s.meaning == meaning)
                .find(seen)
        };
        let marking = Marking::read(&raw);
        let excluded = worst(Meaning::Exclude);
        let excluded = excluded.map(|sign| format!("excluded by {}", sign.sentence()));
        let health = raw.conditions.iter().find(|c| c.kind == GPU_HEALTHY);
        let mut conditions = raw.conditions.iter();
        NodeObject {
            // False is the kubelet's own word. The cluster sets Unknown if there is none.
            kubelet_silent: conditions.any(|c| c.kind == READY && c.status == Status::Unknown),
            findings: SIGNS
                .iter()
                .filter_map(|sign| finding(sign, &raw))
                .collect(),
            excluded,
            leaving: worst(Meaning::Leaving).map(signs::Sign::sentence),
            left_alone: LEFT_ALONE.iter().find(seen).map(signs::Sign::sentence),
            health_since: health.and_then(|condition| condition.since),
            marking,
            unschedulable: raw.unschedulable,
            labels: Labels::bounded(raw.labels),
            taints: { raw.taints.into_iter() }
                .filter(|taint| !signs::handles(taint))
                .take(TAINTS_MAX)
                .collect(),
            uid: raw.uid,
        }
    }

    /// Why the node gets no new work, by the word of others. `overruled`: see
    /// [`Marking::overruled`].
    pub fn excluded(&self, overruled: Option<Timestamp>) -> Option<&str> {
        let note = self.marking.cordon.as_ref();
        let by_us = note.is_some_and(|note| note.is_alone(overruled));
        if self.unschedulable && !by_us {
            return Some("unschedulable in Kubernetes, set by somebody else than Muster");
        }
        self.excluded.as_deref()
    }
}

impl CordonNote {
    /// Whether only Muster's cordon makes the node unschedulable, as long as it is. `overruled`:
    /// see [`Marking::overruled`].
    pub(crate) fn is_alone(&self, overruled: Option<Timestamp>) -> bool {
        self.stands(overruled) && !self.was_unschedulable
    }

    /// Whether this cordon still stands, as long as the node is unschedulable.
    pub(crate) fn stands(&self, overruled: Option<Timestamp>) -> bool {
        // A time that cannot be read is not of Muster.
        let at = Timestamp::from_rfc3339(&self.at);
        at.is_some() && at > overruled
    }
}

fn finding(sign: &signs::Sign, raw: &Raw) -> Option<Finding> {
    let condition = sign.on(raw)?;
    let (check, severity) = match sign.meaning {
        Meaning::Leaving => (TERMINATION_NOTICE.to_owned(), Severity::Drain),
        _ => (format!("kubernetes:{}", sign.key), Severity::Warn),
    };
    let said = condition.filter(|condition| !condition.message.is_empty());
    let said = said.map(|condition| format!("; it says: {}", cut(&condition.message, QUOTED_MAX)));
    Some(Finding {
        check,
        subject: Subject::Node,
        severity,
        remedy: Remedy::None,
        reason: sign.sentence() + &said.unwrap_or_default(),
        since_unix_us: condition.and_then(|c| c.since).map_or(0, |since| since.0),
        runs: Vec::new(),
    })
}

impl Marking {
    fn read(raw: &Raw) -> Self {
        let text = |key: &str| raw.annotations.get(key).cloned();
        let note = |by: String| CordonNote {
            by,
            at: text(CORDONED_AT).unwrap_or_default(),
            reason: text(CORDONED_REASON).unwrap_or_default(),
            job: text(CORDONED_JOB).unwrap_or_default(),
            was_unschedulable: text(WAS_UNSCHEDULABLE).is_some_and(|text| text == "true"),
        };
        let health = raw.conditions.iter().find(|c| c.kind == GPU_HEALTHY);
        Marking {
            cordon: text(CORDONED_BY).map(note),
            overruled: None,
            would_cordon: text(WOULD_CORDON),
            withheld: text(CORDON_WITHHELD),
            health: health.map(|condition| Verdict {
                status: condition.status,
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            }),
        }
    }
}

impl Correction {
    pub fn is_empty(&self) -> bool {
        let Self {
            unschedulable,
            annotations,
            condition,
            event: _,
            judged: _,
        } = self;
        unschedulable.is_none() && annotations.is_empty() && condition.is_none()
    }

    /// Whether it sets or lifts a cordon, or says that one is over. Those go first.
    pub fn is_urgent(&self) -> bool {
        self.unschedulable.is_some() || self.annotations.contains_key(CORDONED_BY)
    }

    fn annotate(&mut self, key: &'static str, seen: Option<&String>, wanted: Option<&String>) {
        if seen != wanted {
            self.annotations.insert(key, wanted.cloned());
        }
    }

    fn tell(&mut self, warning: bool, reason: &'static str, action: &'static str, note: String) {
        self.event
            .get_or_insert_with(|| Told::of(warning, reason, action, &note));
    }
}

impl Told {
    fn of(warning: bool, reason: &'static str, action: &'static str, note: &str) -> Self {
        Self {
            warning,
            reason,
            action,
            note: cut(note, TEXT_MAX),
        }
    }
}

/// What must be written so that the object carries what it should. A person's un-cordon stands:
/// while the annotations of this very cordon are there and the node is schedulable, nothing is done
/// about the cordon, and the fleet hears of it.
pub fn correction(wanted: &Marking, seen: &NodeObject, now: Timestamp) -> Correction {
    let mut correction = Correction::default();
    if seen.left_alone.is_some() {
        return correction;
    }
    let there = seen.marking.cordon.as_ref();
    let alone = there.is_some_and(|there| there.is_alone(wanted.overruled));
    match (&wanted.cordon, there) {
        (Some(wanted), Some(there)) if wanted.at == there.at => {}
        (Some(wanted), there) => {
            let before = seen.unschedulable && !alone;
            set_cordon(&mut correction, wanted, there, before, seen);
        }
        (None, Some(there)) => lift_cordon(&mut correction, there, alone, seen),
        (None, None) => {}
    }
    let (would, withheld) = (&wanted.would_cordon, &wanted.withheld);
    for (key, wanted, there, reason, same) in [
        (
            WOULD_CORDON,
            would,
            &seen.marking.would_cordon,
            "WouldCordon",
            str::eq as fn(&str, &str) -> bool,
        ),
        (
            CORDON_WITHHELD,
            withheld,
            &seen.marking.withheld,
            "CordonWithheld",
            same_but_numbers,
        ),
    ] {
        correction.annotate(key, there.as_ref(), wanted.as_ref());
        let known = |text: &String| there.as_ref().is_some_and(|there| same(there, text));
        if let Some(text) = wanted.as_ref().filter(|text| !known(text)) {
            correction.tell(true, reason, "Cordon", text.clone());
        }
    }
    if let Some(health) = &wanted.health
        && seen.marking.health.as_ref() != Some(health)
    {
        correct_condition(&mut correction, health, seen, now);
    }
    correction
}

fn set_cordon(
    correction: &mut Correction,
    wanted: &CordonNote,
    there: Option<&CordonNote>,
    before: bool,
    seen: &NodeObject,
) {
    correction.unschedulable = (!seen.unschedulable).then_some(true);
    let empty = CordonNote::default();
    let there = there.unwrap_or(&empty);
    let flag = |so: bool| so.then(|| "true".to_owned());
    let job = |note: &CordonNote| Some(note.job.clone()).filter(|job| !job.is_empty());
    correction.annotations.extend([
        (CORDONED_BY, Some(wanted.by.clone())),
        (CORDONED_AT, Some(wanted.at.clone())),
        (CORDONED_REASON, Some(wanted.reason.clone())),
    ]);
    correction.annotate(CORDONED_JOB, job(there).as_ref(), job(wanted).as_ref());
    let (was, is) = (flag(there.was_unschedulable), flag(before));
    correction.annotate(WAS_UNSCHEDULABLE, was.as_ref(), is.as_ref());
    let jobs = job(wanted).map(|job| format!("; jobs that failed there: {job}"));
    let note = format!(
        "cordoned by {}: {}{}",
        wanted.by,
        wanted.reason,
        jobs.unwrap_or_default()
    );
    correction.tell(true, "Cordoned", "Cordon", note);
}

fn lift_cordon(correction: &mut Correction, there: &CordonNote, alone: bool, seen: &NodeObject) {
    correction.unschedulable = (seen.unschedulable && alone).then_some(false);
    correction
        .annotations
        .extend([CORDONED_BY, CORDONED_AT, CORDONED_REASON].map(|key| (key, None)));
    if !there.job.is_empty() {
        correction.annotations.insert(CORDONED_JOB, None);
    }
    if there.was_unschedulable {
        correction.annotations.insert(WAS_UNSCHEDULABLE, None);
    }
    let note = match (seen.unschedulable, alone) {
        (true, true) => "uncordoned",
        (true, false) => {
            "Muster's cordon is over; it stays unschedulable, because somebody else cordoned it"
        }
        (false, _) => "somebody uncordoned it, so Muster's cordon is over",
    };
    correction.tell(false, "Uncordoned", "Uncordon", note.to_owned());
}

fn correct_condition(
    correction: &mut Correction,
    health: &Verdict,
    seen: &NodeObject,
    now: Timestamp,
) {
    let before = seen.marking.health.as_ref().map(|before| before.status);
    let same = before == Some(health.status);
    correction.condition = Some(Condition {
        kind: GPU_HEALTHY.to_owned(),
        status: health.status,
        reason: health.reason.clone(),
        message: health.message.clone(),
        since: seen.health_since.filter(|_| same).or(Some(now)),
    });
    let note = format!("{}: {}", health.reason, health.message);
    let judged = match (before, health.status) {
        (_, _) if same => None,
        (_, Status::False) => Some(Told::of(true, "GPUUnhealthy", "Judge", &note)),
        (Some(Status::False), Status::True) => Some(Told::of(false, "GPUHealthy", "Judge", &note)),
        _ => None,
    };
    correction.judged = judged.filter(|_| correction.event.is_none());
}

/// Whether two sentences say the same, apart from their numbers.
pub fn same_but_numbers(one: &str, other: &str) -> bool {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    words(one) == words(other)
}

/// The text, cut where it becomes longer than so many bytes.
pub fn cut(text: &str, bytes: usize) -> String {
    const MORE: &str = "...";
    if text.len() <= bytes {
        return text.to_owned();
    }
    let fits = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=bytes - MORE.len()).rev().find(fits).unwrap_or(0);
    format!("{}{MORE}", &text[..end])
}

#[cfg(test)]
mod tests;
