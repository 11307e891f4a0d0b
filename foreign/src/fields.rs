//! Walks a mapping by a table of its fields, so that no field is left without a verdict.
//!
//! The tables say what is done about a field whatever its value is. If that depends on the value, the
//! rule is [`Rule::Read`], and the code that reads the value gives the verdict.

use crate::{
    spelling::{misspelt, nearest},
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
    /// Gives each field its verdict, and keeps those that are to be read. A misspelt field is refused, and read
    /// as the one that is probably meant, so that what is wrong in it is told as well.
    pub(crate) fn walk(field: &Field<'t>, rules: Rules, log: &mut Verdicts) -> Object<'t> {
        let by_rule = |(name, rule): (&'static str, Rule), at: Field<'t>, log: &mut Verdicts| {
            match rule {
                Rule::Read => return Some((name, at)),
                _ if at.is_bare() => {}
                Rule::Note(message) => log.note(&at, message),
                Rule::Warn(message) => log.warn(&at, message),
                Rule::Refuse(message) => log.refuse(&at, message),
            }
            None
        };
        Object::walk_by(field, rules, by_rule, log)
    }

    /// The same for a mapping that is kept as it is, except for these fields.
    pub(crate) fn walk_kept(
        field: &Field<'t>,
        rules: Rules,
        but: &[&str],
        log: &mut Verdicts,
    ) -> Object<'t> {
        let by_rule = |(name, _): (&'static str, Rule), at: Field<'t>, log: &mut Verdicts| {
            if but.contains(&name) {
                return Some((name, at));
            }
            if !at.is_bare() {
                log.note(&at, KEPT);
            }
            None
        };
        Object::walk_by(field, rules, by_rule, log)
    }

    fn walk_by(
        field: &Field<'t>,
        rules: Rules,
        by_rule: impl Fn(
            (&'static str, Rule),
            Field<'t>,
            &mut Verdicts,
        ) -> Option<(&'static str, Field<'t>)>,
        log: &mut Verdicts,
    ) -> Object<'t> {
        let mut fields: Vec<(&'static str, Field<'t>)> = Vec::new();
        let mut unknown = Unknown {
            around: field,
            rules,
            count: 0,
        };
        // The entries leave out what is null. A misspelt name is a mistake with and without a value.
        if let Value::Object(entries) = &field.node.value {
            let nothing = entries.iter().filter(|entry| {
                entry.node.value == Value::Null && !rules.iter().any(|(name, _)| *name == entry.key)
            });
            for entry in nothing {
                unknown.refuse(&entry.key, log);
            }
        }
        let entries = field.entries(log);
        let is_there = |name: &str| field.node.entry(name).is_some();
        let mut seen = Vec::new();
        for (key, mut at) in entries {
            let rule = match rules.iter().find(|(name, _)| *name == key) {
                Some(rule) => Some(rule),
                None => {
                    let meant = unknown.refuse(key, log);
                    let meant = meant.filter(|(name, _)| !is_there(name) && !seen.contains(name));
                    seen.extend(meant.map(|(name, _)| *name));
                    // Where its name is refused.
                    let entry = field.node.entry(key);
                    at.place = entry.map_or(at.place, |entry| entry.key_place);
                    meant
                }
            };
            fields.extend(rule.and_then(|rule| by_rule(*rule, at, log)));
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

/// The fields of a mapping that it must not have.
struct Unknown<'f, 't> {
    around: &'f Field<'t>,
    rules: Rules,
    /// How many there were.
    count: usize,
}

impl Unknown<'_, '_> {
    /// Refuses a name that is none of the fields, and tells which is probably meant. All names are listed once in
    /// a file.
    fn refuse(&mut self, key: &str, log: &mut Verdicts) -> Option<&'static (&'static str, Rule)> {
        self.count += 1;
        let at = |place| Field {
            place,
            path: self.around.below(key),
            node: self.around.node,
        };
        if self.count > SUGGESTIONS_MAX {
            log.refuse_name(&at(self.around.place), "unknown field");
            return None;
        }
        let entry = self.around.node.entry(key);
        let at = at(entry.map_or(self.around.place, |entry| entry.key_place));
        let names: Vec<&str> = self.rules.iter().map(|(name, _)| *name).collect();
        let Some(meant) = nearest(key, &names) else {
            let names = names.join(", ");
            let message = match log.is_first(&names) {
                true => format!("unknown field; the fields here are {names}"),
                false => "unknown field".into(),
            };
            log.refuse_name(&at, message);
            return None;
        };
        log.refuse_name(&at, format!("unknown field; did you mean {meant}?"));
        log.means(self.around.below(meant));
        let misspelt = misspelt(key, &names)?;
        self.rules.iter().find(|(name, _)| *name == misspelt)
    }
}
