//! The text form of numbers and enumerations: ages, times, phases.

use muster_core::spec::{RoleDocument, SpecDocument};
pub(crate) use muster_page::words::{
    age, bytes, count, cpus, in_use, node_state, or_dash, percent, phase, span, utc, utc_seconds,
};
use muster_proto::v1::{Taint, Trial};

use super::table::plain;

/// `dedicated=team-a:NoSchedule`
pub(crate) fn taint(taint: &Taint) -> String {
    let Taint { key, value, effect } = taint;
    let equals = if value.is_empty() { "" } else { "=" };
    format!("{key}{equals}{value}:{effect}")
}

/// What a node has found out about an interpreter.
pub(crate) fn trial(trial: &Trial) -> String {
    let Trial {
        program,
        torch,
        python,
        at_unix_us,
        differs,
        ..
    } = trial;
    let pair = format!("torch {torch}, Python {python} ({program})");
    let at = utc_seconds(*at_unix_us);
    match differs.first() {
        None => format!("{pair}: proven by this node at {at}"),
        Some(first) => format!(
            "{pair}: not proven, tried by this node at {at}: {}",
            plain(first.lines().next().unwrap_or_default())
        ),
    }
}

/// The least and the most nodes that a job may have.
pub(crate) fn bounds(spec: &SpecDocument) -> (i64, i64) {
    if spec.roles.is_empty() {
        let min = spec.min_replicas.or(spec.replicas).unwrap_or(1);
        return (min, spec.max_replicas.or(spec.replicas).unwrap_or(min));
    }
    let nodes = |role: &RoleDocument| role.replicas.unwrap_or(1);
    let least = |role: &RoleDocument| role.min_replicas.unwrap_or(nodes(role));
    let most = |role: &RoleDocument| role.max_replicas.unwrap_or(nodes(role));
    (
        spec.roles.iter().map(least).sum(),
        spec.roles.iter().map(most).sum(),
    )
}

/// Of what the number of nodes is a multiple. Empty: any number will do.
pub(crate) fn multiple_of(spec: &SpecDocument) -> String {
    let roles = spec.roles.iter();
    let roles = roles.filter_map(|role| Some(format!("{} ({})", role.multiple_of?, role.name)));
    let top = spec.multiple_of.map(|multiple| multiple.to_string());
    top.into_iter().chain(roles).collect::<Vec<_>>().join(", ")
}

/// `3`, or `2-8`.
pub(crate) fn range(min: i64, max: i64) -> String {
    if min == max {
        min.to_string()
    } else {
        format!("{min}-{max}")
    }
}

/// Quotes a word as a shell needs it, so that the command can be copied.
pub(crate) fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_says_its_outcome_in_one_line() {
        let mut one = Trial {
            program: "/opt/venv/bin/python".into(),
            torch: "2.8.0+cu128".into(),
            python: "3.12".into(),
            at_unix_us: 1_795_260_928_000_000,
            ..Trial::default()
        };
        let pair = "torch 2.8.0+cu128, Python 3.12 (/opt/venv/bin/python)";
        assert_eq!(
            trial(&one),
            format!("{pair}: proven by this node at 2026-11-21T11:35:28Z")
        );
        one.differs = vec!["start.py: fork, rank 0: umask: 0 instead of 18\nmore".into()];
        assert_eq!(
            trial(&one),
            format!(
                "{pair}: not proven, tried by this node at 2026-11-21T11:35:28Z: start.py: fork, rank 0: umask: 0 instead of 18"
            )
        );
    }
}
