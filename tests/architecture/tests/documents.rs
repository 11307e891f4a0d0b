//! What documents say of each other and of figures: every link and every anchor leads somewhere, so does every
//! page that a source names, and a row that is quoted is the row that its command wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use muster_architecture::{expect_none, root};

/// The page on which a newcomer begins stays one page.
const ARCHITECTURE_WORDS_MAX: usize = 1_000;

/// The page that quotes rows of tables which commands have written, and where those tables are.
const QUOTING: &str = "docs/measured.md";
const RESULTS: &str = "bench/results/README.md";

/// The text of every file of the project that is text, by its path from the project's folder.
type Files = BTreeMap<String, String>;

/// Where a document links to, with the line of the link.
struct Link {
    line: usize,
    target: String,
}

/// The files below this folder. What is built, and what git or a virtual environment keeps, is not the project's.
fn gather(folder: &Path, files: &mut Files) {
    let entries = fs::read_dir(folder).expect("a folder of the project can be listed");
    for entry in entries {
        let entry = entry.expect("a folder of the project can be listed");
        let name = entry.file_name();
        let kind = entry.file_type().expect("the kind of a file is known");
        if kind.is_dir() {
            let name = name.to_string_lossy();
            let python = entry.path().join("pyvenv.cfg").exists();
            if name != "target" && name != "__pycache__" && !name.starts_with('.') && !python {
                gather(&entry.path(), files);
            }
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            let path = entry.path();
            let path = path.strip_prefix(root()).expect("it is below the root");
            files.insert(path.to_string_lossy().into_owned(), text);
        }
    }
}

fn project() -> Files {
    let mut files = Files::new();
    gather(&root(), &mut files);
    files
}

/// The lines of a document that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((at + 1, line))
    })
}

/// All links of a document, without those to other sites.
fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (line, words) in prose(text) {
        // What is in backticks is code. Every second piece is.
        let words: String = words.split('`').step_by(2).collect::<Vec<_>>().join("code");
        for piece in words.split("](").skip(1) {
            let Some((target, _)) = piece.split_once(')') else {
                continue;
            };
            if !target.contains("://") && !target.starts_with("mailto:") {
                let target = target.to_owned();
                found.push(Link { line, target });
            }
        }
    }
    found
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some(heading) = line.strip_prefix('#') else {
            continue;
        };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let keep = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor: String = heading.chars().filter(keep).collect();
        let anchor = anchor.replace(' ', "-");
        let next = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(next);
        found.insert(names.find(|name| !found.contains(name)).expect("endless"));
    }
    found
}

/// A path of a link, from the project's folder.
fn resolved(document: &str, path: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Why a link leads nowhere.
fn fault(files: &Files, document: &str, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        document.to_owned()
    } else {
        resolved(document, path)
    };
    let folder = format!("{path}/");
    let Some(text) = files.get(&path) else {
        let is_folder = files.keys().any(|file| file.starts_with(&folder));
        let binary = root().join(&path).is_file();
        return (!is_folder && !binary).then(|| format!("{path} is not there"));
    };
    let named = anchor.is_empty() || !path.ends_with(".md") || anchors(text).contains(anchor);
    (!named).then(|| format!("{path} has no heading #{anchor}"))
}

fn is_document(path: &str) -> bool {
    path.ends_with(".md")
}

fn wrong_links(files: &Files) -> Vec<String> {
    let mut wrong = Vec::new();
    for (document, text) in files.iter().filter(|(path, _)| is_document(path)) {
        for Link { line, target } in links(text) {
            let said = fault(files, document, &target);
            wrong.extend(said.map(|why| format!("{document}:{line}: {why}")));
        }
    }
    wrong
}

/// The pages that a text names by their path from the project's folder, such as `docs/` and a name.
fn named_pages(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for rest in line.split("docs/").skip(1) {
            let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '/' | '_');
            let stem: String = rest.chars().take_while(|c| word(*c)).collect();
            let Some(rest) = rest[stem.len()..].strip_prefix(".md") else {
                continue;
            };
            let anchor: String = rest.strip_prefix('#').map_or(String::new(), |anchor| {
                anchor.chars().take_while(|c| word(*c)).collect()
            });
            let hash = if anchor.is_empty() { "" } else { "#" };
            found.push((at + 1, format!("docs/{stem}.md{hash}{anchor}")));
        }
    }
    found
}

fn wrong_names(files: &Files) -> Vec<String> {
    let mut wrong = Vec::new();
    // A log is what somebody else has printed.
    let is_source = |path: &str| !is_document(path) && !path.ends_with(".log");
    let sources = files.iter().filter(|(path, _)| is_source(path));
    for (source, text) in sources {
        for (line, page) in named_pages(text) {
            let said = fault(files, "README.md", &page);
            wrong.extend(said.map(|why| format!("{source}:{line}: {why}")));
        }
    }
    wrong
}

/// The rows of a document's tables that have figures: neither heads nor rules.
fn rows(text: &str) -> BTreeSet<&str> {
    let lines: Vec<&str> = prose(text).map(|(_, line)| line).collect();
    let is_row = |line: &str| line.starts_with('|');
    let is_rule = |line: &str| line.starts_with("| ---") || line.starts_with("|---");
    (0..lines.len())
        .filter(|at| is_row(lines[*at]) && !is_rule(lines[*at]))
        .filter(|at| !lines.get(at + 1).is_some_and(|next| is_rule(next)))
        .map(|at| lines[at])
        .collect()
}

/// The part of a page between two marks, each of which stands there once.
fn between<'a>(page: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = page.split_once(begin).unwrap_or_default();
    rest.split_once(end).unwrap_or_default().0
}

/// Rows below `quoted NAME`, up to `end`, that the table of this name does not have.
fn wrong_quotes(quoting: &str, results: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for piece in quoting.split("<!-- quoted ").skip(1) {
        let (name, piece) = piece.split_once(" -->").unwrap_or_default();
        let (begin, end) = (
            format!("<!-- {name}:begin -->"),
            format!("<!-- {name}:end -->"),
        );
        let table = rows(between(results, &begin, &end));
        let quoted = piece.split("<!-- end -->").next().unwrap_or_default();
        let gone = rows(quoted).into_iter().filter(|row| !table.contains(row));
        wrong.extend(gone.map(|row| format!("{name}: {row}")));
    }
    wrong
}

#[test]
fn every_link_leads_somewhere() {
    let files = project();
    assert!(files.contains_key("README.md"));
    expect_none(
        &wrong_links(&files),
        "mend the link, or give the heading its name back",
    );
}

#[test]
fn every_page_that_a_source_names_is_there() {
    expect_none(
        &wrong_names(&project()),
        "users see these addresses: name the page that has it now",
    );
}

#[test]
fn quoted_rows_are_those_that_commands_wrote() {
    let files = project();
    let text = &files[QUOTING];
    assert!(
        text.contains("<!-- quoted bench -->"),
        "it marks what it quotes"
    );
    expect_none(
        &wrong_quotes(text, &files[RESULTS]),
        "quote the row as the command has written it, letter by letter; with --write the commands do it",
    );
}

#[test]
fn the_first_page_is_one_page() {
    let files = project();
    let words = files["ARCHITECTURE.md"].split_whitespace().count();
    assert!(words <= ARCHITECTURE_WORDS_MAX, "{words} words");
}

#[test]
fn a_link_an_anchor_and_a_name_that_lead_nowhere_are_seen() {
    // DOCS stands for the folder, or this very file would name pages that are not there.
    let page = "# One page\n[a](DOCS/b.md#two-words) [b](DOCS/b.md#gone) [c](DOCS/away.md) [d](#one-page) [e](DOCS)\n\
                ```\n[f](nowhere.md)\n```\n`[g](nowhere.md)` [h](https://example.org/x.md#y)\n";
    let other = "## Two `words`?\n[up](../page.md)\n## Two words\n[again](#two-words-1) [not](#two-words-2)\n";
    let source = "// see DOCS/b.md and DOCS/b.md#two-words, not DOCS/gone.md or DOCS/b.md#no\n";
    let names = [("page.md", page), ("DOCS/b.md", other), ("main.rs", source)];
    let files: Files = names
        .map(|(path, text)| (path.replace("DOCS", "docs"), text.replace("DOCS", "docs")))
        .into();
    let wrong = |list: Vec<String>| -> Vec<String> {
        list.iter().map(|one| one.replace("docs", "DOCS")).collect()
    };
    assert_eq!(
        wrong(wrong_links(&files)),
        [
            "DOCS/b.md:4: DOCS/b.md has no heading #two-words-2",
            "page.md:2: DOCS/b.md has no heading #gone",
            "page.md:2: DOCS/away.md is not there",
        ]
    );
    assert_eq!(
        wrong(wrong_names(&files)),
        [
            "main.rs:1: DOCS/gone.md is not there",
            "main.rs:1: DOCS/b.md has no heading #no",
        ]
    );
}

#[test]
fn a_changed_figure_is_seen() {
    let table = "| what | seconds |\n| --- | --- |\n| killed | 0.28 |\n";
    let results = format!(
        "<!-- race:begin -->\n{table}<!-- race:end -->\n<!-- tls:begin -->\n| what |\n| --- |\n| killed | 0.3 |\n<!-- tls:end -->\n"
    );
    let right = format!("<!-- quoted race -->\n{table}<!-- end -->\n| own | 1 |\n");
    let changed = right.replace("0.28", "0.18");
    let of_another = right.replace("quoted race", "quoted tls");
    assert!(wrong_quotes(&right, &results).is_empty());
    assert_eq!(
        wrong_quotes(&changed, &results),
        ["race: | killed | 0.18 |"]
    );
    assert_eq!(
        wrong_quotes(&of_another, &results),
        ["tls: | killed | 0.28 |"]
    );
}
