//! Which labels a node must have, in kubectl's words: `-l` of lists, `--node-selector` of jobs.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::spec::selection::Expression;

/// All of these must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    /// `None`: whatever its value is.
    values: Option<BTreeSet<String>>,
    /// Whether the label must be missing, or have another value.
    is_not: bool,
}

impl Selector {
    /// Reads `a=b,c!=d,e,!f,g in (h,i),j notin (k)`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for part in split(text) {
            requirements.push(requirement(part.trim()).ok_or_else(|| {
                format!("{part:?} is none of KEY=VALUE, KEY!=VALUE, KEY, !KEY, KEY in (A,B), KEY notin (A,B)")
            })?);
        }
        Ok(Self(requirements))
    }

    /// The labels that must have one value, and what else must hold.
    pub(crate) fn into_parts(self) -> (BTreeMap<String, String>, Vec<Expression>) {
        let (mut labels, mut expressions) = (BTreeMap::new(), Vec::new());
        for Requirement {
            key,
            values,
            is_not,
        } in self.0
        {
            let mut values: Vec<String> = values.into_iter().flatten().collect();
            let operator = match (values.len(), is_not) {
                // The same label with another value is an expression, so that no node has both.
                (1, false) if !labels.contains_key(&key) => {
                    labels.extend(values.pop().map(|value| (key, value)));
                    continue;
                }
                (0, false) => "Exists",
                (0, true) => "DoesNotExist",
                (_, false) => "In",
                (_, true) => "NotIn",
            };
            expressions.push(Expression {
                key,
                operator: operator.into(),
                values,
            });
        }
        (labels, expressions)
    }

    pub(crate) fn takes(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|needed| {
            let value = labels.get(&needed.key);
            let holds = match &needed.values {
                None => value.is_some(),
                Some(values) => value.is_some_and(|value| values.contains(value)),
            };
            holds != needed.is_not
        })
    }
}

/// The parts between commas, but for those in brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

fn requirement(part: &str) -> Option<Requirement> {
    let of = |key: &str, values: Option<BTreeSet<String>>, is_not| {
        let key = key.trim();
        let is_word = |word: &str| {
            word.chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "-_./:".contains(letter))
        };
        let are_words = values.iter().flatten().all(|value| is_word(value));
        (!key.is_empty() && is_word(key) && are_words).then(|| Requirement {
            key: key.to_owned(),
            values,
            is_not,
        })
    };
    let one = |value: &str| Some(BTreeSet::from([value.trim().to_owned()]));
    if let Some(list) = part.strip_suffix(')') {
        let (head, list) = list.split_once('(')?;
        let values = list.split(',').map(|value| value.trim().to_owned());
        let values = Some(values.collect());
        let head = head.trim_end();
        return match head.strip_suffix(" notin") {
            Some(key) => of(key, values, true),
            None => of(head.strip_suffix(" in")?, values, false),
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return of(key, one(value), true);
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return of(key, one(value), false);
    }
    match part.strip_prefix('!') {
        Some(key) => of(key, None, true),
        None => of(part, None, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_selected_in_kubectls_words() {
        let labels: BTreeMap<String, String> = [("rack", "r7"), ("gpu.model", "h100")]
            .map(|(key, value)| (key.into(), value.into()))
            .into();
        for (text, expected) in [
            ("rack=r7", true),
            ("rack==r7", true),
            ("rack=r8", false),
            ("rack!=r8", true),
            ("zone!=a", true),
            ("rack", true),
            ("zone", false),
            ("!zone", true),
            ("!rack", false),
            ("rack=r7,gpu.model=h100", true),
            ("rack=r7,gpu.model=a100", false),
            ("rack in (r6, r7),gpu.model", true),
            ("rack in (r6)", false),
            ("rack notin (r6,r8)", true),
            ("zone notin (a)", true),
        ] {
            assert_eq!(
                Selector::read(text).unwrap().takes(&labels),
                expected,
                "{text}"
            );
        }
        for wrong in [
            "",
            "a b",
            "=x",
            "rack in r7",
            "a,,b",
            "rack on (r7)",
            "rack=(r7,zone",
            "a=b=c",
            "a=b c",
        ] {
            assert!(Selector::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_selector_of_a_job_is_labels_and_expressions() {
        let text = "a=b,c,!d,e!=f,g in (h,i),j notin (k),a=x";
        let (labels, expressions) = Selector::read(text).unwrap().into_parts();
        assert_eq!(labels, [("a".to_owned(), "b".to_owned())].into());
        let said: Vec<String> = expressions
            .iter()
            .map(|one| format!("{} {} {}", one.key, one.operator, one.values.join("|")))
            .collect();
        assert_eq!(
            said,
            [
                "c Exists ",
                "d DoesNotExist ",
                "e NotIn f",
                "g In h|i",
                "j NotIn k",
                "a In x"
            ]
        );
    }
}
