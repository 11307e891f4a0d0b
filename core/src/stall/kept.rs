//! What is kept of a stall, with the generation and then with its incident. All of it is bounded: an incident of 8 ranks, 16
//! places and 2 stacks takes some 10 KiB at most.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{id::NodeName, stacks::Frame, time::Timestamp};

/// How many ranks are named. A few names help, a thousand do not.
pub(super) const NAMED_MAX: usize = 8;
/// How many places are kept.
pub(super) const PLACES_MAX: usize = 16;
/// How many frames of a stack are kept: the innermost calls, and those of the job's own program.
pub(super) const FRAMES_MAX: usize = 24;
/// Bytes of one name or sentence.
pub(super) const TEXT_MAX: usize = 160;

/// A generation in which nothing moved any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stall {
    /// Since when nothing has moved.
    pub since: Timestamp,
    /// When it was confirmed.
    pub at: Timestamp,
    pub why: Why,
    /// The ranks that the others wait for, in their order, at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<Named>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub named_more: u32,
    /// The collective in which the others wait, as far as torch tells it: `all_reduce 812 of group 0 (default_pg)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<String>,
    /// Where all ranks were, at most 16 places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
    /// The stack of the first rank that is named, and of one that waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stack>,
    /// The job trained before, or some rank waits for another: it is no job that sleeps on purpose.
    pub sure: bool,
    /// The node of the ranks that are named pays for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_node: bool,
    /// When the generation is replaced if nothing moves until then. `None`: people are told, and nothing is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act_at: Option<Timestamp>,
}

/// What two looks have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// Processes of the named ranks are stopped by a signal.
    Stopped,
    /// They wait in the kernel for a device or a disk.
    Device,
    /// They have ended, and others wait for them.
    Ended,
    /// They are somewhere else than in the collective in which the others wait.
    Elsewhere,
    /// They could not be asked, and all others wait.
    Silent,
    /// They are in another place than most.
    Apart,
    /// Ranks wait in different collectives.
    Mismatch,
    /// All wait in the same collective.
    AllWait,
    /// Nothing tells one rank from the others.
    Unclear,
    /// Somebody holds the ranks: all are stopped by a signal, or one is in a debugger.
    Held,
    /// A reason that a later version wrote.
    #[serde(other)]
    Unknown,
}

impl Why {
    /// Whether the node answers for it: no script stops itself, or waits in the kernel.
    pub fn is_the_nodes(self) -> bool {
        matches!(self, Why::Stopped | Why::Device)
    }

    /// Whether some rank waits for another, whatever the job is for.
    pub(super) fn shows_a_wait(self) -> bool {
        !matches!(
            self,
            Why::Unclear | Why::Apart | Why::Held | Why::Device | Why::Unknown
        )
    }
}

/// A rank that others wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    pub rank: u32,
    pub node: NodeName,
    /// Where it is, as `load_batch at data.py:41`, or what is known instead.
    pub place: String,
}

/// Ranks in the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// As `0-2, 4-7`.
    pub ranks: String,
    pub place: String,
}

/// The main thread of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stack {
    pub rank: u32,
    pub node: NodeName,
    /// The innermost call first.
    pub frames: Vec<Frame>,
}

impl Stall {
    /// What happened, as a sentence without its beginning: `nothing has moved: rank 3 on n1 is in ...`.
    pub fn sentence(&self) -> String {
        let named = &Listed(self);
        let others = match &self.collective {
            Some(collective) => format!("others wait in {collective}"),
            None => "others wait".to_owned(),
        };
        match self.why {
            Why::Stopped => format!("{named}; {others}"),
            Why::Device | Why::Apart => format!("{named}"),
            Why::Ended | Why::Elsewhere | Why::Silent => format!("{named}; {others}"),
            Why::Mismatch => format!("ranks wait in different collectives: {}", self.placed()),
            Why::AllWait => {
                let collective = self.collective.as_ref();
                let what = collective.map_or_else(|| self.placed(), Clone::clone);
                format!(
                    "all ranks wait for each other, in {what}: look at the network between their nodes"
                )
            }
            Why::Unclear | Why::Unknown => match self.placed().as_str() {
                "" => "nothing tells which rank the others wait for".to_owned(),
                placed => {
                    format!("nothing tells which rank the others wait for: {placed}")
                }
            },
            Why::Held => format!("somebody holds its ranks: {}", self.placed()),
        }
    }

    /// Forgets what takes much room: the stacks, and where all ranks were.
    pub fn forget_details(&mut self) {
        (self.stacks, self.places) = (Vec::new(), Vec::new());
    }

    /// The ranks that are named, or whatever else tells the stall from others, without its times.
    pub fn symptom(&self) -> Option<String> {
        let first = self.named.first()?;
        Some(format!("nothing moved: {}", first.place))
    }

    fn placed(&self) -> String {
        let places = self.places.iter().take(4);
        let places: Vec<String> = places
            .map(|place| format!("{}: {}", ranks_word(&place.ranks), place.place))
            .collect();
        places.join("; ")
    }
}

fn ranks_word(ranks: &str) -> String {
    match ranks.contains([',', '-']) {
        true => format!("ranks {ranks}"),
        false => format!("rank {ranks}"),
    }
}

struct Listed<'a>(&'a Stall);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stall {
            named, named_more, ..
        } = self.0;
        for (at, one) in named.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            let Named { rank, node, place } = one;
            write!(f, "{between}rank {rank} on {node}: {place}")?;
        }
        match named_more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Ranks as people write them: `0-2, 4`. Long lists are cut.
pub(super) fn listed(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let of = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let shown: Vec<String> = runs.iter().take(16).map(of).collect();
    let more = if runs.len() > 16 { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A text of at most [`TEXT_MAX`] bytes. Of a path the end says most.
pub(super) fn cut(text: &str) -> String {
    if text.len() <= TEXT_MAX {
        return text.to_owned();
    }
    let from = text.ceil_char_boundary(text.len() - TEXT_MAX);
    text[from..].to_owned()
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_in_runs() {
        assert_eq!(listed(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
        assert_eq!(listed(&[u32::MAX]), u32::MAX.to_string());
        let odd: Vec<u32> = (0..100).map(|n| n * 2).collect();
        assert!(listed(&odd).ends_with("30, ..."));
    }

    #[test]
    fn of_a_long_text_the_end_stays() {
        let long = format!("/{}/train.py", "ä".repeat(200));
        assert!(cut(&long).ends_with("/train.py") && cut(&long).len() <= TEXT_MAX);
    }
}
