//! `muster stacks`: where the ranks of a job are, as text and as a document.

use std::collections::BTreeSet;

use muster_proto::v1::{self, GroupPosition, GroupWait, RankStack, StackFrame, StacksResponse};
use serde::Serialize;

use super::{
    table::{Table, plain},
    words::count,
};

pub(crate) fn render(job: &str, answer: &StacksResponse, threads: bool) -> String {
    let nodes: BTreeSet<&str> = answer.ranks.iter().map(|rank| rank.node.as_str()).collect();
    let mut out = format!(
        "Job {}, generation {}: {} on {}\n\n",
        plain(job),
        answer.generation,
        count(answer.ranks.len() as u64, "rank"),
        count(nodes.len() as u64, "node"),
    );
    for group in &answer.groups {
        out += &format!("{}: {}\n", ranks(&group.ranks), plain(&group.sentence));
        let of_group = |rank: &&RankStack| group.ranks.binary_search(&rank.rank).is_ok();
        for line in positions(answer.ranks.iter().filter(of_group)) {
            out += &format!("    {line}\n");
        }
    }
    if !answer.waits.is_empty() {
        out.push('\n');
    }
    for wait in &answer.waits {
        out += &format!("{}\n", plain(&waiting(wait)));
    }
    if threads {
        for rank in &answer.ranks {
            for (at, thread) in rank.threads.iter().enumerate() {
                let name = match at {
                    0 => "main thread".to_owned(),
                    n => format!("thread {}", n + 1),
                };
                out += &stack(&format!("Rank {}, {name}", rank.rank), &thread.frames);
            }
        }
        return out;
    }
    for group in answer
        .groups
        .iter()
        .filter(|group| !group.frames.is_empty())
    {
        let Some(first) = group.ranks.first() else {
            continue;
        };
        let node = answer.ranks.iter().find(|rank| rank.rank == *first);
        let node = node.map_or("", |rank| rank.node.as_str());
        out += &stack(&format!("Stack of rank {first} on {node}"), &group.frames);
    }
    out
}

/// A stack, the innermost call first, without what Muster runs the script with (`-o json` has it).
fn stack(head: &str, frames: &[StackFrame]) -> String {
    let of_muster = |frame: &&StackFrame| {
        frame.file.ends_with("/launcher.py") && frame.file.contains("-launcher-")
    };
    let below = frames.iter().rev().take_while(of_muster).count();
    let frames = &frames[..frames.len() - below];
    let row = |frame: &StackFrame| {
        vec![
            format!("  {}", frame.function),
            format!("{}:{}", frame.file, frame.line),
        ]
    };
    let rows: Vec<Vec<String>> = frames.iter().map(row).collect();
    format!(
        "\n{}\n{}",
        plain(head),
        Table::new(vec!["", ""]).render(&rows, false)
    )
}

/// `ranks 0-2, 4-7`.
fn ranks(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => parts.push((*rank, *rank)),
        }
    }
    let part = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let parts: Vec<String> = parts.iter().map(part).collect();
    let s = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{s} {}", parts.join(", "))
}

/// `0 (default_pg)`.
fn named(group: &str, description: &str) -> String {
    match description {
        "" | "undefined" => format!("group {group}"),
        description => format!("group {group} ({description})"),
    }
}

/// One line for each process group in which some of these ranks wait, or the one that has come farthest if
/// they wait in none.
fn positions<'a>(ranks: impl Iterator<Item = &'a RankStack>) -> Vec<String> {
    let mut groups: Vec<(&str, &str, Vec<&GroupPosition>)> = Vec::new();
    for position in ranks.flat_map(|rank| &rank.positions) {
        let key = (position.group.as_str(), position.description.as_str());
        match groups.iter_mut().find(|(g, d, _)| (*g, *d) == key) {
            Some((_, _, all)) => all.push(position),
            None => groups.push((key.0, key.1, vec![position])),
        }
    }
    let waits = |position: &&GroupPosition| position.called > position.completed;
    let in_one = groups.iter().any(|(_, _, all)| all.iter().any(waits));
    if !in_one {
        let farthest = |all: &[&GroupPosition]| all.iter().map(|p| p.called).max();
        groups.sort_by_key(|(_, _, all)| std::cmp::Reverse(farthest(all)));
        groups.truncate(1);
    }
    let line = |(group, description, all): &(&str, &str, Vec<&GroupPosition>)| {
        let named = named(group, description);
        let waiting: Vec<&&GroupPosition> = all.iter().filter(|p| waits(p)).collect();
        let Some(first) = waiting.iter().max_by_key(|p| p.waiting_us) else {
            if in_one {
                return None;
            }
            let completed = all.iter().map(|p| p.completed);
            let (least, most) = (completed.clone().min()?, completed.max()?);
            return Some(match (least, most) {
                (_, 0) => format!("{named}: no collective yet"),
                _ if least == most => format!("{named}: completed {most}"),
                _ => format!("{named}: completed {least} to {most}"),
            });
        };
        let call = match first.call.as_str() {
            "" => "collective",
            call => call,
        };
        let time = first
            .waiting_us
            .map_or(String::new(), |us| format!(" for {}", seconds(us)));
        let some = match waiting.len() == all.len() {
            true => String::new(),
            false => format!(" ({} of {})", waiting.len(), all.len()),
        };
        Some(format!(
            "{call} {} of {named}, waiting{time}{some}",
            first.completed + 1
        ))
    };
    groups
        .iter()
        .filter_map(line)
        .map(|line| plain(&line))
        .collect()
}

fn waiting(wait: &GroupWait) -> String {
    let GroupWait {
        group,
        description,
        call,
        sequence,
        ..
    } = wait;
    let call = if call.is_empty() { "collective" } else { call };
    let time = wait
        .waiting_us
        .map_or(String::new(), |us| format!(" for {}", seconds(us)));
    let one = wait.waiting.len() == 1;
    let mut text = format!(
        "In {}, {} wait{} in {call} {sequence}{time}",
        named(group, description),
        count(wait.waiting.len() as u64, "rank"),
        if one { "s" } else { "" },
    );
    if !wait.behind.is_empty() {
        let has = if wait.behind.len() == 1 {
            "has"
        } else {
            "have"
        };
        let far = match wait.completed {
            0 => "made no call of it yet".to_owned(),
            n => format!("completed {n} and not called {sequence}"),
        };
        text += &format!("; behind: {}, which {has} {far}", ranks(&wait.behind));
    }
    if !wait.silent.is_empty() {
        text += &format!("; not known: {}", ranks(&wait.silent));
    }
    if wait.behind.is_empty() && wait.silent.is_empty() {
        text += "; nobody is behind: all have called it";
    }
    text
}

fn seconds(us: u64) -> String {
    format!("{:.1} s", us as f64 / 1e6)
}

/// The document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stacks {
    generation: u64,
    groups: Vec<Group>,
    waits: Vec<Wait>,
    ranks: Vec<Rank>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    ranks: Vec<u32>,
    sentence: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    call: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Frame>,
    frames: Vec<Frame>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Frame {
    file: String,
    line: u32,
    function: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Wait {
    group: String,
    description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    call: String,
    sequence: u64,
    waiting: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_seconds: Option<f64>,
    behind: Vec<u32>,
    completed: u64,
    silent: Vec<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rank {
    rank: u32,
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    threads: Vec<Vec<Frame>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    positions: Vec<Position>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Position {
    group: String,
    description: String,
    called: u64,
    completed: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    call: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    pid: i32,
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    wchan: String,
    cpu_ms: f64,
    over_ms: f64,
    threads: u32,
    children: u32,
}

impl From<StacksResponse> for Stacks {
    fn from(answer: StacksResponse) -> Self {
        Stacks {
            generation: answer.generation,
            groups: answer.groups.into_iter().map(Group::of).collect(),
            waits: answer.waits.into_iter().map(Wait::of).collect(),
            ranks: answer.ranks.into_iter().map(Rank::of).collect(),
        }
    }
}

impl Group {
    fn of(group: v1::StackGroup) -> Self {
        Group {
            ranks: group.ranks,
            sentence: group.sentence,
            call: group.call,
            at: group.at.map(Frame::of),
            frames: group.frames.into_iter().map(Frame::of).collect(),
        }
    }
}

impl Frame {
    fn of(frame: StackFrame) -> Self {
        Frame {
            file: frame.file,
            line: frame.line,
            function: frame.function,
        }
    }
}

impl Wait {
    fn of(wait: GroupWait) -> Self {
        Wait {
            group: wait.group,
            description: wait.description,
            call: wait.call,
            sequence: wait.sequence,
            waiting: wait.waiting,
            waiting_seconds: wait.waiting_us.map(|us| us as f64 / 1e6),
            behind: wait.behind,
            completed: wait.completed,
            silent: wait.silent,
        }
    }
}

impl Rank {
    fn of(rank: RankStack) -> Self {
        let frames = |thread: v1::ThreadStack| thread.frames.into_iter().map(Frame::of).collect();
        Rank {
            rank: rank.rank,
            node: rank.node,
            error: Some(rank.error).filter(|error| !error.is_empty()),
            threads: rank.threads.into_iter().map(frames).collect(),
            positions: rank.positions.into_iter().map(Position::of).collect(),
            process: rank.process.map(Process::of),
        }
    }
}

impl Position {
    fn of(position: GroupPosition) -> Self {
        Position {
            group: position.group,
            description: position.description,
            called: position.called,
            completed: position.completed,
            call: position.call,
            waiting_seconds: position.waiting_us.map(|us| us as f64 / 1e6),
        }
    }
}

impl Process {
    fn of(process: v1::ProcessState) -> Self {
        Process {
            pid: process.pid,
            state: process.state,
            wchan: process.wchan,
            cpu_ms: process.cpu_us as f64 / 1e3,
            over_ms: process.over_us as f64 / 1e3,
            threads: process.threads,
            children: process.children,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32, function: &str) -> StackFrame {
        StackFrame {
            file: file.into(),
            line,
            function: function.into(),
        }
    }

    fn rank(rank: u32, called: u64, completed: u64) -> RankStack {
        RankStack {
            rank,
            node: format!("node-{}", rank / 4),
            positions: vec![GroupPosition {
                group: "0".into(),
                description: "default_pg".into(),
                called,
                completed,
                call: if called > completed {
                    "all_reduce".into()
                } else {
                    String::new()
                },
                waiting_us: (called > completed).then_some(31_000_000),
                ..GroupPosition::default()
            }],
            ..RankStack::default()
        }
    }

    #[test]
    fn seven_wait_for_one() {
        let frames = vec![
            frame(
                "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
                2810,
                "all_reduce",
            ),
            frame("/home/ann/train.py", 88, "<module>"),
        ];
        let late = vec![
            frame("/home/ann/data.py", 41, "load_batch"),
            frame("/home/ann/train.py", 80, "<module>"),
        ];
        let answer = StacksResponse {
            generation: 2,
            ranks: (0..8)
                .map(|at| {
                    if at == 3 {
                        rank(3, 811, 811)
                    } else {
                        rank(at, 812, 811)
                    }
                })
                .collect(),
            groups: vec![
                v1::StackGroup {
                    ranks: vec![0, 1, 2, 4, 5, 6, 7],
                    sentence: "all_reduce at train.py:88".into(),
                    frames,
                    ..v1::StackGroup::default()
                },
                v1::StackGroup {
                    ranks: vec![3],
                    sentence: "load_batch at data.py:41".into(),
                    frames: late,
                    ..v1::StackGroup::default()
                },
            ],
            waits: vec![GroupWait {
                group: "0".into(),
                description: "default_pg".into(),
                call: "all_reduce".into(),
                sequence: 812,
                waiting: vec![0, 1, 2, 4, 5, 6, 7],
                waiting_us: Some(31_000_000),
                behind: vec![3],
                completed: 811,
                silent: vec![],
            }],
        };
        let expected = "\
Job digits, generation 2: 8 ranks on 2 nodes

ranks 0-2, 4-7: all_reduce at train.py:88
    all_reduce 812 of group 0 (default_pg), waiting for 31.0 s
rank 3: load_batch at data.py:41
    group 0 (default_pg): completed 811

In group 0 (default_pg), 7 ranks wait in all_reduce 812 for 31.0 s; behind: rank 3, which has completed 811 and not called 812

Stack of rank 0 on node-0
  all_reduce   /venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:2810
  <module>     /home/ann/train.py:88

Stack of rank 3 on node-0
  load_batch   /home/ann/data.py:41
  <module>     /home/ann/train.py:80
";
        assert_eq!(render("digits", &answer, false), expected);
        let document = super::super::value(&Stacks::from(answer));
        assert_eq!(document["waits"][0]["behind"], serde_json::json!([3]));
        assert_eq!(document["groups"][1]["frames"][0]["line"], 41);
        assert_eq!(document["ranks"][3]["positions"][0]["completed"], 811);
    }

    #[test]
    fn what_runs_the_script_is_no_part_of_its_stack() {
        let frame = |file: &str| StackFrame {
            file: file.into(),
            line: 3,
            function: "go".into(),
        };
        let ours = "/var/lib/muster-agent/runs/j-launcher-1/launcher.py";
        let shown = stack("S", &[frame("/a/train.py"), frame(ours), frame(ours)]);
        assert_eq!(shown, "\nS\n  go   /a/train.py:3\n");
        let theirs = stack("S", &[frame("/a/launcher.py")]);
        assert!(theirs.contains("/a/launcher.py"), "a job's own file");
    }

    #[test]
    fn a_wait_without_culprit_says_so() {
        let wait = GroupWait {
            group: "7".into(),
            description: "undefined".into(),
            sequence: 3,
            waiting: vec![1],
            ..GroupWait::default()
        };
        assert_eq!(
            waiting(&wait),
            "In group 7, 1 rank waits in collective 3; nobody is behind: all have called it"
        );
        let silent = GroupWait {
            behind: vec![2],
            silent: vec![4, 5],
            ..wait
        };
        assert_eq!(
            waiting(&silent),
            "In group 7, 1 rank waits in collective 3; behind: rank 2, which has made no call of it yet; not known: ranks 4-5"
        );
    }
}
