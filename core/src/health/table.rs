//! Rules as data, one in each line: `CHECK SEVERITY REMEDY [PARAMETER=VALUE ...]  # why`.
//!
//! The standard table is part of the program. An operator's file has the same form, and each of its
//! lines replaces the standard line with the same name. Thresholds are the defaults of other
//! projects (`# why` names them), not our own measurements.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::period;

/// The consequence of a finding, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A matter of the job that ran there, or of nobody. It is shown, and nothing follows.
    Note,
    /// It is only reported.
    Warn,
    /// The subject gets no new work, and running work leaves at the next good moment.
    Drain,
    /// Running work cannot go on, or must not.
    FailNow,
}

/// What repairs the subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    #[default]
    None,
    RestartApp,
    GpuReset,
    NodeReboot,
    UpdateSoftware,
    /// Replace the part.
    Rma,
    /// A person must look at cabling, power, or call the vendor.
    Support,
}

const SEVERITIES: [(&str, Severity); 4] = [
    ("note", Severity::Note),
    ("warn", Severity::Warn),
    ("drain", Severity::Drain),
    ("fail_now", Severity::FailNow),
];
const REMEDIES: [(&str, Remedy); 7] = [
    ("none", Remedy::None),
    ("restart_app", Remedy::RestartApp),
    ("gpu_reset", Remedy::GpuReset),
    ("node_reboot", Remedy::NodeReboot),
    ("update_software", Remedy::UpdateSoftware),
    ("rma", Remedy::Rma),
    ("support", Remedy::Support),
];

fn word_of<T: Copy + PartialEq>(words: &[(&'static str, T)], wanted: T) -> &'static str {
    words
        .iter()
        .find(|(_, value)| *value == wanted)
        .map_or("unknown", |(word, _)| word)
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word_of(&SEVERITIES, *self))
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word_of(&REMEDIES, *self))
    }
}

/// A word that is not a severity or a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is none of {allowed}")]
pub struct NoSuchWord {
    word: String,
    allowed: String,
}

fn read_word<T: Copy>(words: &[(&'static str, T)], word: &str) -> Result<T, NoSuchWord> {
    let found = words
        .iter()
        .find(|(known, _)| *known == word)
        .map(|(_, value)| *value);
    found.ok_or_else(|| {
        let allowed: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
        NoSuchWord {
            word: word.to_owned(),
            allowed: allowed.join(", "),
        }
    })
}

impl FromStr for Severity {
    type Err = NoSuchWord;

    fn from_str(word: &str) -> Result<Self, NoSuchWord> {
        read_word(&SEVERITIES, word)
    }
}

impl FromStr for Remedy {
    type Err = NoSuchWord;

    fn from_str(word: &str) -> Result<Self, NoSuchWord> {
        read_word(&REMEDIES, word)
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub severity: Severity,
    pub remedy: Remedy,
    pub trigger: Trigger,
    /// The condition must hold for this long without a break before it counts.
    pub sustained: Duration,
    pub holds: Holds,
    /// The finding is about the whole node, although one device showed it.
    pub whole_node: bool,
}

/// The condition under which a reading becomes a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A flag that is set, or an event.
    Set,
    Above(u64),
    Below(u64),
    /// A share below this percentage of its whole and also below this many bytes, because 5 % of a
    /// terabyte is enough.
    Scarce {
        percent: u64,
        bytes: u64,
    },
    /// A counter that grew by more than this, within `per`, or since this boot's baseline.
    Grew {
        more_than: u64,
        per: Option<Duration>,
    },
}

/// How long a finding stays after its cause was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It ends with the next clean reading.
    Live,
    For(Duration),
    /// Until a reboot, or until a reset of the device that would remedy it.
    Boot,
}

/// A line of a table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TableError {
    pub line: usize,
    pub message: String,
}

/// Rules by the names of their checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// `None`: the operator has switched the rule off.
    rules: BTreeMap<String, Option<Rule>>,
}

/// More rules than anybody writes. It bounds the cost of a wrong file.
const RULES_MAX: usize = 1_000;

impl Table {
    /// The table this version was built with.
    pub fn standard() -> Self {
        Self::parse(include_str!("table.txt")).expect("a test reads it")
    }

    /// This table, with an operator's lines instead of its own lines of the same names.
    pub fn overridden(mut self, text: &str) -> Result<Self, TableError> {
        self.rules.extend(Self::parse(text)?.rules);
        Ok(self)
    }

    /// Reads a table. The error names the first line that cannot be read.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut rules = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = |message: String| TableError {
                line: at + 1,
                message,
            };
            let words: Vec<&str> = line
                .split('#')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .collect();
            let Some((name, rest)) = words.split_first() else {
                continue;
            };
            let rule = if rest == ["off"] {
                None
            } else {
                Some(rule(rest).map_err(wrong)?)
            };
            if rules.insert((*name).to_owned(), rule).is_some() {
                return Err(wrong(format!("{name} has a line already")));
            }
            if rules.len() > RULES_MAX {
                return Err(wrong(format!("more than {RULES_MAX} rules")));
            }
        }
        Ok(Self { rules })
    }

    /// The rule for a check. `None`: the check is unknown or switched off.
    pub fn rule(&self, check: &str) -> Option<&Rule> {
        self.rules.get(check)?.as_ref()
    }

    /// The most special rule for an XID, with its name: first the one with the word `fatal` or
    /// `nonfatal`, then the one without, then the one for any XID.
    pub fn xid(&self, code: u32, fatal: Option<bool>) -> Option<(String, &Rule)> {
        let word = match fatal {
            Some(true) => format!("xid:{code}:fatal"),
            Some(false) => format!("xid:{code}:nonfatal"),
            None => format!("xid:{code}"),
        };
        let named = [word, format!("xid:{code}"), "xid:*".to_owned()]
            .into_iter()
            .find(|name| self.rules.contains_key(name))?;
        self.rule(&named).map(|rule| (named.clone(), rule))
    }

    /// The names of all checks, also of those that are switched off.
    pub fn checks(&self) -> impl Iterator<Item = &str> {
        self.rules.keys().map(String::as_str)
    }
}

fn rule(words: &[&str]) -> Result<Rule, String> {
    let [severity, remedy, parameters @ ..] = words else {
        return Err("must read CHECK SEVERITY REMEDY [PARAMETER=VALUE ...], or CHECK off".into());
    };
    let mut rule = Rule {
        severity: severity.parse().map_err(|e: NoSuchWord| e.to_string())?,
        remedy: remedy.parse().map_err(|e: NoSuchWord| e.to_string())?,
        trigger: Trigger::Set,
        sustained: Duration::ZERO,
        holds: Holds::Live,
        whole_node: false,
    };
    let (mut per, mut bytes) = (None, None);
    for parameter in parameters {
        let (name, value) = parameter
            .split_once('=')
            .ok_or_else(|| format!("{parameter:?} is not PARAMETER=VALUE"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{name}={value}: not a number"))
        };
        let time = || period::parse(value).map_err(|e| format!("{name}={value}: {e}"));
        match name {
            "above" => rule.trigger = Trigger::Above(number()?),
            "below" => rule.trigger = Trigger::Below(number()?),
            "grew" => {
                rule.trigger = Trigger::Grew {
                    more_than: number()?,
                    per: None,
                }
            }
            "per" => per = Some(time()?),
            "bytes" => bytes = Some(number()?),
            "for" => rule.sustained = time()?,
            "hold" if value == "boot" => rule.holds = Holds::Boot,
            "hold" => rule.holds = Holds::For(time()?),
            "scope" if value == "node" => rule.whole_node = true,
            _ => {
                return Err(format!(
                    "{parameter:?}: known are above=, below=, bytes=, grew=, per=, for=, hold= and scope=node"
                ));
            }
        }
    }
    match (rule.trigger, bytes) {
        (Trigger::Below(percent), Some(bytes)) => rule.trigger = Trigger::Scarce { percent, bytes },
        (_, Some(_)) => return Err("bytes= belongs to below=".into()),
        (_, None) => {}
    }
    match (&mut rule.trigger, per) {
        (Trigger::Grew { per, .. }, given) => *per = given,
        (_, Some(_)) => return Err("per= belongs to grew=".into()),
        (_, None) => {}
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_table_is_well_formed_and_says_what_the_note_says() {
        let table = Table::standard();
        let severity = |check: &str| {
            table
                .rule(check)
                .unwrap_or_else(|| panic!("{check} has no rule"))
                .severity
        };
        for (check, expected) in [
            ("xid:13", Severity::Note),
            ("xid:48", Severity::FailNow),
            ("xid:63", Severity::Warn),
            ("xid:79", Severity::FailNow),
            ("xid:*", Severity::Drain),
            ("recovery-reset", Severity::FailNow),
            ("row-remap-pending", Severity::Drain),
            ("gpu-missing", Severity::Drain),
            ("nvml-hung", Severity::Drain),
            ("ecc-corrected", Severity::Warn),
        ] {
            assert_eq!(severity(check), expected, "{check}");
        }
        assert!(table.rule("xid:79").unwrap().whole_node);
    }

    #[test]
    fn the_most_special_rule_wins() {
        let table = Table::standard();
        let of = |code, fatal| {
            table
                .xid(code, fatal)
                .map(|(name, rule)| (name, rule.severity))
        };
        assert_eq!(
            of(145, Some(true)),
            Some(("xid:145:fatal".into(), Severity::FailNow))
        );
        assert_eq!(
            of(145, Some(false)),
            Some(("xid:145:nonfatal".into(), Severity::Warn))
        );
        assert_eq!(of(145, None), Some(("xid:145".into(), Severity::Drain)));
        assert_eq!(
            of(79, Some(true)),
            Some(("xid:79".into(), Severity::FailNow))
        );
        assert_eq!(of(999, None), Some(("xid:*".into(), Severity::Drain)));
    }

    #[test]
    fn an_operator_s_line_takes_the_place_of_ours() {
        let table = Table::standard()
            .overridden("xid:79 drain support\nxid:31 off  # we know\n")
            .unwrap();
        assert_eq!(table.xid(79, None).unwrap().1.severity, Severity::Drain);
        assert_eq!(table.xid(31, None), None, "off, and not the rule for any");
        assert!(table.rule("xid:48").is_some());
    }

    #[test]
    fn every_wrong_line_is_named() {
        for (text, error) in [
            (
                "a drain",
                "line 1: must read CHECK SEVERITY REMEDY [PARAMETER=VALUE ...], or CHECK off",
            ),
            (
                "\na bad none",
                "line 2: \"bad\" is none of note, warn, drain, fail_now",
            ),
            (
                "a warn magic",
                "line 1: \"magic\" is none of none, restart_app, gpu_reset, node_reboot, update_software, rma, support",
            ),
            ("a warn none above=x", "line 1: above=x: not a number"),
            ("a warn none per=5s", "line 1: per= belongs to grew="),
            (
                "a warn none size=3",
                "line 1: \"size=3\": known are above=, below=, bytes=, grew=, per=, for=, hold= and scope=node",
            ),
            (
                "a warn none above=5 bytes=5",
                "line 1: bytes= belongs to below=",
            ),
            ("a warn none\na warn none", "line 2: a has a line already"),
        ] {
            assert_eq!(Table::parse(text).unwrap_err().to_string(), error);
        }
    }
}
