//! Which host or user the URI name in a certificate stands for. A cluster with an authority of its
//! own has names of one form. A site that issues its own certificates says what its names look like.

use std::{fmt, str::FromStr};

use crate::identity::{Kind, Principal, TrustDomain};

/// What stands for the name in a pattern.
const NAME: &str = "{name}";

/// The URI names of hosts or of users, such as `spiffe://example.org/gpu/{name}`. The name is a
/// whole segment of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriPattern {
    before: String,
    after: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a URI like spiffe://example.org/gpu/{{name}}, with {{name}} once, as a whole segment of the path"
)]
pub struct BadPattern(String);

impl UriPattern {
    /// The name in a URI. `None`: the URI does not fit.
    fn name<'a>(&self, uri: &'a str) -> Option<&'a str> {
        uri.strip_prefix(self.before.as_str())?
            .strip_suffix(self.after.as_str())
    }
}

impl FromStr for UriPattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let bad = || BadPattern(text.to_owned());
        let (before, after) = text.split_once(NAME).ok_or_else(bad)?;
        let (scheme, place) = before.split_once("://").ok_or_else(bad)?;
        let is_whole = before.ends_with('/') && (after.is_empty() || after.starts_with('/'));
        // The name is in the path, not in place of the authority.
        let has_authority = place.find('/').is_some_and(|at| at > 0);
        let is_plain = |part: &str| {
            part.chars()
                .all(|c| c.is_ascii_graphic() && !"{}?#".contains(c))
        };
        if scheme.is_empty() || !is_whole || !has_authority || !is_plain(before) || !is_plain(after)
        {
            return Err(bad());
        }
        Ok(Self {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }
}

impl fmt::Display for UriPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{NAME}{}", self.before, self.after)
    }
}

/// All forms of URI names that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UriNames(Vec<(Kind, UriPattern)>);

impl UriNames {
    /// The names in the certificates that a cluster's own authority issues.
    pub fn of_domain(domain: &TrustDomain) -> Self {
        let of = |kind: Kind| {
            let pattern = UriPattern {
                before: format!("spiffe://{domain}/{}/", kind.word()),
                after: String::new(),
            };
            (kind, pattern)
        };
        Self([Kind::Host, Kind::User].map(of).into())
    }

    /// `Err`: this pattern is for both, so nobody could say whether a name is a host's or a user's.
    pub fn new(hosts: &[UriPattern], users: &[UriPattern]) -> Result<Self, UriPattern> {
        if let Some(both) = hosts.iter().find(|host| users.contains(host)) {
            return Err(both.clone());
        }
        let of = |kind: Kind, patterns: &[UriPattern]| -> Vec<_> {
            patterns.iter().map(|one| (kind, one.clone())).collect()
        };
        Ok(Self(
            [of(Kind::Host, hosts), of(Kind::User, users)].concat(),
        ))
    }

    /// Whom this URI name stands for. `None`: for nobody here.
    pub fn principal(&self, uri: &str) -> Option<Principal> {
        let mut found = self.0.iter().filter_map(|(kind, pattern)| {
            let name = pattern.name(uri)?;
            // A slash is no part of a name, so a longer path fits no pattern.
            Principal::new(*kind, name).ok()
        });
        let first = found.next()?;
        found.all(|other| other == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_its_uri() {
        let domain: TrustDomain = "train.example.org".parse().unwrap();
        for text in ["host/n7", "user/ann@example.org"] {
            let principal: Principal = text.parse().unwrap();
            let uri = principal.uri(&domain);
            assert_eq!(uri, format!("spiffe://train.example.org/{text}"));
            assert_eq!(
                UriNames::of_domain(&domain).principal(&uri),
                Some(principal)
            );
        }
    }

    #[test]
    fn what_is_not_exactly_ours_proves_nothing() {
        let names = UriNames::of_domain(&"a.org".parse().unwrap());
        for uri in [
            "spiffe://b.org/host/n7",
            "spiffe://a.org.evil/host/n7",
            "spiffe://a.org/pod/n7",
            "spiffe://a.org/host/",
            "spiffe://a.org/host/n7/more",
            "spiffe://a.org",
            "https://a.org/host/n7",
            "SPIFFE://a.org/host/n7",
        ] {
            assert_eq!(names.principal(uri), None, "{uri}");
        }
    }

    #[test]
    fn a_sites_names_are_read_by_its_patterns() {
        let names = UriNames::new(
            &["spiffe://corp/gpu/{name}/agent".parse().unwrap()],
            &["spiffe://corp/people/{name}".parse().unwrap()],
        )
        .unwrap();
        let who = |uri: &str| names.principal(uri).map(|who| who.to_string());
        assert_eq!(
            who("spiffe://corp/gpu/n7/agent").as_deref(),
            Some("host/n7")
        );
        assert_eq!(who("spiffe://corp/people/ann").as_deref(), Some("user/ann"));
        for uri in [
            "spiffe://corp/gpu/n7",
            "spiffe://corp/gpu//agent",
            "spiffe://corp/gpu/n7/x/agent",
            "spiffe://corp/gpu/n7/agent/",
            "spiffe://corp/people/a%2Fb",
            "spiffe://other/people/ann",
        ] {
            assert_eq!(who(uri), None, "{uri}");
        }
    }

    #[test]
    fn a_uri_that_two_patterns_read_differently_is_nobody() {
        // Only patterns of the same text before and after the name can both fit a whole segment.
        let both: UriPattern = "spiffe://corp/{name}".parse().unwrap();
        let refused = UriNames::new(std::slice::from_ref(&both), std::slice::from_ref(&both));
        assert_eq!(refused.unwrap_err(), both);
        let apart = UriNames::new(
            &["spiffe://corp/{name}/ann".parse().unwrap()],
            &["spiffe://corp/ann/{name}".parse().unwrap()],
        );
        assert_eq!(apart.unwrap().principal("spiffe://corp/ann/ann"), None);
    }

    #[test]
    fn a_pattern_has_one_name_as_a_whole_segment() {
        for bad in [
            "",
            "{name}",
            "spiffe://corp/gpu",
            "spiffe://{name}/gpu",
            "spiffe:///{name}",
            "://corp/{name}",
            "spiffe://corp/gpu-{name}",
            "spiffe://corp/{name}x",
            "spiffe://corp/{name}/{name}",
            "spiffe://corp/a b/{name}",
            "spiffe://corp/{name}?x=1",
        ] {
            let refused = bad.parse::<UriPattern>();
            assert_eq!(refused.unwrap_err(), BadPattern(bad.to_owned()));
        }
        let good = "spiffe://corp/gpu/{name}/agent";
        assert_eq!(good.parse::<UriPattern>().unwrap().to_string(), good);
    }
}
