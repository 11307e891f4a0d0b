//! The words of a command, each with its place, and the kubelet's `$(NAME)` in them.

use std::collections::BTreeMap;

use crate::{
    tree::{Field, Node, Place, Value},
    verdict::Verdicts,
};

/// One word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) place: Place,
    pub(crate) path: String,
    /// A variable in it whose value only the node knows.
    pub(crate) on_node: Option<String>,
    /// A shell on the node puts that value in, so the word may stay.
    pub(crate) by_shell: bool,
}

/// A verdict needs no value of a word's field.
static NOTHING: Node = Node::made(Place::START, Value::Null);

impl Word {
    /// A place in a file that no value is needed of.
    pub(crate) fn at(place: Place, path: &str) -> Word {
        Word {
            text: String::new(),
            place,
            path: path.to_owned(),
            on_node: None,
            by_shell: false,
        }
    }

    pub(crate) fn field(&self) -> Field<'static> {
        Field {
            place: self.place,
            path: self.path.clone(),
            node: &NOTHING,
        }
    }

    /// Reads a list of words.
    pub(crate) fn list(field: &Field<'_>, log: &mut Verdicts) -> Vec<Word> {
        let items = field.items(log);
        let words = items.iter().map(|item| Word {
            // One that is refused stays, so that those behind it keep their meaning.
            text: match (item.text(log), &item.node.written) {
                (Some(text), _) => text.to_owned(),
                (None, Some(written)) => written.to_string(),
                (None, None) => "?".to_owned(),
            },
            place: item.place,
            path: item.path.clone(),
            on_node: None,
            by_shell: false,
        });
        words.collect()
    }
}

/// The variables of a container, as the kubelet knows them. `None`: the value is known on the node
/// only.
pub(crate) type Known = BTreeMap<String, Option<String>>;

/// Bytes of one text after its variables were put in. It is the most that Linux takes as one
/// argument; without a bound a few lines that name each other could fill the memory.
const EXPANDED_MAX: usize = 128 << 10;

/// Why a text cannot be written out here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotHere {
    /// Only the node knows the value of this variable.
    OnNode(String),
    TooLong,
}

impl NotHere {
    /// The reason, without the field's name.
    pub(crate) fn message(&self) -> String {
        match self {
            NotHere::OnNode(name) => on_node(name),
            NotHere::TooLong => format!(
                "is more than {} KiB long with its variables",
                EXPANDED_MAX >> 10
            ),
        }
    }
}

/// Why a variable of this name cannot be written out.
pub(crate) fn on_node(name: &str) -> String {
    format!(
        "refers to {name}, which only the node knows; let the script read it from its environment"
    )
}

/// Replaces `$(NAME)` as the kubelet does: `$$(NAME)` is the text `$(NAME)`, and a name that is not
/// known stays as it is.
pub(crate) fn expand(text: &str, known: &Known) -> Result<String, NotHere> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Looking for an end that is not there costs the whole text, so it is done once.
    let last_end = text.rfind(')').map_or(0, |at| text.len() - at);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('(')
            && last_end > 0
            && inner.len() >= last_end
            && let Some(end) = inner.find(')')
        {
            let name = &inner[..end];
            match known.get(name) {
                Some(Some(value)) => out.push_str(value),
                Some(None) => return Err(NotHere::OnNode(name.to_owned())),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = &inner[end + 1..];
        } else {
            out.push('$');
        }
        if out.len() > EXPANDED_MAX {
            return Err(NotHere::TooLong);
        }
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_as_the_kubelet_does() {
        let known = Known::from([
            ("A".into(), Some("x".into())),
            ("RANK".into(), None),
            ("B".into(), Some("$(A)".into())),
        ]);
        for (text, must) in [
            ("$(A)/y", Ok("x/y")),
            ("$$(A) $A ${A}", Ok("$(A) $A ${A}")),
            ("$(NO) $(", Ok("$(NO) $(")),
            ("$(B)", Ok("$(A)")),
            ("a$", Ok("a$")),
            ("--rank=$(RANK)", Err("RANK")),
            ("$(A)$(", Ok("x$(")),
        ] {
            let must = must
                .map(str::to_owned)
                .map_err(|name: &str| NotHere::OnNode(name.to_owned()));
            assert_eq!(expand(text, &known), must, "{text}");
        }
    }

    #[test]
    fn lines_that_double_each_other_end_soon() {
        let mut known = Known::from([("A".into(), Some("x".repeat(1_000)))]);
        let refused = (0..40).find_map(|_| match expand("$(A)$(A)", &known) {
            Ok(twice) => {
                known.insert("A".into(), Some(twice));
                None
            }
            Err(why) => Some(why),
        });
        assert_eq!(refused, Some(NotHere::TooLong));
    }
}
