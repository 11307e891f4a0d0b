//! The stage of a job is said in one place (decision 106): one file moves it, and what users are told of it is
//! never read back by a rule.

use muster_architecture::{Source, expect_none, sources};

/// The only file that moves a job from stage to stage.
const MOVES: &str = "core/src/fleet/job/stage.rs";
/// The fields that are a stage.
const FIELDS: [&str; 5] = ["current", "ending", "finished", "why", "launched"];

/// What users are told.
const TOLD: [&str; 3] = ["phase", "reason", "message"];
/// Files that show it to somebody, and what of it.
const SHOW: [(&str, &[&str]); 9] = [
    (MOVES, &TOLD),
    // The status of an object in Kubernetes.
    ("operator/src/rules/job_status.rs", &TOLD),
    // A refusal says in which phase the job is.
    ("core/src/fleet/requests.rs", &["phase"]),
    // Events and ends that quote what was last said.
    ("core/src/fleet/describe.rs", &["message"]),
    ("core/src/fleet/lifetime.rs", &["message"]),
    ("core/src/fleet/long_wait.rs", &["message"]),
    ("core/src/fleet/news.rs", &["message"]),
    // What is left of a job that is over, and the search in it.
    ("core/src/fleet/history/record.rs", &TOLD),
    ("core/src/fleet/history/wanted.rs", &["phase"]),
];
/// Names for jobs. What other things are called has its own phases and reasons.
const JOBS: [&str; 4] = ["job", "record", "before", "after"];

fn rules() -> impl Iterator<Item = Source> {
    let all = sources().into_iter();
    let rooms = ["core/src/fleet/", "operator/src/rules/"];
    all.filter(move |source| rooms.iter().any(|room| source.path.starts_with(room)))
}

/// Each place of a line that names this field of something, with what stands before and after it.
fn uses<'a>(line: &'a str, field: &str) -> Vec<(&'a str, &'a str)> {
    let dotted = format!(".{field}");
    let whole =
        |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '(');
    line.match_indices(&dotted)
        .map(|(at, _)| (&line[..at], &line[at + dotted.len()..]))
        .filter(|(_, rest)| whole(rest))
        .collect()
}

/// Whether a job stands there: `job`, `self.job`, `self.jobs[&uid]`.
fn is_job(before: &str) -> bool {
    let name = before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_'));
    JOBS.contains(&name.into_iter().next().unwrap_or_default())
        || before.ends_with("jobs[uid]")
        || before.ends_with("jobs[&uid]")
}

fn is_set(after: &str) -> bool {
    let after = after.trim_start();
    after.starts_with("= ") || after.starts_with(".take()") || after.starts_with(".get_or_insert")
}

#[test]
fn one_file_moves_a_job_from_stage_to_stage() {
    let (mut wrong, mut moves) = (Vec::new(), 0);
    for source in rules() {
        for (at, line) in source.production() {
            let set = FIELDS.iter().flat_map(|field| uses(line, field));
            let count = set.filter(|(_, after)| is_set(after)).count();
            match source.path == MOVES {
                true => moves += count,
                false if count > 0 => wrong.push(format!("{}:{at}: {}", source.path, line.trim())),
                false => {}
            }
        }
    }
    assert!(moves > 0, "{MOVES} is where jobs are moved");
    expect_none(&wrong, "call the move in job/stage.rs");
}

#[test]
fn no_rule_reads_what_users_are_told() {
    let (mut wrong, mut shown) = (Vec::new(), 0);
    for source in rules() {
        let shows = SHOW.iter().find(|(path, _)| *path == source.path);
        let may = shows.map_or(&[][..], |(_, fields)| fields);
        for (at, line) in source.production() {
            for field in TOLD {
                let of_job = uses(line, field);
                let count = of_job.iter().filter(|(before, _)| is_job(before)).count();
                match may.contains(&field) {
                    true => shown += count,
                    false if count > 0 => {
                        wrong.push(format!("{}:{at}: {}", source.path, line.trim()));
                    }
                    false => {}
                }
            }
        }
    }
    assert!(shown > 0, "a status shows the phase");
    expect_none(
        &wrong,
        "ask JobRecord::stage(), or store the fact that the words were for",
    );
}
