//! Where ranks are. Whatever is too long is cut, and nothing is refused: people read it, and no decision is made
//! from it.

use std::time::Duration;

use muster_core::{
    id::NodeName,
    stacks::{Frame, Place, Position, Process, RankStack, Together, Wait},
};

use crate::{limits::MESSAGE_MAX, v1};

/// The most ranks of one answer: the runner has 256 at most.
const RANKS_MAX: usize = 256;
/// The most threads of a rank. The runner keeps 16.
const THREADS_MAX: usize = 16;
/// The most frames of a thread. CPython writes 100.
const FRAMES_MAX: usize = 100;
/// The most groups of a rank. The runner keeps 32.
const GROUPS_MAX: usize = 32;
/// The most ranks of a group that are named: the largest clusters have some 100,000.
const MEMBERS_MAX: usize = 1 << 17;
/// Bytes of a file's or a function's name.
const NAME_MAX: usize = 2_048;
/// Bytes of a sentence.
const SENTENCE_MAX: usize = 1_024;

/// The answer of one node. All frames of its ranks together are cut to half of a message.
pub fn located_to_wire(id: u64, ranks: &[RankStack]) -> v1::RanksLocated {
    let share = MESSAGE_MAX / 2 / ranks.len().max(1);
    v1::RanksLocated {
        id,
        ranks: ranks.iter().map(|rank| rank_to_wire(rank, share)).collect(),
        error: String::new(),
    }
}

/// The ranks in the answer of `node`.
pub fn located_from_wire(node: &NodeName, wire: v1::RanksLocated) -> Vec<RankStack> {
    let ranks = wire.ranks.into_iter().take(RANKS_MAX);
    ranks.map(|rank| rank_from_wire(node, rank)).collect()
}

/// A rank, with so many bytes of frames at most. The main thread comes first, and the innermost calls of each.
pub fn rank_to_wire(rank: &RankStack, bytes: usize) -> v1::RankStack {
    let mut left = bytes;
    let mut threads = Vec::new();
    for frames in rank.threads.iter().take(THREADS_MAX) {
        let fits = |frame: &&Frame| {
            left = left.saturating_sub(frame.file.len() + frame.function.len() + 16);
            left > 0
        };
        let frames: Vec<v1::StackFrame> = { frames.iter().take(FRAMES_MAX).take_while(fits) }
            .map(frame_to_wire)
            .collect();
        if !frames.is_empty() {
            threads.push(v1::ThreadStack { frames });
        }
    }
    v1::RankStack {
        rank: rank.rank,
        node: rank.node.to_string(),
        threads,
        positions: rank.positions.iter().map(position_to_wire).collect(),
        process: rank.process.as_ref().map(process_to_wire),
        error: rank.error.clone().unwrap_or_default(),
    }
}

fn rank_from_wire(node: &NodeName, wire: v1::RankStack) -> RankStack {
    let threads = wire.threads.into_iter().take(THREADS_MAX).map(|thread| {
        let frames = thread.frames.into_iter().take(FRAMES_MAX);
        frames.map(frame_from_wire).collect()
    });
    let positions = wire.positions.into_iter().take(GROUPS_MAX);
    RankStack {
        rank: wire.rank,
        node: node.clone(),
        threads: threads.collect(),
        positions: positions.map(position_from_wire).collect(),
        process: wire.process.map(process_from_wire),
        error: some(cut(wire.error, SENTENCE_MAX)),
    }
}

pub(super) fn frame_to_wire(frame: &Frame) -> v1::StackFrame {
    v1::StackFrame {
        file: frame.file.clone(),
        line: frame.line,
        function: frame.function.clone(),
    }
}

fn frame_from_wire(wire: v1::StackFrame) -> Frame {
    Frame {
        file: cut(wire.file, NAME_MAX),
        line: wire.line,
        function: cut(wire.function, NAME_MAX),
    }
}

fn position_to_wire(position: &Position) -> v1::GroupPosition {
    v1::GroupPosition {
        group: position.group.clone(),
        description: position.description.clone(),
        ranks: position.ranks.clone(),
        called: position.called,
        completed: position.completed,
        call: position.call.clone().unwrap_or_default(),
        waiting_us: position.waiting.map(us),
    }
}

fn position_from_wire(wire: v1::GroupPosition) -> Position {
    let mut ranks = wire.ranks;
    ranks.truncate(MEMBERS_MAX);
    Position {
        group: cut(wire.group, NAME_MAX),
        description: cut(wire.description, NAME_MAX),
        ranks,
        called: wire.called,
        completed: wire.completed,
        call: some(cut(wire.call, NAME_MAX)),
        waiting: wire.waiting_us.map(Duration::from_micros),
    }
}

fn process_to_wire(process: &Process) -> v1::ProcessState {
    v1::ProcessState {
        pid: process.pid,
        state: process.state.clone(),
        wchan: process.wchan.clone(),
        cpu_us: us(process.cpu),
        over_us: us(process.over),
        threads: process.threads,
        children: process.children,
    }
}

fn process_from_wire(wire: v1::ProcessState) -> Process {
    Process {
        pid: wire.pid,
        state: cut(wire.state, NAME_MAX),
        wchan: cut(wire.wchan, NAME_MAX),
        cpu: Duration::from_micros(wire.cpu_us),
        over: Duration::from_micros(wire.over_us),
        threads: wire.threads,
        children: wire.children,
    }
}

/// Ranks in one place. `frames`: whether their stack is told.
pub fn together_to_wire(together: &Together, frames: bool) -> v1::StackGroup {
    let (call, at) = match &together.place {
        Place::At { call, file, line } => {
            let mut function = together.frames.iter();
            let function = function.rfind(|f| f.file == *file && f.line == *line);
            let at = Frame {
                file: file.clone(),
                line: *line,
                function: function.map_or(String::new(), |f| f.function.clone()),
            };
            (call.clone(), Some(frame_to_wire(&at)))
        }
        Place::Unknown(_) => (String::new(), None),
    };
    let shown = together
        .frames
        .iter()
        .take(if frames { FRAMES_MAX } else { 0 });
    v1::StackGroup {
        ranks: together.ranks.clone(),
        call,
        at,
        sentence: together.place.to_string(),
        frames: shown.map(frame_to_wire).collect(),
    }
}

pub fn wait_to_wire(wait: &Wait) -> v1::GroupWait {
    v1::GroupWait {
        group: wait.group.clone(),
        description: wait.description.clone(),
        call: wait.call.clone().unwrap_or_default(),
        sequence: wait.sequence,
        waiting: wait.waiting.clone(),
        waiting_us: wait.waited.map(us),
        behind: wait.behind.clone(),
        completed: wait.completed,
        silent: wait.silent.clone(),
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(threads: Vec<Vec<Frame>>) -> RankStack {
        RankStack {
            rank: 3,
            node: NodeName::from("n1"),
            threads,
            positions: vec![Position {
                group: "0".into(),
                description: "default_pg".into(),
                ranks: vec![0, 3],
                called: 8,
                completed: 7,
                call: Some("all_reduce".into()),
                waiting: Some(Duration::from_millis(31)),
            }],
            process: Some(Process {
                pid: 7,
                state: "D".into(),
                wchan: "fuse_wait".into(),
                cpu: Duration::from_micros(5),
                over: Duration::from_micros(200),
                threads: 3,
                children: 1,
            }),
            error: Some("why".into()),
        }
    }

    fn frame(function: &str) -> Frame {
        Frame {
            file: "train.py".into(),
            line: 41,
            function: function.into(),
        }
    }

    #[test]
    fn a_rank_comes_through_whole() {
        let node = NodeName::from("n1");
        let there = rank(vec![
            vec![frame("load_batch"), frame("<module>")],
            vec![frame("pin")],
        ]);
        let wire = located_to_wire(9, std::slice::from_ref(&there));
        assert_eq!(wire.id, 9);
        assert_eq!(located_from_wire(&node, wire), [there]);
        let bare = RankStack {
            positions: Vec::new(),
            process: None,
            error: None,
            ..rank(Vec::new())
        };
        let wire = located_to_wire(9, std::slice::from_ref(&bare));
        assert_eq!(located_from_wire(&node, wire), [bare]);
    }

    #[test]
    fn an_answer_of_many_ranks_fits_into_a_message() {
        let long = vec![vec![frame(&"f".repeat(500)); 100]; 16];
        let ranks = vec![rank(long); RANKS_MAX];
        let wire = located_to_wire(9, &ranks);
        assert!(prost::Message::encoded_len(&wire) < MESSAGE_MAX);
        assert!(wire.ranks.iter().all(|rank| !rank.threads.is_empty()));
    }
}
