//! What scripts that failed left on stderr, as it was recorded by `tests/reasons/record.py`, and the
//! reason that a person would give.

use std::time::Duration;

use muster_runner::wire::Exit;

use super::{Finder, Left, Reason};

const RECORDED: &str = include_str!("../../../../tests/reasons/recorded.txt");

/// Recorded by hand on an H100 with torch 2.11 and NCCL 2.28.9, where each rank was started by itself.
const OF_A_GPU: &str = include_str!("../../../../tests/reasons/of_a_gpu.txt");

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
    let all = [RECORDED, OF_A_GPU].into_iter();
    all.flat_map(|text| text.split("#### ").skip(1))
        .map(way)
        .collect()
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

const CODE_1: Exit = Exit::Code { code: 1 };
const TRACEBACK: [&str; 3] = [
    "Traceback (most recent call last):",
    "  File \"a.py\", line 1, in <module>",
    "KeyError: 'cache'",
];

fn after_a_traceback() -> Finder {
    let mut finder = Finder::default();
    for line in TRACEBACK {
        finder.line(line.as_bytes(), NOW, Some(4));
    }
    finder
}

fn found(finder: &Finder, exit: Exit) -> String {
    shown(&finder.reason(exit, Left::default()))
}

#[test]
fn steps_on_the_other_pipe_count_when_they_are_surely_later() {
    let code_3 = Exit::Code { code: 3 };
    let mut finder = after_a_traceback();
    // Both pipes were full of what was written before.
    for step in 5..50 {
        finder.stepped(false, step, NOW + Duration::from_millis(20));
    }
    assert_eq!(found(&finder, CODE_1), "KeyError: 'cache'");
    assert_eq!(found(&finder, code_3), "-", "it was handled");
    finder.stepped(false, 50, NOW + Duration::from_secs(1));
    assert_eq!(found(&finder, CODE_1), "-");
    // A bar that is closed at the end is drawn once more.
    let mut finder = after_a_traceback();
    finder.stepped(true, 5, NOW);
    assert_eq!(found(&finder, CODE_1), "KeyError: 'cache'");
    finder.stepped(true, 6, NOW);
    assert_eq!(found(&finder, CODE_1), "-");
}

#[test]
fn a_number_in_a_traceback_is_no_step() {
    let mut lines = vec![
        "Traceback (most recent call last):",
        "  File \"a.py\", line 1, in <module>",
    ];
    lines.push("torch.OutOfMemoryError: CUDA out of memory at step 9000");
    lines.push("\tstep 9001 needs 3 GiB");
    let found = shown(&reason(Exit::Code { code: 1 }, &lines));
    assert_eq!(
        found,
        "torch.OutOfMemoryError: CUDA out of memory at step 9000 step 9001 needs 3 GiB"
    );
}

#[test]
fn no_output_makes_a_reason_long_or_takes_memory() {
    let long = "x".repeat(16 << 10);
    let mut finder = after_a_traceback();
    for _ in 0..10_000 {
        finder.line(format!("\t{long}").as_bytes(), NOW, None);
    }
    let reason = finder.reason(CODE_1, Left::default());
    assert!(reason.first_error.unwrap().len() <= 703);
    let long = &long[..2 << 10];
    let mut finder = Finder::default();
    finder.line(TRACEBACK[0].as_bytes(), NOW, None);
    for n in 0..10_000 {
        finder.line(
            format!("  File \"{long}\", line {n}, in f").as_bytes(),
            NOW,
            None,
        );
    }
    finder.line(b"ValueError: deep", NOW, None);
    let exception = finder.reason(CODE_1, Left::default()).exception.unwrap();
    assert_eq!(exception.frames.len(), 5);
    assert!(exception.frames.iter().all(|frame| frame.len() <= 243));
}

#[test]
fn a_traceback_that_another_writer_cut_in_two_is_still_one() {
    let lines = [
        TRACEBACK[0],
        TRACEBACK[1],
        "[W1126 12:00:00.000000000 socket.cpp:200] connect: busy",
        "100%|##########| 10/10 [00:01<00:00,  9.9it/s]",
        "wandb: network error, will retry",
        TRACEBACK[2],
    ];
    assert_eq!(shown(&reason(CODE_1, &lines)), "KeyError: 'cache'");
    // One that never ends says nothing.
    let noise: Vec<String> = (0..40).map(|n| format!("loaded shard {n}")).collect();
    let torn = [TRACEBACK[0], TRACEBACK[1]];
    let lines: Vec<&str> = torn
        .into_iter()
        .chain(noise.iter().map(String::as_str))
        .collect();
    assert_eq!(
        shown(&reason(CODE_1, &lines)),
        "last output: loaded shard 39"
    );
}

#[test]
fn colours_do_not_hide_a_traceback() {
    let lines = [
        "\x1b[31mTraceback (most recent call last):\x1b[0m",
        "  File \x1b[35m\"a.py\"\x1b[0m, line \x1b[35m1\x1b[0m, in \x1b[35m<module>\x1b[0m",
        "\x1b[1;35mKeyError\x1b[0m: \x1b[35m'cache'\x1b[0m",
    ];
    let reason = reason(CODE_1, &lines);
    assert_eq!(shown(&reason), "KeyError: 'cache'");
    assert_eq!(reason.exception.unwrap().frames, ["a.py:1 in <module>"]);
}

#[test]
fn what_mpi_says_of_another_process_comes_last() {
    let gone = "muster-rsh: pi-worker-0 is gone: it does not answer";
    let signal = Exit::Signal {
        signal: 1,
        core: false,
    };
    let lost = "muster-lend: the launcher's connection broke above MPI rank 3 (pid 7)";
    assert_eq!(shown(&reason(CODE_1, &[gone, "x"])), gone);
    assert_eq!(shown(&reason(signal, &[lost])), lost);
}

#[test]
fn of_many_frames_those_of_the_script_and_the_innermost_stay() {
    let mut lines = vec![TRACEBACK[0].to_owned()];
    lines.push("  File \"<frozen runpy>\", line 88, in _run_code".into());
    for n in 1..3 {
        lines.push(format!("  File \"/job/train.py\", line {n}, in f{n}"));
    }
    for n in 1..40 {
        lines.push(format!(
            "  File \"/v/site-packages/torch/nn.py\", line {n}, in g"
        ));
        lines.push("    return self(x)".into());
    }
    lines.push("ValueError: bad".into());
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let frames = reason(CODE_1, &lines).exception.unwrap().frames;
    let torch = |n| format!("/v/site-packages/torch/nn.py:{n} in g");
    let expected = [
        "/job/train.py:1 in f1".into(),
        "/job/train.py:2 in f2".into(),
        torch(37),
        torch(38),
        torch(39),
    ];
    assert_eq!(frames, expected);
}
