//! A YAML or JSON text as a tree in which every value knows its line and column.
//!
//! Reading stops at the first syntax error. All other checks work on the tree, so all errors of a
//! file are found at once and each has its place. Numbers and booleans also know how they are written,
//! because advice must quote that. This file knows no field of any document.

use std::{collections::BTreeSet, fmt};

use serde::{
    Serialize, Serializer,
    de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};

/// Line and column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: u64,
    pub column: u64,
}

impl Place {
    pub const START: Place = Place { line: 1, column: 1 };

    fn of(location: Location) -> Place {
        // The parser gives 0 if it does not know the place.
        Place {
            line: location.line().max(1),
            column: location.column().max(1),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub place: Place,
    pub value: Value,
    /// A number or a boolean as the file writes it: `1.10`, `0755`, `no`. `None`: the value is something
    /// else, or the file says it elsewhere (an alias).
    pub written: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Whole(i64),
    /// A fraction, or a whole number that no field can hold.
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    pub key_place: Place,
    pub node: Node,
}

/// Documents of one file. An export of a whole namespace has fewer.
pub const DOCUMENTS_MAX: usize = 256;

/// Reads all documents of a text, without the empty ones. An error is a syntax error.
pub fn parse_all(text: &str) -> Result<Vec<Node>, (Place, String)> {
    let (documents, mut twice) = parse_file(text)?;
    match twice.is_empty() {
        true => Ok(documents),
        false => Err(twice.swap_remove(0)),
    }
}

/// The same, with the names that a mapping sets twice. The first one stays in the tree, so that the rest can
/// be checked as well.
#[allow(clippy::type_complexity, reason = "it is taken apart at once")]
pub fn parse_file(text: &str) -> Result<(Vec<Node>, Vec<(Place, String)>), (Place, String)> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `yes` and `no` are booleans, as for kubectl, so that the same file works for both.
        strict_booleans: false,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
        // The largest legal job has 256 commands, 256 arguments and 256 variables of 4 nodes each,
        // and 30 other nodes. A file may hold several, with what Kubernetes adds to each.
        budget: serde_saphyr::budget! { max_nodes: 65_536, max_depth: 64, max_documents: DOCUMENTS_MAX },
    };
    let spanned: Vec<Spanned<Value>> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| syntax_error(&error))?;
    let mut documents: Vec<Node> = spanned.into_iter().map(Node::from).collect();
    let lines = Lines::new(text);
    let mut twice = Vec::new();
    for document in &mut documents {
        document.note_how_written(&lines);
        document.keep_first(&mut twice);
    }
    twice.sort();
    Ok((documents, twice))
}

fn syntax_error(error: &serde_saphyr::Error) -> (Place, String) {
    use serde_saphyr::Error;
    let place = error.location().map_or(Place::START, Place::of);
    let message = match error.without_snippet() {
        Error::AliasError { error, .. } => return (place, syntax_error(error).1),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("{key:?} is set twice in the same mapping")
        }
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => TOO_LARGE.into(),
        Error::UnknownAnchor { .. } => "refers to an anchor that is not defined before it".into(),
        other => match other.to_string() {
            text if text.contains("recursion limit") => TOO_LARGE.into(),
            text => format!("is not valid YAML: {}", without_place(&text)),
        },
    };
    (place, message)
}

/// The lines of a text, in which a column is found at once: a hostile file has one long line with many
/// numbers.
struct Lines<'t> {
    lines: Vec<(&'t str, Option<Vec<usize>>)>,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Lines<'t> {
        let lines = text.split('\n').map(|line| {
            let starts = || line.char_indices().map(|(at, _)| at).collect();
            (line, (!line.is_ascii()).then(starts))
        });
        Lines {
            lines: lines.collect(),
        }
    }

    /// The plain scalar that begins at this place. `None`: something else does, as an alias or a tag.
    fn scalar(&self, place: Place) -> Option<&'t str> {
        let number = usize::try_from(place.line).ok()?.checked_sub(1)?;
        let column = usize::try_from(place.column).ok()?.checked_sub(1)?;
        let (line, starts) = self.lines.get(number)?;
        let start = match starts {
            None => column,
            Some(starts) => *starts.get(column)?,
        };
        let rest = line.get(start..)?;
        // No number has one of these in it.
        let end = rest.find(|c: char| c.is_whitespace() || matches!(c, ',' | ']' | '}'));
        let text = &rest[..end.unwrap_or(rest.len())];
        let plain = !text.starts_with(['*', '!', '&', '"', '\'']);
        (plain && !text.is_empty()).then_some(text)
    }
}

const TOO_LARGE: &str = "is too large or too deeply nested for a job";

/// The parser's message without the place that it may contain: `line 1 column 2: text`, `text at
/// line 1, column 2`.
fn without_place(text: &str) -> &str {
    let text = match text.split_once(": ") {
        Some((head, rest)) if head.starts_with("line ") => rest,
        _ => text,
    };
    text.split(" at line ").next().unwrap_or_default()
}

impl Node {
    /// A value that no file says.
    pub(crate) const fn made(place: Place, value: Value) -> Node {
        Node {
            place,
            value,
            written: None,
        }
    }

    /// Remembers how the numbers and booleans from here on are written.
    fn note_how_written(&mut self, lines: &Lines<'_>) {
        match &mut self.value {
            Value::Bool(_) | Value::Whole(_) | Value::Number(_) => {
                self.written = lines.scalar(self.place).map(Box::from);
            }
            Value::List(items) => {
                for item in items {
                    item.note_how_written(lines);
                }
            }
            Value::Object(entries) => {
                for entry in entries {
                    entry.node.note_how_written(lines);
                }
            }
            Value::Null | Value::Text(_) => {}
        }
    }

    /// Takes away entries whose name was set before.
    fn keep_first(&mut self, twice: &mut Vec<(Place, String)>) {
        match &mut self.value {
            Value::List(items) => {
                for item in items {
                    item.keep_first(twice);
                }
            }
            Value::Object(entries) => {
                let mut seen = BTreeSet::new();
                entries.retain(|entry| {
                    let is_first = seen.insert(entry.key.clone());
                    if !is_first {
                        let message = format!("{:?} is set twice in the same mapping", entry.key);
                        twice.push((entry.key_place, message));
                    }
                    is_first
                });
                for entry in entries {
                    entry.node.keep_first(twice);
                }
            }
            _ => {}
        }
    }

    /// What a wrong value is, for the user: `is the text "two"`, `is the number 1.10`.
    pub fn is(&self) -> String {
        match (&self.value, self.written.as_deref()) {
            // Not as it is read: kubectl reads some of them in another way.
            (Value::Whole(_) | Value::Number(_), Some(written)) => {
                format!("is the number {written}")
            }
            (Value::Bool(value), Some(written)) if written != value.to_string() => {
                format!("is {written}, which YAML reads as {value}")
            }
            (value, _) => value.is(),
        }
    }

    /// Why the value is no text, and what to write instead.
    pub fn must_be_text(&self) -> String {
        let must = match (&self.value, &self.written) {
            (Value::Whole(_) | Value::Number(_) | Value::Bool(_), Some(written)) => {
                format!("must be a text; write \"{written}\"")
            }
            (Value::Null, _) => "must be a text; write \"\" for an empty one".into(),
            (Value::Whole(number), None) => format!("must be a text; write \"{number}\""),
            (Value::Number(_) | Value::Bool(_), None) => "must be a text; put it in quotes".into(),
            _ => "must be a text".into(),
        };
        format!("{}, {must}", self.is())
    }

    /// Why the value is no whole number, and what to write instead.
    pub fn must_be_whole(&self) -> String {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let must = match (&self.value, self.written.as_deref()) {
            (Value::Text(text), _) if text.parse::<i64>().is_ok() => {
                "must be a whole number; leave out the quotes".to_owned()
            }
            // kubectl reads the old octal numbers.
            (Value::Number(_), Some(written)) if written.starts_with('0') && digits(written) => {
                match i64::from_str_radix(written, 8) {
                    Ok(octal) => {
                        let decimal = written.trim_start_matches('0');
                        format!(
                            "must be a whole number without a zero before it; write {decimal}, or {octal} if it is meant as octal"
                        )
                    }
                    Err(_) => "must be a whole number without a zero before it".to_owned(),
                }
            }
            (Value::Number(_), Some(written)) if digits(written) => {
                return format!("is the number {written}, which is too large");
            }
            _ => "must be a whole number".to_owned(),
        };
        format!("{}, {must}", self.is())
    }

    /// The entry of a mapping. `None`: it has no such entry, or the node is no mapping.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        let Value::Object(entries) = &self.value else {
            return None;
        };
        entries.iter().find(|entry| entry.key == key)
    }

    /// The text at the end of these keys.
    pub fn text_at(&self, keys: &[&str]) -> Option<&str> {
        let mut node = self;
        for key in keys {
            node = &node.entry(key)?.node;
        }
        match &node.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether both say the same, wherever they stand. The order of a mapping says nothing.
    pub fn says_the_same(&self, other: &Node) -> bool {
        match (&self.value, &other.value) {
            (Value::List(ours), Value::List(theirs)) => {
                ours.len() == theirs.len()
                    && ours
                        .iter()
                        .zip(theirs)
                        .all(|(one, two)| one.says_the_same(two))
            }
            (Value::Object(ours), Value::Object(theirs)) => {
                let sorted = |entries: &[Entry]| {
                    let mut sorted: Vec<usize> = (0..entries.len()).collect();
                    sorted.sort_by(|one, two| entries[*one].key.cmp(&entries[*two].key));
                    sorted
                };
                ours.len() == theirs.len()
                    && sorted(ours).into_iter().zip(sorted(theirs)).all(|(i, j)| {
                        ours[i].key == theirs[j].key && ours[i].node.says_the_same(&theirs[j].node)
                    })
            }
            (one, two) => one == two,
        }
    }
}

impl Value {
    /// What a wrong value is, for the user: `is the text "two"`.
    pub fn is(&self) -> String {
        match self {
            Value::Null => "is empty".into(),
            Value::Bool(value) => format!("is the boolean {value}"),
            Value::Whole(value) => format!("is the number {value}"),
            Value::Number(value) => format!("is the number {value}"),
            Value::Text(value) => format!("is the text {value:?}"),
            Value::List(_) => "is a list".into(),
            Value::Object(_) => "is a mapping".into(),
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Null => to.serialize_unit(),
            Value::Bool(value) => to.serialize_bool(*value),
            Value::Whole(value) => to.serialize_i64(*value),
            Value::Number(value) => to.serialize_f64(*value),
            Value::Text(value) => to.serialize_str(value),
            Value::List(items) => to.collect_seq(items),
            Value::Object(entries) => {
                to.collect_map(entries.iter().map(|entry| (&entry.key, &entry.node)))
            }
        }
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Node {
        Node {
            place: Place::of(spanned.referenced),
            value: spanned.value,
            written: None,
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        struct AnyValue;

        impl<'de> Visitor<'de> for AnyValue {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_none<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
                from.deserialize_any(AnyValue)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Whole(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(i64::try_from(value).map_or(Value::Number(value as f64), Value::Whole))
            }
            fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
                Ok(i64::try_from(value).map_or(Value::Number(value as f64), Value::Whole))
            }
            fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
                Ok(Value::Number(value as f64))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Number(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(Value::Text(value.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element::<Spanned<Value>>()? {
                    list.push(Node::from(item));
                }
                Ok(Value::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
                let mut object = Vec::new();
                while let Some((key, node)) =
                    entries.next_entry::<Spanned<String>, Spanned<Value>>()?
                {
                    object.push(Entry {
                        key: key.value,
                        key_place: Place::of(key.referenced),
                        node: Node::from(node),
                    });
                }
                Ok(Value::Object(object))
            }
        }

        from.deserialize_any(AnyValue)
    }
}

/// A value, where it stands, and the name of its place.
#[derive(Clone, Debug)]
pub(crate) struct Field<'t> {
    pub(crate) place: Place,
    pub(crate) path: String,
    pub(crate) node: &'t Node,
}

impl<'t> Field<'t> {
    /// The root of a document.
    pub(crate) fn root(node: &'t Node) -> Field<'t> {
        Field {
            place: node.place,
            path: String::new(),
            node,
        }
    }

    pub(crate) fn below(&self, key: &str) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        match (self.path.as_str(), key.chars().all(plain)) {
            ("", _) => key.to_owned(),
            (path, true) => format!("{path}.{key}"),
            (path, false) => format!("{path}[{key:?}]"),
        }
    }

    /// Whether there is nothing in it, as in `{}` and `[]`.
    pub(crate) fn is_bare(&self) -> bool {
        match &self.node.value {
            Value::Object(entries) => entries.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Text(text) => text.is_empty(),
            value => *value == Value::Null,
        }
    }
}

#[cfg(test)]
mod tests;
