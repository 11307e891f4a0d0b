//! What it costs to look for steps: MB/s for each kind of log, and how often the same bytes could have
//! been cut into lines in that time. `bench/steps.py` runs it.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use muster_steps::{Formats, Reader};

/// Bytes of each input: more than any cache holds.
const BYTES: usize = 32 << 20;

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let texts = |name: &str| {
        let file = fs::read_to_string(corpus.join(name)).unwrap();
        let lines = file
            .lines()
            .filter_map(|line| Some(line.split_once('\t')?.1));
        lines
            .map(|line| line.replace("\\e", "\x1b") + "\n")
            .collect::<String>()
    };
    let steps = ["vision.log", "language.log", "tutorials.log", "bars.log"].map(texts);
    let inputs = [
        (
            "plain text",
            "the quick brown fox jumps over the lazy dog, 12 times of 100\n".into(),
        ),
        ("logs without steps", texts("none.log")),
        ("every line a step", steps.concat()),
        ("step step step", "step ".repeat(102) + "\n"),
        (
            "one bar",
            " 12%|#   | 12/100 [00:03<00:22,  3.9it/s, loss=0.5]\n".into(),
        ),
    ];
    let formats = Formats::standard();
    for (name, text) in inputs {
        let input = text.repeat(BYTES / text.len() + 1).into_bytes();
        let (mut floor, mut cost) = (Duration::MAX, Duration::MAX);
        for _ in 0..5 {
            let begun = Instant::now();
            let lines = input
                .split(|b| *b == b'\n')
                .filter(|line| !black_box(line).is_empty());
            black_box(lines.count());
            floor = floor.min(begun.elapsed());
            let begun = Instant::now();
            let mut reader = Reader::new();
            for line in input.split(|b| *b == b'\n') {
                black_box(reader.look(&formats, line, Duration::ZERO));
            }
            cost = cost.min(begun.elapsed());
        }
        let mb = |time: Duration| input.len() as f64 / 1e6 / time.as_secs_f64();
        println!(
            "{{\"input\": \"{name}\", \"mb_per_s\": {:.0}, \"splitting_mb_per_s\": {:.0}, \"ratio\": {:.1}}}",
            mb(cost),
            mb(floor),
            cost.as_secs_f64() / floor.as_secs_f64(),
        );
    }
}
