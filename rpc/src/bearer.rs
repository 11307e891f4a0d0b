//! A bearer token: whoever holds its text is believed, so it is never shown, logged or kept.
//!
//! Its claims are read without a check of its signature. They say for how long an answer about the
//! token can be kept, and spare questions that can only be refused. They prove nothing.

use std::{fmt, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use ring::digest::{SHA256, digest};
use serde::Deserialize;

/// Bytes of the longest token. Those of Kubernetes have 1 to 2 KiB, those of an identity provider
/// with many groups some more. All headers of a call together have 16 KiB.
const TOKEN_MAX: usize = 12 * 1024;

/// The text of a token, as it stands in a file or in the header `authorization`.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(String);

/// Never shows the token.
impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer")
    }
}

/// Why a text is no token. Never shows the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBearer {
    #[error("there is no token in it")]
    Empty,
    #[error("it is longer than the {TOKEN_MAX} bytes that a token may have")]
    Long,
    #[error("it holds other characters than a token has (RFC 6750)")]
    Characters,
    #[error("the header `authorization` is not `Bearer TOKEN`")]
    Header,
}

/// What a token says of itself (RFC 7519).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// For whom it is.
    pub audiences: Vec<String>,
    /// Until when it is good, in microseconds since the Unix epoch.
    pub expires_us: u64,
}

#[derive(Deserialize)]
struct Payload {
    aud: Audiences,
    exp: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

impl Bearer {
    /// Reads the content of a file, or what a command has printed.
    pub fn parse(text: &str) -> Result<Self, BadBearer> {
        let text = text.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~+/=".contains(c);
        if text.is_empty() {
            Err(BadBearer::Empty)
        } else if text.len() > TOKEN_MAX {
            Err(BadBearer::Long)
        } else if !text.chars().all(plain) {
            Err(BadBearer::Characters)
        } else {
            Ok(Self(text.to_owned()))
        }
    }

    /// The token that a call shows, if it shows one.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Result<Option<Self>, BadBearer> {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), more) = (all.next(), all.next()) else {
            return Ok(None);
        };
        // With two of them nobody could say which one counts.
        let text = value.to_str().ok().filter(|_| more.is_none());
        let (scheme, token) = text
            .and_then(|text| text.split_once(' '))
            .ok_or(BadBearer::Header)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(BadBearer::Header);
        }
        Self::parse(token).map(Some)
    }

    /// For the header `authorization`. HTTP/2 keeps it out of its tables, and its `Debug` hides it.
    pub(crate) fn header(&self) -> HeaderValue {
        let text = format!("Bearer {}", self.0);
        let mut value = HeaderValue::try_from(text).expect("a token has plain characters");
        value.set_sensitive(true);
        value
    }

    /// The token itself, for whoever can check it.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// By what an answer about the token is kept. The token cannot be found from it.
    pub fn digest(&self) -> [u8; 32] {
        let hash = digest(&SHA256, self.0.as_bytes());
        hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// What the token says of itself. `None`: it is not a signed JSON Web Token with an audience and
    /// an end.
    pub fn claims(&self) -> Option<Claims> {
        let mut parts = self.0.split('.');
        let payload = parts.nth(1)?;
        // A header before it, a signature behind it.
        parts.next().filter(|signature| !signature.is_empty())?;
        let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
        let payload: Payload = serde_json::from_slice(&payload).ok()?;
        let seconds = Duration::try_from_secs_f64(payload.exp).ok()?;
        Some(Claims {
            audiences: match payload.aud {
                Audiences::One(one) => vec![one],
                Audiences::Many(many) => many,
            },
            expires_us: u64::try_from(seconds.as_micros()).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(payload: &str) -> Bearer {
        let payload = URL_SAFE_NO_PAD.encode(payload);
        Bearer::parse(&format!("e30.{payload}.c2ln\n")).unwrap()
    }

    #[test]
    fn claims_are_read_as_api_servers_and_identity_providers_write_them() {
        let claims = |payload| token(payload).claims();
        let many = claims(r#"{"aud":["a","b"],"exp":7,"sub":"x"}"#).unwrap();
        assert_eq!(
            (many.audiences, many.expires_us),
            (vec!["a".to_owned(), "b".to_owned()], 7_000_000)
        );
        assert_eq!(claims(r#"{"aud":"a","exp":7.5}"#).unwrap().audiences, ["a"]);
        for none in ["{}", r#"{"aud":["a"]}"#, r#"{"aud":[],"exp":-1}"#, "x"] {
            assert_eq!(claims(none), None, "{none}");
        }
        for none in ["opaque", "a.b", "a.b.", "a.!.c"] {
            let bearer = Bearer(none.to_owned());
            assert_eq!(bearer.claims(), None, "{none}");
        }
    }

    #[test]
    fn a_token_is_never_shown() {
        let bearer = token(r#"{"aud":"a","exp":1}"#);
        assert_eq!(
            format!("{bearer:?} {:?}", bearer.header()),
            "Bearer Sensitive"
        );
        assert_eq!(
            bearer.header().to_str().unwrap(),
            format!("Bearer {}", bearer.secret())
        );
    }

    #[test]
    fn only_one_bearer_token_is_taken_from_the_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(Bearer::of_headers(&headers), Ok(None));
        for (text, read) in [
            ("Bearer a.b.c", Ok(Some(Bearer("a.b.c".into())))),
            ("bearer a.b.c", Ok(Some(Bearer("a.b.c".into())))),
            ("Bearer ", Err(BadBearer::Empty)),
            ("Bearer a b", Err(BadBearer::Characters)),
            ("Basic YTpi", Err(BadBearer::Header)),
            ("Bearer", Err(BadBearer::Header)),
        ] {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(text));
            assert_eq!(Bearer::of_headers(&headers), read, "{text:?}");
        }
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert_eq!(Bearer::of_headers(&headers), Err(BadBearer::Header));
        let long = "a".repeat(TOKEN_MAX + 1);
        assert_eq!(Bearer::parse(&long), Err(BadBearer::Long));
        assert_eq!(Bearer::parse(" \n"), Err(BadBearer::Empty));
    }
}
