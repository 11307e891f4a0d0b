//! The table of proven interpreters in docs/lanes.md is made from `core/src/node/proven.txt`: every run
//! of the lanes' compatibility suite, and nothing else. Write it with MUSTER_BLESS=1.

use std::{collections::BTreeMap, fs};

use muster_architecture::root;

const BEGIN: &str = "<!-- made from core/src/node/proven.txt: MUSTER_BLESS=1 cargo test -p muster-architecture --test proven -->\n";
const END: &str = "<!-- end -->\n";

/// The words of each run: torch, Python, suite, date, verdict, build; and what differed.
fn runs(text: &str) -> Vec<(Vec<&str>, &str)> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (words, differed) = line.split_once('#').unwrap_or((line, ""));
            (words.split_whitespace().collect(), differed.trim())
        })
        .collect()
}

fn cell(words: &[&str], now: &str) -> String {
    let [_, _, suite, date, verdict, _] = words else {
        panic!("{words:?} are not six words");
    };
    let older = if *suite == now { "" } else { ", older suite" };
    match *verdict {
        "passed" => format!("proven {date}{older}"),
        _ => format!("differs {date}{older}"),
    }
}

/// The table and, below it, what differed.
fn page(text: &str, now: &str) -> String {
    let runs = runs(text);
    let mut pythons: Vec<(u32, &str)> = runs
        .iter()
        .map(|(words, _)| (minor(words[1]), words[1]))
        .collect();
    pythons.sort_unstable();
    pythons.dedup();
    let mut rows: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for (words, _) in &runs {
        let row = rows.entry(words[0]).or_default();
        let before = row.insert(words[1], cell(words, now));
        assert_eq!(before, None, "{words:?} stands there twice");
    }
    let mut order: Vec<&str> = rows.keys().copied().collect();
    order.sort_by_key(|torch| minor(torch));
    let heads: Vec<String> = pythons
        .iter()
        .map(|(_, python)| format!("CPython {python}"))
        .collect();
    let mut out = format!(
        "| torch | {} |\n|---|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for torch in order {
        let cells = pythons.iter().map(|(_, python)| {
            let cell = rows[torch].get(python);
            cell.map_or("not run", String::as_str).to_owned()
        });
        out += &format!("| {torch} | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    for (words, differed) in runs.iter().filter(|(_, differed)| !differed.is_empty()) {
        out += &format!(
            "\nWhat differed with torch {} and CPython {}: {differed}\n",
            words[0], words[1]
        );
    }
    out
}

/// The number behind the first dot, to sort by.
fn minor(version: &str) -> u32 {
    let second = version.split('.').nth(1).unwrap_or_default();
    second.parse().unwrap_or_default()
}

#[test]
fn the_page_of_lanes_has_every_run_of_the_suite() {
    let text = fs::read_to_string(root().join("core/src/node/proven.txt")).expect("the runs");
    let path = root().join("docs/lanes.md");
    let lanes = fs::read_to_string(&path).expect("the page of lanes");
    let wanted = page(&text, &muster_suite::version());
    let (before, rest) = lanes
        .split_once(BEGIN)
        .expect("the page has the table's begin");
    let (table, after) = rest.split_once(END).expect("the page has the table's end");
    if std::env::var_os("MUSTER_BLESS").is_some() {
        let whole = format!("{before}{BEGIN}{wanted}{END}{after}");
        fs::write(&path, whole).expect("the page of lanes can be written");
    } else {
        assert_eq!(
            table, wanted,
            "docs/lanes.md does not say what core/src/node/proven.txt says: MUSTER_BLESS=1 writes it"
        );
    }
}

#[test]
fn a_run_of_an_older_suite_counts_and_is_told_apart() {
    let text = "# TORCH PYTHON\n2.15 3.12 new 2026-11-26 passed 2.15.0\n2.8 3.12 old 2026-11-20 passed 2.8.0+cu128\n\
                2.8 3.9 new 2026-11-21 failed 2.8.0 # start: umask\n";
    assert_eq!(
        page(text, "new"),
        "| torch | CPython 3.9 | CPython 3.12 |\n|---|---|---|\n\
         | 2.8 | differs 2026-11-21 | proven 2026-11-20, older suite |\n\
         | 2.15 | not run | proven 2026-11-26 |\n\
         \nWhat differed with torch 2.8 and CPython 3.9: start: umask\n"
    );
}
