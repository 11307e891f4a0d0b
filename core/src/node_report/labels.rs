//! The labels of a node's Kubernetes Node object.
//!
//! Only the coordinator reads Node objects, because agents have no rights there. It adds the labels
//! to a report when the report arrives, and sends the agent those that its workers get to see. They
//! never replace the node's own labels: what a person configured on the machine wins.

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::id::node_name_error;

/// Kubernetes nodes carry a few dozen labels. A thousand of the longest ones take less than 400
/// KiB.
pub const LABELS_MAX: usize = 1_000;
/// Bytes of a Kubernetes label key: a prefix of 253, a slash and a name of 63.
pub const LABEL_KEY_MAX: usize = 253 + 1 + 63;
pub const LABEL_VALUE_MAX: usize = 63;

/// Shared, because reports and views are copied, and a node's 30 labels take some 5 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Labels(Arc<BTreeMap<String, String>>);

impl Labels {
    /// Keeps only valid labels, and a bounded number of them. An API server has checked them; this
    /// only keeps a broken one from exhausting the fleet.
    pub fn bounded(labels: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_label = |(key, value): &(String, String)| {
            (1..=LABEL_KEY_MAX).contains(&key.len()) && value.len() <= LABEL_VALUE_MAX
        };
        labels
            .into_iter()
            .filter(is_label)
            .take(LABELS_MAX)
            .collect::<BTreeMap<_, _>>()
            .into()
    }
}

impl Deref for Labels {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<BTreeMap<String, String>> for Labels {
    fn from(labels: BTreeMap<String, String>) -> Self {
        Self(labels.into())
    }
}

impl From<Labels> for BTreeMap<String, String> {
    fn from(labels: Labels) -> Self {
        Arc::unwrap_or_clone(labels.0)
    }
}

/// Why a text is not the key of a label (Kubernetes: a name of at most 63 characters, and before it a DNS name and a slash,
/// if it is somebody's). `None`: it is one.
pub fn label_key_error(key: &str) -> Option<String> {
    let (prefix, name) = match key.rsplit_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if key.len() > LABEL_KEY_MAX {
        return Some(format!("longer than {LABEL_KEY_MAX} bytes"));
    }
    if name.is_empty() {
        return Some("it has no name".into());
    }
    let of_prefix = prefix.and_then(node_name_error);
    of_prefix.or_else(|| label_value_error(name))
}

/// Why a text is not the value of a label. `None`: it is one. It may be empty.
pub fn label_value_error(value: &str) -> Option<String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let end = |letter: Option<char>| letter.is_none_or(|letter| letter.is_ascii_alphanumeric());
    if value.len() > LABEL_VALUE_MAX {
        return Some(format!(
            "{value:?} is longer than {LABEL_VALUE_MAX} characters"
        ));
    }
    let good =
        value.chars().all(allowed) && end(value.chars().next()) && end(value.chars().next_back());
    (!good).then(|| {
        format!("{value:?} may have only letters, digits, '-', '_' and '.', a letter or digit first and last")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_label_is_is_left_out() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let given = [
            pair("zone", "a"),
            pair("", "x"),
            pair("long", &"v".repeat(64)),
            pair(&"k".repeat(318), "x"),
        ];
        assert_eq!(*Labels::bounded(given), [pair("zone", "a")].into());
        assert_eq!(
            Labels::bounded((0..2_000).map(|i| (format!("k{i}"), String::new()))).len(),
            LABELS_MAX
        );
    }

    #[test]
    fn they_are_stored_as_a_plain_map() {
        let labels = Labels::bounded([("zone".to_owned(), "a".to_owned())]);
        let text = serde_json::to_string(&labels).unwrap();
        assert_eq!(
            (
                text.as_str(),
                serde_json::from_str::<Labels>(&text).unwrap()
            ),
            (r#"{"zone":"a"}"#, labels)
        );
    }
}
