//! Takes the one simple command out of the text of `sh -c`, where there is only one.
//!
//! Only `export A=B`, `cd DIR`, assignments, `set` of options and `exec` may stand around it. A
//! text with anything else stays a script for the shell: its meaning depends on what runs. The commands
//! of a script can still be looked at, roughly.

use std::{iter::Peekable, str::Chars};

use crate::words::Known;

/// A text that is one command with its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Simple {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: Option<String>,
    pub(crate) words: Vec<Piece>,
}

/// A word of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// A variable in it whose value only the node knows.
    pub(crate) on_node: Option<String>,
}

/// One word, or what separates commands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(Piece),
    /// `;`, `&&` or the end of a line.
    End,
}

/// Reads a text as one simple command. `known` are the variables of the container. `None`: it is a
/// script.
pub(crate) fn simple(text: &str, known: &Known) -> Option<Simple> {
    let mut commands: Vec<Vec<Piece>> = vec![Vec::new()];
    for token in tokens(text, known)? {
        match token {
            Token::Word(word) => commands.last_mut()?.push(word),
            Token::End => commands.push(Vec::new()),
        }
    }
    commands.retain(|words| !words.is_empty());
    let last = commands.pop()?;
    let mut simple = Simple::default();
    for words in commands {
        let plain: Option<Vec<String>> = words
            .into_iter()
            .map(|word| word.on_node.is_none().then_some(word.text))
            .collect();
        surrounding(&plain?, &mut simple)?;
    }
    let mut words = last.into_iter().peekable();
    while let Some(pair) = words.peek().and_then(|word| assignment(&word.text)) {
        if words.next().is_some_and(|word| word.on_node.is_some()) {
            return None;
        }
        simple.env.push(pair);
    }
    if words.peek().is_some_and(|word| word.text == "exec") {
        words.next();
    }
    simple.words = words.collect();
    let first = &simple.words.first()?.text;
    (!KEYWORDS.contains(&first.as_str()) && !first.starts_with('-')).then_some(simple)
}

/// Words that begin something which is no simple command, or which only a shell can do.
const KEYWORDS: [&str; 27] = [
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac",
    "function", "{", "}", "!", "[[", "eval", "source", ".", "trap", "wait", "ulimit", "umask",
    "cd", "export", "set",
];

/// A command before the last one, which may only prepare it.
fn surrounding(words: &[String], simple: &mut Simple) -> Option<()> {
    match words.split_first()? {
        (first, pairs) if first == "export" && !pairs.is_empty() => {
            for word in pairs {
                simple.env.push(assignment(word)?);
            }
        }
        (first, [dir]) if first == "cd" && !dir.starts_with('-') => {
            simple.dir = Some(match &simple.dir {
                Some(before) if !dir.starts_with('/') => format!("{before}/{dir}"),
                _ => dir.clone(),
            });
        }
        // Without a command, the options of the shell change nothing for the last one.
        (first, options) if first == "set" && options.iter().all(|word| is_option(word)) => {}
        _ => return None,
    }
    Some(())
}

fn is_option(word: &str) -> bool {
    word == "pipefail"
        || word
            .strip_prefix('-')
            .is_some_and(|letters| letters.chars().all(|c| "euxo".contains(c)))
}

/// `NAME=VALUE`
pub(crate) fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    well_formed.then(|| (name.to_owned(), value.to_owned()))
}

/// The words of a command as a person types it: quotes, but no substitution and no second command.
pub fn words(text: &str) -> Option<Vec<String>> {
    tokens(text, &Known::new())?
        .into_iter()
        .map(|token| match token {
            Token::Word(word) => Some(word.text),
            Token::End => None,
        })
        .collect()
}

/// The commands of a shell's text, roughly: quotes are kept together, and nothing is replaced.
pub(crate) fn commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let command = commands.last_mut().expect("there is always one");
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            ('\\', None | Some('"')) => match chars.next() {
                // The line goes on.
                Some('\n') | None => {}
                Some(c) => word.get_or_insert_default().push(c),
            },
            ('\n' | ';' | '&' | '|' | '(' | ')', None) => {
                command.extend(word.take());
                commands.push(Vec::new());
            }
            (c, None) if c.is_whitespace() => command.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    let command = commands.last_mut().expect("there is always one");
    command.extend(word);
    commands.retain(|words| !words.is_empty());
    commands
}

/// Bytes of a text's words with their variables. It is the most that Linux takes as one argument;
/// without a bound a short text could fill the memory.
const WORDS_MAX: usize = 128 << 10;

fn tokens(text: &str, known: &Known) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut word: Option<Piece> = None;
    let mut chars = text.chars().peekable();
    let mut room = WORDS_MAX;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                // A line that goes on.
                '\n' => {}
                escaped => push(&mut word, escaped),
            },
            '\'' => {
                word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => push(&mut word, c),
                    }
                }
            }
            '"' => {
                word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '`' => return None,
                        '$' => {
                            let word = word.get_or_insert_default();
                            variable(&mut chars, known, word, true, &mut room)?;
                        }
                        '\\' => match chars.next()? {
                            '\n' => {}
                            c @ ('"' | '\\' | '$' | '`') => push(&mut word, c),
                            c => {
                                push(&mut word, '\\');
                                push(&mut word, c);
                            }
                        },
                        c => push(&mut word, c),
                    }
                }
            }
            ' ' | '\t' => tokens.extend(word.take().map(Token::Word)),
            '\n' | ';' => {
                tokens.extend(word.take().map(Token::Word));
                tokens.push(Token::End);
            }
            '&' if chars.peek() == Some(&'&') => {
                chars.next();
                tokens.extend(word.take().map(Token::Word));
                tokens.push(Token::End);
            }
            '#' if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '$' => {
                let word = word.get_or_insert_default();
                variable(&mut chars, known, word, false, &mut room)?;
            }
            // A path below a home directory.
            '~' if word
                .as_ref()
                .is_none_or(|word| word.text.ends_with(['=', ':'])) =>
            {
                return None;
            }
            // Names that fit a pattern, substitution, pipes, files and groups.
            '*' | '?' | '[' | '`' | '|' | '&' | '<' | '>' | '(' | ')' | '{' | '}' => return None,
            c => push(&mut word, c),
        }
    }
    tokens.extend(word.map(Token::Word));
    Some(tokens)
}

fn push(word: &mut Option<Piece>, c: char) {
    word.get_or_insert_default().text.push(c);
}

/// `$NAME` and `${NAME}`, after the `$`. `None`: only a shell can tell what it means.
fn variable(
    chars: &mut Peekable<Chars<'_>>,
    known: &Known,
    word: &mut Piece,
    quoted: bool,
    room: &mut usize,
) -> Option<()> {
    let braces = chars.next_if_eq(&'{').is_some();
    let mut name = String::new();
    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    if braces && chars.next()? != '}' {
        return None;
    }
    match known.get(&name)? {
        // A shell would split such a value into words.
        Some(value) if !quoted && value.contains(|c: char| !is_plain(c)) => None,
        Some(value) if value.is_empty() && !quoted => None,
        Some(value) => {
            *room = room.checked_sub(value.len())?;
            word.text.push_str(value);
            Some(())
        }
        None => {
            word.text.push_str(&format!("${name}"));
            word.on_node.get_or_insert(name);
            Some(())
        }
    }
}

fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "-_=+.,:/@%".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, String, String)> {
        let known = Known::from([
            ("RANK".into(), None),
            ("LR".into(), Some("0.1".into())),
            ("TWO".into(), Some("a b".into())),
        ]);
        let simple = simple(text, &known)?;
        let env: Vec<String> = simple
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        Some((
            env.join(" "),
            simple.dir.unwrap_or_default(),
            texts(&simple.words).join("|"),
        ))
    }

    fn texts(words: &[Piece]) -> Vec<String> {
        let shown = |word: &Piece| match &word.on_node {
            Some(name) => format!("{} ({name})", word.text),
            None => word.text.clone(),
        };
        words.iter().map(shown).collect()
    }

    #[test]
    fn one_command_is_taken_out() {
        let cases = [
            ("python train.py", ("", "", "python|train.py")),
            (
                "export A=1 B='x y' && cd /data && C=2 exec torchrun train.py --lr 0.1",
                ("A=1 B=x y C=2", "/data", "torchrun|train.py|--lr|0.1"),
            ),
            (
                "set -ex\ncd /a; cd b\n\npython \\\n  train.py \"a b\" 'c'\"d\" # the end\n",
                ("", "/a/b", "python|train.py|a b|cd"),
            ),
            (
                "python -c 'print(1); exit(0)'",
                ("", "", "python|-c|print(1); exit(0)"),
            ),
            (
                "python a.py --flag=x=y;",
                ("", "", "python|a.py|--flag=x=y"),
            ),
            (
                "python a.py \"\\\"q\\\" \\n\"",
                ("", "", "python|a.py|\"q\" \\n"),
            ),
            ("set -euo pipefail && python a.py", ("", "", "python|a.py")),
            (
                "python a.py --lr=$LR \"${TWO}\" --rank $RANK",
                ("", "", "python|a.py|--lr=0.1|a b|--rank|$RANK (RANK)"),
            ),
        ];
        for (text, (env, dir, words)) in cases {
            let must = Some((env.to_owned(), dir.to_owned(), words.to_owned()));
            assert_eq!(read(text), must, "{text}");
        }
    }

    #[test]
    fn everything_else_is_a_script() {
        for text in [
            "",
            "# only a comment",
            "a | b",
            "a & b",
            "a || b",
            "a; b",
            "a && b && c",
            "python $HOME/train.py",
            "python a.py $TWO",
            "python a.py ${LR:-1}",
            "python a.py $(pwd)",
            "A=$RANK python a.py",
            "cd /x/$RANK && python a.py",
            "python \"$HOME/train.py\"",
            "python `pwd`/train.py",
            "python ~/train.py",
            "export A=~/x && python a.py",
            "python *.py",
            "python a.py > log",
            "python a.py 2>&1",
            "if true; then python a.py; fi",
            "for i in 1 2; do python a.py; done",
            "(python a.py)",
            "{ python a.py; }",
            "eval python a.py",
            "source env.sh && python a.py",
            "cd - && python a.py",
            "cd && python a.py",
            "export A && python a.py",
            "export A=1",
            "cd /x",
            "A=1",
            "set -e",
            "python 'a",
            "python \"a",
            "python a\\",
            "! python a.py",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_is_taken_apart_into_commands() {
        let text = "export A='x y' && horovodrun -np 3 \\\n  --min-np=1 \"a b\"; echo";
        assert_eq!(
            commands(text),
            [
                &["export", "A=x y"][..],
                &["horovodrun", "-np", "3", "--min-np=1", "a b"],
                &["echo"]
            ]
        );
        assert_eq!(commands(" ;; "), Vec::<Vec<String>>::new());
    }

    #[test]
    fn words_of_a_command_line() {
        assert_eq!(
            words("python3 '/opt/a b.py' --x").unwrap(),
            ["python3", "/opt/a b.py", "--x"]
        );
        assert_eq!(words("a && b"), None);
        assert_eq!(words("a 'b"), None);
        assert_eq!(words("").unwrap(), Vec::<String>::new());
    }
}
