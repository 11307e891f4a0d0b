//! The commands of a script for the shell, roughly: what is one word stays one word, and nothing is
//! replaced but the path of a program that the script asks for.

use std::collections::BTreeMap;

/// The words of each command. Comments are left out.
pub(super) fn commands(script: &str) -> Vec<Vec<String>> {
    let (script, documents) = without_documents(&with_programs(script));
    let mut commands: Vec<Vec<String>> = documents.iter().flat_map(|text| simple(text)).collect();
    commands.extend(simple(&script));
    commands
}

/// The script without its here-documents, and those of them that a shell runs. Others may hold anything, such
/// as a program in Python whose comments name torchrun.
fn without_documents(script: &str) -> (String, Vec<String>) {
    let (mut out, mut documents) = (String::with_capacity(script.len()), Vec::new());
    // Where each line is for the last time, so that a here-document without an end costs no search for it.
    let mut at = 0;
    let last: BTreeMap<&str, usize> = (script.split_inclusive('\n'))
        .map(|line| {
            let begin = at;
            at += line.len();
            (line.trim(), begin)
        })
        .collect();
    let mut rest = script;
    while let Some((line, after)) = rest.split_once('\n') {
        out.push_str(line);
        out.push('\n');
        rest = after;
        let begin = script.len() - after.len();
        let ends = |end: &&str| last.get(end).is_some_and(|at| *at >= begin);
        let Some(end) = end_of_document(line).filter(ends) else {
            continue;
        };
        let mut at = 0;
        let found = after.split_inclusive('\n').find_map(|line| {
            let before = at;
            at += line.len();
            (line.trim() == end).then_some((before, at))
        });
        if let Some((body, past)) = found {
            let of_shell = |word: &str| {
                word.ends_with(".sh") || ["sh", "bash", "zsh", "dash"].contains(&super::stem(word))
            };
            if line.split_whitespace().any(of_shell) {
                documents.push(after[..body].to_owned());
            }
            rest = &after[past..];
        }
    }
    out.push_str(rest);
    (out, documents)
}

/// The line that ends the here-document that this line begins.
fn end_of_document(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("<<")?;
    let after = after.strip_prefix('-').unwrap_or(after).trim_start();
    let after = after.trim_start_matches(['\'', '"', '\\']);
    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let word = &after[..end.unwrap_or(after.len())];
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        .then_some(word)
}

fn simple(script: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = script.chars().peekable();
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
            ('#', None) if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            ('\n' | ';' | '&' | '|' | '(' | ')' | '`', None) => {
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

/// The script with `torchrun` in place of `$(which torchrun)`, for any program.
fn with_programs(script: &str) -> String {
    const ASKS: [(&str, char); 5] = [
        ("$(which ", ')'),
        ("$(command -v ", ')'),
        ("$(type -P ", ')'),
        ("`which ", '`'),
        ("`command -v ", '`'),
    ];
    let mut out = String::with_capacity(script.len());
    let mut rest = script;
    while let Some(at) = rest.find(['$', '`']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let asked = ASKS.iter().find_map(|(open, close)| {
            let (program, after) = rest.strip_prefix(open)?.split_once(*close)?;
            Some((program.trim(), after))
        });
        match asked {
            Some((program, after)) => {
                out.push_str(program);
                rest = after;
            }
            None => {
                out.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}
