//! Identifiers, and the numbers that tell the newer of two claims.
//!
//! A [`Term`] counts coordinator starts, a [`NodeEpoch`] accepted registrations of one node, a
//! [`Generation`] sealed memberships of one job. All three only grow. An observer that has stored
//! one refuses anything lower.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};

// Shared, because the coordinator has every name in many places, and a turn about a large job
// passes on thousands of them.
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
    /// A job's identity for ever: a lower-case UUID made at its submission. A name may be used
    /// again, but a uid never.
    JobUid
}
text_id! {
    /// A node's name. It is unique in the fleet; on Kubernetes it is the name of the Node object.
    NodeName
}
number_id! {
    /// One sealed membership of a job. The first is 1. It grows with every restart or change of
    /// membership.
    Generation
}
number_id! {
    /// Counts the starts of a coordinator process. The coordinator with the higher term leads.
    Term
}
number_id! {
    /// Counts the accepted registrations of one node. It grows with every session.
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

/// Characters of the longest DNS label (RFC 1035, 2.3.4). Job and namespace names become DNS labels
/// on Kubernetes.
pub const LABEL_MAX: usize = 63;

/// Why a text is not an RFC 1035 label (lower-case letters, digits and `-`, starting with a letter,
/// not ending with `-`). `None`: it is one.
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

/// Characters of the longest host name (RFC 1123, 2.1; 255 octets on the wire are 253 characters).
pub const SUBDOMAIN_MAX: usize = 253;

/// Why a text cannot be a node's name. `None`: it can. The names of Kubernetes Node objects
/// (`ip-10-0-0-7.ec2.internal`) can, and so can most host names: lower-case labels with dots
/// between them, which may begin with a digit.
pub fn node_name_error(text: &str) -> Option<String> {
    if text.len() > SUBDOMAIN_MAX {
        return Some(format!(
            "is {} characters long, at most {SUBDOMAIN_MAX} are allowed",
            text.len()
        ));
    }
    text.split('.').find_map(|part| {
        // Each part is a label, except that it may begin with a digit.
        let digit = part.starts_with(|c: char| c.is_ascii_digit());
        if digit {
            label_error(&format!("a{}", &part[1..]))
        } else {
            label_error(part)
        }
    })
}

/// The identity of a run on its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId {
    pub job: JobUid,
    pub generation: Generation,
}

/// `UID-gN`: the name of the run's directory and of its generation's rendezvous. A uid is random
/// and never used again, so this name is not used again either.
impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-g{}", self.job, self.generation)
    }
}

impl RunId {
    /// Whether a sentence names this run. A longer name that begins or ends alike does not count:
    /// `a-g1` is not named by `a-g12`.
    pub fn is_named_in(&self, sentence: &str) -> bool {
        let name = self.to_string();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        sentence.match_indices(&name).any(|(at, _)| {
            !sentence[..at].ends_with(is_part) && !sentence[at + name.len()..].starts_with(is_part)
        })
    }
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
