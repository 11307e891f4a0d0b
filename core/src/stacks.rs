//! Where the ranks of a job are: equal places together, and who keeps others waiting.
//!
//! A rank's place is its innermost call and the innermost line of its own program. How far it has come is
//! the sequence number of its last collective in each process group. Nothing here acts or suspects: in a job
//! that runs well some rank is always last.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::id::NodeName;

/// Where one rank is, as its node has found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStack {
    pub rank: u32,
    pub node: NodeName,
    /// The Python threads, the main thread first, the innermost call first.
    pub threads: Vec<Vec<Frame>>,
    pub positions: Vec<Position>,
    pub process: Option<Process>,
    /// Why there are no stacks, or no positions.
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    pub file: String,
    pub line: u32,
    pub function: String,
}

/// Where a rank is in one process group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub group: String,
    pub description: String,
    /// The global ranks of the group. Empty: not known.
    pub ranks: Vec<u32>,
    /// The last collective that was called, and the last that has completed. They count from 1.
    pub called: u64,
    pub completed: u64,
    /// The first call that has not completed.
    pub call: Option<String>,
    pub waiting: Option<Duration>,
}

impl Position {
    /// Whether the rank has called a collective that has not completed.
    pub fn waits(&self) -> bool {
        self.called > self.completed
    }
}

/// What the kernel says of a rank's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// As in proc(5).
    pub state: String,
    pub wchan: String,
    /// The processor time of the last `over`.
    pub cpu: Duration,
    pub over: Duration,
    pub threads: u32,
    pub children: u32,
}

/// Ranks that are in the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Together {
    pub ranks: Vec<u32>,
    pub place: Place,
    /// The main thread of the first of them.
    pub frames: Vec<Frame>,
}

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In this call, made at this line of the job's own program.
    At {
        call: String,
        file: String,
        line: u32,
    },
    /// What is known instead of a stack.
    Unknown(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::At { call, file, line } => {
                let name = file.rsplit('/').next().unwrap_or(file);
                write!(f, "{call} at {name}:{line}")
            }
            Place::Unknown(what) => f.write_str(what),
        }
    }
}

/// A process group in which ranks wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub group: String,
    pub description: String,
    pub call: Option<String>,
    /// The collective that the foremost ranks wait in.
    pub sequence: u64,
    pub waiting: Vec<u32>,
    /// How long the first of them has waited.
    pub waited: Option<Duration>,
    /// The ranks that have come least far and wait in no collective of this group.
    pub behind: Vec<u32>,
    /// What those have completed.
    pub completed: u64,
    /// Ranks of the group of which nothing is known.
    pub silent: Vec<u32>,
}

/// The ranks by their places, in the order of their first rank.
pub fn together(ranks: &[RankStack]) -> Vec<Together> {
    let mut by_place: BTreeMap<Place, Vec<&RankStack>> = BTreeMap::new();
    for rank in ranks {
        by_place.entry(place(rank)).or_default().push(rank);
    }
    let mut groups: Vec<Together> = { by_place.into_iter() }
        .map(|(place, mut ranks)| {
            ranks.sort_by_key(|rank| rank.rank);
            let first = ranks.first().and_then(|rank| rank.threads.first());
            Together {
                place,
                frames: first.cloned().unwrap_or_default(),
                ranks: ranks.iter().map(|rank| rank.rank).collect(),
            }
        })
        .collect();
    groups.sort_by_key(|group| group.ranks.first().copied());
    groups
}

/// Where a rank is.
pub fn place(rank: &RankStack) -> Place {
    if let Some(frames) = rank.threads.first()
        && let Some(innermost) = frames.first()
    {
        let own = frames.iter().find(|frame| is_own(frame));
        let at = own.unwrap_or(innermost);
        return Place::At {
            call: innermost.function.clone(),
            file: at.file.clone(),
            line: at.line,
        };
    }
    let error = rank.error.as_deref();
    let Some(process) = &rank.process else {
        return Place::Unknown(error.unwrap_or("nothing is known of it").to_owned());
    };
    let mut words = state(process);
    if let Some(error) = error {
        words = format!("{words}; {error}");
    }
    Place::Unknown(words)
}

/// What the state of a process means.
fn state(process: &Process) -> String {
    let doing = match process.state.as_str() {
        "T" => "stopped by a signal (state T)".to_owned(),
        "t" => "stopped by a debugger (state t)".to_owned(),
        "D" => format!(
            "waits in the kernel for a device or a disk (state D{})",
            at(process)
        ),
        "Z" => "has ended (state Z)".to_owned(),
        // Shares of a tenth: ranks that do the same are in one group.
        _ if process.over.is_zero() => format!("state {}", process.state),
        other => {
            let share = process.cpu.as_secs_f64() / process.over.as_secs_f64();
            match share {
                share if share < 0.05 => format!("sleeps (state {other}{})", at(process)),
                _ => format!("works (state {other})"),
            }
        }
    };
    match process.children {
        0 => doing,
        1 => format!("{doing}, has 1 child"),
        n => format!("{doing}, has {n} children"),
    }
}

fn at(process: &Process) -> String {
    match process.wchan.as_str() {
        "" => String::new(),
        wchan => format!(", in {wchan}"),
    }
}

/// Whether a frame is of the job's own program: neither of an installed package, nor of the standard
/// library, nor of what Muster runs the script with.
pub(crate) fn is_own(frame: &Frame) -> bool {
    let file = frame.file.as_str();
    let installed = ["/site-packages/", "/dist-packages/"];
    let is_library = |part: &str| part.starts_with("python") && part.contains('.');
    let mut parts = file.rsplit('/').skip(1).peekable();
    // `/usr/lib/python3.12/selectors.py`, and what is below it.
    let mut standard = false;
    while let Some(part) = parts.next() {
        standard |= is_library(part)
            && (parts.peek()).is_some_and(|above| matches!(*above, "lib" | "lib64"));
    }
    let frozen = file.starts_with('<') && file != "<stdin>" && file != "<string>";
    let of_muster = file.ends_with("/launcher.py") && file.contains("-launcher-");
    !(installed.iter().any(|part| file.contains(part)) || standard || frozen || of_muster)
}

/// The process groups in which ranks wait, in the order of their names.
pub fn waits(ranks: &[RankStack]) -> Vec<Wait> {
    let mut groups: BTreeMap<(usize, &str), Vec<(u32, &Position)>> = BTreeMap::new();
    for rank in ranks {
        for position in &rank.positions {
            // "10" comes after "9".
            let key = (position.group.len(), position.group.as_str());
            groups.entry(key).or_default().push((rank.rank, position));
        }
    }
    groups
        .into_values()
        .filter_map(|of| wait(ranks, &of))
        .collect()
}

fn wait(all: &[RankStack], of: &[(u32, &Position)]) -> Option<Wait> {
    let waiting = of.iter().filter(|(_, position)| position.waits());
    let foremost = waiting
        .clone()
        .map(|(_, position)| position.completed + 1)
        .max()?;
    let waiting: Vec<&(u32, &Position)> = waiting
        .filter(|(_, position)| position.completed + 1 == foremost)
        .collect();
    let (_, first) = waiting
        .iter()
        .max_by_key(|(_, position)| position.waiting)?;
    let free = of.iter().filter(|(_, position)| !position.waits());
    let completed = free.clone().map(|(_, position)| position.completed).min();
    let completed = completed.filter(|completed| *completed < foremost);
    let behind = { free }
        .filter(|(_, position)| Some(position.completed) == completed)
        .map(|(rank, _)| *rank)
        .collect();
    let members: &[u32] = of
        .iter()
        .map(|(_, p)| p.ranks.as_slice())
        .max_by_key(|r| r.len())?;
    // gloo does not say who is in a group. In the default group is everybody.
    let everybody = members.is_empty() && first.description == "default_pg";
    let is_member = |rank: &u32| everybody || members.contains(rank);
    let known = |rank: u32| of.iter().any(|(other, _)| *other == rank);
    let silent = all.iter().map(|rank| rank.rank);
    let silent = silent
        .filter(|rank| is_member(rank) && !known(*rank))
        .collect();
    Some(Wait {
        group: first.group.clone(),
        description: first.description.clone(),
        call: first.call.clone(),
        sequence: foremost,
        waiting: waiting.iter().map(|(rank, _)| *rank).collect(),
        waited: first.waiting,
        behind,
        completed: completed.unwrap_or(0),
        silent,
    })
}

#[cfg(test)]
mod tests;
