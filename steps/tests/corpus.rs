//! Excerpts of real logs, with the steps that a person reads in them. Each line of a file in
//! `corpus/` is `EXPECTED<tab>TEXT`. EXPECTED is `-` (no step), `12`, `12/100`, `12/100:0.5` with a
//! loss, or `12@9.84 it/s` with a rate. `\e` is the escape character. A bar's redrawn states are lines of their own.
//! A line that begins with `#` is a remark; `# ---` begins the output of another program.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path, time::Duration};

use muster_steps::{Formats, Reader, Step};

/// The step, with as much beside it as `expected` names.
fn told(step: &Option<Step>, expected: &str) -> String {
    let Some(step) = step else {
        return "-".into();
    };
    let mut told = step.count.to_string();
    if let Some(total) = step.total {
        told += &format!("/{total}");
    }
    if let Some(loss) = step.loss.as_ref().filter(|_| expected.contains(':')) {
        told += &format!(":{loss}");
    }
    if let Some(rate) = step.rate.as_ref().filter(|_| expected.contains('@')) {
        told += &format!("@{rate}");
    }
    told
}

#[test]
fn every_step_that_a_person_reads_is_told_and_no_other() {
    let formats = Formats::standard();
    let (mut wrong, mut lines, mut found) = (Vec::new(), 0, std::collections::BTreeSet::new());
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let mut reader = Reader::new();
        for (at, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if line.starts_with("# ---") {
                reader = Reader::new();
            }
            if line.starts_with('#') {
                continue;
            }
            let (expected, text) = line.split_once('\t').unwrap_or_else(|| {
                panic!("{}:{}: no tab", path.display(), at + 1);
            });
            let text = text.replace("\\e", "\x1b");
            let step = reader.look(&formats, text.as_bytes(), Duration::ZERO);
            lines += 1;
            found.extend(step.as_ref().map(|step| step.format.clone()));
            let got = told(&step, expected);
            if got != expected {
                wrong.push(format!(
                    "{}:{}: {got} ({}) where a person reads {expected}: {line}",
                    path.file_name().unwrap().display(),
                    at + 1,
                    step.map_or("".into(), |step| step.format),
                ));
            }
        }
    }
    println!("{lines} lines, formats seen: {found:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let table = include_str!("../src/formats.txt");
    let unseen: Vec<_> = table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .filter_map(|line| line.split_once(' ').map(|(name, _)| name))
        .filter(|name| {
            let aside = [
                "counts",
                "ignore",
                "begins",
                "tasks",
                "about",
                "rates",
                "epoch-heading",
                "epoch-number",
            ];
            !aside.contains(name) && !found.contains(*name)
        })
        .collect();
    assert!(unseen.is_empty(), "formats without a log: {unseen:?}");
}
