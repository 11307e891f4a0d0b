//! A file of variables that a unit reads (`EnvironmentFile=` of systemd.exec(5)). The operator may write
//! it by hand: whatever is not set here stays as it is, comments too.

use std::collections::BTreeMap;

/// One variable of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: String,
    /// Without a line break.
    pub value: String,
}

/// Where the reader is, as in systemd's `src/basic/env-file.c`.
enum Place {
    BeforeKey,
    Key,
    BeforeValue,
    Value,
    Single,
    Double,
    Comment,
}

/// An assignment with its place in the text, or what lies between assignments.
struct Piece<'a> {
    text: &'a str,
    set: Option<(String, String)>,
}

/// The variables that a unit gets from this text.
pub(crate) fn read(text: &str) -> BTreeMap<String, String> {
    pieces(text).into_iter().filter_map(|it| it.set).collect()
}

/// The text with these settings, each at the place where its variable was set last.
pub(crate) fn with(text: &str, settings: &[Setting]) -> String {
    let mut pieces = pieces(text);
    let mut written = vec![false; settings.len()];
    // From the end, because the last assignment of a variable counts.
    let mut parts: Vec<String> = Vec::new();
    while let Some(piece) = pieces.pop() {
        let ours = piece.set.as_ref().and_then(|(name, value)| {
            let at = settings.iter().position(|it| it.name == *name)?;
            Some((at, value))
        });
        match ours {
            None => parts.push(piece.text.to_owned()),
            Some((at, _)) if written[at] => {}
            Some((at, value)) => {
                written[at] = true;
                parts.push(match settings[at].value == *value {
                    true => piece.text.to_owned(),
                    false => line(&settings[at]),
                });
            }
        }
    }
    parts.reverse();
    let mut new = parts.concat();
    for (setting, _) in settings.iter().zip(written).filter(|(_, is)| !is) {
        if !new.is_empty() && !new.ends_with('\n') {
            new.push('\n');
        }
        new += &line(setting);
    }
    new
}

fn line(setting: &Setting) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,@%+-[]".contains(c);
    let value = &setting.value;
    if value.chars().all(plain) {
        return format!("{}={value}\n", setting.name);
    }
    let mut quoted = String::new();
    for c in value.chars() {
        if "\"\\`$".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    format!("{}=\"{quoted}\"\n", setting.name)
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut place, mut start) = (Place::BeforeKey, 0);
    let (mut key, mut value) = (String::new(), String::new());
    // Spaces at the end of a value do not count, unless they are quoted.
    let mut kept = 0;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (&place, c) {
            (Place::BeforeKey, '#' | ';') => place = Place::Comment,
            (Place::BeforeKey, c) if c.is_ascii_whitespace() => {}
            (Place::BeforeKey, c) => {
                key.push(c);
                place = Place::Key;
            }
            (Place::Key, '=') => place = Place::BeforeValue,
            (Place::Key | Place::Comment, '\n') => {
                key.clear();
                place = Place::BeforeKey;
            }
            (Place::Key, c) => key.push(c),
            (Place::Comment, '\\') => drop(chars.next()),
            (Place::Comment, _) => {}
            (Place::BeforeValue | Place::Value, '\n') => {
                value.truncate(kept);
                let end = at + 1;
                let set = Some((key.trim_end().to_owned(), std::mem::take(&mut value)));
                pieces.push(Piece {
                    text: &text[start..end],
                    set,
                });
                (start, kept, place) = (end, 0, Place::BeforeKey);
                key.clear();
            }
            (Place::BeforeValue, '\'') => place = Place::Single,
            (Place::BeforeValue, '"') => place = Place::Double,
            (Place::BeforeValue, c) if c.is_ascii_whitespace() => {}
            (Place::BeforeValue | Place::Value, '\\') => {
                place = Place::Value;
                if let Some((_, escaped)) = chars.next().filter(|(_, c)| *c != '\n') {
                    value.push(escaped);
                    kept = value.len();
                }
            }
            (Place::BeforeValue | Place::Value, c) => {
                place = Place::Value;
                value.push(c);
                if !c.is_ascii_whitespace() {
                    kept = value.len();
                }
            }
            (Place::Single, '\'') | (Place::Double, '"') => place = Place::BeforeValue,
            (Place::Double, '\\') => {
                match chars.next() {
                    Some((_, '\n')) | None => {}
                    Some((_, c)) if "\"\\`$".contains(c) => value.push(c),
                    Some((_, c)) => value.extend(['\\', c]),
                }
                kept = value.len();
            }
            (Place::Single | Place::Double, c) => {
                value.push(c);
                kept = value.len();
            }
        }
    }
    let set = match place {
        Place::BeforeValue | Place::Value | Place::Single | Place::Double => {
            value.truncate(kept);
            Some((key.trim_end().to_owned(), value))
        }
        Place::BeforeKey | Place::Key | Place::Comment => None,
    };
    if start < text.len() {
        pieces.push(Piece {
            text: &text[start..],
            set,
        });
    }
    split_comments(pieces)
}

/// Keeps the comments and empty lines that stand before an assignment apart from it.
fn split_comments(pieces: Vec<Piece<'_>>) -> Vec<Piece<'_>> {
    pieces.into_iter().flat_map(split_comment).collect()
}

fn split_comment(piece: Piece<'_>) -> [Piece<'_>; 2] {
    let before = match &piece.set {
        None => 0,
        Some(_) => before_assignment(piece.text),
    };
    let (comment, text) = piece.text.split_at(before);
    let comment = Piece {
        text: comment,
        set: None,
    };
    let piece = Piece {
        text,
        set: piece.set,
    };
    [comment, piece]
}

fn before_assignment(text: &str) -> usize {
    let mut before = 0;
    // A comment that ends in a backslash goes on in the next line.
    let mut goes_on = false;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let is_comment = goes_on || trimmed.is_empty() || trimmed.starts_with(['#', ';']);
        // A line without `=` assigns nothing.
        if !is_comment && trimmed.contains('=') {
            break;
        }
        goes_on = is_comment && trimmed.ends_with('\\') && !trimmed.is_empty();
        before += line.len();
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Setting {
        Setting {
            name: name.into(),
            value: value.into(),
        }
    }

    #[test]
    fn a_text_is_read_as_systemd_reads_it() {
        let text = "\
# MUSTER_A=comment
  MUSTER_B = two words  \n; also a comment \\\nMUSTER_C=still the comment
MUSTER_D='single \" quoted'  \nMUSTER_E=\"a \\\"b\\\" \\$c \\n\"
MUSTER_F=goes \\\non
nothing here
MUSTER_G=
MUSTER_H=a'b
MUSTER_H=last";
        let read = read(text);
        let read: Vec<(&str, &str)> = read.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(
            read,
            [
                ("MUSTER_B", "two words"),
                ("MUSTER_D", "single \" quoted"),
                ("MUSTER_E", "a \"b\" $c \\n"),
                ("MUSTER_F", "goes on"),
                ("MUSTER_G", ""),
                ("MUSTER_H", "last"),
            ]
        );
    }

    #[test]
    fn only_what_is_set_changes() {
        let text = "# Ours, by hand\nMUSTER_SLOTS=1\n\n# Kept\nMUSTER_LABELS=\"rack=r7\"\nMUSTER_SLOTS=2 # no comment";
        assert_eq!(with(text, &[]), text);
        assert_eq!(with(text, &[set("MUSTER_LABELS", "rack=r7")]), text);
        assert_eq!(
            with(text, &[set("MUSTER_SLOTS", "4"), set("MUSTER_NEW", "a b")]),
            "# Ours, by hand\n\n# Kept\nMUSTER_LABELS=\"rack=r7\"\nMUSTER_SLOTS=4\nMUSTER_NEW=\"a b\"\n"
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in [
            "",
            " ",
            "plain",
            "two words ",
            "a\"b\\c$d`e'f",
            "#no comment",
            "back\\",
            "é",
            "\\n",
        ] {
            let setting = set("MUSTER_X", value);
            let once = with("MUSTER_X=old\n", std::slice::from_ref(&setting));
            assert_eq!(read(&once)["MUSTER_X"], value, "{once:?}");
            assert_eq!(with(&once, &[setting]), once);
        }
    }
}
