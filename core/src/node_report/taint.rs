//! Taints of nodes, as Kubernetes has them: a node that has one takes only jobs that tolerate it
//! ([`crate::spec::toleration`]).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::labels::{label_key_error, label_value_error};

/// The most taints of a node. A node has a few.
pub const TAINTS_MAX: usize = 64;

/// The key by which a job tolerates cordons, as in Kubernetes.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// What a taint does to jobs that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Effect {
    /// It gets no new work. Members that it has stay.
    NoSchedule,
    /// Other nodes are taken first, if nothing else decides.
    PreferNoSchedule,
    /// As `NoSchedule`: Muster moves no member for a taint.
    NoExecute,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub effect: Effect,
}

impl Effect {
    pub const ALL: [(&str, Effect); 3] = [
        ("NoSchedule", Effect::NoSchedule),
        ("PreferNoSchedule", Effect::PreferNoSchedule),
        ("NoExecute", Effect::NoExecute),
    ];

    pub fn of(word: &str) -> Option<Effect> {
        let mut all = Self::ALL.iter();
        all.find(|(name, _)| *name == word)
            .map(|(_, effect)| *effect)
    }

    pub fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        let found = all.find(|(_, effect)| *effect == self);
        found.map_or("", |(name, _)| name)
    }
}

impl Taint {
    /// Reads `KEY=VALUE:EFFECT` or `KEY:EFFECT`, as `kubectl taint` takes it.
    pub fn read(text: &str) -> Result<Taint, String> {
        let Some((name, effect)) = text.rsplit_once(':') else {
            return Err(format!("{text:?} is not KEY=VALUE:EFFECT or KEY:EFFECT"));
        };
        let (key, value) = name.split_once('=').unwrap_or((name, ""));
        let taint = Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: Effect::of(effect).ok_or_else(|| {
                let names = Effect::ALL.map(|(name, _)| name).join(", ");
                format!("{text:?}: the effect is {effect:?}, must be one of {names}")
            })?,
        };
        match taint.error() {
            None => Ok(taint),
            Some(why) => Err(format!("{text:?} is no taint: {why}")),
        }
    }

    /// What is wrong with its key or value.
    pub fn error(&self) -> Option<String> {
        label_key_error(&self.key).or_else(|| label_value_error(&self.value))
    }

    /// Whether it keeps jobs away that do not tolerate it.
    pub fn refuses(&self) -> bool {
        self.effect != Effect::PreferNoSchedule
    }
}

/// `dedicated=team-a:NoSchedule`
impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taint { key, value, effect } = self;
        let equals = if value.is_empty() { "" } else { "=" };
        write!(f, "{key}{equals}{value}:{}", effect.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_is_read_as_kubectl_writes_it() {
        for text in [
            "dedicated=team-a:NoSchedule",
            "example.com/spot:PreferNoSchedule",
            "drained:NoExecute",
        ] {
            assert_eq!(Taint::read(text).unwrap().to_string(), text);
        }
        for (text, why) in [
            ("dedicated=a", "is not KEY=VALUE:EFFECT or KEY:EFFECT"),
            (
                "dedicated=a:Never",
                "must be one of NoSchedule, PreferNoSchedule, NoExecute",
            ),
            ("=a:NoSchedule", "is no taint"),
            ("a=b c:NoSchedule", "is no taint"),
        ] {
            let said = Taint::read(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
