//! What reports carry for display to users only. No rule reads it.

use serde::{Deserialize, Serialize};

/// How a node starts a run's workers and why, and what it keeps ready for the job's next
/// generation. For display to users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneReport {
    /// Empty: not decided yet.
    pub name: String,
    pub reason: String,
    /// Memory of the launcher that waits, in bytes. 0: there is none, or its size is not known yet.
    /// Records of 2026-11-22 and before have the older name.
    #[serde(default, alias = "spareBytes")]
    pub launcher_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::LaneReport;

    #[test]
    fn a_record_with_the_older_name_is_read() {
        let old = r#"{"name":"fork","reason":"asked for","spareBytes":7}"#;
        let lane: LaneReport = serde_json::from_str(old).unwrap();
        assert_eq!(lane.launcher_bytes, 7);
    }
}
