//! One entry of the trail. In the files it is a line of JSON.

use muster_rpc::credentials::now_us;
use serde::{Deserialize, Serialize};
use tonic::Code;

/// Whether a call did what it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    Allowed,
    /// The caller had no right to it.
    Denied,
    /// It was allowed, and failed for another reason.
    Failed,
    /// So many entries could not be written.
    Lost,
}

impl Outcome {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Outcome::Allowed => "Allowed",
            Outcome::Denied => "Denied",
            Outcome::Failed => "Failed",
            Outcome::Lost => "Lost",
        }
    }

    fn of(code: Code) -> Self {
        match code {
            Code::Ok => Outcome::Allowed,
            Code::PermissionDenied | Code::Unauthenticated => Outcome::Denied,
            _ => Outcome::Failed,
        }
    }
}

/// The longest reason. It is a sentence or two.
const REASON_MAX: usize = 300;

/// One call or command, or several alike that were refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Microseconds since 1970, by the coordinator's clock.
    #[serde(rename = "time", with = "rfc3339")]
    pub at_us: u64,
    pub who: String,
    /// An address and a port, or `local`.
    pub from: String,
    /// In the words of the command line.
    pub what: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    pub result: Outcome,
    /// The name of a gRPC code. Empty if the call was allowed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// Why a call was denied, in the coordinator's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
}

impl Entry {
    /// A call that was answered now with this code.
    pub(crate) fn of_call(
        who: String,
        from: String,
        what: &str,
        object: String,
        code: Code,
    ) -> Self {
        let result = Outcome::of(code);
        Self {
            at_us: now_us(),
            who,
            from,
            what: what.to_owned(),
            object,
            result,
            code: match result {
                Outcome::Allowed => String::new(),
                _ => format!("{code:?}"),
            },
            reason: String::new(),
            count: 1,
        }
    }

    /// The same call with its reason, if it was denied. Of other failures the words may repeat what the
    /// caller has sent, and that may be a secret.
    pub(crate) fn because(mut self, why: &str) -> Self {
        if self.result == Outcome::Denied {
            let plain = |c: char| if c.is_control() { ' ' } else { c };
            self.reason = why.chars().map(plain).take(REASON_MAX).collect();
        }
        self
    }

    pub(super) fn of_lost(count: u64) -> Self {
        Self {
            at_us: now_us(),
            who: "coordinator".into(),
            from: "local".into(),
            what: "audit".into(),
            object: String::new(),
            result: Outcome::Lost,
            code: String::new(),
            reason: String::new(),
            count,
        }
    }
}

fn one() -> u64 {
    1
}

fn is_one(count: &u64) -> bool {
    *count == 1
}

/// Times as people and other programs read them: 2026-11-21T11:35:28.123456Z.
mod rfc3339 {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(at_us: &u64, to: S) -> Result<S::Ok, S::Error> {
        let at = i64::try_from(*at_us).ok();
        let at = at.and_then(|us| Timestamp::from_microsecond(us).ok());
        to.collect_str(&at.unwrap_or(Timestamp::UNIX_EPOCH))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let at: Timestamp = text.parse().map_err(D::Error::custom)?;
        u64::try_from(at.as_microsecond()).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_denied_call_has_a_reason_and_that_is_one_line() {
        let of = |code: Code, why: &str| {
            Entry::of_call("a".into(), "local".into(), "get", String::new(), code).because(why)
        };
        assert_eq!(of(Code::PermissionDenied, "no\nrole").reason, "no role");
        assert_eq!(of(Code::InvalidArgument, "env: secret").reason, "");
        let long = of(Code::Unauthenticated, &"\u{e9}".repeat(9_999));
        assert_eq!(long.reason.chars().count(), REASON_MAX);
        let line = serde_json::to_string(&long).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), long);
    }
}
