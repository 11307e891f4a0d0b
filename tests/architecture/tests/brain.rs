//! The files of the brain need each other in one direction only: no two of them need each other.

use std::collections::{BTreeMap, BTreeSet};

use muster_architecture::{expect_none, sources};

const ROOM: &str = "core/src/fleet/";

type Graph = BTreeMap<String, BTreeSet<String>>;

/// The names that a `use` of the room takes from it: `fleet::{a, b::{C, D}}` takes `a` and `b`.
fn taken(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, mark) in text.match_indices("fleet::") {
        let mut rest = text[at + mark.len()..].chars();
        let (mut depth, mut name) = (0, String::new());
        loop {
            match rest.next() {
                Some('{') if depth == 0 && name.is_empty() => depth = 1,
                Some(c) if depth < 2 && (c.is_alphanumeric() || c == '_') => name.push(c),
                Some(':') if depth == 0 => break names.push(name),
                Some(':') if depth == 1 => {
                    names.push(std::mem::take(&mut name));
                    // The rest of this path, up to its comma.
                    let mut inner = 0;
                    let end = rest.by_ref().find(|c| {
                        inner += i32::from(*c == '{') - i32::from(*c == '}');
                        inner < 0 || inner == 0 && *c == ','
                    });
                    if end != Some(',') {
                        break;
                    }
                }
                Some(',') if depth == 1 => names.push(std::mem::take(&mut name)),
                Some(c) if c.is_whitespace() && depth == 1 => {}
                _ => break names.push(name),
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn graph() -> (Graph, Vec<String>) {
    let (mut graph, mut wrong) = (Graph::new(), Vec::new());
    for source in sources() {
        let Some(name) = source
            .path
            .strip_prefix(ROOM)
            .and_then(|path| path.strip_suffix(".rs"))
            .filter(|name| !name.contains('/') && *name != "tests")
        else {
            continue;
        };
        let lines: Vec<&str> = source
            .production()
            .into_iter()
            .map(|(_, line)| line)
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect();
        let needs = graph.entry(name.to_owned()).or_default();
        for taken in taken(&lines.join("\n")) {
            if taken.starts_with(char::is_uppercase) {
                wrong.push(format!("{}: {taken}", source.path));
            } else if taken != name && taken != "self" {
                needs.insert(taken);
            }
        }
    }
    (graph, wrong)
}

/// A chain of uses from this file back to itself, if there is one.
fn way_back(graph: &Graph, start: &str) -> Option<String> {
    let mut known: BTreeMap<&str, String> = BTreeMap::from([(start, start.to_owned())]);
    let mut next = vec![start];
    while let Some(name) = next.pop() {
        for need in graph.get(name).into_iter().flatten() {
            let way = format!("{} -> {need}", known[name]);
            if need == start {
                return Some(way);
            }
            if !known.contains_key(need.as_str()) {
                known.insert(need, way);
                next.push(need);
            }
        }
    }
    None
}

#[test]
fn no_two_files_of_the_brain_need_each_other() {
    let (graph, _) = graph();
    assert!(graph.len() > 30, "the room has moved: {ROOM}");
    let needs: usize = graph.values().map(BTreeSet::len).sum();
    assert!(needs > 100, "only {needs} uses were found");
    let wrong: Vec<String> = graph
        .keys()
        .filter_map(|name| way_back(&graph, name))
        .collect();
    expect_none(
        &wrong,
        "move what both need into a file that stands below both",
    );
}

#[test]
fn a_file_of_the_brain_names_the_file_it_needs() {
    let (_, wrong) = graph();
    expect_none(&wrong, "name the file: fleet::policy::Policy");
}

#[test]
fn what_a_use_takes_is_read_right() {
    let text = "use crate::{fleet::{a, b::{C, D}, e::F}, id::X}; crate::fleet::g::H fleet::Turn;";
    assert_eq!(taken(text), ["a", "b", "e", "g", "Turn"]);
}
