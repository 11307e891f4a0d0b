//! The text of a shell as words and what separates commands. Substitutions that could run something, files and
//! groups are no tokens: they are errors.

use std::{iter::Peekable, str::Chars};

/// A word of a text, or what stands between words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(String),
    /// `;`, `&&`, `||`, the end of a line.
    End,
    Pipe,
}

impl Token {
    pub(super) fn shown(&self) -> String {
        match self {
            Token::Word(word) => word.clone(),
            Token::End => ";".to_owned(),
            Token::Pipe => "|".to_owned(),
        }
    }
}

/// Takes a text apart. An error is a part of which only a shell can tell what it does.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars().peekable();
    let bad = |what: &str| Err(what.to_owned());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(c) => word.get_or_insert_default().push(c),
            },
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return bad("'"),
                    }
                }
            }
            '"' => {
                word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('`') => return bad("`"),
                        Some('$') => {
                            let value = variable(&mut chars)?;
                            word.get_or_insert_default().push_str(&value);
                        }
                        Some('\\') => word.get_or_insert_default().extend(chars.next()),
                        Some(c) => word.get_or_insert_default().push(c),
                        None => return bad("\""),
                    }
                }
            }
            '$' => {
                let value = variable(&mut chars)?;
                word.get_or_insert_default().push_str(&value);
            }
            '#' if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '>' => {
                // Before it may be the number of what is written elsewhere.
                if word
                    .as_deref()
                    .is_some_and(|word| word == "1" || word == "2")
                {
                    word = None;
                }
                found.extend(word.take().map(Token::Word));
                nowhere(&mut chars)?;
            }
            '&' if chars.peek() == Some(&'>') => {
                chars.next();
                found.extend(word.take().map(Token::Word));
                nowhere(&mut chars)?;
            }
            '&' | '|' if chars.peek() == Some(&c) => {
                chars.next();
                found.extend(word.take().map(Token::Word));
                found.push(Token::End);
            }
            '|' => {
                found.extend(word.take().map(Token::Word));
                found.push(Token::Pipe);
            }
            ';' | '\n' => {
                found.extend(word.take().map(Token::Word));
                found.push(Token::End);
            }
            '`' | '<' | '(' | ')' | '&' => return Err(c.to_string()),
            c if c.is_whitespace() => found.extend(word.take().map(Token::Word)),
            c => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word.map(Token::Word));
    Ok(opened(found))
}

/// The shell takes what follows `do`, `then` and the like for another command.
fn opened(tokens: Vec<Token>) -> Vec<Token> {
    let mut out = Vec::with_capacity(tokens.len());
    for token in tokens {
        let opens = matches!(&token, Token::Word(word) if ["{", "}"].contains(&&**word));
        match opens {
            true => out.push(Token::End),
            false => out.push(token),
        }
    }
    out
}

/// `/dev/null` or another output, after `>`. Whatever goes elsewhere is work.
fn nowhere(chars: &mut Peekable<Chars<'_>>) -> Result<(), String> {
    chars.next_if_eq(&'>');
    while chars.next_if(|c| *c == ' ').is_some() {}
    let mut target = String::new();
    while let Some(c) = chars.next_if(|c| !c.is_whitespace() && !";|)".contains(*c)) {
        target.push(c);
    }
    match &*target {
        "/dev/null" | "&1" | "&2" | "/dev/stdout" | "/dev/stderr" => Ok(()),
        other => Err(format!("> {other}")),
    }
}

/// `$NAME`, `${NAME}`, `$((SUM))` and `$(seq N)` after the `$`, which stand for a word. Every other
/// substitution is a command.
fn variable(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    match chars.peek() {
        Some('(') => {
            chars.next();
            let mut inner = String::new();
            let mut depth = 1;
            for c in chars.by_ref() {
                match c {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
                inner.push(c);
            }
            let sum = inner
                .strip_prefix('(')
                .and_then(|sum| sum.strip_suffix(')'));
            let is_sum = sum.is_some_and(|sum| {
                sum.chars()
                    .all(|c| c.is_ascii_alphanumeric() || " _$+-*/%<>=!".contains(c))
            });
            let mut words = inner.split_whitespace();
            let prints = match words.next() {
                Some("seq") => words.all(|word| word.bytes().all(|b| b.is_ascii_digit())),
                Some("date") => words.all(|word| word.trim_matches('\'').starts_with('+')),
                Some("hostname") => words.all(|word| word.starts_with('-')),
                _ => false,
            };
            match depth == 0 && (is_sum || prints) {
                true => Ok("1".to_owned()),
                false => Err(format!("$({inner})")),
            }
        }
        Some('{') => {
            chars.next();
            let mut inner = String::new();
            for c in chars.by_ref() {
                if c == '}' {
                    break;
                }
                inner.push(c);
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || "_:-=+?#%./".contains(c);
            match inner.chars().all(plain) {
                true => Ok(format!("${{{inner}}}")),
                false => Err(format!("${{{inner}}}")),
            }
        }
        _ => Ok("$".to_owned()),
    }
}
