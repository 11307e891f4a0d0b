//! Which files of a room need which: read from the paths that begin with `crate`, `super` or `self`.
//!
//! A *room* is a folder of modules. Its units are the files in it, each together with the folder of
//! the same name. The room's own file (`fleet.rs` beside `fleet/`, or `lib.rs`) puts the units
//! together, so no unit may need it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Source, sources};

/// The units of a room, and which units each of them needs.
#[derive(Debug, Default)]
pub struct Room {
    pub needs: BTreeMap<String, BTreeSet<String>>,
    /// What units take from the room's own file, as `FILE: NAME`.
    pub from_above: Vec<String>,
    /// The units whose methods each unit calls on `self`. A type whose methods lie in several files hides these
    /// uses from the paths.
    pub calls: BTreeMap<String, BTreeSet<String>>,
}

impl Room {
    /// Reads a room, such as `core/src/fleet/`.
    pub fn read(folder: &str) -> Self {
        let (member, inner) = folder
            .split_once("src/")
            .expect("a room lies below the src of a crate");
        let src = format!("{member}src/");
        let prefix: Vec<String> = inner.split_terminator('/').map(str::to_owned).collect();
        let mut room = Self::default();
        let files: Vec<(Source, String)> = sources()
            .into_iter()
            .filter_map(|source| {
                let unit = unit(&source.path, folder)?.to_owned();
                Some((source, unit))
            })
            .collect();
        for (_, unit) in &files {
            room.needs.entry(unit.clone()).or_default();
        }
        room.calls = calls(&files);
        for (source, unit) in files {
            let module: Vec<&str> = source.path[src.len()..]
                .trim_end_matches(".rs")
                .split('/')
                .collect();
            let lines: Vec<&str> = source.production().iter().map(|(_, line)| *line).collect();
            for path in paths(&lines.join("\n"), &module) {
                let Some([taken, ..]) = path.strip_prefix(prefix.as_slice()) else {
                    continue;
                };
                if !room.needs.contains_key(taken) {
                    room.from_above.push(format!("{}: {taken}", source.path));
                } else if *taken != unit {
                    let needs = room.needs.get_mut(&unit).expect("it was entered above");
                    needs.insert(taken.clone());
                }
            }
        }
        room
    }

    /// For each unit that needs itself through others, one such chain of uses.
    pub fn circles(&self) -> Vec<String> {
        circles(&self.needs)
    }

    /// The same, if a call of `self.method()` is a use of the file that has the method.
    pub fn circles_with_calls(&self) -> Vec<String> {
        let mut needs = self.needs.clone();
        for (unit, called) in &self.calls {
            needs
                .entry(unit.clone())
                .or_default()
                .extend(called.clone());
        }
        circles(&needs)
    }
}

type Uses = BTreeMap<String, BTreeSet<String>>;

fn circles(needs: &Uses) -> Vec<String> {
    let units = needs.keys();
    units.filter_map(|unit| way_back(needs, unit)).collect()
}

fn way_back(uses: &Uses, start: &str) -> Option<String> {
    let mut known: BTreeMap<&str, String> = BTreeMap::from([(start, start.to_owned())]);
    let mut next = vec![start];
    while let Some(unit) = next.pop() {
        for need in uses.get(unit).into_iter().flatten() {
            let way = format!("{} -> {need}", known[unit]);
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

/// The methods of a type that one file has, and the text of its `impl`.
struct Impl {
    of: String,
    unit: String,
    words: Vec<String>,
}

impl Impl {
    fn methods(&self) -> impl Iterator<Item = &str> {
        let pairs = self.words.windows(2);
        let names = pairs.filter(|pair| pair[0] == "fn");
        names.map(|pair| pair[1].as_str())
    }

    /// What is called on `self`.
    fn calls(&self) -> impl Iterator<Item = &str> {
        let calls = self.words.windows(4);
        let calls = calls.filter(|call| call[0] == "self" && call[1] == "." && call[3] == "(");
        calls.map(|call| call[2].as_str())
    }
}

fn calls(files: &[(Source, String)]) -> Uses {
    let mut all = Vec::new();
    for (source, unit) in files {
        let lines: Vec<&str> = source.production().iter().map(|(_, line)| *line).collect();
        all.extend(impls(&lines, unit));
    }
    let mut homes: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for one in &all {
        for method in one.methods() {
            homes
                .entry((&one.of, method))
                .or_default()
                .insert(&one.unit);
        }
    }
    let mut calls = Uses::new();
    for one in &all {
        for method in one.calls() {
            let home = homes.get(&(one.of.as_str(), method));
            let elsewhere = home.filter(|units| !units.contains(one.unit.as_str()));
            let units = elsewhere
                .into_iter()
                .flatten()
                .map(|unit| (*unit).to_owned());
            calls.entry(one.unit.clone()).or_default().extend(units);
        }
    }
    calls
}

/// The blocks of methods in these lines, as rustfmt leaves them. Those of a trait are not called by chance from
/// elsewhere, so they are left out.
fn impls(lines: &[&str], unit: &str) -> Vec<Impl> {
    let mut all = Vec::new();
    let mut open: Option<(String, Vec<&str>)> = None;
    for line in lines {
        match &mut open {
            None => {
                let head = line.strip_prefix("impl").filter(|_| line.ends_with('{'));
                let Some(head) = head.filter(|head| !head.contains(" for ")) else {
                    continue;
                };
                let mut head = words(head);
                if head.first().is_some_and(|word| word == "<") {
                    let end = head.iter().position(|word| word == ">").unwrap_or(0);
                    head.drain(..=end);
                }
                open = head.first().map(|name| (name.clone(), Vec::new()));
            }
            Some((of, body)) if *line == "}" => {
                all.push(Impl {
                    of: std::mem::take(of),
                    unit: unit.to_owned(),
                    words: words(&body.join("\n")),
                });
                open = None;
            }
            Some((_, body)) => body.push(line),
        }
    }
    all
}

/// The unit of a room that this file belongs to. None: it lies elsewhere, or is a test.
fn unit<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let inner = path.strip_prefix(folder)?;
    let unit = inner.split_once('/').map_or(inner, |(unit, _)| unit);
    let unit = unit.trim_end_matches(".rs");
    (!["lib", "main", "bin", "tests"].contains(&unit)).then_some(unit)
}

/// Every path of this text that begins with `crate`, `super` or `self`, as seen from the crate's
/// root. `module` is the module that the text is in.
fn paths(text: &str, module: &[&str]) -> Vec<Vec<String>> {
    let words = words(text);
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < words.len() {
        let rooted = ["crate", "super", "self"].contains(&words[at].as_str());
        if rooted && words.get(at + 1).is_some_and(|next| next == "::") {
            at = branches(&words, at, &[], &mut paths);
        } else {
            at += 1;
        }
    }
    paths
        .into_iter()
        .map(|path| absolute(path, module))
        .collect()
}

/// Reads the path at `at` with all its branches: `a::{b, c::D}` is `a::b` and `a::c::D`. Returns
/// where it ends.
fn branches(
    words: &[String],
    mut at: usize,
    before: &[String],
    out: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = before.to_vec();
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    loop {
        if word(at) == "{" {
            at += 1;
            while !["}", ""].contains(&word(at)) {
                at = branches(words, at, &path, out);
                // Past another name (`as X`), and the comma.
                while !["}", ",", ""].contains(&word(at)) {
                    at += 1;
                }
                at += usize::from(word(at) == ",");
            }
            return at + 1;
        }
        // `a::<B>` ends with `a`; `a::{self}` is `a`.
        if word(at) != "self" || path.is_empty() {
            if !word(at).starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '*') {
                break;
            }
            path.push(word(at).to_owned());
        }
        at += 1;
        if word(at) != "::" {
            break;
        }
        at += 1;
    }
    out.push(path);
    at
}

fn absolute(path: Vec<String>, module: &[&str]) -> Vec<String> {
    let mut whole: Vec<String> = match path[0].as_str() {
        "crate" => Vec::new(),
        _ => module.iter().map(|name| (*name).to_owned()).collect(),
    };
    for name in path {
        match name.as_str() {
            "crate" | "self" => {}
            "super" => drop(whole.pop()),
            _ => whole.push(name),
        }
    }
    whole
}

/// Names, `::`, and every other sign by itself.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut letters) = (vec![String::new()], text.chars().peekable());
    while let Some(c) = letters.next() {
        if c.is_alphanumeric() || c == '_' {
            words.last_mut().expect("it starts with one").push(c);
            continue;
        }
        if c == ':' && letters.next_if_eq(&':').is_some() {
            words.push("::".to_owned());
        } else if !c.is_whitespace() {
            words.push(c.to_string());
        }
        words.push(String::new());
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_a_text_are_seen_from_the_root() {
        let text = "use std::fs;\nuse super::{\n    self, Head, b::{C, D as E}, f::*,\n};\n\
             pub(super) fn g(x: crate::h::I) { super::super::j::k::<L>(self.m); self::n::o() }\n\
             use crate::{p, q::{self, R}};";
        let found: Vec<String> = paths(text, &["room", "a"])
            .into_iter()
            .map(|path| path.join("::"))
            .collect();
        let wanted =
            "room room::Head room::b::C room::b::D room::f::* h::I j::k room::a::n::o p q q::R";
        assert_eq!(found.join(" "), wanted);
    }

    #[test]
    fn a_circle_is_found_however_long() {
        let needs = |names: &str| names.split_whitespace().map(str::to_owned).collect();
        let needs = [("a", "b"), ("b", "c d"), ("c", "a"), ("d", "")]
            .map(|(unit, names)| (unit.to_owned(), needs(names)));
        let room = Room {
            needs: needs.into(),
            ..Room::default()
        };
        assert_eq!(
            room.circles(),
            ["a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c"]
        );
    }

    #[test]
    fn a_call_on_self_is_a_use_of_the_file_that_has_the_method() {
        let source = |path: &str, text: &str| {
            let (path, text) = (path.to_owned(), text.to_owned());
            Source { path, text }
        };
        let files = [
            (
                "a",
                "impl<'a> Turn<'a> {\n    fn one(&self) {\n        self.two();\n        self\n            .three();\n    }\n}",
            ),
            (
                "b",
                "impl Turn<'_> {\n    fn two(&self) { self.field.one(); self.own() }\n    fn own(&self) {}\n}",
            ),
            (
                "c",
                "impl Turn<'_> {\n    fn three(&self) {\n        self.one()\n    }\n}\nimpl Other {\n    fn two(&self) { self.one() }\n}",
            ),
            (
                "d",
                "impl Clone for Turn<'_> {\n    fn two(&self) { self.three() }\n}",
            ),
        ];
        let files = files.map(|(unit, text)| (source(unit, text), unit.to_owned()));
        let needs = |names: &str| names.split_whitespace().map(str::to_owned).collect();
        let room = Room {
            calls: calls(&files),
            ..Room::default()
        };
        let wanted = [("a", "b c"), ("b", ""), ("c", "a")]
            .map(|(unit, names)| (unit.to_owned(), needs(names)));
        assert_eq!(room.calls, wanted.into());
        assert!(room.circles().is_empty());
        assert_eq!(room.circles_with_calls(), ["a -> c -> a", "c -> a -> c"]);
    }

    #[test]
    fn a_file_belongs_to_the_unit_above_it() {
        let of = |path| unit(path, "agent/src/");
        assert_eq!(of("agent/src/probe.rs"), Some("probe"));
        assert_eq!(of("agent/src/probe/nvml/raw.rs"), Some("probe"));
        assert_eq!(of("agent/src/lib.rs"), None);
        assert_eq!(of("cli/src/probe.rs"), None);
    }
}
