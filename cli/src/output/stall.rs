//! A generation that stands still, or whose ranks wait for one of them, for people.

use muster_proto::v1::{JobStatus, Stall};

use super::table::plain;

/// What it is about, since when, and what follows.
pub(super) fn sentence(stall: &Stall, now_us: u64) -> String {
    let still = now_us.saturating_sub(stall.since_unix_us) / 1_000_000;
    let follows = match stall.restart_unix_us {
        0 => String::new(),
        at => match at.saturating_sub(now_us) / 1_000_000 {
            0 => "; it is restarted now".to_owned(),
            left => format!("; it is restarted in {left} s"),
        },
    };
    let sentence = plain(&stall.sentence);
    format!("nothing has moved for {still} s: {sentence}{follows}")
}

/// Where its ranks were, one line each.
pub(super) fn places(stall: &Stall) -> impl Iterator<Item = String> {
    let places = stall.places.iter();
    places.map(|place| {
        let word = match place.ranks.contains([',', '-']) {
            true => "ranks",
            false => "rank",
        };
        plain(&format!("{word} {}: {}", place.ranks, place.place))
    })
}

/// The ranks that make the others wait, one line each.
pub(super) fn slow(status: &JobStatus, now_us: u64) -> impl Iterator<Item = String> {
    status.slow.iter().map(move |slow| {
        let since = now_us.saturating_sub(slow.since_unix_us) / 1_000_000;
        plain(&format!("{}; for {since} s", slow.sentence))
    })
}

/// What the receipt says of it: where its ranks were, and the two stacks that are kept.
pub(super) fn rows(stall: &Stall) -> Vec<(&'static str, String)> {
    let mut rows: Vec<(&str, String)> = places(stall).map(|place| ("stood at", place)).collect();
    for stack in &stall.stacks {
        rows.push(("stack", format!("rank {} on {}", stack.rank, stack.node)));
        for frame in &stack.frames {
            let words = format!("  {}  {}:{}", frame.function, frame.file, frame.line);
            rows.push(("", plain(&words)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{SlowRank, StackFrame, StalledPlace, StalledStack};

    use super::*;

    #[test]
    fn who_is_slow_is_one_line() {
        let slow = SlowRank {
            since_unix_us: 1_000_000,
            sentence: "rank 3 on n1: each step waits 0.030 s for it (1.6 x)".into(),
            ..SlowRank::default()
        };
        let status = JobStatus {
            slow: vec![slow],
            ..JobStatus::default()
        };
        assert_eq!(
            super::slow(&status, 71_000_000).collect::<Vec<_>>(),
            ["rank 3 on n1: each step waits 0.030 s for it (1.6 x); for 70 s"]
        );
        assert_eq!(super::slow(&JobStatus::default(), 0).count(), 0);
    }

    #[test]
    fn people_read_who_where_and_what_follows() {
        let place = |ranks: &str, place: &str| StalledPlace {
            ranks: ranks.into(),
            place: place.into(),
        };
        let frame = StackFrame {
            file: "/t/data.py".into(),
            line: 41,
            function: "load_batch".into(),
        };
        let stack = StalledStack {
            rank: 3,
            node: "n1".into(),
            frames: vec![frame],
        };
        let stall = Stall {
            since_unix_us: 10_000_000,
            sentence: "rank 3 on n1: load_batch at data.py:41; others wait".into(),
            places: vec![
                place("0-2", "all_reduce at train.py:88"),
                place("3", "load_batch at data.py:41"),
            ],
            stacks: vec![stack],
            restart_unix_us: 50_000_000,
            ..Stall::default()
        };
        assert_eq!(
            sentence(&stall, 41_000_000),
            "nothing has moved for 31 s: rank 3 on n1: load_batch at data.py:41; others wait; it is restarted in 9 s"
        );
        let shown: Vec<String> = { rows(&stall).into_iter() }
            .map(|(name, text)| format!("{name}|{text}"))
            .collect();
        assert_eq!(
            shown,
            [
                "stood at|ranks 0-2: all_reduce at train.py:88",
                "stood at|rank 3: load_batch at data.py:41",
                "stack|rank 3 on n1",
                "|  load_batch  /t/data.py:41",
            ]
        );
    }
}
