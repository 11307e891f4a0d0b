//! The table of formats: how training programs print their steps, one format in each line.
//!
//! The standard table is part of the program. An operator's file has the same form and comes before
//! it; each of its lines replaces the standard line with the same name.

use crate::template::Template;

/// A line of a table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TableError {
    pub line: usize,
    pub message: String,
}

/// What a line of the table looks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Template(Box<Template>),
    /// A progress bar of tqdm.
    Bar,
    /// A progress bar drawn with ━.
    Rule,
    /// The word `step` and a number.
    Word,
    Off,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) name: String,
    pub(crate) look: Look,
}

/// Words in lower case; one that ends with `*` stands for all that begin so, and one that begins with
/// `*` for all that end so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn have(&self, word: &[u8]) -> bool {
        self.place(word).is_some()
    }

    /// The place of the first of these that `word` is.
    pub(crate) fn place(&self, word: &[u8]) -> Option<usize> {
        let is = |part: Option<&[u8]>, stem: &str| {
            part.is_some_and(|part| part.eq_ignore_ascii_case(stem.as_bytes()))
        };
        let same = |known: &String| {
            if let Some(stem) = known.strip_suffix('*') {
                is(word.get(..stem.len()), stem)
            } else if let Some(stem) = known.strip_prefix('*') {
                let from = word.len().checked_sub(stem.len());
                is(from.and_then(|from| word.get(from..)), stem)
            } else {
                is(Some(word), known)
            }
        };
        self.0.iter().position(same)
    }
}

/// More formats and words than anybody writes. It bounds the cost of a wrong file.
const FORMATS_MAX: usize = 200;
const WORDS_MAX: usize = 1_000;
/// Bytes of a format's name. It travels with each report.
const NAME_MAX: usize = 64;

/// All formats, highest precedence first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) formats: Vec<Format>,
    pub(crate) counts: Words,
    pub(crate) ignore: Words,
    pub(crate) begins: Words,
    pub(crate) tasks: Words,
    pub(crate) about: Words,
    /// Units of a rate, the most telling first.
    pub(crate) rates: Words,
}

impl Format {
    /// The program that prints it: the name up to a dot.
    fn program(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

impl Table {
    /// The place of each format's program.
    pub(crate) fn ranks(&self) -> Vec<usize> {
        let first = |format: &Format| {
            let same = |other: &Format| other.program() == format.program();
            self.formats.iter().position(same).unwrap_or(usize::MAX)
        };
        self.formats.iter().map(first).collect()
    }

    pub(crate) fn standard() -> Self {
        Self::parse(include_str!("formats.txt")).expect("a test reads it")
    }

    /// This table behind an operator's lines, without its own lines of the same names.
    pub(crate) fn overridden(self, text: &str) -> Result<Self, TableError> {
        let mut table = Self::parse(text)?;
        let counts = table.counts.0.clone();
        for format in self.formats {
            if !table.formats.iter().any(|own| own.name == format.name) {
                table.formats.push(format);
            }
        }
        table.counts.0.extend(self.counts.0);
        table.begins.0.extend(self.begins.0);
        table.tasks.0.extend(self.tasks.0);
        table.about.0.extend(self.about.0);
        table.rates.0.extend(self.rates.0);
        // A word that the operator counts is no longer ignored.
        let ignored = self.ignore.0.into_iter().filter(|w| !counts.contains(w));
        table.ignore.0.extend(ignored);
        Ok(table)
    }

    /// Reads a table. The error names the first line that cannot be read.
    pub(crate) fn parse(text: &str) -> Result<Self, TableError> {
        let mut table = Self {
            formats: Vec::new(),
            counts: Words::default(),
            ignore: Words::default(),
            begins: Words::default(),
            tasks: Words::default(),
            about: Words::default(),
            rates: Words::default(),
        };
        for (at, line) in text.lines().enumerate() {
            let wrong = |message: String| TableError {
                line: at + 1,
                message,
            };
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, rest)) = line.split_once([' ', '\t']) else {
                return Err(wrong("must read NAME TEMPLATE, or NAME off".into()));
            };
            if name.len() > NAME_MAX || !name.bytes().all(|b| b.is_ascii_graphic()) {
                let what = "a name has at most 64 letters, digits and signs";
                return Err(wrong(what.into()));
            }
            let rest = rest.trim_start();
            let words = match name {
                "counts" => Some(&mut table.counts.0),
                "ignore" => Some(&mut table.ignore.0),
                "begins" => Some(&mut table.begins.0),
                "tasks" => Some(&mut table.tasks.0),
                "about" => Some(&mut table.about.0),
                "rates" => Some(&mut table.rates.0),
                _ => None,
            };
            if let Some(words) = words {
                words.extend(rest.split_whitespace().map(str::to_ascii_lowercase));
                if words.len() > WORDS_MAX {
                    return Err(wrong(format!("more than {WORDS_MAX} words")));
                }
                continue;
            }
            let look = match (rest.trim_end(), name) {
                ("off", _) => Look::Off,
                ("bar", "rich") => Look::Rule,
                ("bar", "tqdm") => Look::Bar,
                ("word", "step") => Look::Word,
                _ => Look::Template(Box::new(Template::parse(rest).map_err(wrong)?)),
            };
            if table.formats.iter().any(|format| format.name == name) {
                return Err(wrong(format!("{name} has a line already")));
            }
            if table.formats.len() == FORMATS_MAX {
                return Err(wrong(format!("more than {FORMATS_MAX} formats")));
            }
            table.formats.push(Format {
                name: name.to_owned(),
                look,
            });
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_table_can_be_read() {
        let table = Table::standard();
        assert!(table.formats.len() > 30);
        assert!(table.ignore.have(b"Validation") && !table.ignore.have(b"value"));
        assert!(table.about.have(b"RuntimeError") && !table.about.have(b"errorless"));
    }

    #[test]
    fn an_operator_s_line_takes_the_place_of_ours() {
        let own = "ours  tick {step} of {total}\nnanogpt off\ncounts map\n";
        let table = Table::standard().overridden(own).unwrap();
        assert_eq!(table.formats[0].name, "ours");
        let nanogpt: Vec<_> = table
            .formats
            .iter()
            .filter(|f| f.name == "nanogpt")
            .collect();
        assert!(nanogpt.len() == 1 && nanogpt[0].look == Look::Off);
        assert!(!table.ignore.have(b"map") && table.ignore.have(b"filter"));
    }

    #[test]
    fn every_wrong_line_is_named() {
        for (text, error) in [
            ("ours", "line 1: must read NAME TEMPLATE, or NAME off"),
            (
                "\nours at {place}",
                "line 2: {place} is none of step, total, epoch, epoch1, epochs, batch, batches, samples, of, n",
            ),
            ("ours step {step", "line 1: a { has no }"),
            (
                "ours step {total}",
                "line 1: it has none of {step}, {batch}, {samples}, {epoch}, {epoch1}",
            ),
            (
                "ours {step} done",
                "line 1: it must begin with text or with ^",
            ),
            (
                "ours ^at {step}",
                "line 1: it needs a piece of text of at least four bytes",
            ),
            ("a step {step}\na off", "line 2: a has a line already"),
        ] {
            assert_eq!(Table::parse(text).unwrap_err().to_string(), error);
        }
    }
}
