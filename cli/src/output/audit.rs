//! The audit trail: its columns, and an entry as `-o json` prints it.

use muster_proto::v1::AuditEntry;
use serde::Serialize;

use super::{listing::Listed, words};

#[derive(Debug, Serialize)]
pub(crate) struct Document {
    at: String,
    who: String,
    from: String,
    what: String,
    object: Option<String>,
    result: String,
    code: Option<String>,
    reason: Option<String>,
    count: u64,
}

impl From<AuditEntry> for Document {
    fn from(entry: AuditEntry) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Document {
            at: words::utc(entry.at_unix_us),
            who: entry.who,
            from: entry.from,
            what: entry.what,
            object: some(entry.object),
            result: entry.result,
            code: some(entry.code),
            reason: some(entry.reason),
            count: entry.count,
        }
    }
}

impl Listed for AuditEntry {
    type Document = Document;

    fn kind(&self) -> &'static str {
        "audit"
    }

    fn heads(wide: bool, _: bool) -> Vec<&'static str> {
        let mut heads = vec!["AGE", "WHO", "FROM", "WHAT", "OBJECT", "RESULT"];
        if wide {
            heads.extend(["TIME", "REASON"]);
        }
        heads
    }

    fn row(&self, now_us: u64, wide: bool, _: bool) -> Vec<String> {
        let mut row = vec![
            words::age(self.at_unix_us, now_us),
            self.who.clone(),
            self.from.clone(),
            self.what.clone(),
            self.object.clone(),
            result(self),
        ];
        if wide {
            row.push(words::utc(self.at_unix_us));
            row.push(self.reason.clone());
        }
        row
    }

    fn name(&self) -> String {
        words::utc(self.at_unix_us)
    }

    fn key(&self) -> String {
        self.name()
    }
}

/// `Allowed`, `Denied (PermissionDenied)`, `Failed (NotFound), 3 times`.
fn result(entry: &AuditEntry) -> String {
    let mut text = entry.result.clone();
    if !entry.code.is_empty() {
        text += &format!(" ({})", entry.code);
    }
    match entry.count {
        0 | 1 => {}
        count if entry.result == "Lost" => text += &format!(", {count} entries"),
        count => text += &format!(", {count} times"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_says_why_and_how_often() {
        let of = |result: &str, code: &str, count| {
            super::result(&AuditEntry {
                result: result.into(),
                code: code.into(),
                count,
                ..AuditEntry::default()
            })
        };
        assert_eq!(of("Allowed", "", 1), "Allowed");
        assert_eq!(of("Failed", "NotFound", 1), "Failed (NotFound)");
        assert_eq!(
            of("Denied", "Unauthenticated", 37),
            "Denied (Unauthenticated), 37 times"
        );
        assert_eq!(of("Lost", "", 2), "Lost, 2 entries");
    }
}
