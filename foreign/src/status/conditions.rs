//! Conditions as the training operator keeps them: at most one of each type, the newest last; Running
//! and Restarting take each other's place; an end makes Running false; nothing follows Failed.

use muster_core::time::Timestamp;
use serde::{Serialize, Serializer};

use super::kinds::Words;

/// The types of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    Created,
    Running,
    Restarting,
    Suspended,
    Succeeded,
    Failed,
}

impl ConditionType {
    pub fn name(self) -> &'static str {
        match self {
            ConditionType::Created => "Created",
            ConditionType::Running => "Running",
            ConditionType::Restarting => "Restarting",
            ConditionType::Suspended => "Suspended",
            ConditionType::Succeeded => "Succeeded",
            ConditionType::Failed => "Failed",
        }
    }
}

impl Serialize for ConditionType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One condition, in the order of fields that upstream has.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// `True` or `False`.
    pub status: &'static str,
    pub reason: String,
    pub message: String,
    /// `None`: nobody has kept the time.
    pub last_update_time: Option<String>,
    pub last_transition_time: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Conditions(pub(super) Vec<Condition>);

impl Conditions {
    /// A condition that holds, with the usual reason of its type.
    pub(super) fn set(
        &mut self,
        kind: ConditionType,
        at: Option<Timestamp>,
        words: &Words<'_>,
        message: String,
    ) {
        self.put(kind, at, words.reason(kind.name()), message);
    }

    pub(super) fn put(
        &mut self,
        kind: ConditionType,
        at: Option<Timestamp>,
        reason: String,
        message: String,
    ) {
        self.add(kind, true, at, reason, message);
    }

    pub(super) fn suspended(&mut self, at: Option<Timestamp>, words: &Words<'_>) {
        let reason = words.reason("Suspended");
        if self.get(ConditionType::Running).is_some() {
            let message = words.runs_no_more();
            self.add(ConditionType::Running, false, at, reason.clone(), message);
        }
        self.put(ConditionType::Suspended, at, reason, words.suspended());
    }

    pub(super) fn resumed(&mut self, at: Option<Timestamp>, words: &Words<'_>) {
        let reason = words.reason("Resumed");
        self.add(ConditionType::Suspended, false, at, reason, words.resumed());
    }

    pub(super) fn holds(&self, kind: ConditionType) -> bool {
        self.get(kind).is_some_and(|known| known.status == "True")
    }

    fn get(&self, kind: ConditionType) -> Option<&Condition> {
        self.0.iter().find(|condition| condition.kind == kind)
    }

    fn add(
        &mut self,
        kind: ConditionType,
        holds: bool,
        at: Option<Timestamp>,
        reason: String,
        message: String,
    ) {
        use ConditionType::{Failed, Restarting, Running, Succeeded};
        if self.get(Failed).is_some() {
            return;
        }
        let status = if holds { "True" } else { "False" };
        let at = at.map(Timestamp::rfc3339_seconds);
        let before = self.get(kind);
        if before.is_some_and(|before| before.status == status && before.reason == reason) {
            return;
        }
        let same = before.filter(|before| before.status == status);
        let last_transition_time = match same {
            Some(before) => before.last_transition_time.clone(),
            None => at.clone(),
        };
        self.0.retain(|other| match (kind, other.kind) {
            (Restarting, Running) | (Running, Restarting) => false,
            (kind, other) => kind != other,
        });
        if matches!(kind, Failed | Succeeded) {
            for running in self.0.iter_mut().filter(|other| other.kind == Running) {
                running.status = "False";
            }
        }
        self.0.push(Condition {
            kind,
            status,
            reason,
            message,
            last_update_time: at,
            last_transition_time,
        });
    }
}
