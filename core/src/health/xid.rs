//! Errors that the driver numbers (XIDs). The event channel and the kernel log both report each
//! one. So they are counted for each channel, and the larger count is used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The channel that reported an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Channel {
    Event,
    Log,
}

/// One XID, as one channel reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// PCI address of the GPU, as sysfs writes it.
    pub pci: String,
    pub code: u32,
    pub channel: Channel,
    /// Whether it is fatal, which the log tells for NVLink 5 codes.
    pub fatal: Option<bool>,
    /// The text that the log added.
    pub detail: String,
}

/// How often each channel has reported one code on one GPU in this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Counts {
    by_channel: BTreeMap<Channel, u32>,
    pub(super) detail: String,
    pub(super) fatal: Option<bool>,
}

impl Counts {
    /// Counts one report. True: it is news. False: the other channel has reported the same before.
    pub(super) fn hear(&mut self, xid: &Xid) -> bool {
        let before = self.times();
        let mine = self.by_channel.entry(xid.channel).or_default();
        *mine = mine.saturating_add(1);
        if !xid.detail.is_empty() {
            self.detail.clone_from(&xid.detail);
        }
        // A code that was fatal once stays fatal in this boot.
        self.fatal = if self.fatal == Some(true) {
            self.fatal
        } else {
            xid.fatal.or(self.fatal)
        };
        self.times() > before
    }

    pub(super) fn times(&self) -> u32 {
        self.by_channel.values().copied().max().unwrap_or(0)
    }

    /// Small numbers exactly, large ones in steps, so that a storm does not make a report for each
    /// of its XIDs.
    pub(super) fn in_words(&self) -> String {
        match self.times() {
            0 | 1 => String::new(),
            n @ 2..=5 => format!(" ({n} times)"),
            n => format!(
                " (more than {} times)",
                [5, 10, 50, 100, 1_000, 10_000]
                    .into_iter()
                    .rfind(|step| *step < n)
                    .unwrap_or(5)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(channel: Channel) -> Xid {
        Xid {
            pci: "0000:1b:00.0".into(),
            code: 31,
            channel,
            fatal: None,
            detail: String::new(),
        }
    }

    #[test]
    fn told_twice_is_once() {
        let mut counts = Counts::default();
        assert!(counts.hear(&xid(Channel::Event)));
        assert!(!counts.hear(&xid(Channel::Log)), "the log tells the same");
        assert_eq!(counts.times(), 1);
        assert!(
            counts.hear(&xid(Channel::Log)),
            "and now another, before the event"
        );
        assert!(!counts.hear(&xid(Channel::Event)));
        assert_eq!(counts.in_words(), " (2 times)");
    }

    #[test]
    fn a_storm_is_told_in_steps() {
        let mut counts = Counts::default();
        let words: std::collections::BTreeSet<String> = (0..20_000)
            .map(|_| {
                counts.hear(&xid(Channel::Event));
                counts.in_words()
            })
            .collect();
        assert!(words.len() <= 11, "{words:?}");
        assert!(words.contains(" (more than 10000 times)"));
    }
}
