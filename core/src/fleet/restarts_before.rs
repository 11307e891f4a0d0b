//! Failures charged to a job whose moments are not kept one by one.
//!
//! A job that may fail thousands of times within its window would fill its record with their moments. So
//! only the newest are kept one by one. Those before are counted in parts, and a part counts until its
//! last failure is out of the window. So at most one part counts for too long, and no failure too
//! short.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A part is at most so much of the window. More parts would count more exactly, and make the record
/// larger: a part is some 60 bytes.
const PARTS: u32 = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartsBefore {
    pub count: u32,
    /// When the last of them was.
    pub last: Timestamp,
    /// Oldest first. Records of before this was kept have none: then all count until the last is out of
    /// the window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// Failures that are close to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    pub count: u32,
    pub first: Timestamp,
    pub last: Timestamp,
}

impl RestartsBefore {
    /// With one failure more, the newest of them.
    pub(crate) fn with(before: Option<Self>, at: Timestamp, window: Duration) -> Self {
        let mut parts = before.map(Self::into_parts).unwrap_or_default();
        match parts.last_mut() {
            Some(part) if at.since(part.first) < window / PARTS => {
                (part.count, part.last) = (part.count.saturating_add(1), at);
            }
            _ => parts.push(Part {
                count: 1,
                first: at,
                last: at,
            }),
        }
        Self::of(parts).expect("one was added")
    }

    /// Without what is out of the window.
    pub(crate) fn within(self, now: Timestamp, window: Duration) -> Option<Self> {
        let mut parts = self.into_parts();
        parts.retain(|part| now.since(part.last) < window);
        Self::of(parts)
    }

    fn into_parts(self) -> Vec<Part> {
        let Self { count, last, parts } = self;
        match parts.is_empty() {
            true => vec![Part {
                count,
                first: last,
                last,
            }],
            false => parts,
        }
    }

    fn of(parts: Vec<Part>) -> Option<Self> {
        let last = parts.last()?.last;
        let counts = parts.iter().map(|part| part.count);
        Some(Self {
            count: counts.fold(0, u32::saturating_add),
            last,
            parts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(3_600);

    fn second(second: u64) -> Timestamp {
        Timestamp(second * 1_000_000)
    }

    #[test]
    fn a_steady_stream_is_counted_about_right_for_ever() {
        let mut before = None;
        for now in 0..20_000 {
            before = before.and_then(|before: RestartsBefore| before.within(second(now), WINDOW));
            before = Some(RestartsBefore::with(before, second(now), WINDOW));
            let known = before.as_ref().unwrap();
            // Never too few, and at most a part too many.
            let (least, most) = ((now + 1).min(3_600), (now + 1).min(3_600 + 3_600 / 16));
            let count = u64::from(known.count);
            assert!((least..=most).contains(&count), "{now}: {count}");
            assert!(known.parts.len() <= PARTS as usize + 1);
        }
        assert_eq!(before.unwrap().within(second(23_599), WINDOW), None);
    }

    #[test]
    fn a_record_without_parts_counts_until_its_last_failure_is_out_of_the_window() {
        let old: RestartsBefore =
            serde_json::from_str(r#"{"count": 500, "last": 1000000}"#).unwrap();
        let kept = old.clone().within(second(3_600), WINDOW).unwrap();
        assert_eq!((kept.count, kept.last), (500, second(1)));
        let more = RestartsBefore::with(Some(old), second(2), WINDOW);
        assert_eq!(more.count, 501);
        assert_eq!(more.within(second(3_602), WINDOW), None);
    }
}
