//! Where a coordinator is reached. An address says nothing of trust: who may be called is the
//! caller's rule.

use std::{fmt, net::IpAddr, str::FromStr};

use http::Uri;

/// `http://HOST:PORT` on this machine or `https://HOST:PORT` anywhere, shown as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    text: String,
    uri: Uri,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not such a URL, and why.
    #[error("{0}")]
    NotUrl(String),
}

impl Address {
    /// The port if one is named.
    pub fn port(&self) -> Option<u16> {
        self.uri.port_u16()
    }

    /// A name or an IP address, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        bare_host(&self.uri)
    }

    /// Whether only this machine can be meant. Names other than `localhost` are not looked up.
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        host == "localhost"
            || host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    /// Whether the coordinator there speaks TLS.
    pub fn is_tls(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    pub(crate) fn uri(&self) -> Uri {
        self.uri.clone()
    }
}

pub(crate) fn bare_host(uri: &Uri) -> &str {
    uri.host()
        .unwrap_or_default()
        .trim_start_matches('[')
        .trim_end_matches(']')
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let uri: Uri = text
            .parse()
            .map_err(|error: http::uri::InvalidUri| BadAddress::NotUrl(error.to_string()))?;
        match uri.scheme_str() {
            Some("http" | "https") => Ok(Self {
                text: text.to_owned(),
                uri,
            }),
            Some(other) => Err(BadAddress::NotUrl(format!(
                "the scheme is https or http, not {other}"
            ))),
            None => Err(BadAddress::NotUrl("it has no scheme".into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_it_was_written() {
        let address: Address = "http://[::1]:7070".parse().unwrap();
        assert_eq!(
            (address.host(), address.port(), address.to_string().as_str()),
            ("::1", Some(7070), "http://[::1]:7070")
        );
    }

    #[test]
    fn only_this_machine_is_loopback() {
        let is_loopback = |text: &str| text.parse::<Address>().unwrap().is_loopback();
        assert!(is_loopback("http://127.0.1.9:1") && is_loopback("http://[::1]:1"));
        assert!(is_loopback("http://localhost"));
        assert!(!is_loopback("http://10.0.0.1:1") && !is_loopback("http://localhost.example"));
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_reason() {
        let refused = |text: &str| text.parse::<Address>().unwrap_err();
        assert_eq!(refused("localhost:1").to_string(), "it has no scheme");
        assert_eq!(
            refused("ftp://localhost:1").to_string(),
            "the scheme is https or http, not ftp"
        );
        assert!(matches!(refused("http://a b"), BadAddress::NotUrl(_)));
    }
}
