//! Numbers and enumerations as text: ages, times, sizes, phases. The command line uses the same words.

use muster_proto::v1::{JobPhase, NodeState, Space};

/// The time from `from` to `to` (microseconds) as kubectl writes ages: with a second unit as long
/// as that matters.
pub fn age(from: u64, to: u64) -> String {
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

/// `431ms`, `51.2s`, `12m30s`, `31h`: as ages are written, and finer below two minutes.
pub fn span(us: u64) -> String {
    match us {
        0..1_000_000 => format!("{}ms", us / 1_000),
        1_000_000..120_000_000 => format!("{}.{}s", us / 1_000_000, us / 100_000 % 10),
        _ => age(1, us.saturating_add(1)),
    }
}

/// `97.2 %`, and `100.0 %` only if nothing is missing.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", (part * 1_000.0).floor() / 10.0)
}

/// RFC 3339 in UTC, to the second as Kubernetes writes creation times.
pub fn utc_seconds(unix_us: u64) -> String {
    utc(unix_us - unix_us % 1_000_000)
}

/// RFC 3339 in UTC, to the microsecond.
pub fn utc(unix_us: u64) -> String {
    let known = i64::try_from(unix_us)
        .ok()
        .and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    known.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

pub fn phase(phase: i32) -> &'static str {
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

pub fn node_state(state: i32) -> &'static str {
    match NodeState::try_from(state).unwrap_or_default() {
        NodeState::Unspecified | NodeState::Unknown => "Unknown",
        NodeState::Ready => "Ready",
        NodeState::Suspect => "Suspect",
        NodeState::Lost => "Lost",
    }
}

/// `1 node`, `3 nodes`, `2 processes`.
pub fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ if one.ends_with('s') => format!("{number} {one}es"),
        _ => format!("{number} {one}s"),
    }
}

/// What is not known is a dash, never 0.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// `1.5`: thousandths of CPUs.
pub fn cpus(milli: u64) -> String {
    format!("{:.1}", milli as f64 / 1_000.0)
}

/// What is in use of it.
pub fn in_use(space: &Space) -> u64 {
    space.total.saturating_sub(space.available)
}

/// `7.8 GiB`.
pub fn bytes(bytes: u64) -> String {
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

/// A text as a value in the query of an address (RFC 3986).
pub(crate) fn in_query(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte.into());
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_text_in_a_query_is_one_value() {
        assert_eq!(in_query("a&b=c d/ä"), "a%26b%3Dc%20d%2F%C3%A4");
    }
}
