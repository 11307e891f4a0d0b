//! A launcher or an interpreter in front of the script, as it stands in the command line that a user had
//! before: `torchrun ...`, `python -m torch.distributed.run ...`, `python ...`.
//!
//! It is taken off, and its flags become flags of `muster run`, which has torchrun's. The new command line is
//! read like any other: flags of torchrun without a meaning here are left out, and unknown ones refused.

use muster_core::spec::entry::is_python;

use super::{Run, torchrun};

/// What torchrun puts for the local rank into an argument (torch.distributed.elastic, `macros`). Only a
/// torchrun that is executed does.
const LOCAL_RANK: &str = "--local-rank=${local_rank}";

/// Another command line that means the same, and what to tell of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rewritten {
    pub(crate) words: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// The command line without what stands before the script. `None`: nothing does. `words`: the whole
/// command line, which was read as `run`.
pub(crate) fn rewrite(words: &[String], run: &Run) -> Option<Rewritten> {
    if run.no_python || run.module {
        return None;
    }
    let head = words.strip_suffix(&run.script[..])?;
    let head = head.strip_suffix(&["--".to_owned()]).unwrap_or(head);
    let (taken, tail) = take_off(&run.script, run.python.is_some())?;
    let mut notes = vec![format!(
        "Muster starts the ranks itself, so {} is left out",
        taken.name
    )];
    notes.extend(taken.notes);
    Some(Rewritten {
        words: [head, &tail].concat(),
        notes,
    })
}

struct Taken {
    name: String,
    notes: Vec<String>,
}

/// `has_python`: the user has named the interpreter.
fn take_off(words: &[String], has_python: bool) -> Option<(Taken, Vec<String>)> {
    let (first, rest) = words.split_first()?;
    let stem = first.rsplit('/').next().unwrap_or(first);
    // The shell's own interpreter is found as without the word.
    let is_shells = |python: &str| ["python", "python3"].contains(&python);
    let with = |python: String| match has_python || is_shells(&python) {
        true => Vec::new(),
        false => vec!["--python".to_owned(), python],
    };
    if stem == "torchrun" {
        // A torchrun with a path belongs to the interpreter beside it.
        let python = match first.rsplit_once('/') {
            Some((folder, _)) => with(format!("{folder}/python3")),
            None => Vec::new(),
        };
        return Some(of_torchrun(first.clone(), python, rest, false));
    }
    if !is_python(first) {
        return None;
    }
    let options = rest.iter().take_while(|word| is_option(word)).count();
    if let [module, name, flags @ ..] = &rest[options..]
        && module == "-m"
        && let Some(is_launch) = launches(name)
    {
        let name = format!("{first} -m {name}");
        return Some(of_torchrun(name, with(first.clone()), flags, is_launch));
    }
    let taken = Taken {
        name: first.clone(),
        notes: match has_python || is_shells(first) {
            true => Vec::new(),
            false => vec![format!("--python {first} starts them")],
        },
    };
    let mut tail = with(first.clone());
    tail.push("--".into());
    tail.extend(rest.iter().cloned());
    Some((taken, tail))
}

/// An option of the interpreter that stands alone and ends nothing, as `-u`.
fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !["-m", "-c", "-W", "-X"].contains(&word)
}

/// Whether the module is torchrun, and whether it gives each rank an argument.
fn launches(module: &str) -> Option<bool> {
    match module {
        "torch.distributed.run" | "torch.distributed.elastic" => Some(false),
        "torch.distributed.launch" => Some(true),
        _ => None,
    }
}

/// The words after torchrun as words after `muster run`. `is_launch`: it is `torch.distributed.launch`, which
/// tells each rank its number in an argument.
fn of_torchrun(
    name: String,
    mut tail: Vec<String>,
    words: &[String],
    is_launch: bool,
) -> (Taken, Vec<String>) {
    let mut gives_rank = is_launch;
    let mut rest = words.iter();
    let mut script = None;
    while let Some(word) = rest.next() {
        if word == "--" {
            script = rest.next();
            break;
        }
        if word.len() < 2 || !word.starts_with('-') {
            script = Some(word);
            break;
        }
        let value = match torchrun::has_value(word) {
            true => rest.next(),
            false => None,
        };
        if torchrun::flag_name(word) == "use-env" {
            gives_rank = false;
        } else {
            tail.push(word.clone());
            tail.extend(value.cloned());
        }
    }
    if gives_rank && script.is_some() {
        // In the other lanes nobody fills in the number.
        tail.extend(["--launch".to_owned(), "cold".to_owned()]);
    }
    tail.push("--".into());
    tail.extend(script.cloned());
    if gives_rank && script.is_some() {
        tail.push(LOCAL_RANK.to_owned());
    }
    tail.extend(rest.cloned());
    let notes = Vec::new();
    (Taken { name, notes }, tail)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        args::{Cli, Command},
        entry,
    };

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn rewritten(line: &str) -> Option<Rewritten> {
        let words = words(&format!("muster run {line}"));
        let Command::Run(run) = Cli::try_parse_from(&words).unwrap().command else {
            panic!("{line}");
        };
        rewrite(&words, &run)
    }

    #[test]
    fn what_stands_before_the_script_is_taken_off() {
        for (before, after) in [
            ("torchrun t.py --lr 1", "-- t.py --lr 1"),
            (
                "--name d torchrun --nproc-per-node 2 --nnodes=1:2 t.py torchrun",
                "--name d --nproc-per-node 2 --nnodes=1:2 -- t.py torchrun",
            ),
            ("-- torchrun -m pkg.train -x", "-m -- pkg.train -x"),
            (
                "/opt/env/bin/torchrun t.py",
                "--python /opt/env/bin/python3 -- t.py",
            ),
            (
                "--python python3.12 /opt/env/bin/torchrun t.py",
                "--python python3.12 -- t.py",
            ),
            (
                "torchrun --standalone --rdzv_backend c10d --nproc_per_node 2 t.py",
                "--standalone --rdzv_backend c10d --nproc_per_node 2 -- t.py",
            ),
            // Our own flags behind torchrun: a script must not become the value of one that has none.
            (
                "torchrun --nproc_per_node=2 --follow t.py --lr 1",
                "--nproc_per_node=2 --follow -- t.py --lr 1",
            ),
            (
                "torchrun -f --dry-run --quiet --name d t.py",
                "-f --dry-run --quiet --name d -- t.py",
            ),
            ("python t.py --lr 1", "-- t.py --lr 1"),
            ("python3 -u t.py", "-- -u t.py"),
            ("python -m pkg.train", "-- -m pkg.train"),
            (
                "python -u -m torch.distributed.run --nproc-per-node 2 t.py",
                "--nproc-per-node 2 -- t.py",
            ),
            (
                "python -m torch.distributed.launch --nproc_per_node=2 t.py --lr 1",
                "--nproc_per_node=2 --launch cold -- t.py --local-rank=${local_rank} --lr 1",
            ),
            (
                "python -m torch.distributed.launch --use_env t.py",
                "-- t.py",
            ),
        ] {
            let is = rewritten(before).unwrap_or_else(|| panic!("{before}"));
            assert_eq!(is.words, words(&format!("muster run {after}")), "{before}");
            // The new line is read, and has nothing more to take off.
            let (left, _) = entry::without_needless(is.words.clone());
            let Command::Run(run) = Cli::try_parse_from(&left).unwrap().command else {
                panic!("{before}");
            };
            assert_eq!(rewrite(&left, &run), None, "{before}");
        }
    }

    #[test]
    fn a_script_and_its_arguments_stay() {
        for line in [
            "t.py torchrun",
            "-m torchrun.of.mine",
            "--no-python python3 t.py",
            "--no-python torchrun",
            "nice torchrun t.py",
            "./torchrun.py",
            "-- -u t.py",
        ] {
            assert_eq!(rewritten(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_taken_off_is_told() {
        let is = rewritten("torchrun --standalone --nproc-per-node 2 t.py").unwrap();
        assert_eq!(
            is.notes,
            ["Muster starts the ranks itself, so torchrun is left out"]
        );
    }
}
