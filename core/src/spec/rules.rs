//! The `rules` of a job: what an end of a rank, the loss of a node, or a deadline means for the job.
//!
//! A document says them as words; [`SpecDocument::check`] turns them into values and refuses those
//! that can mean nothing. The decision itself is made in `fleet`. The first rule that matches decides;
//! what none matches goes the usual way.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    CODES_BYTES_MAX, Errors, RESTARTS_MAX, RULE_LIMIT_IN_WINDOW_MAX, RULES_MAX, Role, SIGNALS_MAX,
    SpecDocument,
};
use crate::{
    exit::{self, Exit},
    period::{self, optional_period},
};

mod text;

/// The words of `when`.
pub const WHEN: [&str; 7] = [
    "exit", "signal", "failure", "success", "nodeLost", "evicted", "deadline",
];

/// One rule as somebody wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleDocument {
    #[serde(default)]
    pub when: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    #[serde(default)]
    pub then: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}

/// One checked rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    pub when: When,
    /// The role that must have a part in it. `None`: any, also a job without roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    pub then: Then,
    /// The restarts that it allows. `None`: they are charged to the job's `restartPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RuleBudget>,
}

/// What a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum When {
    /// The rank that failed first ended with one of these codes.
    Exit(Codes),
    /// The rank that failed first was ended by one of these signals. None are named: by any.
    Signal(Vec<i32>),
    /// A failure that is charged to the job.
    Failure,
    /// All ranks of a member ended well.
    Success(Of),
    /// The fault of a node ended a generation.
    NodeLost,
    /// What ran on a node was ended, or is moved away, because the node is taken away.
    Evicted,
    /// The job has had the time of its `activeDeadlineSeconds`.
    Deadline,
}

/// Whose success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Of {
    #[default]
    Any,
    /// Of the member with node rank 0, or of the first member of the rule's role.
    First,
    /// Of all members, or of all of the rule's role.
    All,
}

impl Of {
    pub const ALL: [(&str, Of); 3] = [("any", Of::Any), ("first", Of::First), ("all", Of::All)];

    pub fn name(self) -> &'static str {
        word(self, &Self::ALL)
    }
}

/// What becomes of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Then {
    #[default]
    Restart,
    Fail,
    Succeed,
    /// The usual, and no later rule is asked.
    Ignore,
}

impl Then {
    pub const ALL: [(&str, Then); 4] = [
        ("restart", Then::Restart),
        ("fail", Then::Fail),
        ("succeed", Then::Succeed),
        ("ignore", Then::Ignore),
    ];

    pub fn name(self) -> &'static str {
        word(self, &Self::ALL)
    }
}

fn word<T: Copy + PartialEq>(value: T, words: &[(&'static str, T)]) -> &'static str {
    let found = words.iter().find(|(_, known)| *known == value);
    found.map_or("", |(word, _)| word)
}

/// How many restarts a rule allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleBudget {
    pub limit: u32,
    /// `None`: in the whole life of the job.
    #[serde(
        default,
        with = "optional_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub within: Option<Duration>,
}

/// Exit codes, as ranges that do not touch each other, the lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Codes(Vec<(u8, u8)>);

impl Codes {
    /// Reads `1-127,130`.
    fn read(text: &str) -> Result<Self, String> {
        let code = |text: &str| match text.trim().parse::<u32>() {
            Ok(0) => Err("names 0, which is no failure; use when: success".to_owned()),
            Ok(code @ 1..=255) => Ok(code as u8),
            _ => Err(format!(
                "is {text:?}, must be codes from 1 to 255, as \"3\" or \"1-127,130\""
            )),
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (code(low)?, code(high)?);
            if low > high {
                return Err(format!("has the range {low}-{high}, which is empty"));
            }
            ranges.push((low, high));
        }
        ranges.sort_unstable();
        let mut codes: Vec<(u8, u8)> = Vec::new();
        for (low, high) in ranges {
            match codes.last_mut() {
                Some((_, last)) if low <= last.saturating_add(1) => *last = high.max(*last),
                _ => codes.push((low, high)),
            }
        }
        Ok(Self(codes))
    }

    fn has(&self, code: i32) -> bool {
        let mut ranges = self.0.iter();
        ranges.any(|(low, high)| (i32::from(*low)..=i32::from(*high)).contains(&code))
    }
}

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (low, high)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match low == high {
                true => write!(f, "{comma}{low}")?,
                false => write!(f, "{comma}{low}-{high}")?,
            }
        }
        Ok(())
    }
}

impl When {
    /// Whether a failure of the job whose first rank ended like this is meant. `None`: no rank of the
    /// job failed first.
    pub(crate) fn is_failure(&self, exit: Option<Exit>) -> bool {
        match (self, exit) {
            (When::Failure, _) => true,
            (When::Exit(codes), Some(exit)) => codes.has(exit.code()),
            (When::Signal(signals), Some(Exit::Signal(signal))) => {
                signals.is_empty() || signals.contains(&signal)
            }
            _ => false,
        }
    }

    fn name(&self) -> &'static str {
        let index = match self {
            When::Exit(_) => 0,
            When::Signal(_) => 1,
            When::Failure => 2,
            When::Success(_) => 3,
            When::NodeLost => 4,
            When::Evicted => 5,
            When::Deadline => 6,
        };
        WHEN[index]
    }

    /// Whether nothing that the other matches is left after this one.
    fn covers(&self, other: &When) -> bool {
        match (self, other) {
            (When::Failure, When::Failure | When::Exit(_) | When::Signal(_)) => true,
            (When::Exit(ours), When::Exit(theirs)) => {
                let mut codes = theirs.0.iter().flat_map(|(low, high)| *low..=*high);
                codes.all(|code| ours.has(code.into()))
            }
            (When::Signal(ours), When::Signal(theirs)) => {
                let named = |signal| ours.contains(signal);
                ours.is_empty() || (!theirs.is_empty() && theirs.iter().all(named))
            }
            (When::Success(ours), When::Success(theirs)) => *ours == Of::Any || ours == theirs,
            (When::NodeLost, When::NodeLost)
            | (When::Evicted, When::Evicted)
            | (When::Deadline, When::Deadline) => true,
            _ => false,
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Exit(codes) => write!(f, "exit codes {codes}"),
            When::Signal(signals) if signals.is_empty() => f.write_str("any signal"),
            When::Signal(signals) => {
                let names: Vec<String> = signals.iter().map(|n| exit::signal_text(*n)).collect();
                write!(f, "signal {}", names.join(", "))
            }
            When::Success(of) => write!(f, "success of {}", of.name()),
            other => f.write_str(other.name()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.when.fmt(f)?;
        if let Some(role) = &self.role {
            write!(f, " in role {role}")?;
        }
        write!(f, ": {}", self.then.name())?;
        match &self.budget {
            None => Ok(()),
            Some(RuleBudget {
                limit,
                within: Some(within),
            }) => write!(f, ", at most {limit} in {}", period::format(*within)),
            Some(RuleBudget { limit, .. }) => write!(f, ", at most {limit}"),
        }
    }
}

impl Rule {
    /// Whether one of these roles is the rule's.
    pub(crate) fn is_about(&self, roles: &[&str]) -> bool {
        let role = self.role.as_deref();
        role.is_none_or(|role| roles.contains(&role))
    }

    /// Whether nothing that the other matches is left after this one.
    fn covers(&self, other: &Rule) -> bool {
        match (&self.role, &other.role) {
            (None, Some(_)) => match (&self.when, &other.when) {
                // The first of a role is not the first of all.
                (When::Success(of), When::Success(_)) => *of == Of::Any,
                (ours, theirs) => ours.covers(theirs),
            },
            (ours, theirs) => ours == theirs && self.when.covers(&other.when),
        }
    }

    /// How people are told of it: `rule 2 (exit codes 1-127: fail)`. Rules are counted from 1.
    pub fn named(&self, index: usize) -> String {
        format!("rule {} ({self})", index + 1)
    }

    /// The rule as a document again. Checking that gives the same rule.
    pub fn document(&self) -> RuleDocument {
        let mut document = RuleDocument {
            when: self.when.name().into(),
            role: self.role.clone(),
            then: self.then.name().into(),
            limit: self.budget.as_ref().map(|budget| budget.limit.into()),
            within: (self.budget.as_ref())
                .and_then(|budget| budget.within)
                .map(period::format),
            ..RuleDocument::default()
        };
        match &self.when {
            When::Exit(codes) => document.codes = Some(codes.to_string()),
            When::Signal(signals) => {
                document.signals = signals.iter().map(|n| exit::signal_text(*n)).collect();
            }
            When::Success(of) => document.of = Some(of.name().into()),
            _ => {}
        }
        document
    }
}

impl SpecDocument {
    pub(super) fn check_rules(&self, roles: &[Role], errors: &mut Errors) -> Vec<Rule> {
        if self.rules.len() > RULES_MAX {
            errors.add(
                "spec.rules",
                format!(
                    "has {} items, at most {RULES_MAX} are allowed",
                    self.rules.len()
                ),
            );
            return Vec::new();
        }
        let mut rules: Vec<(usize, Rule)> = Vec::new();
        for (i, document) in self.rules.iter().enumerate() {
            let path = format!("spec.rules[{i}]");
            let Some(rule) = document.check(&path, errors) else {
                continue;
            };
            if rule.when == When::Deadline && self.active_deadline_seconds.is_none() {
                errors.add(
                    format!("{path}.when"),
                    "is deadline, and the job has no activeDeadlineSeconds",
                );
            }
            // Roles that were refused have no names.
            let known = roles.len() == self.roles.len();
            if let Some(why) = rule.role_error(roles).filter(|_| known) {
                errors.add(format!("{path}.role"), why);
            }
            let mut before = rules.iter();
            if let Some((first, _)) = before.find(|(_, before)| before.covers(&rule)) {
                errors.add(
                    &path,
                    format!("never decides: spec.rules[{first}] matches all that it matches"),
                );
            }
            rules.push((i, rule));
        }
        rules.into_iter().map(|(_, rule)| rule).collect()
    }
}

impl Rule {
    /// Why the rule can mean none of the job's roles, if that is so.
    fn role_error(&self, roles: &[Role]) -> Option<String> {
        let name = self.role.as_deref()?;
        let Some(role) = roles.iter().find(|role| role.name == name) else {
            let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
            return Some(match names.is_empty() {
                true => format!("is {name:?}, and the job has no roles"),
                false => format!("is {name:?}, must be one of {}", names.join(", ")),
            });
        };
        let never = role.service && matches!(self.when, When::Success(_));
        never.then(|| format!("is {name:?}, a service, which never ends well by itself"))
    }
}

impl RuleDocument {
    /// What is wrong with the rule alone.
    pub fn verify(&self) -> Result<(), String> {
        let mut errors = Errors::default();
        self.check("", &mut errors);
        match errors.0.into_iter().next() {
            None => Ok(()),
            Some(error) => Err(error.message),
        }
    }

    fn check(&self, path: &str, errors: &mut Errors) -> Option<Rule> {
        let before = errors.0.len();
        let when = self.check_when(path, errors);
        let then = match self.then.as_str() {
            "" => {
                errors.add(format!("{path}.then"), "is missing");
                Then::default()
            }
            then => errors.one_of(&format!("{path}.then"), Some(then), &Then::ALL),
        };
        let budget = self.check_budget(path, errors);
        let when = when.filter(|_| errors.0.len() == before)?;
        let refuse = match (&when, then, &budget) {
            (When::Success(_), Then::Restart, _) => Some((
                "then",
                "is restart, and ranks that ended well are not started again",
            )),
            (When::Success(_), Then::Fail, _) => {
                Some(("then", "is fail, and a success fails no job"))
            }
            (When::Deadline, _, _) if self.role.is_some() => Some((
                "role",
                "belongs to the end of a member; a deadline ends the whole job",
            )),
            (When::Success(Of::All), Then::Ignore, _) if self.role.is_none() => Some((
                "then",
                "is ignore, and a job whose ranks have all ended well is over",
            )),
            (When::Exit(_) | When::Signal(_) | When::Failure, Then::Ignore, _) => Some((
                "then",
                "is ignore, and a world whose rank has failed cannot go on; use restart",
            )),
            (When::Failure, Then::Succeed, _) => Some((
                "then",
                "is succeed, and then no failure would ever be one; name exit codes or signals",
            )),
            (When::NodeLost | When::Evicted, Then::Succeed, _) => {
                Some(("then", "is succeed, and the loss of a node is no success"))
            }
            (When::Deadline, Then::Restart | Then::Ignore, _) => Some((
                "then",
                "must be fail or succeed: a deadline that ends nothing is none; leave out activeDeadlineSeconds",
            )),
            (_, Then::Fail | Then::Succeed | Then::Ignore, Some(_)) => {
                Some(("limit", "belongs to then: restart"))
            }
            (When::NodeLost | When::Evicted, Then::Restart, Some(_)) => {
                Some(("limit", "counts failures of the job, never those of nodes"))
            }
            _ => None,
        };
        if let Some((field, message)) = refuse {
            errors.add(format!("{path}.{field}"), message);
            return None;
        }
        Some(Rule {
            when,
            role: self.role.clone(),
            then,
            budget,
        })
    }

    fn check_when(&self, path: &str, errors: &mut Errors) -> Option<When> {
        let word = self.when.as_str();
        if word.is_empty() {
            errors.add(format!("{path}.when"), "is missing");
            return None;
        }
        if !WHEN.contains(&word) {
            errors.add(
                format!("{path}.when"),
                format!("is {word:?}, must be one of {}", WHEN.join(", ")),
            );
            return None;
        }
        for (field, given, of) in [
            ("codes", self.codes.is_some(), "exit"),
            ("signals", !self.signals.is_empty(), "signal"),
            ("of", self.of.is_some(), "success"),
        ] {
            if given && word != of {
                errors.add(format!("{path}.{field}"), format!("belongs to when: {of}"));
            }
        }
        Some(match word {
            "exit" => When::Exit(self.check_codes(path, errors)?),
            "signal" => When::Signal(self.check_signals(path, errors)),
            "failure" => When::Failure,
            "success" => {
                let of = errors.one_of(&format!("{path}.of"), self.of.as_deref(), &Of::ALL);
                When::Success(of)
            }
            "nodeLost" => When::NodeLost,
            "evicted" => When::Evicted,
            _ => When::Deadline,
        })
    }

    fn check_codes(&self, path: &str, errors: &mut Errors) -> Option<Codes> {
        let read = match &self.codes {
            None => Err("is missing: name the exit codes, as \"3\" or \"1-127,130\"".to_owned()),
            Some(text) if text.len() > CODES_BYTES_MAX => Err(format!(
                "is {} bytes long, at most {CODES_BYTES_MAX} are allowed",
                text.len()
            )),
            Some(text) => Codes::read(text),
        };
        read.map_err(|message| errors.add(format!("{path}.codes"), message))
            .ok()
    }

    fn check_signals(&self, path: &str, errors: &mut Errors) -> Vec<i32> {
        if self.signals.len() > SIGNALS_MAX {
            errors.add(
                format!("{path}.signals"),
                format!(
                    "has {} items, at most {SIGNALS_MAX} are allowed",
                    self.signals.len()
                ),
            );
            return Vec::new();
        }
        let mut signals: Vec<i32> = Vec::new();
        for (i, text) in self.signals.iter().enumerate() {
            match exit::signal_number(text) {
                Some(signal) => signals.push(signal),
                None => errors.add(
                    format!("{path}.signals[{i}]"),
                    format!(
                        "is {text:?}, must be a signal, as SIGUSR1, or its number from 1 to 64"
                    ),
                ),
            }
        }
        signals.sort_unstable();
        signals.dedup();
        signals
    }

    fn check_budget(&self, path: &str, errors: &mut Errors) -> Option<RuleBudget> {
        let Some(limit) = self.limit else {
            if self.within.is_some() {
                errors.add(
                    format!("{path}.within"),
                    "is the window of a limit, and there is none",
                );
            }
            return None;
        };
        if limit == 0 {
            errors.add(
                format!("{path}.limit"),
                "is 0, which allows no restart; use then: fail",
            );
            return None;
        }
        let most = match self.within {
            None => RESTARTS_MAX,
            Some(_) => RULE_LIMIT_IN_WINDOW_MAX,
        };
        Some(RuleBudget {
            limit: errors.number(&format!("{path}.limit"), limit, 1, most) as u32,
            within: self.within.as_deref().map(|text| {
                errors.period(
                    &format!("{path}.within"),
                    Some(text),
                    Duration::from_secs(1),
                    Duration::from_secs(1),
                    period::LONGEST,
                )
            }),
        })
    }
}

#[cfg(test)]
mod tests;
