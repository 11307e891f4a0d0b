//! Lengths of time as people write them: `500ms`, `10s`, `1m30s`, `2h`, or a bare number of
//! seconds.

use std::time::Duration;

/// The longest period that any field takes: 30 days. A longer one is more often a typing error than
/// intended.
pub const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Reads a period. The error says what is wrong, without the field's name.
pub fn parse(text: &str) -> Result<Duration, String> {
    let refuse = || format!("{text:?} is not a period; write for example 500ms, 10s, 1m30s or 2h");
    let whole = text.trim();
    if whole.is_empty() {
        return Err(refuse());
    }
    if let Ok(seconds) = whole.parse::<u64>() {
        return within(Duration::from_secs(seconds), text);
    }
    let (mut rest, mut total) = (whole, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(refuse)?;
        let count: u64 = rest[..digits].parse().map_err(|_| refuse())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let unit_ms: u64 = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(refuse()),
        };
        rest = &rest[letters..];
        let part = count
            .checked_mul(unit_ms)
            .map(Duration::from_millis)
            .ok_or_else(refuse)?;
        total = total.checked_add(part).ok_or_else(refuse)?;
    }
    within(total, text)
}

fn within(period: Duration, text: &str) -> Result<Duration, String> {
    if period > LONGEST {
        Err(format!("{text:?} is longer than 30 days"))
    } else {
        Ok(period)
    }
}

/// Writes a period in a form that [`parse`] reads back as the same period.
pub fn format(period: Duration) -> String {
    let ms = period.as_millis();
    match ms {
        0 => "0s".into(),
        _ if !ms.is_multiple_of(1_000) => format!("{ms}ms"),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ => format!("{}s", ms / 1_000),
    }
}

/// Serde for a [`Duration`] field written as a period.
pub mod serde_period {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(period: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format(*period))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::parse(&String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// The same for a field that may be left out.
pub mod optional_period {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(period: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match period {
            Some(period) => to.serialize_some(&super::format(*period)),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| super::parse(&text).map_err(serde::de::Error::custom))
            .transpose()
    }
}

/// Records store periods in whole milliseconds. Sums of many would lose by that, so they use
/// microseconds.
pub(crate) mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        time: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        assert_eq!(parse("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("2h"), Ok(Duration::from_secs(7200)));
        for bad in [
            "",
            "s",
            "10 s",
            "-1s",
            "1.5s",
            "10x",
            "1m30",
            "40d",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(parse(bad).is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for ms in [0, 1, 999, 1_000, 90_000, 60_000, 3_600_000, 5_400_000] {
            let period = Duration::from_millis(ms);
            assert_eq!(parse(&format(period)), Ok(period));
        }
    }
}
