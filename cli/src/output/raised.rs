//! Where in the script the culprit raised the exception that ended it, for `muster describe`.

use muster_proto::v1;

use crate::commands::follow::culprit;

pub(super) const HEAD: &str = "FRAME (the innermost last)";

/// The name of the table and its rows. None: no frame is known.
pub(super) fn table(ranks: &[v1::RankStatus]) -> Option<(String, Vec<Vec<String>>)> {
    let rank = culprit(ranks).filter(|rank| !rank.frames.is_empty())?;
    let frames = rank.frames.iter().map(|frame| vec![frame.clone()]);
    Some((format!("Raised in rank {}", rank.rank), frames.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_shown_where_the_culprit_raised_its_exception() {
        let rank = |rank: u32, error: &str, frame: &str| v1::RankStatus {
            rank,
            state: "exit code 1".into(),
            first_error: error.into(),
            frames: vec!["/job/train.py:40 in <module>".into(), frame.into()],
            ..Default::default()
        };
        let victim = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer";
        let ranks = vec![
            rank(0, victim, "/job/train.py:9 in reduce"),
            rank(1, "ValueError: bad", "/job/train.py:7 in load"),
        ];
        let status = v1::JobStatus {
            ranks,
            ..Default::default()
        };
        let of = |status: v1::JobStatus| {
            let job = v1::Job {
                status: Some(status),
                ..Default::default()
            };
            super::super::describe::job(&job, &[], 0, false)
        };
        let shown = of(status);
        let (_, place) = shown.split_once("Raised in rank 1:\n").unwrap();
        let lines: Vec<&str> = place.lines().take(3).map(str::trim).collect();
        assert_eq!(
            lines[1..],
            ["/job/train.py:40 in <module>", "/job/train.py:7 in load"]
        );
        assert!(!shown.contains("in reduce"));
        assert!(!of(v1::JobStatus::default()).contains("Raised"));
    }
}
