//! What was run and with which result, kept as lines of JSON beside the report. The report is made
//! from these lines. Only the section on what was found and fixed is written by hand, in
//! `found.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    Planted, Size, Violation,
    blame::{Blame, Verdict},
    campaign::Totals,
};

/// One line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Line {
    Histories(Histories),
    Planted(Caught),
}

/// A range of seeds that was run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Histories {
    pub size: String,
    pub from: u64,
    pub to: u64,
    pub seeds: u64,
    pub events: u64,
    pub generations: u64,
    pub steps: u64,
    #[serde(default)]
    pub simulated_s: u64,
    pub faults: BTreeMap<String, u64>,
    /// The coordinator's blames. The oldest records do not compare them with the truth.
    #[serde(default)]
    pub blames: Vec<Blamed>,
    /// Each with its seed, its rule and what was seen.
    pub violations: Vec<(u64, String, String)>,
    pub seconds: f64,
    pub commit: String,
}

/// How often the coordinator blamed this when that was true.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blamed {
    pub cause: String,
    pub truly: String,
    pub verdict: Verdict,
    pub count: u64,
}

/// A planted mistake, and the rule that saw it first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Caught {
    pub name: String,
    pub words: String,
    pub size: String,
    /// How many seeds it took, including the one that broke a rule. `None` if none did.
    pub seeds: Option<u64>,
    pub rule: String,
    pub said: String,
    pub commit: String,
}

/// A file in this crate's folder, as it was at build time.
fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

const RECORDS: [&str; 2] = ["record/histories.jsonl", "record/planted.jsonl"];

/// The commit of HEAD, if git can tell. It is marked if the tree has changes.
pub fn commit() -> String {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git")
            .args(args)
            .current_dir(here(""))
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--", "../../core", "."]) {
        Some(changes) if changes.is_empty() => head,
        _ => head + "+",
    }
}

pub fn histories(size: Size, (from, to): (u64, u64), totals: &Totals, took: Duration) -> Line {
    Line::Histories(Histories {
        size: size.name().to_owned(),
        from,
        to,
        seeds: totals.seeds,
        events: totals.events,
        generations: totals.generations,
        steps: totals.steps,
        simulated_s: totals.lasted.as_secs(),
        faults: totals
            .faults
            .iter()
            .map(|(fault, count)| (fault.to_string(), *count))
            .collect(),
        blames: totals
            .blames
            .iter()
            .map(|(blame, count)| Blamed::new(blame, *count))
            .collect(),
        violations: totals
            .violations
            .iter()
            .map(|(seed, v)| (*seed, v.rule.to_owned(), v.what.clone()))
            .collect(),
        seconds: took.as_secs_f64(),
        commit: commit(),
    })
}

impl Blamed {
    fn new(blame: &Blame, count: u64) -> Self {
        Self {
            cause: format!("{:?}", blame.cause),
            truly: blame.truly.to_owned(),
            verdict: blame.verdict,
            count,
        }
    }
}

/// Adds a line to a record.
pub fn append(path: &Path, line: &Line) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)?;
    let json = serde_json::to_string(line).map_err(io::Error::other)?;
    writeln!(file, "{json}")
}

/// Plants every mistake, one after the other, until a rule breaks or `patience` seeds have passed. The
/// recorded seed of a mistake stays while it sees the mistake. Records the results.
pub fn hunt(patience: u64, threads: usize, told: impl Fn(&Caught)) -> io::Result<bool> {
    let path = here(RECORDS[1]);
    let mut lines = Vec::new();
    for planted in Planted::all() {
        let caught = hunt_one(planted, patience, threads);
        told(&caught);
        lines.push(Line::Planted(caught));
    }
    let all = lines
        .iter()
        .all(|line| matches!(line, Line::Planted(Caught { seeds: Some(_), .. })));
    if path.exists() {
        fs::remove_file(&path)?;
    }
    lines.iter().try_for_each(|line| append(&path, line))?;
    Ok(all)
}

/// The recorded seed of this mistake, if it still sees it. A change of the rules or of the world
/// gives a seed another history.
pub fn seen_again(planted: Planted) -> Option<(Size, u64, Violation)> {
    let name = planted.to_string();
    let lines = read().ok()?;
    let (size, seed) = lines.into_iter().find_map(|line| match line {
        Line::Planted(caught) if caught.name == name => {
            let sizes = [Size::Small, Size::Mixed, Size::Large];
            let size = sizes.into_iter().find(|size| size.name() == caught.size)?;
            Some((size, caught.seeds? - 1))
        }
        _ => None,
    })?;
    let options = crate::Options {
        size,
        planted: Some(planted),
        ..crate::Options::default()
    };
    let violation = crate::run(seed, &options).violation?;
    Some((size, seed, violation))
}

/// The first seed that sees this mistake. It looks at small histories first, and then at mixed
/// ones, in case the mistake needs more nodes or time.
pub fn first_seen(
    planted: Planted,
    patience: u64,
    threads: usize,
) -> Option<(Size, u64, Violation)> {
    [Size::Small, Size::Mixed].into_iter().find_map(|size| {
        let options = crate::Options {
            size,
            planted: Some(planted),
            ..crate::Options::default()
        };
        let totals = crate::campaign::run(0..patience, &options, threads, 1, |_| {});
        // With several threads a later seed may have finished first. The lowest seed counts.
        totals
            .violations
            .into_iter()
            .min_by_key(|(seed, _)| *seed)
            .map(|(seed, violation)| (size, seed, violation))
    })
}

fn hunt_one(planted: Planted, patience: u64, threads: usize) -> Caught {
    let seen = seen_again(planted).or_else(|| first_seen(planted, patience, threads));
    let size = seen.as_ref().map_or(Size::Mixed, |(size, ..)| *size);
    let first = seen.map(|(_, seed, violation)| (seed, violation));
    let first = first.as_ref();
    Caught {
        name: planted.to_string(),
        words: planted.words(),
        size: size.name().to_owned(),
        seeds: first.map(|(seed, _)| seed + 1),
        rule: first
            .map(|(_, violation)| violation.rule.to_owned())
            .unwrap_or_default(),
        said: first
            .map(|(_, violation)| violation.what.clone())
            .unwrap_or_default(),
        commit: commit(),
    }
}

fn read() -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for name in RECORDS {
        let path = here(name);
        if !path.exists() {
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            lines.push(
                serde_json::from_str(line)
                    .map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?,
            );
        }
    }
    Ok(lines)
}

/// The file that records the histories of the report.
pub fn histories_file() -> PathBuf {
    here(RECORDS[0])
}

/// Writes REPORT.md.
pub fn report() -> io::Result<()> {
    fs::write(here("REPORT.md"), rendered()?)
}

/// The content that REPORT.md should have.
pub fn rendered() -> io::Result<String> {
    Ok(render(&read()?, &fs::read_to_string(here("found.md"))?))
}

fn render(lines: &[Line], found: &str) -> String {
    let mut text = String::from(
        "# What the world has shown\n\nGenerated by `cargo run -p muster-world -- --report` from the lines in `record/`. What is \
         checked stands in\n`src/invariants.rs`, what goes wrong in `src/fault.rs`.\n\n## Histories\n\n",
    );
    let histories: Vec<&Histories> = lines
        .iter()
        .filter_map(|line| {
            if let Line::Histories(histories) = line {
                Some(histories)
            } else {
                None
            }
        })
        .collect();
    text += "| commit | size | seeds | simulated | events | faults | generations | steps | wall time | violations |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|\n";
    // Later forms of the world see things that earlier ones may miss, so they are not added up.
    let mut forms: Vec<(&str, &str)> = histories
        .iter()
        .map(|h| (h.commit.as_str(), h.size.as_str()))
        .collect();
    let mut told = BTreeSet::new();
    forms.retain(|form| told.insert(*form));
    for (commit, size) in forms {
        let of_form = || {
            histories
                .iter()
                .filter(|h| (h.commit.as_str(), h.size.as_str()) == (commit, size))
        };
        let sum = |of: &dyn Fn(&Histories) -> u64| {
            thousands(of_form().map(|histories| of(histories)).sum())
        };
        let _ = writeln!(
            text,
            "| {commit} | {size} | {} | {} | {} | {} | {} | {} | {} | {} |",
            sum(&|h| h.seeds),
            simulated(of_form().map(|histories| histories.simulated_s).sum()),
            sum(&|h| h.events),
            sum(&|h| h.faults.values().sum()),
            sum(&|h| h.generations),
            sum(&|h| h.steps),
            minutes(of_form().map(|histories| histories.seconds).sum()),
            sum(&|h| h.violations.len() as u64),
        );
    }
    text += "\nA `+` after a commit: its tree had changes that were not committed yet. What was broken is told of below.\n";
    for (h, (seed, rule, what)) in histories
        .iter()
        .flat_map(|h| h.violations.iter().map(move |violation| (h, violation)))
    {
        let _ = writeln!(
            text,
            "- {} {} seed {seed} broke {rule}: {what}",
            h.commit, h.size
        );
    }
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    for (fault, count) in histories.iter().flat_map(|histories| &histories.faults) {
        *faults.entry(fault).or_insert(0) += count;
    }
    text += "\n### Faults\n\n| fault | struck | what it is |\n|---|---|---|\n";
    for fault in crate::Fault::ALL {
        let count = faults.get(fault.to_string().as_str()).copied().unwrap_or(0);
        let _ = writeln!(
            text,
            "| {fault} | {} | {} |",
            thousands(count),
            fault.words()
        );
    }
    text += &blames(&histories);
    text += "\n## Planted mistakes\n\nEach breaks one rule, alone; the world must see it within 10,000 small histories, or 10,000 mixed\nones. `cargo run -p \
             muster-world --features planted -- --hunt` runs them again.\n\n| mistake | what it does | broke | in seed | of size | what was seen |\n|---|---|---|---|---|---|\n";
    let planted = lines.iter().filter_map(|line| {
        if let Line::Planted(caught) = line {
            Some(caught)
        } else {
            None
        }
    });
    for caught in planted {
        let seeds = caught
            .seeds
            .map_or("none".to_owned(), |seeds| thousands(seeds - 1));
        let said: String = caught.said.chars().take(110).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {seeds} | {} | {} |",
            caught.name,
            caught.words,
            caught.rule,
            caught.size,
            said.replace('|', "/")
        );
    }
    text + "\n" + found
}

/// How the coordinator's blames compare with what truly happened.
fn blames(histories: &[&Histories]) -> String {
    let mut sums: BTreeMap<(Verdict, &str, &str), u64> = BTreeMap::new();
    for blamed in histories.iter().flat_map(|histories| &histories.blames) {
        *sums
            .entry((blamed.verdict, &blamed.cause, &blamed.truly))
            .or_insert(0) += blamed.count;
    }
    let of = |verdict: Verdict| {
        sums.iter()
            .filter(|((v, ..), _)| *v == verdict)
            .map(|(_, count)| count)
            .sum::<u64>()
    };
    let all: u64 = Verdict::ALL
        .into_iter()
        .filter(|verdict| verdict.is_blame())
        .map(of)
        .sum();
    let percent = |count: u64| {
        if all == 0 {
            0.0
        } else {
            100.0 * count as f64 / all as f64
        }
    };
    let mut text = format!(
        "\n## Blames\n\nEach blame is compared with what the world did to the very rank, run or node it names, at that time. One that \
         is neither true nor excused breaks I9.\nHistories that were recorded before this was compared are not counted.\n\n\
         Blames: {}. ",
        thousands(all)
    );
    let shares = Verdict::ALL
        .into_iter()
        .filter(|verdict| verdict.is_blame());
    let shares: Vec<String> = shares
        .map(|verdict| {
            format!(
                "{}: {} ({:.1} %)",
                verdict.words(),
                thousands(of(verdict)),
                percent(of(verdict))
            )
        })
        .collect();
    let _ = writeln!(text, "{}.\n", shares.join("; "));
    text += "| what the coordinator said | what was true | verdict | times |\n|---|---|---|---|\n";
    for ((verdict, cause, truly), count) in &sums {
        let _ = writeln!(
            text,
            "| {cause} | {truly} | {} | {} |",
            verdict.words(),
            thousands(*count)
        );
    }
    text
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The oldest records do not count this.
fn simulated(seconds: u64) -> String {
    if seconds == 0 {
        "?".to_owned()
    } else {
        format!("{} h", thousands(seconds / 3_600))
    }
}

fn minutes(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_sums_up() {
        let one = |from: u64, faults: u64| {
            Line::Histories(Histories {
                size: "small".into(),
                from,
                to: from + 500,
                seeds: 500,
                events: 1_000_000,
                generations: 2,
                steps: 3,
                simulated_s: 3_600,
                faults: [("AgentCrash".to_owned(), faults)].into(),
                blames: vec![
                    Blamed {
                        cause: "NodeLost".into(),
                        truly: "no power".into(),
                        verdict: Verdict::First,
                        count: 49,
                    },
                    Blamed {
                        cause: "WorkerKilled".into(),
                        truly: "in doubt".into(),
                        verdict: Verdict::Excused,
                        count: 1,
                    },
                    Blamed {
                        cause: "PeersLost".into(),
                        truly: "a cut".into(),
                        verdict: Verdict::Spared,
                        count: 7,
                    },
                ],
                violations: Vec::new(),
                seconds: 90.0,
                commit: "abc".into(),
            })
        };
        let text = render(&[one(0, 5), one(500, 7)], "## Found\n");
        assert!(
            text.contains("| abc | small | 1,000 | 2 h | 2,000,000 | 12 | 4 | 6 | 3 min | 0 |"),
            "{text}"
        );
        assert!(
            text.contains("| AgentCrash | 12 | the agent dies |") && text.ends_with("## Found\n"),
            "{text}"
        );
        assert!(
            text.contains("Blames: 100. true, and the first cause: 98 (98.0 %);")
                && text.contains("excused: 2 (2.0 %)."),
            "{text}"
        );
        assert!(
            text.contains("| NodeLost | no power | true, and the first cause | 98 |"),
            "{text}"
        );
    }
}
