//! The bounds of every field that comes from the wire, with the reason of each.

use std::net::IpAddr;

use muster_core::time::Timestamp;

use crate::convert::Malformed;

/// Host names, kernel versions, boot ids, GPU models, uids. The longest of them is a host name
/// (`HOST_NAME_MAX` is 64, a DNS name has 253).
pub(in crate::convert) const NAME_MAX: usize = 256;
/// Bytes of a sentence for a person: a reason, an error line.
pub(in crate::convert) const SENTENCE_MAX: usize = 4 << 10;

pub(in crate::convert) fn malformed(
    field: impl Into<String>,
    message: impl Into<String>,
) -> Malformed {
    Malformed {
        field: field.into(),
        message: message.into(),
    }
}

pub(in crate::convert) fn text(
    field: &str,
    value: String,
    limit: usize,
) -> Result<String, Malformed> {
    if value.len() > limit {
        return Err(malformed(
            field,
            format!("is {} bytes long, at most {limit} are allowed", value.len()),
        ));
    }
    if value.contains('\0') {
        return Err(malformed(field, "has a NUL byte"));
    }
    Ok(value)
}

/// A sentence of ours, cut and cleaned so that the other end accepts it.
pub(in crate::convert) fn sentence(text: &str) -> String {
    let mut kept = text.replace('\0', " ");
    kept.truncate(kept.floor_char_boundary(SENTENCE_MAX));
    if kept.is_empty() {
        "no reason is known".to_owned()
    } else {
        kept
    }
}

/// A text; an empty one means that there is none.
pub(in crate::convert) fn optional_text(
    field: &str,
    value: String,
    limit: usize,
) -> Result<Option<String>, Malformed> {
    Ok(Some(text(field, value, limit)?).filter(|text| !text.is_empty()))
}

pub(in crate::convert) fn required_text(
    field: &str,
    value: String,
    limit: usize,
) -> Result<String, Malformed> {
    optional_text(field, value, limit)?.ok_or_else(|| malformed(field, "is empty"))
}

pub(in crate::convert) fn texts(
    field: &str,
    values: Vec<String>,
    items: usize,
    bytes: usize,
) -> Result<Vec<String>, Malformed> {
    count(field, values.len(), items)?;
    values
        .into_iter()
        .enumerate()
        .map(|(i, value)| text(&format!("{field}[{i}]"), value, bytes))
        .collect()
}

pub(in crate::convert) fn ip_addresses(
    field: &str,
    values: Vec<String>,
    items: usize,
) -> Result<Vec<IpAddr>, Malformed> {
    count(field, values.len(), items)?;
    let parsed = values.iter().enumerate().map(|(i, value)| {
        let wrong = || {
            malformed(
                format!("{field}[{i}]"),
                format!("{value:.64?} is no IP address"),
            )
        };
        value.parse().map_err(|_| wrong())
    });
    parsed.collect()
}

pub(in crate::convert) fn count(field: &str, items: usize, limit: usize) -> Result<(), Malformed> {
    if items > limit {
        return Err(malformed(
            field,
            format!("has {items} items, at most {limit} are allowed"),
        ));
    }
    Ok(())
}

/// Terms, epochs and generations are counted up one by one, so no store can ever reach this. The
/// bound keeps the next number from overflowing.
const NUMBER_MAX: u64 = 1 << 53;

pub(in crate::convert) fn numbered(field: &str, number: u64) -> Result<u64, Malformed> {
    if number > NUMBER_MAX {
        return Err(malformed(
            field,
            format!("is {number}: nobody has given out so many"),
        ));
    }
    Ok(number)
}

pub(in crate::convert) fn between(
    field: &str,
    value: u32,
    low: u32,
    high: u32,
) -> Result<u32, Malformed> {
    if !(low..=high).contains(&value) {
        return Err(malformed(
            field,
            format!("is {value}, must be between {low} and {high}"),
        ));
    }
    Ok(value)
}

/// How long ago `at` was, in microseconds. A time in the future counts as now.
pub(in crate::convert) fn age(at: Option<Timestamp>, now: Timestamp) -> Option<u64> {
    at.map(|at| now.0.saturating_sub(at.0))
}

/// The point in time on the receiver's clock that was `age` microseconds ago.
pub(in crate::convert) fn at(age: Option<u64>, now: Timestamp) -> Option<Timestamp> {
    age.map(|age| Timestamp(now.0.saturating_sub(age)))
}
