//! Which taints of nodes a job tolerates: a pod's `tolerations`.
//!
//! A toleration lets a job have a node, and does not attract it there. A job keeps its nodes when their taints change.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::errors::Errors;
use crate::node_report::{
    labels::{label_key_error, label_value_error},
    taint::{Effect, Taint, UNSCHEDULABLE},
};

pub const TOLERATIONS_MAX: usize = 64;

/// A device plugin's resource. Clouds taint nodes with GPUs under its name, and Kubernetes lets pods that ask for it tolerate
/// that (`ExtendedResourceToleration`).
const GPUS: &str = "nvidia.com/gpu";

/// One of a job's `tolerations`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// Empty: any key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `Equal` or `Exists`. Empty: `Equal`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operator: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Empty: any effect.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effect: String,
}

/// How the value of a taint must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TolerationOperator {
    Equal,
    Exists,
}

impl TolerationOperator {
    pub const ALL: [(&str, TolerationOperator); 2] = [
        ("Equal", TolerationOperator::Equal),
        ("Exists", TolerationOperator::Exists),
    ];
}

impl Toleration {
    /// Of every taint with this key.
    pub fn of_key(key: &str) -> Toleration {
        Toleration {
            key: key.to_owned(),
            operator: "Exists".to_owned(),
            ..Toleration::default()
        }
    }

    /// Of every taint.
    pub fn of_all() -> Toleration {
        Toleration::of_key("")
    }

    /// Reads `KEY=VALUE:EFFECT`, in which VALUE and EFFECT may be missing: then any will do.
    pub fn read(text: &str) -> Toleration {
        let (name, effect) = text.rsplit_once(':').unwrap_or((text, ""));
        let (key, value) = match name.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (name, None),
        };
        Toleration {
            key: key.to_owned(),
            operator: if value.is_some() { "Equal" } else { "Exists" }.to_owned(),
            value: value.unwrap_or_default().to_owned(),
            effect: effect.to_owned(),
        }
    }

    fn exists(&self) -> bool {
        self.operator == "Exists"
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        (self.effect.is_empty() || self.effect == taint.effect.name())
            && (self.key.is_empty() || self.key == taint.key)
            && (self.exists() || self.value == taint.value)
    }
}

/// Those of these taints that a job does not tolerate. `gpus`: it asks for GPUs.
pub(crate) fn untolerated<'t>(
    taints: impl Iterator<Item = &'t Taint>,
    tolerations: &[Toleration],
    gpus: bool,
) -> impl Iterator<Item = &'t Taint> {
    taints.filter(move |taint| {
        let of_gpus = gpus && taint.key == GPUS && taint.effect == Effect::NoSchedule;
        !of_gpus && !tolerations.iter().any(|one| one.tolerates(taint))
    })
}

/// Whether a job may have nodes that are cordoned.
pub(crate) fn tolerates_cordons(tolerations: &[Toleration]) -> bool {
    if tolerations.is_empty() {
        return false;
    }
    let cordon = Taint {
        key: UNSCHEDULABLE.to_owned(),
        value: String::new(),
        effect: Effect::NoSchedule,
    };
    // A toleration of every taint does not include cordons: they must be named.
    let mut named = tolerations.iter().filter(|one| !one.key.is_empty());
    named.any(|one| one.tolerates(&cordon))
}

pub(super) fn check(tolerations: &[Toleration], errors: &mut Errors) {
    let path = "spec.tolerations";
    if tolerations.len() > TOLERATIONS_MAX {
        let have = tolerations.len();
        errors.add(
            path,
            format!("has {have} entries, at most {TOLERATIONS_MAX} are allowed"),
        );
    }
    for (at, one) in tolerations.iter().enumerate() {
        let mut wrong = |field: &str, why: String| errors.add(format!("{path}[{at}].{field}"), why);
        let names = TolerationOperator::ALL.map(|(name, _)| name);
        if !one.operator.is_empty() && !names.contains(&one.operator.as_str()) {
            let names = names.join(" or ");
            wrong(
                "operator",
                format!("is {:?}, must be {names}", one.operator),
            );
        }
        match one.key.is_empty() {
            true if !one.exists() => wrong("key", "must be set, unless operator is Exists".into()),
            true => {}
            false => {
                if let Some(why) = label_key_error(&one.key) {
                    wrong("key", format!("{:?}: {why}", one.key));
                }
            }
        }
        if one.exists() && !one.value.is_empty() {
            wrong("value", "must be empty for Exists".into());
        } else if let Some(why) = label_value_error(&one.value) {
            wrong("value", why);
        }
        if !one.effect.is_empty() && Effect::of(&one.effect).is_none() {
            let names = Effect::ALL.map(|(name, _)| name).join(", ");
            wrong(
                "effect",
                format!("is {:?}, must be one of {names}", one.effect),
            );
        }
    }
}

/// `dedicated=team-a:NoSchedule`, `example.com/spot` for any value and effect.
impl fmt::Display for Toleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => f.write_str("everything")?,
            key => f.write_str(key)?,
        }
        if !self.exists() {
            write!(f, "={}", self.value)?;
        }
        if !self.effect.is_empty() {
            write!(f, ":{}", self.effect)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::document;

    fn left(taints: &[&str], tolerations: &[Toleration], gpus: bool) -> Vec<String> {
        let taints: Vec<Taint> = taints
            .iter()
            .map(|text| Taint::read(text).unwrap())
            .collect();
        let left = untolerated(taints.iter(), tolerations, gpus);
        left.map(ToString::to_string).collect()
    }

    #[test]
    fn a_taint_is_tolerated_by_key_value_and_effect() {
        let taints = ["a=1:NoSchedule", "a=2:NoExecute", "b:PreferNoSchedule"];
        for (toleration, expected) in [
            ("a=1:NoSchedule", &taints[1..]),
            ("a=1", &taints[1..]),
            ("a=1:NoExecute", &taints[..]),
            ("a", &taints[2..]),
            ("a:NoExecute", &["a=1:NoSchedule", "b:PreferNoSchedule"][..]),
            ("b=", &taints[..2]),
            ("b=x", &taints[..]),
            ("c", &taints[..]),
        ] {
            let tolerations = [Toleration::read(toleration)];
            assert_eq!(left(&taints, &tolerations, false), expected, "{toleration}");
            assert_eq!(tolerations[0].to_string(), toleration);
        }
        let all = Toleration::of_all();
        assert!(left(&taints, std::slice::from_ref(&all), false).is_empty());
        assert!(!tolerates_cordons(&[all]), "it names none");
        assert!(tolerates_cordons(&[Toleration::of_key(UNSCHEDULABLE)]));
        assert!(!tolerates_cordons(&[Toleration::of_key("a")]));
    }

    #[test]
    fn who_asks_for_gpus_tolerates_what_keeps_their_nodes_for_that() {
        let taints = ["nvidia.com/gpu=present:NoSchedule"];
        assert!(left(&taints, &[], true).is_empty());
        assert_eq!(left(&taints, &[], false), taints);
        let broken = ["nvidia.com/gpu=broken:NoExecute"];
        assert_eq!(left(&broken, &[], true), broken);
    }

    #[test]
    fn wrong_tolerations_are_named_with_their_place() {
        let said = |one: Toleration| {
            let mut document = document();
            document.spec.tolerations = vec![one];
            let errors = document.check().err().unwrap_or_default();
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            errors.join("; ")
        };
        let one = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
        };
        assert_eq!(said(one("a", "", "b", "")), "");
        assert_eq!(said(one("", "Exists", "", "NoExecute")), "");
        for (wrong, part) in [
            (
                one("", "Equal", "", ""),
                "spec.tolerations[0].key: must be set",
            ),
            (
                one("a b", "Exists", "", ""),
                "spec.tolerations[0].key: \"a b\"",
            ),
            (
                one("a", "In", "", ""),
                "spec.tolerations[0].operator: is \"In\", must be Equal or Exists",
            ),
            (
                one("a", "Exists", "b", ""),
                "spec.tolerations[0].value: must be empty",
            ),
            (one("a", "", "b c", ""), "spec.tolerations[0].value"),
            (
                one("a", "", "", "Never"),
                "spec.tolerations[0].effect: is \"Never\"",
            ),
        ] {
            let said = said(wrong);
            assert!(said.contains(part), "{said}");
        }
    }
}
