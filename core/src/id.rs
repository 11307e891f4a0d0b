//! Identifiers and the numbers that fence: who is meant, and which of two claims is newer.
//!
//! A [`Term`] counts coordinator starts, a [`NodeEpoch`] accepted registrations of one node, a
//! [`Generation`] sealed memberships of one job. All three only ever grow; an observer that has
//! persisted one refuses anything lower.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};

// Shared: the coordinator has every name in many places, and a turn about a large job hands on
// thousands of them.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

text_id! {
    /// A job's identity for ever: a lower-case UUID given at submission. A name may be used again,
    /// a uid never.
    JobUid
}
text_id! {
    /// A node's name: unique in the fleet, on Kubernetes the Node object's name.
    NodeName
}
number_id! {
    /// One sealed membership of a job; 1 is the first. Grows with every restart or change of
    /// membership.
    Generation
}
number_id! {
    /// The coordinator's leadership; grows with every start of a coordinator process.
    Term
}
number_id! {
    /// Accepted registrations of one node; grows with every session.
    NodeEpoch
}
number_id! {
    /// One connection of one agent, numbered by the coordinator process that accepted it.
    SessionId
}

/// A job as its user names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Longest DNS label (RFC 1035, 2.3.4). Job and namespace names become DNS labels on Kubernetes.
pub const LABEL_MAX: usize = 63;

/// Why a text is not an RFC 1035 label: lower-case letters, digits and `-`, starting with a letter,
/// not ending with `-`.
pub fn label_error(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("must not be empty".into());
    }
    if text.len() > LABEL_MAX {
        return Some(format!(
            "is {} characters long, at most {LABEL_MAX} are allowed",
            text.len()
        ));
    }
    if let Some(bad) = text
        .chars()
        .find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-'))
    {
        return Some(format!(
            "{text:?} has {bad:?}: only lower-case letters, digits and '-' are allowed"
        ));
    }
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Some(format!("{text:?} must start with a letter"));
    }
    text.ends_with('-')
        .then(|| format!("{text:?} must not end with '-'"))
}

/// Longest name of a host (RFC 1123, 2.1; 255 octets on the wire are 253 characters).
const SUBDOMAIN_MAX: usize = 253;

/// Why a text cannot be a node's name: what a Kubernetes Node object may be called
/// (`ip-10-0-0-7.ec2.internal`) can, and so can most host names. Lower-case labels with dots
/// between them, that may begin with a digit.
pub fn node_name_error(text: &str) -> Option<String> {
    if text.len() > SUBDOMAIN_MAX {
        return Some(format!(
            "is {} characters long, at most {SUBDOMAIN_MAX} are allowed",
            text.len()
        ));
    }
    text.split('.').find_map(|part| {
        // But for a digit in the first place each part is a label.
        let digit = part.starts_with(|c: char| c.is_ascii_digit());
        if digit {
            label_error(&format!("a{}", &part[1..]))
        } else {
            label_error(part)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_host_names() {
        for good in [
            "node-1",
            "ip-10-0-0-7.ec2.internal",
            "10-0-0-7",
            "3",
            "gke-pool.1a",
            &["a".repeat(63), "b".repeat(63)].join("."),
        ] {
            assert_eq!(node_name_error(good), None, "{good:?}");
        }
        for bad in [
            "",
            ".",
            "a..b",
            ".a",
            "a.",
            "-a",
            "a-",
            "1-",
            "A",
            "1A",
            "a_b",
            "../x",
            "a/b",
            "ä",
            &"a".repeat(64),
            &["a"; 200].join("."),
        ] {
            assert!(node_name_error(bad).is_some(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn labels_follow_rfc_1035() {
        assert_eq!(label_error("digits-2"), None);
        assert_eq!(label_error(&"a".repeat(63)), None);
        for bad in [
            "",
            "-a",
            "a-",
            "2a",
            "A",
            "a.b",
            "a_b",
            "ä",
            &"a".repeat(64),
        ] {
            assert!(label_error(bad).is_some(), "{bad:?} must be refused");
        }
    }
}
