//! The text form of numbers and enumerations: ages, times, phases.

use muster_core::spec::{RoleDocument, SpecDocument};
use muster_proto::v1::{JobPhase, NodeState, Trial};

use super::table::plain;

/// The time from `from` to `to` (microseconds) as kubectl writes ages: with a second unit as long
/// as that matters.
pub(crate) fn age(from: u64, to: u64) -> String {
    if from == 0 {
        return "-".into();
    }
    let seconds = to.saturating_sub(from) / 1_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |big: u64, big_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{big_unit}"),
        _ => format!("{big}{big_unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
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

/// RFC 3339 in UTC, to the second as Kubernetes writes creation times.
pub(crate) fn utc_seconds(unix_us: u64) -> String {
    utc(unix_us - unix_us % 1_000_000)
}

/// RFC 3339 in UTC, to the microsecond.
pub(crate) fn utc(unix_us: u64) -> String {
    let known = i64::try_from(unix_us)
        .ok()
        .and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    known.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

pub(crate) fn phase(phase: i32) -> &'static str {
    match JobPhase::try_from(phase).unwrap_or_default() {
        JobPhase::Unspecified => "Unknown",
        JobPhase::Pending => "Pending",
        JobPhase::Forming => "Forming",
        JobPhase::Running => "Running",
        JobPhase::Recovering => "Recovering",
        JobPhase::Stopping => "Stopping",
        JobPhase::Succeeded => "Succeeded",
        JobPhase::Failed => "Failed",
        JobPhase::Cancelled => "Cancelled",
    }
}

pub(crate) fn node_state(state: i32) -> &'static str {
    match NodeState::try_from(state).unwrap_or_default() {
        NodeState::Unspecified | NodeState::Unknown => "Unknown",
        NodeState::Ready => "Ready",
        NodeState::Suspect => "Suspect",
        NodeState::Lost => "Lost",
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

/// `3`, or `2-8`.
pub(crate) fn range(min: i64, max: i64) -> String {
    if min == max {
        min.to_string()
    } else {
        format!("{min}-{max}")
    }
}

/// `1 node`, `3 nodes`, `2 processes`.
pub(crate) fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ if one.ends_with('s') => format!("{number} {one}es"),
        _ => format!("{number} {one}s"),
    }
}

/// `7.8 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{size:.1} {}", UNITS[unit])
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

    #[test]
    fn ages_read_like_kubectl_s() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(5_000_000, 5_000_000 + seconds * 1_000_000), text);
        }
        assert_eq!(age(9_000_000, 5_000_000), "0s", "clocks may differ");
        assert_eq!(age(0, 5), "-", "not known");
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(utc(1_795_260_928_123_456), "2026-11-21T11:35:28.123456Z");
        assert_eq!(utc_seconds(1_795_260_928_123_456), "2026-11-21T11:35:28Z");
        assert_eq!(utc(u64::MAX), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(8 << 30), "8.0 GiB");
    }
}
