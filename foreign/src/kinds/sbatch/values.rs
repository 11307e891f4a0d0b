//! The variables of a batch script: what each is worth, as far as that can be said without running it, and
//! words with them put in. A value that only the nodes know stays a reference.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::spec::is_of_a_launch;

use super::lexer::{Command, Part, ShellWord};
use crate::tree::Place;

/// Bytes of a value or a word with its variables. It is the most that Linux takes as one argument; without
/// a bound a few lines that name each other could fill the memory.
const EXPANDED_MAX: usize = 128 << 10;

/// Items of an array, and words that a command becomes: more than a job may have.
const WORDS_MAX: usize = 4_096;

/// What a variable is worth.
#[derive(Clone, Debug)]
enum Value {
    Text(Vec<Part>),
    Items(Vec<Vec<Part>>),
    /// Only a shell can say it.
    Opaque,
}

/// What is known of a variable of Slurm.
#[derive(Clone, Debug)]
pub(super) enum OfSlurm {
    Is(String),
    /// A rank has it under another name.
    Rank,
    NotSet,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    script: BTreeMap<String, Value>,
    pub(super) slurm: BTreeMap<&'static str, OfSlurm>,
    /// The variables of the script whose values were put into a word.
    pub(super) used: BTreeSet<String>,
    /// Those whose value was known until a line that may have changed it, and whether it was nothing but words.
    changed: BTreeMap<String, bool>,
}

/// A word with its variables put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expanded {
    pub(super) place: Place,
    pub(super) parts: Vec<Part>,
}

fn text(text: impl Into<String>, quoted: bool) -> Part {
    Part::Text {
        text: text.into(),
        quoted,
    }
}

impl Expanded {
    /// The text, if no shell is needed for it.
    pub(super) fn plain(&self) -> Option<String> {
        plain(&self.parts)
    }
}

fn plain(parts: &[Part]) -> Option<String> {
    let texts = parts.iter().map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The word as a shell reads it.
pub(super) fn render(parts: &[Part]) -> String {
    let mut out = String::new();
    for part in parts {
        match part {
            Part::Text { text, .. } => out.push_str(&quoted(text)),
            Part::Variable { raw, quoted, .. } | Part::Shell { raw, quoted } => match quoted {
                true => out.push_str(&format!("\"{raw}\"")),
                false => out.push_str(raw),
            },
        }
    }
    match out.is_empty() {
        true => "''".into(),
        false => out,
    }
}

/// A text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+.,:/@%".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The names that these parts need when a shell reads them.
pub(super) fn names(parts: &[Part], found: &mut BTreeSet<String>) {
    for part in parts {
        match part {
            Part::Text { .. } => {}
            Part::Variable { name, raw, .. } => {
                found.insert(name.clone());
                if raw.contains('[') {
                    names_in(raw, found);
                }
            }
            Part::Shell { raw, .. } => names_in(raw, found),
        }
    }
}

/// The names in a text of the shell. Rather too many: a name in single quotes counts.
pub(super) fn names_in(source: &str, found: &mut BTreeSet<String>) {
    let mut rest = source;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        let arithmetic = rest.starts_with("((");
        let bare = rest.trim_start_matches(['{', '#', '!']);
        let end = bare.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let name = &bare[..end.unwrap_or(bare.len())];
        if !name.is_empty() {
            found.insert(name.to_owned());
        }
        if arithmetic {
            let inner = rest.split("))").next().unwrap_or_default();
            let words = inner.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let words = words.filter(|word| super::lexer::is_name(word));
            found.extend(words.map(str::to_owned));
        }
    }
}

fn is_shell(part: &Part) -> bool {
    matches!(part, Part::Shell { .. })
}

fn size(parts: &[Part]) -> usize {
    let sizes = parts.iter().map(|part| match part {
        Part::Text { text, .. } => text.len() + 1,
        Part::Variable { raw, .. } | Part::Shell { raw, .. } => raw.len(),
    });
    sizes.sum()
}

pub(super) const TOO_LONG: &str = "is more than 128 KiB long with its variables";

impl Values {
    pub(super) fn of_slurm(&self, name: &str) -> Option<OfSlurm> {
        let known = self.slurm.get(name).cloned();
        let is_slurms = name.starts_with("SLURM_") || name.starts_with("SLURMD_");
        known.or_else(|| is_slurms.then_some(OfSlurm::NotSet))
    }

    /// Whether the script sets it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.script.contains_key(name)
    }

    /// The value of a variable of the script, if no shell is needed for it.
    pub(super) fn plain(&self, name: &str) -> Option<String> {
        match self.script.get(name)? {
            Value::Text(parts) => plain(parts),
            Value::Items(_) | Value::Opaque => None,
        }
    }

    /// Whether the value of a variable is several words: a part of a command, which no program reads.
    pub(super) fn is_line(&self, name: &str) -> bool {
        let blank = |part: &Part| matches!(part, Part::Text { text, .. } if text.contains(char::is_whitespace));
        matches!(self.script.get(name), Some(Value::Text(parts)) if parts.iter().any(blank))
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.script.remove(name);
    }

    /// A shell may have changed it.
    pub(super) fn set_opaque(&mut self, name: &str) {
        self.script.insert(name.to_owned(), Value::Opaque);
    }

    /// A line may have changed any of them. Whether the value of one was known.
    pub(super) fn all_opaque(&mut self) -> bool {
        let mut any = false;
        for (name, value) in &mut self.script {
            let known = match value {
                Value::Text(parts) => plain(parts).is_some(),
                Value::Items(items) => items.iter().all(|item| plain(item).is_some()),
                Value::Opaque => false,
            };
            if known {
                self.changed.insert(name.clone(), is_words(value));
            }
            any |= known;
            *value = Value::Opaque;
        }
        any
    }

    /// Whether the value was known before a line that may have changed it.
    pub(super) fn may_have_changed(&self, name: &str) -> bool {
        self.changed.contains_key(name) && matches!(self.script.get(name), Some(Value::Opaque))
    }

    /// Whether the text of a shell means the same with references in place of its unknown values: none stands in
    /// single quotes, and none was more than words.
    pub(super) fn read_again(&self, text: &Expanded, commands: &[Command]) -> bool {
        let words = commands.iter().flat_map(|command| &command.words);
        let parts: Vec<&Part> = words.flat_map(|word| &word.parts).collect();
        let literal = |raw: &str| {
            let mut parts = parts.iter();
            parts.any(|part| matches!(part, Part::Text { text, .. } if text.contains(raw)))
        };
        text.parts.iter().all(|part| match part {
            Part::Text { .. } => true,
            Part::Shell { raw, .. } => !literal(raw),
            Part::Variable { name, raw, .. } => {
                let words = !self.may_have_changed(name) || self.changed[name];
                words && !literal(raw)
            }
        })
    }

    /// `NAME=VALUE` and `NAME+=VALUE`.
    pub(super) fn assign(&mut self, word: &ShellWord) -> Result<(), &'static str> {
        let Some((name, appends, parts)) = word.assignment() else {
            return Ok(());
        };
        // A rank has Muster's value.
        if is_of_a_launch(&name) {
            return self.opaque(&name);
        }
        let before = self.script.get(&name).cloned();
        let value = match &word.items {
            Some(items) => {
                let mut all = match (appends, before) {
                    (true, Some(Value::Items(items))) => items,
                    (true, Some(_)) => return self.opaque(&name),
                    _ => Vec::new(),
                };
                for item in items {
                    let words = self.expand(item)?;
                    all.extend(words.into_iter().map(|word| word.parts));
                }
                if all.len() > WORDS_MAX
                    || all.iter().map(|item| size(item)).sum::<usize>() > EXPANDED_MAX
                {
                    return Err(TOO_LONG);
                }
                match all.iter().flatten().any(is_shell) {
                    true => Value::Opaque,
                    false => Value::Items(all),
                }
            }
            None => {
                let mut all = match (appends, before) {
                    (true, Some(Value::Text(parts))) => parts,
                    (true, _) => return self.opaque(&name),
                    _ => Vec::new(),
                };
                for part in parts {
                    all.extend(self.one(&as_quoted(part)));
                }
                if size(&all) > EXPANDED_MAX {
                    return Err(TOO_LONG);
                }
                let own = |part: &Part| matches!(part, Part::Variable { name: used, .. } if *used == name);
                match all.iter().any(|part| is_shell(part) || own(part)) {
                    true => Value::Opaque,
                    false => Value::Text(all),
                }
            }
        };
        self.script.insert(name, value);
        Ok(())
    }

    fn opaque(&mut self, name: &str) -> Result<(), &'static str> {
        self.set_opaque(name);
        Ok(())
    }

    /// What a part is worth, without splitting it.
    fn one(&mut self, part: &Part) -> Vec<Part> {
        let as_it_is = || vec![part.clone()];
        match part {
            Part::Text { .. } => as_it_is(),
            Part::Shell { raw, .. } => match arithmetic(raw, self) {
                Some(number) => vec![text(number.to_string(), true)],
                None => as_it_is(),
            },
            Part::Variable {
                name,
                index,
                other,
                raw: _,
                quoted,
            } => {
                let found = match (self.script.get(name), index.as_deref()) {
                    (Some(Value::Text(parts)), None | Some("0")) => Some(parts.clone()),
                    (Some(Value::Items(items)), index) => {
                        let index = index.unwrap_or("0").parse::<usize>();
                        index
                            .ok()
                            .map(|index| items.get(index).cloned().unwrap_or_default())
                    }
                    (Some(_), _) => None,
                    (None, Some(_)) => None,
                    (None, None) => match (self.of_slurm(name), other) {
                        (Some(OfSlurm::Is(value)), _) => Some(vec![text(value, *quoted)]),
                        (Some(OfSlurm::NotSet), Some(other)) => Some(vec![text(other, *quoted)]),
                        (Some(OfSlurm::Rank), Some(_)) => Some(vec![Part::Variable {
                            name: name.clone(),
                            index: None,
                            other: None,
                            raw: format!("${name}"),
                            quoted: *quoted,
                        }]),
                        _ => None,
                    },
                };
                match found {
                    Some(parts) => {
                        if self.script.contains_key(name) {
                            self.used.insert(name.clone());
                        }
                        parts
                    }
                    None => as_it_is(),
                }
            }
        }
    }

    /// The words that a word becomes. An unquoted value is split at its blanks, as a shell does.
    pub(super) fn expand(&mut self, word: &ShellWord) -> Result<Vec<Expanded>, &'static str> {
        let mut words: Vec<Vec<Part>> = Vec::new();
        let mut open: Option<Vec<Part>> = None;
        let mut room = EXPANDED_MAX;
        for part in &word.parts {
            if let Some(items) = self.items(part) {
                for (i, item) in items.into_iter().enumerate() {
                    room = room.checked_sub(size(&item)).ok_or(TOO_LONG)?;
                    if i > 0 {
                        words.extend(open.take());
                    }
                    open.get_or_insert_default().extend(item);
                }
                continue;
            }
            let splits = matches!(part, Part::Variable { quoted: false, .. });
            let value = self.one(part);
            room = room.checked_sub(size(&value)).ok_or(TOO_LONG)?;
            for piece in value {
                match &piece {
                    Part::Text { text: value, .. } if splits => split(value, &mut words, &mut open),
                    _ => open.get_or_insert_default().push(piece),
                }
            }
        }
        words.extend(open);
        match words.len() > WORDS_MAX {
            true => Err(TOO_LONG),
            false => Ok(words
                .into_iter()
                .map(|parts| Expanded {
                    place: word.place,
                    parts,
                })
                .collect()),
        }
    }

    /// The items of `${NAME[@]}`.
    fn items(&mut self, part: &Part) -> Option<Vec<Vec<Part>>> {
        let Part::Variable {
            name,
            index: Some(index),
            ..
        } = part
        else {
            return None;
        };
        match self.script.get(name) {
            Some(Value::Items(items)) if index == "@" || index == "*" => {
                let items = items.clone();
                self.used.insert(name.clone());
                Some(items)
            }
            _ => None,
        }
    }

    /// A number that a variable is, for arithmetic.
    fn number(&self, name: &str) -> Option<i64> {
        let text = match self.script.get(name) {
            Some(Value::Text(parts)) => plain(parts)?,
            Some(_) => return None,
            None => match self.of_slurm(name)? {
                OfSlurm::Is(value) => value,
                OfSlurm::Rank | OfSlurm::NotSet => return None,
            },
        };
        text.trim().parse().ok()
    }
}

/// Whether a shell that reads the value as a part of its text finds the same words in it.
fn is_words(value: &Value) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_=+.,:/@%".contains(c);
    match value {
        Value::Text(parts) => parts
            .iter()
            .all(|part| matches!(part, Part::Text { text, .. } if text.chars().all(plain))),
        Value::Items(_) | Value::Opaque => false,
    }
}

/// A value is not split where it is assigned.
fn as_quoted(part: Part) -> Part {
    match part {
        Part::Variable {
            name,
            index,
            other,
            raw,
            ..
        } => Part::Variable {
            name,
            index,
            other,
            raw,
            quoted: true,
        },
        // Patterns and `~` mean something only without quotes.
        Part::Shell { raw, .. } if raw.starts_with(['$', '`']) => Part::Shell { raw, quoted: true },
        other => other,
    }
}

/// Adds the words of an unquoted value.
fn split(value: &str, words: &mut Vec<Vec<Part>>, open: &mut Option<Vec<Part>>) {
    if value.starts_with(char::is_whitespace) {
        words.extend(open.take());
    }
    let ends = value.ends_with(char::is_whitespace);
    let mut pieces = value.split_whitespace().peekable();
    while let Some(piece) = pieces.next() {
        let pattern = piece.contains(['*', '?', '[']);
        open.get_or_insert_default().push(match pattern {
            true => Part::Shell {
                raw: piece.to_owned(),
                quoted: false,
            },
            false => text(piece, true),
        });
        if pieces.peek().is_some() || ends {
            words.extend(open.take());
        }
    }
}

/// `$((A * 2))` of numbers that are known: products before sums, without brackets.
fn arithmetic(raw: &str, values: &Values) -> Option<i64> {
    let inner = raw.strip_prefix("$((")?.strip_suffix("))")?;
    let mut total: i64 = 0;
    let (mut sign, mut term): (i64, Option<i64>) = (1, None);
    let mut operator = '+';
    let mut rest = inner.trim();
    loop {
        let bare = rest.trim_start_matches(['$', '{']);
        let end = bare.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (word, after) = bare.split_at(end.unwrap_or(bare.len()));
        let number = match word.parse::<i64>() {
            Ok(number) => number,
            Err(_) => values.number(word)?,
        };
        term = Some(match (operator, term) {
            ('*', Some(before)) => before.checked_mul(number)?,
            ('/', Some(before)) => before.checked_div(number)?,
            ('%', Some(before)) => before.checked_rem(number)?,
            _ => number,
        });
        rest = after.trim_start_matches('}').trim_start();
        let Some(next) = rest.chars().next() else {
            return total.checked_add(sign.checked_mul(term?)?);
        };
        match next {
            '+' | '-' => {
                total = total.checked_add(sign.checked_mul(term.take()?)?)?;
                sign = if next == '-' { -1 } else { 1 };
            }
            '*' | '/' | '%' => {}
            _ => return None,
        }
        operator = next;
        rest = rest[1..].trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::sbatch::lexer::commands;

    /// The words of the last line, after the assignments before it.
    fn expanded(script: &str) -> Vec<String> {
        let mut values = Values::default();
        values.slurm.insert("SLURM_NNODES", OfSlurm::Is("4".into()));
        values.slurm.insert("SLURM_PROCID", OfSlurm::Rank);
        let mut commands = commands(script, Place::START).expect("is understood");
        let last = commands.pop().expect("has a command");
        for word in commands.iter().flat_map(|command| &command.words) {
            values.assign(word).expect("is short");
        }
        let words = last
            .words
            .iter()
            .flat_map(|word| values.expand(word).unwrap());
        words.map(|word| render(&word.parts)).collect()
    }

    #[test]
    fn values_are_put_in_and_split_as_a_shell_does() {
        for (script, must) in [
            ("A=1\nx $A \"$A b\" '$A'", "x|1|1' b'|'$A'"),
            ("A='--x 1 '\nB=\"$A --y\"\nx $B\"z\"", "x|--x|1|--yz"),
            (
                "A=(--x \"1 2\")\nA+=(--y)\nx \"${A[@]}\" ${A[0]} e",
                "x|--x|'1 2'|--y|--x|e",
            ),
            ("N=8\nx $((N * SLURM_NNODES + 2)) $(( $N - 1 ))", "x|34|7"),
            ("A=$(date)\nB=\"$A/x\"\nx $B", "x|\"$A\"/x"),
            ("PATH=$PATH:/a\nx $PATH", "x|$PATH"),
            (
                "A=a\nA+=b\nx $A ${NO:-c} $SLURM_NNODES ${SLURM_ARRAY_TASK_ID:-0}",
                "x|ab|${NO:-c}|4|0",
            ),
            (
                "x $SLURM_PROCID ${SLURM_PROCID:-0} ~/a *.py",
                "x|$SLURM_PROCID|$SLURM_PROCID|~/a|*.py",
            ),
            ("A=\nx $A \"$A\" b", "x|''|b"),
        ] {
            assert_eq!(expanded(script).join("|"), must, "{script}");
        }
    }

    #[test]
    fn values_that_double_each_other_end_soon() {
        let mut values = Values::default();
        let script = format!("A={}\n{}", "x".repeat(1_000), "A=\"$A$A\"\n".repeat(40));
        let commands = commands(&script, Place::START).unwrap();
        let mut words = commands.iter().flat_map(|command| &command.words);
        assert!(words.any(|word| values.assign(word) == Err(TOO_LONG)));
    }

    #[test]
    fn names_that_a_shell_needs_are_found() {
        let mut found = BTreeSet::new();
        names_in("echo $A ${B[0]} $(c $D) $((E * 2)) ${#F}", &mut found);
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, ["A", "B", "D", "E", "F"]);
    }
}
