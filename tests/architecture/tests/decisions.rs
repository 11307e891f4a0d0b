//! docs/decisions can be read: short records, an index in which each has its place, and no name that
//! leads nowhere.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use muster_architecture::{expect_none, root, sources};

const FOLDER: &str = "docs/decisions";

/// Words of a record: a page that is read in a minute.
const WORDS_MAX: usize = 180;

/// Records that have more words, and how many. An entry may go or get smaller, and none may come.
const LONGER: [(u32, usize); 0] = [];

/// Words of the line below the title, before the numbers of later records.
const SUPERSEDED: &str = "Superseded by ";
const AMENDED: &str = "Amended by ";

/// How a code span ends that is a path in this repository.
const FILES: [&str; 6] = [".rs", ".py", ".txt", ".yaml", ".md", ".proto"];

struct Record {
    number: u32,
    file: String,
    text: String,
}

impl Record {
    fn title(&self) -> Option<&str> {
        let first = self.text.lines().next()?;
        first.strip_prefix(&format!("# {}. ", self.number))
    }

    /// The paragraph below the title, with its date and what became of the record.
    fn status(&self) -> String {
        let paragraph = self.text.split("\n\n").nth(1).unwrap_or_default();
        paragraph.replace('\n', " ")
    }

    /// The links behind one of the words of the status, up to its next sentence.
    fn later(&self, word: &str) -> Option<Vec<String>> {
        let status = self.status();
        let (_, behind) = status.split_once(word)?;
        let (named, _) = behind
            .split_once(". ")
            .unwrap_or((behind.trim_end_matches('.'), ""));
        Some(links(named))
    }

    /// Its line in the index.
    fn line(&self) -> String {
        let mut line = format!(
            "- [{:04}]({}) {}",
            self.number,
            self.file,
            self.title().unwrap_or_default()
        );
        for by in self.later(SUPERSEDED).into_iter().flatten() {
            let number = number_of(&by).unwrap_or_default();
            line += &format!(". {SUPERSEDED}[{number}]({by})");
        }
        line
    }
}

/// The number with which the name of a record's file begins.
fn number_of(file: &str) -> Option<u32> {
    let (number, name) = file.split_at_checked(4)?;
    (name.starts_with('-') && name.ends_with(".md"))
        .then(|| number.parse().ok())
        .flatten()
}

/// The targets of all links of a Markdown text.
fn links(text: &str) -> Vec<String> {
    let behind = text.split("](").skip(1);
    behind
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// The code spans of a Markdown text.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The decisions that a text names: `decision 0014`, `decision 77`, also over the end of a comment's
/// line.
fn named(text: &str) -> Vec<u32> {
    let bare = |line: &str| {
        let line = line.trim_start().trim_start_matches(['/', '!', '#']);
        line.trim().to_owned()
    };
    let lines: Vec<String> = text.lines().map(bare).collect();
    let text = lines.join(" ").to_lowercase();
    let behind = text.split("decision ").skip(1);
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).count();
    behind
        .filter_map(|rest| rest[..digits(rest)].parse().ok())
        .collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All records, and the names of files of the folder that are none.
fn records() -> (Vec<Record>, Vec<String>) {
    let folder = root().join(FOLDER);
    let (mut records, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(&folder).expect("there are decisions") {
        let path = entry.expect("the folder can be read to its end").path();
        let file = path.file_name().and_then(|name| name.to_str());
        let file = file.expect("names are text").to_owned();
        match number_of(&file) {
            Some(number) => records.push(Record {
                number,
                text: read(&path),
                file,
            }),
            None => others.push(file),
        }
    }
    records.sort_by(|a, b| a.file.cmp(&b.file));
    assert!(
        records.len() >= 100,
        "the decisions have moved: {} in {FOLDER}",
        records.len()
    );
    (records, others)
}

/// The pages in which readers find links: those of the folder `docs` and of the root.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in [root(), root().join("docs"), root().join(FOLDER)] {
        for entry in fs::read_dir(&folder).expect("it is there") {
            let path = entry.expect("a folder can be read to its end").path();
            if path.extension().is_some_and(|kind| kind == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

#[test]
fn a_record_is_short_and_says_its_number_and_date() {
    let (records, others) = records();
    let mut wrong = Vec::new();
    let mut numbers: BTreeMap<u32, &str> = BTreeMap::new();
    for record in &records {
        let Record { number, file, text } = record;
        if let Some(other) = numbers.insert(*number, file) {
            wrong.push(format!("{other} and {file} have the same number"));
        }
        if record.title().is_none() {
            wrong.push(format!("{file} does not begin with \"# {number}. \""));
        }
        let is_dated =
            |word: &str| word.len() >= 10 && word.starts_with("20") && word.contains('-');
        if !record.status().split_whitespace().any(is_dated) {
            wrong.push(format!("{file}: the line below the title has no date"));
        }
        let words = text.split_whitespace().count();
        let allowed = LONGER.iter().find(|(longer, _)| longer == number);
        let most = allowed.map_or(WORDS_MAX, |(_, most)| *most);
        if words > most {
            wrong.push(format!("{file}: {words} words, at most {most}"));
        } else if allowed.is_some() && words < most {
            wrong.push(format!(
                "{file}: {words} words, so LONGER need not allow {most}"
            ));
        }
    }
    let unknown = LONGER
        .iter()
        .filter(|(number, _)| !numbers.contains_key(number));
    wrong.extend(unknown.map(|(number, _)| format!("LONGER has {number}, which is no record")));
    wrong.extend(
        others
            .into_iter()
            .filter(|file| file != "README.md")
            .map(|file| format!("{file} is no record")),
    );
    expect_none(
        &wrong,
        "a record says what was decided, why, what was rejected and what it costs; limits and fields belong to the code and the guides",
    );
}

#[test]
fn the_index_has_each_record_once_and_nothing_else() {
    let (records, _) = records();
    let index = read(&root().join(FOLDER).join("README.md"));
    let lines: Vec<&str> = index.lines().filter(|line| line.starts_with('-')).collect();
    let expected: Vec<String> = records.iter().map(Record::line).collect();
    let mut wrong = Vec::new();
    for line in &expected {
        match lines.iter().filter(|found| *found == line).count() {
            1 => {}
            0 => wrong.push(format!("missing: {line}")),
            many => wrong.push(format!("{many} times: {line}")),
        }
    }
    let stale = lines
        .iter()
        .filter(|line| !expected.iter().any(|e| e == *line));
    wrong.extend(stale.map(|line| format!("not a record's line: {line}")));
    expect_none(
        &wrong,
        "docs/decisions/README.md has a line for each record, with its title, below its room",
    );
}

#[test]
fn what_was_superseded_or_amended_names_a_later_record() {
    let (records, _) = records();
    let known = |file: &String| records.iter().any(|record| record.file == *file);
    let (mut wrong, mut found) = (Vec::new(), 0);
    for record in &records {
        let file = &record.file;
        for word in [SUPERSEDED, AMENDED] {
            let Some(by) = record.later(word) else {
                continue;
            };
            found += 1;
            if by.is_empty() || !by.iter().all(known) || by.contains(file) {
                wrong.push(format!("{file}: {word:?} names {by:?}"));
            }
        }
        let says_it = ["superseded by", "replaced by"];
        let status = record.status().to_lowercase();
        if says_it.iter().any(|word| status.contains(word)) && record.later(SUPERSEDED).is_none() {
            wrong.push(format!("{file}: write {SUPERSEDED:?} and a link"));
        }
    }
    assert!(found >= 10, "no record says what became of it: {found}");
    expect_none(
        &wrong,
        "a record of which nothing or not all holds says which record has taken its place",
    );
}

#[test]
fn a_decision_that_is_named_is_there_and_in_force() {
    let (records, _) = records();
    let in_force = |number: &u32| {
        let record = records.iter().find(|record| record.number == *number);
        record.is_some_and(|record| record.later(SUPERSEDED).is_none())
    };
    let mut places: Vec<(String, String)> = sources()
        .into_iter()
        .map(|source| (source.path, source.text))
        .collect();
    let of_decisions = root().join(FOLDER);
    for page in pages()
        .iter()
        .filter(|page| !page.starts_with(&of_decisions))
    {
        places.push((page.display().to_string(), read(page)));
    }
    let (mut wrong, mut found) = (Vec::new(), 0);
    for (place, text) in &places {
        let by_link = links(text)
            .into_iter()
            .filter_map(|link| number_of(link.strip_prefix("decisions/")?));
        for number in named(text).into_iter().chain(by_link) {
            found += 1;
            if !in_force(&number) {
                wrong.push(format!("{place}: decision {number}"));
            }
        }
    }
    assert!(found >= 10, "nothing names a decision: {found}");
    expect_none(
        &wrong,
        "name the record that says why it is so today: that one is not there, or is superseded",
    );
}

#[test]
fn links_and_files_that_records_name_are_there() {
    let (mut wrong, mut found) = (Vec::new(), 0);
    for page in pages() {
        let text = read(&page);
        let folder = page.parent().expect("a page is in a folder");
        let here = page.starts_with(root().join(FOLDER));
        for link in links(&text) {
            let target = link.split('#').next().unwrap_or_default();
            let of_decisions = here && !target.contains("://") || target.contains("decisions/");
            if of_decisions && !folder.join(target).exists() {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
        let is_file = |span: &&str| {
            span.contains('/')
                && !span.contains(' ')
                && FILES.iter().any(|kind| span.ends_with(kind))
        };
        for span in spans(&text).filter(is_file).filter(|_| here) {
            found += 1;
            if !root().join(span).exists() {
                wrong.push(format!("{}: `{span}` is not there", page.display()));
            }
        }
    }
    assert!(found >= 40, "the records name only {found} files");
    expect_none(
        &wrong,
        "a record that names what has moved may not be true any more: read both, then mend the name or the record",
    );
}

#[test]
fn what_a_text_names_is_found() {
    let comment =
        "//! It listens (decision\n    //! 0022), as decision 7 says. Decisions 9 do not count.";
    assert_eq!(named(comment), [22, 7]);
    assert_eq!(links("[a](b.md), [c](d/e.md#f)"), ["b.md", "d/e.md#f"]);
    assert_eq!(number_of("0014-a-b.md"), Some(14));
    assert_eq!(number_of("README.md"), None);
    let record = Record {
        number: 7,
        file: "0007-a.md".into(),
        text: "# 7. A\n\nDate: 2026-11-21. Superseded by\n[9](0009-b.md). [3](0003-c.md) began it.\n\nText.\n".into(),
    };
    assert_eq!(record.later("Superseded by ").unwrap(), ["0009-b.md"]);
    assert_eq!(
        record.line(),
        "- [0007](0007-a.md) A. Superseded by [9](0009-b.md)"
    );
}
