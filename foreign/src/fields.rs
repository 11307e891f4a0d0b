//! Walks a mapping by a table of its fields, so that no field is left without a verdict.
//!
//! The tables say what is done about a field whatever its value is. If that depends on the value, the
//! rule is [`Rule::Read`], and the code that reads the value gives the verdict.

use crate::{
    spelling::nearest,
    tree::{Field, Value},
    verdict::Verdicts,
};

/// What is done about a field that is set to anything but nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// The code that walks the mapping decides.
    Read,
    Note(&'static str),
    Warn(&'static str),
    Refuse(&'static str),
}

/// The fields that a mapping may have.
pub(crate) type Rules = &'static [(&'static str, Rule)];

/// What becomes of a field of the pods, if they are kept.
pub(crate) const KEPT: &str = "is kept in the template";

/// "Did you mean" costs a comparison with every known name. Nobody reads more of them.
const SUGGESTIONS_MAX: usize = 50;

impl<'t> Field<'t> {
    /// All entries of a mapping with free keys, without those that are empty.
    pub(crate) fn entries(&self, log: &mut Verdicts) -> Vec<(&'t str, Field<'t>)> {
        let entries = match &self.node.value {
            Value::Object(entries) => entries,
            Value::Null => return Vec::new(),
            _ => {
                log.refuse(self, format!("{}, must be a mapping", self.node.is()));
                return Vec::new();
            }
        };
        let set = entries
            .iter()
            .filter(|entry| entry.node.value != Value::Null);
        set.map(|entry| {
            // A block that is wrong as a whole begins a line after its name. The name is the
            // place to look at.
            let place = match entry.node.value {
                Value::Object(_) | Value::List(_) => entry.key_place,
                _ => entry.node.place,
            };
            let field = Field {
                place,
                path: self.below(&entry.key),
                node: &entry.node,
            };
            (entry.key.as_str(), field)
        })
        .collect()
    }

    /// The items of a list.
    pub(crate) fn items(&self, log: &mut Verdicts) -> Vec<Field<'t>> {
        match &self.node.value {
            Value::List(items) => items
                .iter()
                .enumerate()
                .map(|(i, node)| Field {
                    place: node.place,
                    path: format!("{}[{i}]", self.path),
                    node,
                })
                .collect(),
            Value::Null => Vec::new(),
            _ => {
                log.refuse(self, format!("{}, must be a list", self.node.is()));
                Vec::new()
            }
        }
    }

    pub(crate) fn text(&self, log: &mut Verdicts) -> Option<&'t str> {
        match &self.node.value {
            Value::Text(text) => Some(text),
            _ => {
                log.refuse(self, self.node.must_be_text());
                None
            }
        }
    }

    pub(crate) fn whole(&self, log: &mut Verdicts) -> Option<i64> {
        match &self.node.value {
            Value::Whole(number) => Some(*number),
            _ => {
                log.refuse(self, self.node.must_be_whole());
                None
            }
        }
    }

    pub(crate) fn flag(&self, log: &mut Verdicts) -> Option<bool> {
        match &self.node.value {
            Value::Bool(flag) => Some(*flag),
            _ => {
                log.refuse(self, format!("{}, must be true or false", self.node.is()));
                None
            }
        }
    }
}

/// A mapping that was walked. It holds what is still to be read.
#[derive(Debug)]
pub(crate) struct Object<'t> {
    fields: Vec<(&'static str, Field<'t>)>,
}

impl<'t> Object<'t> {
    /// Gives each field its verdict, and keeps those that are to be read.
    pub(crate) fn walk(field: &Field<'t>, rules: Rules, log: &mut Verdicts) -> Object<'t> {
        let mut fields = Vec::new();
        let mut suggestions = 0;
        // The entries leave out what is null. A misspelt name is a mistake with and without a value.
        if let Value::Object(entries) = &field.node.value {
            let unknown = entries.iter().filter(|entry| {
                entry.node.value == Value::Null && !rules.iter().any(|(name, _)| *name == entry.key)
            });
            for entry in unknown {
                let at = Field {
                    place: entry.key_place,
                    path: field.below(&entry.key),
                    node: &entry.node,
                };
                suggestions += 1;
                let message = unknown_field(field, &entry.key, rules, suggestions, log);
                log.refuse(&at, message);
            }
        }
        for (key, at) in field.entries(log) {
            match rules.iter().find(|(name, _)| *name == key) {
                Some((name, Rule::Read)) => fields.push((*name, at)),
                Some((_, _)) if at.is_bare() => {}
                Some((_, Rule::Note(message))) => log.note(&at, *message),
                Some((_, Rule::Warn(message))) => log.warn(&at, *message),
                Some((_, Rule::Refuse(message))) => log.refuse(&at, *message),
                None => {
                    suggestions += 1;
                    let name = match suggestions <= SUGGESTIONS_MAX {
                        true => field.node.entry(key).map(|entry| entry.key_place),
                        false => None,
                    };
                    let at = Field {
                        place: name.unwrap_or(at.place),
                        ..at
                    };
                    let message = unknown_field(field, key, rules, suggestions, log);
                    log.refuse(&at, message);
                }
            }
        }
        Object { fields }
    }

    /// The same for a mapping that is kept as it is, except for these fields.
    pub(crate) fn walk_kept(
        field: &Field<'t>,
        rules: Rules,
        but: &[&str],
        log: &mut Verdicts,
    ) -> Object<'t> {
        let mut fields = Vec::new();
        let mut suggestions = 0;
        for (key, at) in field.entries(log) {
            match rules.iter().find(|(name, _)| *name == key) {
                Some((name, _)) if but.contains(name) => fields.push((*name, at)),
                Some(_) if at.is_bare() => {}
                Some(_) => log.note(&at, KEPT),
                None => {
                    suggestions += 1;
                    let message = unknown_field(field, key, rules, suggestions, log);
                    log.refuse(&at, message);
                }
            }
        }
        Object { fields }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Field<'t>> {
        self.fields
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, field)| field)
    }

    pub(crate) fn text(&self, name: &str, log: &mut Verdicts) -> Option<(&Field<'t>, &'t str)> {
        let field = self.get(name)?;
        Some((field, field.text(log)?))
    }

    pub(crate) fn whole(&self, name: &str, log: &mut Verdicts) -> Option<(&Field<'t>, i64)> {
        let field = self.get(name)?;
        Some((field, field.whole(log)?))
    }

    pub(crate) fn flag(&self, name: &str, log: &mut Verdicts) -> Option<(&Field<'t>, bool)> {
        let field = self.get(name)?;
        Some((field, field.flag(log)?))
    }
}

/// What to say of a name that is none of these fields. All names are listed once in a file.
fn unknown_field(
    around: &Field<'_>,
    key: &str,
    rules: Rules,
    suggestions: usize,
    log: &mut Verdicts,
) -> String {
    if suggestions > SUGGESTIONS_MAX {
        return "unknown field".into();
    }
    let names: Vec<&str> = rules.iter().map(|(name, _)| *name).collect();
    match nearest(key, &names) {
        Some(name) => {
            log.means(around.below(name));
            format!("unknown field; did you mean {name}?")
        }
        None => {
            let names = names.join(", ");
            match log.is_first(&names) {
                true => format!("unknown field; the fields here are {names}"),
                false => "unknown field".into(),
            }
        }
    }
}
