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
        self.needs
            .keys()
            .filter_map(|unit| self.way_back(unit))
            .collect()
    }

    fn way_back(&self, start: &str) -> Option<String> {
        let mut known: BTreeMap<&str, String> = BTreeMap::from([(start, start.to_owned())]);
        let mut next = vec![start];
        while let Some(unit) = next.pop() {
            for need in self.needs.get(unit).into_iter().flatten() {
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
            from_above: Vec::new(),
        };
        assert_eq!(
            room.circles(),
            ["a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c"]
        );
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
