//! Reads a YAML document field by field, and gathers what is wrong with it: a person who mends a file wants all errors
//! at once.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// What is wrong, each with the path of its field.
#[derive(Debug, Default)]
pub(super) struct Wrong(pub(super) Vec<String>);

impl Wrong {
    pub(super) fn note(&mut self, path: &str, what: impl std::fmt::Display) {
        self.0.push(format!("{path}: {what}"));
    }
}

/// One mapping of the document.
pub(super) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
    known: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    /// `None`: it is no mapping, which is noted.
    pub(super) fn of(path: &str, value: &'a Value, wrong: &mut Wrong) -> Option<Self> {
        let Value::Object(map) = value else {
            wrong.note(path, "must have fields, as `name: value`");
            return None;
        };
        Some(Self {
            path: path.to_owned(),
            map,
            known: BTreeSet::new(),
        })
    }

    pub(super) fn path(&self, field: &str) -> String {
        match self.path.as_str() {
            "" => field.to_owned(),
            path => format!("{path}.{field}"),
        }
    }

    /// The field's value. `None`: it is not there, or null.
    pub(super) fn get(&mut self, field: &'static str) -> Option<&'a Value> {
        self.known.insert(field);
        self.map.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, field: &'static str, wrong: &mut Wrong) -> Option<&'a str> {
        let value = self.get(field)?;
        let text = value.as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            wrong.note(&self.path(field), "must be a text");
        }
        text
    }

    pub(super) fn flag(&mut self, field: &'static str, wrong: &mut Wrong) -> Option<bool> {
        let value = self.get(field)?;
        if value.as_bool().is_none() {
            wrong.note(&self.path(field), "must be true or false");
        }
        value.as_bool()
    }

    /// The items of a list, each with its path. A field that is not there has none.
    pub(super) fn list(
        &mut self,
        field: &'static str,
        wrong: &mut Wrong,
    ) -> Vec<(String, &'a Value)> {
        let path = self.path(field);
        match self.get(field) {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                let items = items.iter().enumerate();
                items
                    .map(|(at, item)| (format!("{path}[{at}]"), item))
                    .collect()
            }
            Some(_) => {
                wrong.note(&path, "must be a list");
                Vec::new()
            }
        }
    }

    /// The words of a list, each with its path.
    pub(super) fn words(
        &mut self,
        field: &'static str,
        wrong: &mut Wrong,
    ) -> Vec<(String, &'a str)> {
        let mut words = Vec::new();
        for (path, item) in self.list(field, wrong) {
            match item.as_str() {
                Some(word) => words.push((path, word)),
                None => wrong.note(&path, "must be a text"),
            }
        }
        words
    }

    /// Notes the fields that nobody has asked for.
    pub(super) fn end(self, wrong: &mut Wrong) {
        let unknown = self
            .map
            .keys()
            .filter(|key| !self.known.contains(key.as_str()));
        for key in unknown {
            let known: Vec<&str> = self.known.iter().copied().collect();
            let known = known.join(", ");
            wrong.note(&self.path(key), format!("is not known; known are {known}"));
        }
    }
}
