//! What scripts that failed left on stderr, as it was recorded by `tests/reasons/record.py`, and the
//! reason that a person would give.

use std::time::Duration;

use muster_runner::wire::Exit;

use super::{Finder, Left, Reason};

const RECORDED: &str = include_str!("../../../../tests/reasons/recorded.txt");

const NOW: Duration = Duration::from_secs(100);

struct Way {
    name: &'static str,
    exit: Exit,
    reason: &'static str,
    lines: Vec<&'static str>,
}

fn ways() -> Vec<Way> {
    let way = |text: &'static str| {
        let mut lines = text.lines();
        let name = lines.next().unwrap();
        let end = lines.next().unwrap().strip_prefix("ends with ").unwrap();
        let exit = match end.split_once(' ').unwrap() {
            ("code", code) => Exit::Code {
                code: code.parse().unwrap(),
            },
            (_, signal) => Exit::Signal {
                signal: signal.parse().unwrap(),
                core: false,
            },
        };
        let reason = lines.next().unwrap().strip_prefix("reason ").unwrap();
        let lines = lines.filter(|line| !line.is_empty());
        Way {
            name,
            exit,
            reason,
            lines: lines
                .map(|line| line.get(2..).unwrap_or_default())
                .collect(),
        }
    };
    RECORDED.split("#### ").skip(1).map(way).collect()
}

/// Reads the lines as a runner does, with the steps in them.
fn reason(exit: Exit, lines: &[&str]) -> Reason {
    let mut finder = Finder::default();
    let formats = muster_steps::Formats::standard();
    let mut steps = muster_steps::Reader::default();
    let mut last = None;
    for line in lines {
        let of_traceback = finder.line(line.as_bytes(), NOW, last);
        if let Some(step) = steps.look(&formats, line.as_bytes(), NOW)
            && !of_traceback
        {
            finder.stepped(true, step.count, NOW);
            last = Some(step.count);
        }
    }
    finder.reason(exit, Left::default())
}

fn shown(reason: &Reason) -> String {
    match (&reason.first_error, &reason.last_output) {
        (Some(error), _) => error.clone(),
        (None, Some(last)) => format!("last output: {last}"),
        (None, None) => "-".into(),
    }
}

#[test]
fn every_recorded_way_to_fail_has_its_reason() {
    let ways = ways();
    assert!(ways.len() > 80, "{} ways", ways.len());
    let wrong: Vec<String> = ways
        .iter()
        .map(|way| (way, shown(&reason(way.exit, &way.lines))))
        .filter(|(way, found)| match way.reason.strip_suffix('…') {
            Some(beginning) => !found.starts_with(beginning),
            None => way.reason != found,
        })
        .map(|(way, found)| format!("{}:\n    {found}\n  not {}", way.name, way.reason))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
