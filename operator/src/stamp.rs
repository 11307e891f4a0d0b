//! Times as Kubernetes writes them.

use muster_core::time::Timestamp;

/// As Kubernetes writes times: whole seconds, UTC (RFC 3339).
pub(super) fn time(at: Timestamp) -> String {
    stamp(at, "%Y-%m-%dT%H:%M:%SZ")
}

/// The same with microseconds, as Events have it.
pub(super) fn precise_time(at: Timestamp) -> String {
    stamp(at, "%Y-%m-%dT%H:%M:%S%.6fZ")
}

fn stamp(at: Timestamp, form: &str) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    let known = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    known.strftime(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_kubernetes_writes_them() {
        let at = Timestamp(1_795_000_000_123_456);
        assert_eq!(time(at), "2026-11-18T11:06:40Z");
        assert_eq!(precise_time(at), "2026-11-18T11:06:40.123456Z");
    }
}
