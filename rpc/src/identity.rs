//! Who calls, as far as it is proven: a user of this machine by the kernel's word, a host or user by a
//! certificate of this cluster, or a host or user by a token that a Kubernetes API server knows.
//!
//! A certificate carries its identity as one URI name, which [`uri_names`](crate::uri_names) reads.
//! What an identity may do is not decided here.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

/// The kinds of identity that a certificate can prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The agent of a node. The name is the node's.
    Host,
    /// A person or a program that uses Muster.
    User,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::User => "user",
        }
    }
}

/// What a certificate proves, shown as `host/n7` or `user/ann`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal {
    pub kind: Kind,
    name: String,
}

/// The longest name. It becomes part of a file's name.
const NAME_MAX: usize = 128;

impl Principal {
    pub fn new(kind: Kind, name: &str) -> Result<Self, BadIdentity> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
            return Err(BadIdentity::Name(name.to_owned()));
        }
        Ok(Self {
            kind,
            name: name.to_owned(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URI name in a certificate of this trust domain.
    pub fn uri(&self, domain: &TrustDomain) -> String {
        format!("spiffe://{domain}/{self}")
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), self.name)
    }
}

impl FromStr for Principal {
    type Err = BadIdentity;

    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        match text.split_once('/') {
            Some(("host", name)) => Self::new(Kind::Host, name),
            Some(("user", name)) => Self::new(Kind::User, name),
            _ => Err(BadIdentity::Kind(text.to_owned())),
        }
    }
}

/// The name of the cluster in its certificates, such as `train.example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDomain(String);

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TrustDomain {
    type Err = BadIdentity;

    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        // The characters that SPIFFE allows.
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        if text.is_empty() || text.len() > NAME_MAX || !text.chars().all(allowed) {
            return Err(BadIdentity::Domain(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentity {
    #[error(
        "{0:?} is not a name of letters, digits and . _ - @ +, of at most {NAME_MAX} characters"
    )]
    Name(String),
    #[error("{0:?} is not written as host/NAME or user/NAME")]
    Kind(String),
    #[error("{0:?} is not a trust domain of lower-case letters, digits and . _ -")]
    Domain(String),
}

/// Whom a token proves, by the word of the Kubernetes API server that has reviewed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reviewed {
    /// A pod of the agents' service account: the agent of the node on which the pod is.
    Agent(Principal),
    /// Any other holder of a token.
    User(KubernetesUser),
}

/// A user as Kubernetes knows it. Only that cluster's rules say what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesUser {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
    /// When the token ends, in microseconds since the Unix epoch.
    pub expires_us: u64,
}

impl fmt::Display for Reviewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reviewed::Agent(host) => host.fmt(f),
            // The name of a certificate's user has no slash, so nobody can be taken for another.
            Reviewed::User(user) => write!(f, "kubernetes/{}", user.name),
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A user of this machine, on a loopback connection without TLS. The kernel says which.
    Local { uid: u32 },
    /// A loopback connection without TLS whose user the kernel cannot tell.
    Unknown,
    /// The other end holds the key of a valid certificate.
    Certified(Principal),
    /// TLS without a certificate, and a token of Kubernetes.
    Reviewed(Arc<Reviewed>),
    /// TLS without a certificate. Such a caller can show a token.
    Anonymous,
}

impl Identity {
    /// The host or user of this cluster's own names.
    pub fn principal(&self) -> Option<&Principal> {
        match self {
            Identity::Certified(principal) => Some(principal),
            Identity::Reviewed(reviewed) => match &**reviewed {
                Reviewed::Agent(host) => Some(host),
                Reviewed::User(_) => None,
            },
            _ => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Local { uid: 0 } => f.write_str("root"),
            Identity::Local { uid } => write!(f, "user {uid}"),
            Identity::Unknown => f.write_str("unknown user"),
            Identity::Certified(principal) => principal.fmt(f),
            Identity::Reviewed(reviewed) => reviewed.fmt(f),
            Identity::Anonymous => f.write_str("anonymous"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert!("A.org".parse::<TrustDomain>().is_err());
        assert!("".parse::<TrustDomain>().is_err());
        assert!("root".parse::<Principal>().is_err());
    }
}
