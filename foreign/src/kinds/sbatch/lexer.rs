//! The text of a batch script as simple commands. It knows quotes, variables, substitutions, arrays and
//! redirections, and runs nothing. What it does not know (groups, here-documents, functions) is an error with
//! its place, because a script that is half understood would be half run.

use crate::tree::Place;

/// A piece of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text {
        text: String,
        quoted: bool,
    },
    /// `$NAME`, `${NAME}`, `${NAME[index]}` and `${NAME:-other}`.
    Variable {
        name: String,
        index: Option<String>,
        other: Option<String>,
        raw: String,
        quoted: bool,
    },
    /// What only a shell can replace: `$(command)`, a pattern, a home directory.
    Shell {
        raw: String,
        quoted: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShellWord {
    pub(super) place: Place,
    pub(super) parts: Vec<Part>,
    /// The items of `NAME=(...)`, whose parts are `NAME=`.
    pub(super) items: Option<Vec<ShellWord>>,
    /// As it stands in the script.
    pub(super) source: String,
}

/// What follows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    End,
    And,
    Or,
    Pipe,
    Background,
}

/// `2>&1`, `> file`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) reads: bool,
    /// `None`: another stream of the command.
    pub(super) file: Option<ShellWord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) place: Place,
    pub(super) words: Vec<ShellWord>,
    pub(super) redirects: Vec<Redirect>,
    pub(super) then: Then,
    /// As it stands in the script, redirections included.
    pub(super) source: String,
}

impl ShellWord {
    /// The text of a word that needs no shell.
    pub(super) fn plain(&self) -> Option<String> {
        let texts = self.parts.iter().map(|part| match part {
            Part::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        let text: Option<String> = texts.collect();
        text.filter(|_| self.items.is_none())
    }

    /// Name, whether the value is appended, and the value of `NAME=VALUE` and `NAME+=VALUE`.
    pub(super) fn assignment(&self) -> Option<(String, bool, Vec<Part>)> {
        let Some(Part::Text {
            text,
            quoted: false,
        }) = self.parts.first()
        else {
            return None;
        };
        let (name, value) = text.split_once('=')?;
        let (name, appends) = match name.strip_suffix('+') {
            Some(name) => (name, true),
            None => (name, false),
        };
        if !is_name(name) {
            return None;
        }
        let mut parts = vec![Part::Text {
            text: value.to_owned(),
            quoted: false,
        }];
        parts.extend(self.parts[1..].iter().cloned());
        Some((name.to_owned(), appends, parts))
    }
}

pub(super) fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
}

type Wrong = (Place, String);

/// Reads a text that begins at this place of its file.
pub(super) fn commands(text: &str, from: Place) -> Result<Vec<Command>, Wrong> {
    let mut reader = Reader {
        text,
        at: 0,
        place: from,
        commands: Vec::new(),
        words: Vec::new(),
        redirects: Vec::new(),
        begin: None,
        word: None,
        array: None,
        redirect: None,
    };
    reader.read()?;
    Ok(reader.commands)
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    place: Place,
    commands: Vec<Command>,
    words: Vec<ShellWord>,
    redirects: Vec<Redirect>,
    /// Where the command begins.
    begin: Option<(usize, Place)>,
    word: Option<(usize, Place, Vec<Part>)>,
    /// The word `NAME=` of an array that is open, and its items.
    array: Option<(usize, Place, Vec<Part>, Vec<ShellWord>)>,
    /// The next word is the file of a redirection, which reads or writes.
    redirect: Option<bool>,
}

const GROUPS: &str = "has a group, a function or a subshell, which is not understood here";

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        match c {
            '\n' => {
                self.place.line += 1;
                self.place.column = 1;
            }
            _ => self.place.column += 1,
        }
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let is = self.text[self.at..].starts_with(text);
        if is {
            for _ in text.chars() {
                self.next();
            }
        }
        is
    }

    fn read(&mut self) -> Result<(), Wrong> {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' => {
                    self.end_word();
                    self.next();
                }
                '\n' | ';' => {
                    self.end_word();
                    if c == '\n' && self.array.is_some() {
                        self.next();
                        continue;
                    }
                    self.end(Then::End)?;
                    self.next();
                }
                '#' if self.word.is_none() => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                '&' | '|' | '<' | '>' => self.operator()?,
                '(' if self.opens_array() => {
                    self.next();
                    let (at, place, parts) = self.word.take().expect("it opens an array");
                    self.array = Some((at, place, parts, Vec::new()));
                }
                ')' if self.array.is_some() => {
                    self.end_word();
                    self.next();
                    let (at, place, parts, items) = self.array.take().expect("it is open");
                    let source = self.text[at..self.at].to_owned();
                    self.words.push(ShellWord {
                        place,
                        parts,
                        items: Some(items),
                        source,
                    });
                }
                '(' | ')' => return Err((self.place, GROUPS.into())),
                _ => self.piece(c)?,
            }
        }
        self.end_word();
        if let Some((_, place, ..)) = self.array {
            return Err((place, "opens an array that never ends".into()));
        }
        self.end(Then::End)
    }

    fn opens_array(&self) -> bool {
        let Some((_, _, parts)) = &self.word else {
            return false;
        };
        match &parts[..] {
            [
                Part::Text {
                    text,
                    quoted: false,
                },
            ] => {
                let name = text.strip_suffix('=').unwrap_or_default();
                is_name(name.strip_suffix('+').unwrap_or(name))
            }
            _ => false,
        }
    }

    fn operator(&mut self) -> Result<(), Wrong> {
        let place = self.place;
        if self.array.is_some() {
            return Err((place, "has an operator in an array".into()));
        }
        // `2>`: the number belongs to the redirection.
        let is_stream = |parts: &[Part]| matches!(parts, [Part::Text { text, quoted: false }] if text.chars().all(|c| c.is_ascii_digit()));
        let to = self.text[self.at..].starts_with(['<', '>']);
        if to
            && self
                .word
                .as_ref()
                .is_some_and(|(_, _, parts)| is_stream(parts))
        {
            self.word = None;
        }
        self.end_word();
        if self.eat("&&") {
            return self.end(Then::And);
        }
        if self.eat("||") {
            return self.end(Then::Or);
        }
        if self.eat("&>>") || self.eat("&>") {
            self.redirect = Some(false);
            return Ok(());
        }
        if self.eat("|&") || self.eat("|") {
            return self.end(Then::Pipe);
        }
        if self.eat("&") {
            return self.end(Then::Background);
        }
        if self.eat("<<") || self.eat("<(") || self.eat(">(") {
            return Err((
                place,
                "has a here-document, or a process in place of a file, which is not understood here".into(),
            ));
        }
        let reads = self.eat("<");
        let _ = reads || self.eat(">>") || self.eat(">|") || self.eat(">");
        if self.eat("&") {
            // `>&1` and `>&-` name a stream; any other word is a file.
            let rest = self.text[self.at..].trim_start_matches([' ', '\t']);
            let end = rest.find(|c: char| c.is_whitespace() || ";&|<>()".contains(c));
            let word = &rest[..end.unwrap_or(rest.len())];
            let digits = word.strip_suffix('-').unwrap_or(word);
            if !word.is_empty() && digits.chars().all(|c| c.is_ascii_digit()) {
                let blanks = self.text.len() - self.at - rest.len();
                for _ in 0..blanks + word.len() {
                    self.next();
                }
                self.redirects.push(Redirect { reads, file: None });
                return Ok(());
            }
        }
        self.redirect = Some(reads);
        Ok(())
    }

    /// A character that belongs to a word.
    fn piece(&mut self, c: char) -> Result<(), Wrong> {
        let place = self.place;
        if self.begin.is_none() {
            self.begin = Some((self.at, place));
        }
        if self.word.is_none() && !self.text[self.at..].starts_with("\\\n") {
            self.word = Some((self.at, place, Vec::new()));
        }
        let from = self.at;
        self.next();
        match c {
            '\\' => match self.next() {
                Some('\n') | None => {}
                Some(c) => self.push(c, true),
            },
            '\'' => {
                self.push_text("", true);
                loop {
                    match self.next() {
                        Some('\'') => return Ok(()),
                        Some(c) => self.push(c, true),
                        None => return Err((place, "opens a quote that never ends".into())),
                    }
                }
            }
            '"' => self.quoted(place)?,
            '$' => self.dollar(from, place, false)?,
            '`' => {
                self.skip_to('`', place)?;
                self.shell(from, false);
            }
            '*' | '?' | '[' | '{' | '}' => self.shell(from, false),
            '~' if self.begins_path() => self.shell(from, false),
            c => self.push(c, false),
        }
        Ok(())
    }

    /// Whether `~` here is a home directory.
    fn begins_path(&self) -> bool {
        match self.word.as_ref().and_then(|(_, _, parts)| parts.last()) {
            None => true,
            Some(Part::Text {
                text,
                quoted: false,
            }) => text.ends_with(['=', ':']),
            Some(_) => false,
        }
    }

    fn quoted(&mut self, place: Place) -> Result<(), Wrong> {
        self.push_text("", true);
        loop {
            let from = self.at;
            match self.next() {
                Some('"') => return Ok(()),
                Some('$') => self.dollar(from, place, true)?,
                Some('`') => {
                    self.skip_to('`', place)?;
                    self.shell(from, true);
                }
                Some('\\') => match self.next() {
                    Some('\n') => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => self.push(c, true),
                    Some(c) => {
                        self.push('\\', true);
                        self.push(c, true);
                    }
                    None => {}
                },
                Some(c) => self.push(c, true),
                None => return Err((place, "opens a quote that never ends".into())),
            }
        }
    }

    /// After a `$`.
    fn dollar(&mut self, from: usize, place: Place, quoted: bool) -> Result<(), Wrong> {
        match self.peek() {
            Some('(') => {
                self.balanced('(', ')', place)?;
                self.shell(from, quoted);
            }
            Some('{') => {
                self.balanced('{', '}', place)?;
                let inner = &self.text[from + 2..self.at - 1];
                match of_braces(inner) {
                    Some((name, index, other)) => self.variable(name, index, other, from, quoted),
                    None => self.shell(from, quoted),
                }
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                while self
                    .peek()
                    .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
                {
                    self.next();
                }
                let name = self.text[from + 1..self.at].to_owned();
                self.variable(name, None, None, from, quoted);
            }
            Some(c) if c.is_ascii_digit() || "@*#?$!-".contains(c) => {
                self.next();
                self.variable(c.to_string(), None, None, from, quoted);
            }
            Some('\'' | '"') if !quoted => {
                return Err((
                    place,
                    "has a quote behind $, which is not understood here".into(),
                ));
            }
            _ => self.push('$', quoted),
        }
        Ok(())
    }

    /// Goes on behind the bracket that closes the one here. Quotes hide brackets.
    fn balanced(&mut self, open: char, close: char, place: Place) -> Result<(), Wrong> {
        let (mut depth, mut quote) = (0_usize, None);
        while let Some(c) = self.next() {
            match (c, quote) {
                ('\\', None | Some('"')) => drop(self.next()),
                (c, Some(q)) if c == q => quote = None,
                (_, Some('\'')) => {}
                ('\'' | '"', None) => quote = Some(c),
                (c, _) if c == open => depth += 1,
                (c, _) if c == close => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Err((place, format!("opens a {open} that never ends")))
    }

    fn skip_to(&mut self, end: char, place: Place) -> Result<(), Wrong> {
        while let Some(c) = self.next() {
            match c {
                '\\' => drop(self.next()),
                c if c == end => return Ok(()),
                _ => {}
            }
        }
        Err((place, format!("opens a {end} that never ends")))
    }

    fn parts(&mut self) -> &mut Vec<Part> {
        let new = || (self.at, self.place, Vec::new());
        &mut self.word.get_or_insert_with(new).2
    }

    fn push(&mut self, c: char, quoted: bool) {
        let mut buffer = [0; 4];
        self.push_text(c.encode_utf8(&mut buffer), quoted);
    }

    fn push_text(&mut self, more: &str, is_quoted: bool) {
        match self.parts().last_mut() {
            Some(Part::Text { text, quoted }) if *quoted == is_quoted => text.push_str(more),
            _ => self.parts().push(Part::Text {
                text: more.to_owned(),
                quoted: is_quoted,
            }),
        }
    }

    fn shell(&mut self, from: usize, quoted: bool) {
        let raw = self.text[from..self.at].to_owned();
        self.parts().push(Part::Shell { raw, quoted });
    }

    fn variable(
        &mut self,
        name: String,
        index: Option<String>,
        other: Option<String>,
        from: usize,
        quoted: bool,
    ) {
        let raw = self.text[from..self.at].to_owned();
        self.parts().push(Part::Variable {
            name,
            index,
            other,
            raw,
            quoted,
        });
    }

    fn end_word(&mut self) {
        let Some((at, place, parts)) = self.word.take() else {
            return;
        };
        let source = self.text[at..self.at].to_owned();
        let word = ShellWord {
            place,
            parts,
            items: None,
            source,
        };
        match (&mut self.array, self.redirect.take()) {
            (Some((.., items)), _) => items.push(word),
            (None, Some(reads)) => self.redirects.push(Redirect {
                reads,
                file: Some(word),
            }),
            (None, None) => self.words.push(word),
        }
    }

    fn end(&mut self, then: Then) -> Result<(), Wrong> {
        if let Some((_, place, ..)) = self.array {
            return Err((place, "has a ; in an array".into()));
        }
        if self.redirect.take().is_some() {
            return Err((self.place, "redirects to nothing".into()));
        }
        let words = std::mem::take(&mut self.words);
        let redirects = std::mem::take(&mut self.redirects);
        let begin = self.begin.take();
        match begin {
            Some((from, place)) if !words.is_empty() => {
                let source = self.text[from..self.at].trim_end();
                let source = source.trim_end_matches(['&', '|', ';']).trim_end();
                self.commands.push(Command {
                    place,
                    words,
                    redirects,
                    then,
                    source: source.to_owned(),
                });
                Ok(())
            }
            // A line that ends behind `&&` or `|` goes on in the next one.
            _ if then == Then::End => Ok(()),
            _ => Err((
                self.place,
                "has an operator without a command before it".into(),
            )),
        }
    }
}

/// `NAME`, `NAME[index]`, `NAME:-other` and `NAME-other`.
fn of_braces(inner: &str) -> Option<(String, Option<String>, Option<String>)> {
    let end = inner.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let (name, rest) = inner.split_at(end.unwrap_or(inner.len()));
    if name.is_empty() {
        return None;
    }
    let name = name.to_owned();
    if rest.is_empty() {
        return Some((name, None, None));
    }
    if let Some(index) = rest
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        return Some((name, Some(index.to_owned()), None));
    }
    let other = rest.strip_prefix(":-").or_else(|| rest.strip_prefix('-'))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+.,:/@%".contains(c);
    other
        .chars()
        .all(plain)
        .then(|| (name, None, Some(other.to_owned())))
}

#[cfg(test)]
mod tests;
