//! The tip beside an unknown flag: the flag that was probably meant. It guesses only where the spelling is near, and shows our own spelling.

use clap::Command;
use muster_foreign::spelling::nearest;

use crate::commands::run::torchrun;

/// Flags of other launchers and of schedulers, and the flag of ours that means the same.
const HABITS: [(&str, &str); 10] = [
    ("nodes", "nnodes"),
    ("num-nodes", "nnodes"),
    ("num-machines", "nnodes"),
    ("nproc", "nproc-per-node"),
    ("num-processes", "nproc-per-node"),
    ("ntasks-per-node", "nproc-per-node"),
    ("gpus", "gpus-per-node"),
    ("num-gpus", "gpus-per-node"),
    ("job-name", "name"),
    ("chdir", "workdir"),
];

/// Commands that take job files behind -f, and nothing else.
const TAKE_FILES: [&str; 4] = ["submit", "validate", "plan", "convert"];

/// The tip for `flag`, which the command that `words` name does not have. `words` are those after the
/// program's own name.
pub(crate) fn tip(root: &Command, words: &[String], flag: &str) -> Option<String> {
    let command = named(root, words);
    if command.get_name() == "run"
        && let Some(answer) = torchrun::once_only(flag)
    {
        return Some(answer.to_owned());
    }
    if TAKE_FILES.contains(&command.get_name()) && !flag.starts_with('-') {
        return Some(match flag.ends_with(".py") {
            true => format!("a script is started by `muster run {flag}`"),
            false => format!("name the file with -f {flag}"),
        });
    }
    let written = flag
        .strip_prefix("--")?
        .split('=')
        .next()?
        .replace('_', "-");
    // Flags of the root are flags of every command.
    let arguments = command.get_arguments().chain(root.get_arguments());
    let known: Vec<&str> = arguments
        .filter(|argument| !argument.is_hide_set())
        .filter_map(|argument| argument.get_long())
        .collect();
    let meant = HABITS.iter().find(|(habit, _)| *habit == written);
    let meant = meant
        .map(|(_, meant)| *meant)
        .filter(|meant| known.contains(meant));
    let meant = meant.or_else(|| nearest(&written, &known))?;
    Some(format!("did you mean --{meant}?"))
}

/// The command of the tree that the words name. Words that are no command are flags and their values.
pub(crate) fn named<'c>(root: &'c Command, words: &[String]) -> &'c Command {
    let below = |command: &'c Command, word: &String| command.find_subcommand(word);
    words.iter().fold(root, |command, word| {
        below(command, word).unwrap_or(command)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn told(line: &str) -> Option<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let flag = words.iter().find(|word| word.starts_with('-')).unwrap();
        tip(&Cli::command(), &words, flag)
    }

    #[test]
    fn a_near_flag_is_shown_in_our_spelling() {
        for (line, meant) in [
            ("run --nnodez 2", "nnodes"),
            ("run --nnode 2", "nnodes"),
            ("run --nodes 2", "nnodes"),
            ("run --nproc_pernode=2", "nproc-per-node"),
            ("run --max_restart 2", "max-restarts"),
            ("run --active_deadlin 2", "active-deadline"),
            ("run --num_gpus 8", "gpus-per-node"),
            ("run --outptu yaml", "output"),
            ("logs x --folow", "follow"),
            ("config set-context x --servr y", "server"),
            ("scale x --node 2", "nodes"),
        ] {
            assert_eq!(
                told(line),
                Some(format!("did you mean --{meant}?")),
                "{line}"
            );
        }
    }

    #[test]
    fn a_file_without_its_flag_is_told_where_it_goes() {
        let tip = |line: &str, word: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            tip(&Cli::command(), &words, word).unwrap()
        };
        let script = tip("submit train.py", "train.py");
        assert!(script.contains("`muster run train.py`"), "{script}");
        let file = tip("validate job.yaml", "job.yaml");
        assert_eq!(file, "name the file with -f job.yaml");
    }

    #[test]
    fn one_machine_gives_the_command_for_all() {
        assert!(
            told("run --node-rank 1 t.py")
                .unwrap()
                .contains("give the command once")
        );
    }

    #[test]
    fn a_far_flag_gets_no_guess() {
        for line in [
            "run --wandb",
            "run --learning-rate 1",
            "run -z",
            "logs x --tee 3",
            "get jobs --chunk-size 9",
        ] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
