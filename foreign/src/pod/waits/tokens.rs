//! The text of a shell as words and what separates commands. The commands whose output is put into the text are
//! told apart. Files and groups are no tokens: they are errors.

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

/// Takes a text apart, with the texts of commands in it (`$(...)`). An error is a part of which only a shell can
/// tell what it does.
pub(super) fn tokens(text: &str) -> Result<(Vec<Token>, Vec<String>), String> {
    let (mut found, mut inner) = (Vec::new(), Vec::new());
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
                        Some('`') => inner.push(quoted_back(&mut chars)?),
                        Some('$') => {
                            let value = variable(&mut chars, &mut inner)?;
                            word.get_or_insert_default().push_str(&value);
                        }
                        Some('\\') => word.get_or_insert_default().extend(chars.next()),
                        Some(c) => word.get_or_insert_default().push(c),
                        None => return bad("\""),
                    }
                }
            }
            '$' => {
                let value = variable(&mut chars, &mut inner)?;
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
            '`' => {
                inner.push(quoted_back(&mut chars)?);
                word.get_or_insert_default().push('1');
            }
            '<' | '(' | ')' | '&' => return Err(c.to_string()),
            c if c.is_whitespace() => found.extend(word.take().map(Token::Word)),
            c => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word.map(Token::Word));
    Ok((opened(found), inner))
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

/// The text between two of these quotes, after the first.
fn quoted_back(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut text = String::new();
    loop {
        match chars.next() {
            Some('`') => return Ok(text),
            Some('\\') | None => return Err("`".to_owned()),
            Some(c) => text.push(c),
        }
    }
}

/// `$NAME`, `${NAME}`, `$((SUM))` and `$(COMMAND)` after the `$`, which stand for a word.
fn variable(chars: &mut Peekable<Chars<'_>>, commands: &mut Vec<String>) -> Result<String, String> {
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
            if depth != 0 {
                return Err(format!("$({inner}"));
            }
            let sum = inner
                .strip_prefix('(')
                .and_then(|sum| sum.strip_suffix(')'));
            let is_sum = sum.is_some_and(|sum| {
                let plain = |c: char| c.is_ascii_alphanumeric() || " _$+-*/%<>=!".contains(c);
                sum.chars().all(plain)
            });
            if !is_sum {
                commands.push(inner);
            }
            Ok("1".to_owned())
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
