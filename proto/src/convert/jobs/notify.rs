//! Whom a job asks to be told of it.

use muster_core::spec::NotifyDocument;

use crate::v1;

pub(super) fn documents(entries: Vec<v1::Notify>) -> Vec<NotifyDocument> {
    let document = |entry: v1::Notify| NotifyDocument {
        kinds: entry.kinds,
        receivers: entry.receivers,
        mail: entry.mail,
    };
    entries.into_iter().map(document).collect()
}

pub(super) fn to_wire(entries: Vec<NotifyDocument>) -> Vec<v1::Notify> {
    let wire = |entry: NotifyDocument| v1::Notify {
        kinds: entry.kinds,
        receivers: entry.receivers,
        mail: entry.mail,
    };
    entries.into_iter().map(wire).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use muster_core::spec::{Notify, notify::Kind};

    use super::*;

    /// An entry that need not be right.
    pub(crate) fn document(text: &str) -> NotifyDocument {
        let one = || vec![text.to_owned()];
        NotifyDocument {
            kinds: one(),
            receivers: one(),
            mail: one(),
        }
    }

    pub(crate) fn checked() -> Notify {
        Notify {
            kinds: Kind::OF_JOBS.into(),
            receivers: ["chat".to_owned()].into(),
            mail: ["ann@example.org".to_owned()].into(),
        }
    }
}
