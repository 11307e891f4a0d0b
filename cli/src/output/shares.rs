//! What queues, namespaces and their users have used of late: as a table and as documents.

use muster_proto::v1;
use serde::Serialize;

pub(crate) const HEADS: [&str; 5] = ["NAME", "USER", "WEIGHT", "GPU-HOURS", "PLACE"];

/// What one queue, namespace or user has used. It is also the form of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shown {
    #[serde(skip_serializing_if = "String::is_empty")]
    queue: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    /// None: all its users together. Empty: all those whose names nobody vouches for.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    weight: u32,
    /// Faded by the half-life.
    gpu_seconds: u64,
    /// From 1, among those that it is compared with.
    place: u32,
}

pub(crate) fn all(fair_share: &v1::FairShare) -> Vec<Shown> {
    let all = fair_share.shares.iter().map(|share| Shown {
        queue: share.queue.clone(),
        namespace: share.namespace.clone(),
        user: share.user.clone(),
        weight: share.weight,
        gpu_seconds: share.gpu_seconds,
        place: share.place,
    });
    all.collect()
}

impl Shown {
    /// The cells below [`HEADS`].
    pub(crate) fn row(&self) -> Vec<String> {
        let user = match self.user.as_deref() {
            None => "-",
            Some("") => "(others)",
            Some(user) => user,
        };
        let hours = self.gpu_seconds as f64 / 3_600.0;
        vec![
            format!("{}{}", self.queue, self.namespace),
            user.to_owned(),
            self.weight.to_string(),
            format!("{hours:.1}"),
            self.place.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::table::Table;

    #[test]
    fn users_stand_behind_their_namespace() {
        let share = |user: Option<&str>, gpu_seconds, place| v1::Share {
            namespace: "vision".into(),
            user: user.map(str::to_owned),
            gpu_seconds,
            weight: 1,
            place,
            ..v1::Share::default()
        };
        let shares = vec![
            share(None, 7_200, 2),
            share(Some(""), 0, 1),
            share(Some("ann"), 7_200, 2),
        ];
        let shown = all(&v1::FairShare { shares });
        let rows: Vec<Vec<String>> = shown.iter().map(Shown::row).collect();
        assert_eq!(
            Table::new(HEADS.to_vec()).render(&rows, true),
            "\
NAME     USER       WEIGHT   GPU-HOURS   PLACE
vision   -          1        2.0         2
vision   (others)   1        0.0         1
vision   ann        1        2.0         2
"
        );
        let json = serde_json::to_value(&shown[1]).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"namespace": "vision", "user": "", "weight": 1, "gpuSeconds": 0, "place": 1})
        );
    }
}
