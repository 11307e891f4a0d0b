//! Every command explains itself, and shells can complete all of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;

use clap::{Command as Cli, builder::StyledStr};

fn walk(command: &Cli, path: &str, visit: &mut dyn FnMut(&str, &Cli)) {
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        let path = format!("{path} {}", below.get_name());
        visit(&path, below);
        walk(below, &path, visit);
    }
}

fn every_command() -> Vec<(String, Cli)> {
    let mut all = vec![("muster".to_owned(), muster_cli::command())];
    walk(&muster_cli::command(), "muster", &mut |path, command| {
        all.push((path.to_owned(), command.clone()))
    });
    all
}

#[test]
fn every_command_says_what_it_is_and_shows_how() {
    let all = every_command();
    assert!(all.len() >= 29, "only {} commands found", all.len());
    for (path, mut command) in all {
        let about = command
            .get_about()
            .map(StyledStr::to_string)
            .unwrap_or_default();
        assert!(
            (10..=80).contains(&about.len()) && !about.ends_with('.'),
            "{path}: a summary of one line, is {about:?}"
        );
        let help = command.render_help().to_string();
        let rest = help.split_once("\n\n").expect("paragraphs").1;
        assert!(
            !rest.starts_with("Usage:"),
            "{path}: a paragraph under the summary"
        );
        let examples = help
            .split_once("EXAMPLES:\n")
            .unwrap_or_else(|| panic!("{path}: has no EXAMPLES"))
            .1;
        let shown = examples
            .lines()
            .take_while(|line| line.starts_with("  ") || line.is_empty())
            .any(|line| line.contains(&path));
        assert!(shown, "{path}: an example calls it");
        for arg in command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set() && !arg.is_global_set())
        {
            let text = arg.get_help().map(StyledStr::to_string).unwrap_or_default();
            let is_known = !text.is_empty() || !arg.get_possible_values().is_empty();
            assert!(is_known, "{path}: {} is explained", arg.get_id());
        }
        let asked = |flag| {
            let words = path.split(' ').chain([flag]);
            muster_cli::command()
                .try_get_matches_from(words)
                .expect_err("help is asked for")
                .to_string()
        };
        assert_eq!(
            asked("-h"),
            asked("--help"),
            "{path}: -h and --help are the same"
        );
    }
}

#[test]
fn every_example_is_understood() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, mut command) in every_command() {
        let help = command.render_help().to_string();
        let examples = help.split_once("EXAMPLES:\n").expect("see above").1;
        // A line that ends with a backslash goes on, as in a shell.
        let examples = examples.replace("\\\n", "");
        for line in examples
            .lines()
            .take_while(|line| line.starts_with("  ") || line.is_empty())
        {
            for part in line
                .split("&&")
                .flat_map(|part| part.split(" | "))
                .map(|part| part.trim().trim_start_matches("source <("))
            {
                if !part.starts_with("muster ") {
                    continue;
                }
                count += 1;
                let words = part
                    .split(" > ")
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches(')')
                    .split_whitespace();
                // Several quoted words are split here. Everything from their quote on is a value.
                let is_whole = |word: &str| word.len() > 1 && word.ends_with('\'');
                let words: Vec<&str> = words
                    .take_while(|word| !word.starts_with('\'') || is_whole(word))
                    .map(|word| word.trim_matches('\''))
                    .collect();
                let words = if matches!(words.last(), Some(&"--reason" | &"--step-pattern")) {
                    [&words[..], &["x"]].concat()
                } else {
                    words
                };
                if let Err(error) = muster_cli::command().try_get_matches_from(&words) {
                    wrong.push(format!("{path}: {part}: {error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 50, "only {count} examples were found");
}

#[test]
fn the_definition_holds_together() {
    muster_cli::command().debug_assert();
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "zsh"] {
        let output = Command::new(env!("CARGO_BIN_EXE_muster"))
            .args(["completion", shell])
            .output()
            .unwrap();
        assert!(output.status.success());
        let script = String::from_utf8(output.stdout).unwrap();
        for word in [
            "submit",
            "kill-coordinator",
            "--min",
            "--rank",
            "--nproc-per-node",
            "--no-headers",
        ] {
            assert_eq!(script.contains(word), word != "--min", "{shell}: {word}");
        }
        assert!(
            !script.contains("nproc_per_node"),
            "{shell}: torchrun's other spelling is understood, not offered"
        );
    }
}

#[test]
fn the_bash_completion_is_a_bash_script() {
    let muster = env!("CARGO_BIN_EXE_muster");
    let script = "source <(\"$0\" completion bash) && COMP_WORDS=(muster loc) COMP_CWORD=1 && _muster muster loc muster && echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", script, muster])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "local",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
