//! Whether an init container provably only waits for something of the cluster, so that nothing is lost
//! without it.
//!
//! Its command is read by a small grammar of the shell: loops, conditions and lists of commands that look
//! whether something answers (`nslookup`, `nc -z`, `curl`, `test`), sleep and print. Whatever is not in the
//! grammar may work, and is no proof. Nothing is run here, and what the names of containers say counts for
//! nothing.

use self::tokens::{Token, tokens};
use crate::{launch, tree::Field, words::Word};

/// What an init container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// Nothing but wait.
    Waits,
    /// Nothing but wait until there is this file.
    WaitsFor(String),
    /// Something else, perhaps. This is the first part of its command that is no proof.
    Works(String),
    /// What its image starts.
    Image,
}

/// What the container of these words does. `names_program`: they begin with the program.
pub(super) fn does(command: &[String], args: &[String]) -> Does {
    let words = [command, args].concat();
    if command.is_empty() {
        return match is_barrier(args) {
            true => Does::Waits,
            false => Does::Image,
        };
    }
    let mut reader = Reader::default();
    match reader.words(&words, 0) {
        Ok(()) => match reader.file {
            Some(file) => Does::WaitsFor(file),
            None => Does::Waits,
        },
        Err(part) => Does::Works(part),
    }
}

/// The words of a container's field.
pub(super) fn texts(container: &Field<'_>, name: &str) -> Vec<String> {
    let Some(entry) = container.node.entry(name) else {
        return Vec::new();
    };
    let at = Field {
        place: entry.node.place,
        path: String::new(),
        node: &entry.node,
    };
    // What is wrong with them makes no proof, and no message here.
    let words = Word::list(&at, &mut crate::verdict::Verdicts::default());
    words.into_iter().map(|word| word.text).collect()
}

/// The arguments of trainingjob-operator's own barrier, which waits until the pods of other roles run
/// (elasticdeeplearning/trainingjob-operator, `cmd/barrier`).
fn is_barrier(args: &[String]) -> bool {
    const FLAGS: [&str; 4] = ["--barrier_roles", "--incluster", "--name", "--namespace"];
    let flag = |arg: &String| arg.split('=').next().unwrap_or_default().to_owned();
    args.iter().any(|arg| flag(arg) == FLAGS[0])
        && args.iter().all(|arg| FLAGS.contains(&&*flag(arg)))
}

/// A shell in a shell in a shell says nothing any more.
const DEPTH_MAX: usize = 4;

/// Words of one command. What only waits has few, and each is looked at and shown.
const WORDS_MAX: usize = 256;

/// Loops in loops. Each takes room on the stack.
const NESTED_MAX: usize = 16;

/// Reads commands. An error is the part that is no proof.
#[derive(Default)]
struct Reader {
    /// The file for which something waits.
    file: Option<String>,
    /// How many loops and conditions are open.
    nested: usize,
}

impl Reader {
    /// A command as the words of a container.
    fn words(&mut self, words: &[String], depth: usize) -> Result<(), String> {
        let tokens: Vec<Token> = words.iter().cloned().map(Token::Word).collect();
        self.simple(&tokens, depth)
    }

    fn text(&mut self, text: &str, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(text.to_owned());
        }
        let (tokens, inner) = tokens(text)?;
        for text in inner {
            self.text(&text, depth + 1)?;
        }
        let mut rest = &tokens[..];
        self.list(&mut rest, &[], depth)?;
        match rest.first() {
            None => Ok(()),
            Some(token) => Err(token.shown()),
        }
    }

    /// Commands up to one of these words of the shell, which is taken.
    fn list(
        &mut self,
        rest: &mut &[Token],
        until: &[&str],
        depth: usize,
    ) -> Result<String, String> {
        loop {
            match rest.split_first() {
                None if until.is_empty() => return Ok(String::new()),
                None => return Err(format!("no {}", until.join(" or "))),
                Some((Token::End, after)) => *rest = after,
                Some((Token::Word(word), after)) if until.contains(&&**word) => {
                    *rest = after;
                    return Ok(word.clone());
                }
                Some(_) => self.command(rest, depth)?,
            }
        }
    }

    fn command(&mut self, rest: &mut &[Token], depth: usize) -> Result<(), String> {
        if self.nested > NESTED_MAX {
            return Err("too many loops in loops".to_owned());
        }
        self.nested += 1;
        let proof = self.one(rest, depth);
        self.nested -= 1;
        proof
    }

    fn one(&mut self, rest: &mut &[Token], depth: usize) -> Result<(), String> {
        let Some((Token::Word(first), after)) = rest.split_first() else {
            return Err("|".to_owned());
        };
        match &**first {
            "!" => {
                *rest = after;
                self.command(rest, depth)
            }
            "until" | "while" => {
                *rest = after;
                self.list(rest, &["do"], depth)?;
                self.list(rest, &["done"], depth)?;
                self.ends(rest)
            }
            "for" => {
                let end = after.iter().position(|token| *token == Token::End);
                let (head, body) = after.split_at(end.ok_or("for")?);
                if !matches!(head.get(1), Some(Token::Word(word)) if word == "in") {
                    return Err("for".to_owned());
                }
                *rest = body;
                self.list(rest, &["do"], depth)?;
                self.list(rest, &["done"], depth)?;
                self.ends(rest)
            }
            "if" => {
                *rest = after;
                self.list(rest, &["then"], depth)?;
                loop {
                    match &*self.list(rest, &["elif", "else", "fi"], depth)? {
                        "elif" => {
                            self.list(rest, &["then"], depth)?;
                        }
                        "fi" => return self.ends(rest),
                        _ => {}
                    }
                }
            }
            _ => {
                let end = rest.iter().position(|token| *token == Token::End);
                let (command, after) = rest.split_at(end.unwrap_or(rest.len()));
                *rest = after;
                let mut parts = command.split(|token| *token == Token::Pipe);
                self.simple(parts.next().unwrap_or_default(), depth)?;
                // What a filter reads is all that it gets.
                match parts.find(|part| !is_filter(part)) {
                    None => Ok(()),
                    Some(part) => Err(shown(part)),
                }
            }
        }
    }

    /// Only an end or nothing may follow a loop or a condition.
    fn ends(&self, rest: &[Token]) -> Result<(), String> {
        match rest.first() {
            None | Some(Token::End) => Ok(()),
            Some(Token::Word(word)) if ["done", "fi", "do", "then"].contains(&&**word) => Ok(()),
            Some(token) => Err(token.shown()),
        }
    }

    fn simple(&mut self, tokens: &[Token], depth: usize) -> Result<(), String> {
        if tokens.len() > WORDS_MAX {
            return Err(format!("a command of {} words", tokens.len()));
        }
        let bad = || Err(shown(tokens));
        // Each `timeout` in a `timeout` takes room on the stack.
        if depth > DEPTH_MAX {
            return bad();
        }
        let mut words = Vec::new();
        for token in tokens {
            match token {
                Token::Word(word) => words.push(&**word),
                _ => return bad(),
            }
        }
        // Settings of variables. Nothing reads those that remain.
        let settings = words.iter().take_while(|word| is_setting(word)).count();
        let Some((first, args)) = words[settings..].split_first() else {
            return Ok(());
        };
        match (launch::stem(first), args) {
            ("sh" | "bash" | "dash" | "ash" | "zsh", _) => match shell_text(args) {
                Some(text) => self.text(text, depth + 1),
                None => bad(),
            },
            ("timeout", _) => {
                let skipped = args
                    .iter()
                    .position(|arg| arg.starts_with(|c: char| c.is_ascii_digit()));
                match skipped.map(|at| &args[at + 1..]) {
                    Some(inner) if !inner.is_empty() => {
                        let inner: Vec<Token> = inner
                            .iter()
                            .map(|word| Token::Word((*word).to_owned()))
                            .collect();
                        self.simple(&inner, depth + 1)
                    }
                    _ => bad(),
                }
            }
            ("test", _) => self.test(args).or_else(|()| bad()),
            ("[" | "[[", [inner @ .., "]" | "]]"]) => self.test(inner).or_else(|()| bad()),
            (name, args) if looks(name, args) => Ok(()),
            _ => bad(),
        }
    }

    /// A comparison, or a look at a file.
    fn test(&mut self, args: &[&str]) -> Result<(), ()> {
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if matches!(
                *arg,
                "-b" | "-c"
                    | "-d"
                    | "-e"
                    | "-f"
                    | "-h"
                    | "-L"
                    | "-p"
                    | "-r"
                    | "-s"
                    | "-S"
                    | "-w"
                    | "-x"
            ) {
                self.file = Some((*args.next().ok_or(())?).to_owned());
            }
        }
        Ok(())
    }
}

fn shown(tokens: &[Token]) -> String {
    let words: Vec<String> = tokens.iter().map(Token::shown).collect();
    words.join(" ")
}

/// `NAME=VALUE`
fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            // By these a shell or a program comes to run something else.
            && !name.starts_with("LD_")
            && !["PATH", "ENV", "BASH_ENV", "IFS"].contains(&name)
    })
}

/// The text of `sh -c TEXT`, after the program.
fn shell_text<'w>(args: &[&'w str]) -> Option<&'w str> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let letters = arg.strip_prefix('-')?;
        let known = !letters.is_empty() && letters.chars().all(|c| "ceuxl".contains(c));
        match (known, letters.ends_with('c')) {
            (false, _) => return None,
            // What follows the text are its parameters.
            (true, true) => return args.next().copied(),
            (true, false) => {}
        }
    }
    None
}

/// Whether a part of a pipe only reads what it is given.
fn is_filter(tokens: &[Token]) -> bool {
    let mut words = tokens.iter().map(|token| match token {
        Token::Word(word) => &**word,
        _ => "",
    });
    let first = words.next().unwrap_or_default();
    match first {
        "grep" | "egrep" | "fgrep" | "head" | "tail" | "cut" | "tr" | "wc" => {
            words.all(|word| !word.contains("file") && word != "-f")
        }
        _ => false,
    }
}

/// Whether a program only looks whether something answers, waits or prints.
fn looks(name: &str, args: &[&str]) -> bool {
    match name {
        "true" | ":" | "false" | "cat" | "seq" | "sleep" | "usleep" | "echo" | "printf"
        | "exit" | "break" | "continue" | "nslookup" | "host" | "getent" | "ping" | "ping6"
        | "pg_isready" => true,
        // Options of the shell.
        "set" => args
            .iter()
            .all(|arg| arg.starts_with(['-', '+']) || *arg == "pipefail"),
        // With a name it would set it.
        "hostname" => args
            .iter()
            .all(|arg| arg.starts_with('-') && !arg.starts_with("-F")),
        "date" => !args
            .iter()
            .any(|arg| arg.starts_with("-s") || arg.starts_with("--s")),
        "dig" => !args.iter().any(|arg| arg.starts_with("-f")),
        "nc" | "ncat" | "netcat" => {
            // It opens a connection and sends nothing.
            let letters = args.iter().filter_map(|arg| arg.strip_prefix('-'));
            let letters: String = letters.filter(|arg| !arg.starts_with('-')).collect();
            letters.contains('z')
                && !letters.contains(['l', 'e', 'c', 'k'])
                && !args.iter().any(|arg| arg.starts_with("--"))
        }
        "wget" => wget(args),
        "curl" => curl(args),
        _ => false,
    }
}

/// Whether wget only asks, and drops or prints what it gets.
fn wget(args: &[&str]) -> bool {
    const SWITCHES: [&str; 6] = [
        "--quiet",
        "--no-check-certificate",
        "--server-response",
        "-q",
        "-nv",
        "-S",
    ];
    let mut keeps = true;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--spider" | "-O-" | "-qO-" => keeps = false,
            "-O" | "-qO" => match args.next() {
                Some(&"-" | &"/dev/null") => keeps = false,
                _ => return false,
            },
            option if SWITCHES.contains(&option) => {}
            option
                if ["--timeout=", "--tries="]
                    .iter()
                    .any(|one| option.starts_with(one)) => {}
            "-T" | "-t" | "--timeout" | "--tries" => drop(args.next()),
            option if option.starts_with('-') => return false,
            _ => {}
        }
    }
    !keeps
}

/// Whether curl only asks, and drops or prints what it gets.
fn curl(args: &[&str]) -> bool {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let takes = match *arg {
            "-o" | "--output" => match args.next() {
                Some(&"/dev/null" | &"-") => continue,
                _ => return false,
            },
            "-X" | "--request" => match args.next() {
                Some(&"GET" | &"HEAD") => continue,
                _ => return false,
            },
            "-m" | "--max-time" | "--connect-timeout" | "--retry" | "--retry-delay"
            | "--retry-max-time" | "-w" | "--write-out" | "-H" | "--header" | "-A"
            | "--user-agent" => true,
            "--silent"
            | "--fail"
            | "--show-error"
            | "--head"
            | "--insecure"
            | "--location"
            | "--retry-connrefused"
            | "--retry-all-errors"
            | "--fail-with-body"
            | "--ipv4"
            | "--ipv6" => false,
            option if option.starts_with("--") => return false,
            option if option.starts_with('-') => {
                // The last one may take a value: `-sfo /dev/null`.
                let letters = &option[1..];
                match letters.strip_suffix('o') {
                    Some(others) if others.chars().all(|c| "sfSIkLg46v".contains(c)) => {
                        if args.next() != Some(&"/dev/null") {
                            return false;
                        }
                    }
                    _ if letters.chars().all(|c| "sfSIkLg46v".contains(c)) => {}
                    _ => return false,
                }
                false
            }
            _ => false,
        };
        if takes {
            args.next();
        }
    }
    true
}

#[cfg(test)]
mod tests;
mod tokens;
