//! Errors that the driver numbers (XIDs). The event channel and the kernel log both tell of each,
//! so each is counted by channel, and the channel that heard more is believed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Who told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Channel {
    Event,
    Log,
}

/// One XID, as one channel told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// PCI address of the GPU, as sysfs writes it.
    pub pci: String,
    pub code: u32,
    pub channel: Channel,
    /// NVLink5 codes say in the log whether they are fatal.
    pub fatal: Option<bool>,
    /// What the log added.
    pub detail: String,
}

/// How often each channel has told of one code on one GPU in this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Counts {
    by_channel: BTreeMap<Channel, u32>,
    pub(super) detail: String,
    pub(super) fatal: Option<bool>,
}

impl Counts {
    /// Takes one telling down. True if that is news, and not the other channel's word of what is
    /// known.
    pub(super) fn hear(&mut self, xid: &Xid) -> bool {
        let before = self.times();
        let mine = self.by_channel.entry(xid.channel).or_default();
        *mine = mine.saturating_add(1);
        if !xid.detail.is_empty() {
            self.detail.clone_from(&xid.detail);
        }
        // Once fatal, always fatal in this boot.
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

    /// A storm must not make a report of each of its drops: small numbers exactly, large ones in
    /// steps.
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
