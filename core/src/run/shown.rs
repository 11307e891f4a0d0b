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

/// What else a rank's output says about its steps. For display to users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepsShown {
    /// The step at which training ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The newest loss, as it was printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The newest speed, as it was printed, with its unit: `9.84 it/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// The name of the format that found the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// About how many lines were read, as long as none of them had a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stepless_lines: Option<u64>,
}

impl StepsShown {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
