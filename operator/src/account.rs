//! The service account of the agents, and the audience of the tokens for this coordinator.

use std::{fmt, str::FromStr};

/// A service account, written `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not written as NAMESPACE/SERVICEACCOUNT, for example muster-system/muster-agent")]
pub struct BadAccount;

impl Account {
    /// What a TokenReview calls it.
    pub fn user_name(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for Account {
    type Err = BadAccount;

    fn from_str(text: &str) -> Result<Self, BadAccount> {
        // A namespace is a DNS label, a service account's name a DNS subdomain (RFC 1123).
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let (namespace, name) = text.split_once('/').ok_or(BadAccount)?;
        let is_label = |text: &str| (1..=63).contains(&text.len()) && text.chars().all(plain);
        let is_name = (1..=253).contains(&name.len())
            && name
                .split('.')
                .all(|part| !part.is_empty() && part.chars().all(plain));
        if !is_label(namespace) || !is_name {
            return Err(BadAccount);
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_a_namespace_and_a_name() {
        let account: Account = "muster-system/muster-agent".parse().unwrap();
        assert_eq!(
            account.user_name(),
            "system:serviceaccount:muster-system:muster-agent"
        );
        assert_eq!(account.to_string(), "muster-system/muster-agent");
        for bad in [
            "muster-agent",
            "a/",
            "/a",
            "a/b/c",
            "a:b/c",
            "a/b:c",
            "A/b",
            "a/b..c",
        ] {
            assert_eq!(bad.parse::<Account>(), Err(BadAccount), "{bad}");
        }
    }
}
