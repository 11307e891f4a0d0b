//! What the failures of a role mean, in the order in which the operator asks: its fault-tolerant entries,
//! then its policy.

use muster_core::spec::{RESTARTS_MAX, RuleDocument};

use super::{Role, Whole};
use crate::{
    fields::{Object, Rule, Rules},
    roles::{self, Ends, Policy},
    tree::Field,
    verdict::Verdicts,
};

const FAULT: Rules = &[
    ("exitCodes", Rule::Read),
    ("exceptionalEvent", Rule::Read),
    (
        "restartPolicy",
        Rule::Note("is so: what an entry names is survived"),
    ),
    ("restartScope", Rule::Read),
];

/// What a fault-tolerant entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Exit,
    /// The loss of a node.
    Event,
}

/// The caller's way to hear the `restartScope` of each entry, which may have none.
pub(super) type Scope<'s, 't> = &'s mut dyn FnMut(Option<&Field<'t>>, Fault, &mut Verdicts);

/// Exit codes.
pub(super) struct Codes<'t> {
    text: String,
    pub(super) at: Field<'t>,
    /// One with which no process ends. A public file has 10001.
    never: Option<String>,
}

impl Codes<'_> {
    fn taken(&self, log: &mut Verdicts) {
        match &self.never {
            Some(code) => log.warn(
                &self.at,
                format!("has {code}, and no process ends with a code above 255; the others are part of spec.rules"),
            ),
            None => log.taken(&self.at, "part of spec.rules"),
        }
    }
}

/// Exit codes as the kind lists them. What core says against them is said at the field.
pub(super) fn codes<'t>(field: Option<&Field<'t>>, log: &mut Verdicts) -> Option<Codes<'t>> {
    let at = field?.clone();
    let text = at.text(log).filter(|text| !text.trim().is_empty())?;
    let never = |part: &&str| part.trim().parse().is_ok_and(|code: u32| code > 255);
    let (never, others): (Vec<&str>, Vec<&str>) = text.split(',').partition(never);
    let text = match others.is_empty() {
        true => text.to_owned(),
        false => others.join(","),
    };
    let never = never.first().map(|code| code.trim().to_owned());
    match RuleDocument::read(&format!("exit codes {text}: restart")).map(|rule| rule.verify()) {
        Ok(Ok(())) => Some(Codes { text, at, never }),
        Ok(Err(why)) | Err(why) => {
            log.refuse(&at, why);
            None
        }
    }
}

/// Whether the role's own policy restarts anything.
pub(super) fn restarts(role: &Role<'_>, whole: &Whole<'_>) -> bool {
    match role.policy {
        Some((Policy::OnFailure | Policy::Always, _)) => true,
        _ => is_retried(role) && whole.retried.is_some(),
    }
}

/// Whether the job's `restartingExitCode` is about this role.
fn is_retried(role: &Role<'_>) -> bool {
    matches!(role.policy, Some((Policy::ExitCode, _)))
}

/// The verdict about `restartingExitCode`, for a job whose failures are judged by these roles.
pub(super) fn say_retried(whole: &Whole<'_>, roles: &[&Role<'_>], log: &mut Verdicts) {
    match &whole.retried {
        Some(codes) if roles.iter().any(|role| is_retried(role)) => codes.taken(log),
        Some(codes) => log.note(&codes.at, "is not used, as upstream: no role has ExitCode"),
        None => {}
    }
}

/// What the failures of this role mean for the job.
pub(super) fn of<'t>(
    role: &Role<'t>,
    whole: &Whole<'_>,
    scope: Scope<'_, 't>,
    log: &mut Verdicts,
) -> Ends {
    let limit = role.limit.as_ref().map(|(_, limit)| *limit);
    let mut rules = Vec::new();
    // No restart at all needs no rule.
    let mut retry = |codes: &str| {
        if limit != Some(0) {
            rules.push(RuleDocument {
                codes: Some(codes.to_owned()),
                ..roles::restart("exit", limit.or(Some(RESTARTS_MAX)))
            });
        }
    };
    for codes in faults(role, whole, scope, log) {
        codes.taken(log);
        retry(&codes.text);
    }
    let policy = role.policy.as_ref().map(|(policy, _)| *policy);
    if let Some(codes) = whole.retried.as_ref().filter(|_| is_retried(role)) {
        retry(&codes.text);
    }
    if let Some((policy, at)) = &role.policy {
        match policy {
            Policy::OnFailure => log.taken(at, "spec.restartPolicy, or part of spec.rules"),
            Policy::Always => log.warn(at, "restarts after failures only, not after success"),
            Policy::Never | Policy::ExitCode => log.taken(
                at,
                "part of spec.rules; a node that is lost is replaced all the same",
            ),
        }
    }
    if let Some((at, _)) = &role.limit {
        match (policy, &rules[..]) {
            (Some(Policy::OnFailure | Policy::Always), _) | (_, [_, ..]) => log.taken(
                at,
                "part of spec.restartPolicy.maxRestarts, or the limit of spec.rules",
            ),
            _ => log.note(at, "is not used: no failure of the role is survived"),
        }
    }
    let of_failures = match policy.unwrap_or(Policy::Never) {
        Policy::OnFailure | Policy::Always => Some(roles::in_all(limit.unwrap_or(RESTARTS_MAX))),
        Policy::Never | Policy::ExitCode => {
            rules.push(roles::failure_is_final());
            None
        }
    };
    Ends {
        policy: of_failures,
        rules,
    }
}

/// The exit codes of all fault-tolerant entries, if they count. The caller gives them their verdict.
pub(super) fn faults<'t>(
    role: &Role<'t>,
    whole: &Whole<'_>,
    scope: Scope<'_, 't>,
    log: &mut Verdicts,
) -> Vec<Codes<'t>> {
    let Some(field) = role.spec.get("faultTolerantPolicy") else {
        return Vec::new();
    };
    if !whole.is_tolerant() {
        log.note(field, "is not used, as upstream: faultTolerant is not true");
        return Vec::new();
    }
    let mut found = Vec::new();
    for entry in field.items(log) {
        let entry = Object::walk(&entry, FAULT, log);
        let codes = codes(entry.get("exitCodes"), log);
        let fault = match &codes {
            Some(_) => Fault::Exit,
            None => Fault::Event,
        };
        found.extend(codes);
        let own = entry.get("restartScope").filter(|at| !at.is_bare());
        scope(own, fault, log);
        let Some((at, events)) = entry.text("exceptionalEvent", log) else {
            continue;
        };
        let known = |event: &str| matches!(event.trim(), "nodeNotReady" | "PodForceDeleted");
        match events.split(',').find(|event| !known(event)) {
            None => log.note(at, "is so: Muster survives the loss of a node"),
            Some(event) => log.refuse(
                at,
                format!("has {event:?}, and nodeNotReady and PodForceDeleted are known"),
            ),
        }
    }
    found
}
