//! Every `muster` command that a document shows exists, and has the flags that it is shown with.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use clap::Command;

/// Far fewer commands than this would mean that they are not found any more.
const COMMANDS_MIN: usize = 150;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The documents for people who use Muster. Records of decisions may name what is gone.
fn documents() -> Vec<PathBuf> {
    let is_document = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
    let mut found: Vec<PathBuf> = ["", "docs", "examples", "manifests"]
        .iter()
        .flat_map(|folder| fs::read_dir(root().join(folder)).expect("the folder is there"))
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(is_document)
        .collect();
    found.sort();
    found
}

/// Pieces of a document that are code: lines of its blocks, and what is in backticks elsewhere.
fn code(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut block, mut before) = (Vec::new(), false, String::new());
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            block = !block;
        } else if !block {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.map(|span| (at + 1, span.to_owned())));
        } else if let Some(begun) = line.strip_suffix('\\') {
            before.push_str(begun);
        } else {
            found.push((at + 1, std::mem::take(&mut before) + line));
        }
    }
    found
}

/// The words behind each `muster` of a piece of code, up to what ends a command in a shell.
fn commands(piece: &str) -> Vec<Vec<String>> {
    let piece = piece.split(" #").next().unwrap_or_default();
    let mut found = Vec::new();
    for one in piece.split(['|', ';', '&', '(', ')']) {
        let words: Vec<&str> = one.split_whitespace().collect();
        // Variables, `exec` and a prompt may stand before it.
        let before = |word: &&str| word.contains('=') || matches!(*word, "$" | "exec");
        let at = words.iter().take_while(|word| before(word)).count();
        if words.get(at) == Some(&"muster") {
            found.push(
                words[at + 1..]
                    .iter()
                    .map(|&word| word.to_owned())
                    .collect(),
            );
        }
    }
    found
}

/// `muster`, with all that is below it.
fn muster() -> &'static Command {
    static WHOLE: OnceLock<Command> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let mut whole = muster_cli::command();
        whole.build();
        whole
    })
}

/// What of a command does not exist.
fn fault(words: &[String]) -> Option<String> {
    let mut here = muster();
    for word in words {
        if !word.is_ascii() {
            // A picture, and no command.
            return None;
        }
        let flag = word.trim_start_matches('[').strip_prefix("--");
        if let Some(flag) = flag {
            let known = |c: char| c.is_ascii_lowercase() || c == '-';
            let name: String = flag.chars().take_while(|c| known(*c)).collect();
            if name.is_empty() {
                // What follows is the script's.
                return None;
            }
            if !has(here, &name) && !has(muster(), &name) {
                return Some(format!("{} has no --{name}", here.get_name()));
            }
        } else if word.contains(".py") {
            return None;
        } else if here.has_subcommands() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        {
            match here.find_subcommand(word) {
                Some(next) => here = next,
                None if word.starts_with('-') => {}
                None => return Some(format!("{} has no command {word}", here.get_name())),
            }
        }
    }
    None
}

fn has(command: &Command, flag: &str) -> bool {
    flag == "help"
        || command.get_arguments().any(|argument| {
            let others = argument.get_all_aliases().unwrap_or_default();
            argument.get_long() == Some(flag) || others.contains(&flag)
        })
}

#[test]
fn every_command_of_a_document_exists() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for path in documents() {
        let text = fs::read_to_string(&path).expect("a document is text");
        for (line, piece) in code(&text) {
            for words in commands(&piece) {
                count += 1;
                let name = path.file_name().expect("a file has a name").display();
                wrong.extend(fault(&words).map(|why| format!("{name}:{line}: {why}")));
            }
        }
    }
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
    assert!(count >= COMMANDS_MIN, "{count} commands are found");
}

#[test]
fn a_command_and_a_flag_that_do_not_exist_are_seen() {
    let page = "Call `muster frob x`, `muster get jobs --nope` or `muster --endpoint ... version`.\n\
                ```sh\nMUSTER_TOKEN=x muster run --nnodes 2 \\\n  train.py --lr 1   # muster gone\nmuster local up --nodes 3 && muster local dwn\n```\n";
    let words = code(page)
        .into_iter()
        .flat_map(|(_, piece)| commands(&piece));
    let faults: Vec<String> = words.filter_map(|words| fault(&words)).collect();
    assert_eq!(
        faults,
        [
            "muster has no command frob",
            "get has no --nope",
            "muster has no --endpoint",
            "local has no command dwn",
        ]
    );
}
