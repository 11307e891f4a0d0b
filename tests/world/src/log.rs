//! A history as a file: JSON, one object a line, with all that a reader needs. `muster replay FILE`
//! tells it in plain words, and knows nothing of this crate.
//!
//! The first line says what broke and how to reproduce it. Every other line is one thing that
//! happened.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use muster_core::time::Timestamp;
use serde_json::{Value, json};

use crate::{Fault, Options, Report, Story};

/// The version in the first line. A reader that knows another version refuses the file.
pub const VERSION: u32 = 1;

/// Runs this seed again and writes down everything that happens.
pub fn write(path: &Path, seed: u64, options: &Options) -> io::Result<()> {
    let report = crate::run(
        seed,
        &Options {
            log: true,
            whole: true,
            ..options.clone()
        },
    );
    let mut file = BufWriter::new(File::create(path)?);
    for line in lines(seed, options, &report) {
        writeln!(file, "{line}")?;
    }
    file.flush()
}

fn lines(seed: u64, options: &Options, report: &Report) -> Vec<Value> {
    let broken = report
        .violation
        .as_ref()
        .map(|violation| json!({"rule": violation.rule, "what": violation.what}));
    let head = json!({
        "log": "muster-world",
        "version": VERSION,
        "seed": seed,
        "size": format!("{:?}", options.size).to_lowercase(),
        "cut": options.cut.to_string(),
        "planted": options.planted.map(|planted| planted.to_string()),
        "nodes": report.machines,
        "broken": broken,
        "again": Story::command(seed, options),
        "jobs": names(report),
    });
    let begun = report.whole.first().map_or(Timestamp(0), |(at, _)| *at);
    let told = report.whole.iter().map(|(at, text)| line(*at, begun, text));
    std::iter::once(head).chain(told).collect()
}

/// The name of each job, as its user gave it.
fn names(report: &Report) -> BTreeMap<String, String> {
    let asked = report
        .whole
        .iter()
        .filter_map(|(_, text)| text.strip_prefix("a user asks: submit "));
    let named = asked.filter_map(|rest| {
        let (name, rest) = rest.split_once(" as ")?;
        Some((rest.split(':').next()?.to_owned(), name.to_owned()))
    });
    named.collect()
}

fn line(at: Timestamp, begun: Timestamp, text: &str) -> Value {
    let (kind, said) = match text {
        text if text.starts_with("FAULT ") => ("fault", in_words(text)),
        text if text.starts_with("BROKEN ") => ("broken", text.to_owned()),
        text if text.starts_with("   event ") => (
            "event",
            text.trim_start().trim_start_matches("event ").to_owned(),
        ),
        text if text.starts_with("a user asks") => ("user", text.to_owned()),
        text => ("step", text.to_owned()),
    };
    let at_us = at.since(begun).as_micros() as u64;
    json!({"atUs": at_us, "kind": kind, "nodes": tokens(text, "n"), "jobs": tokens(text, "uid"), "text": said})
}

/// `FAULT CutUp at n3`, followed by the description of that fault.
fn in_words(text: &str) -> String {
    let name = text.split(' ').nth(1).unwrap_or_default();
    let node = text.rsplit(' ').next().unwrap_or_default();
    match Fault::ALL
        .into_iter()
        .find(|fault| fault.to_string() == name)
    {
        Some(fault) => format!("{name} at {node}: {}", fault.words()),
        None => text.to_owned(),
    }
}

/// The names in a text that consist of this letter and a number.
fn tokens(text: &str, prefix: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let is_name = |word: &&str| {
        word.strip_prefix(prefix).is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let mut found: Vec<String> = words.filter(is_name).map(str::to_owned).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whom_it_is_about() {
        let line = line(
            Timestamp(5_000_000),
            Timestamp(2_000_000),
            "n3 stops uid12-g4 (1s): n1 is silent",
        );
        assert_eq!(
            line,
            json!({"atUs": 3_000_000, "kind": "step", "nodes": ["n1", "n3"], "jobs": ["uid12"],
                   "text": "n3 stops uid12-g4 (1s): n1 is silent"})
        );
        let fault = super::line(Timestamp(0), Timestamp(0), "FAULT CutUp at n3");
        assert_eq!(
            fault["text"],
            "CutUp at n3: the way from the agent to the coordinator is cut, silently"
        );
    }
}
