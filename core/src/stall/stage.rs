//! What a job does while it prints nothing, as far as the names of its calls say. A checkpoint, an evaluation or a compilation
//! may take minutes in which a rank only waits for a disk, a server or another process, so they have a limit of their own.

use std::fmt;

use super::limit::UNKNOWN;
use crate::stacks::{Frame, RankStack};

/// Something that a job does now and then, and that takes longer than a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Checkpoint,
    Evaluation,
    Compilation,
    Loading,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Checkpoint => "it saves or reads a checkpoint",
            Stage::Evaluation => "it evaluates",
            Stage::Compilation => "it compiles",
            Stage::Loading => "it loads or downloads",
        })
    }
}

impl Stage {
    /// How long nothing may move in it.
    pub const LIMIT: std::time::Duration = UNKNOWN;
}

/// What these ranks do. Those that wait for others are asked only if all wait: they wait where the others will come to.
pub fn stage(ranks: &[RankStack]) -> Option<Stage> {
    let free = || ranks.iter().filter(|rank| !super::verdict::waits(rank));
    let all = free().next().is_none();
    let asked: Vec<&RankStack> = match all {
        true => ranks.iter().collect(),
        false => free().collect(),
    };
    let frames = asked.iter().filter_map(|rank| rank.threads.first());
    frames.flatten().find_map(of)
}

fn of(frame: &Frame) -> Option<Stage> {
    let name = frame.function.rsplit('.').next()?.to_ascii_lowercase();
    let name = name.trim_start_matches('_');
    let file = frame.file.as_str();
    let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    if begins(&["save", "fsync"]) || name.contains("checkpoint") || file.contains("/checkpoint/") {
        return Some(Stage::Checkpoint);
    }
    if begins(&["eval", "valid", "test_loop", "predict"]) {
        return Some(Stage::Evaluation);
    }
    let compilers = ["/torch/_inductor/", "/torch/_dynamo/", "/triton/"];
    if name.contains("compile") || compilers.iter().any(|part| file.contains(part)) {
        return Some(Stage::Compilation);
    }
    if begins(&[
        "load_state_dict",
        "from_pretrained",
        "download",
        "load_model",
    ]) {
        return Some(Stage::Loading);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeName;

    fn rank(calls: &[(&str, &str)]) -> RankStack {
        let frame = |(file, function): &(&str, &str)| Frame {
            file: (*file).into(),
            line: 1,
            function: (*function).into(),
        };
        RankStack {
            rank: 0,
            node: NodeName::from("n"),
            threads: vec![calls.iter().map(frame).collect()],
            positions: Vec::new(),
            process: None,
            error: None,
        }
    }

    const REDUCE: (&str, &str) = ("/l/torch/distributed/distributed_c10d.py", "barrier");

    #[test]
    fn the_names_of_the_calls_say_it() {
        let of = |calls: &[(&str, &str)]| stage(&[rank(calls)]);
        let main = ("/train/train.py", "<module>");
        assert_eq!(of(&[("/train/data.py", "load_batch"), main]), None);
        let save = [
            ("/train/io.py", "write"),
            ("/train/t.py", "save_model"),
            main,
        ];
        assert_eq!(of(&save), Some(Stage::Checkpoint));
        let saves = ("/l/transformers/trainer.py", "Trainer._save_checkpoint");
        assert_eq!(of(&[saves, main]), Some(Stage::Checkpoint));
        assert_eq!(of(&[("/t.py", "evaluate"), main]), Some(Stage::Evaluation));
        let compiles = ("/l/torch/_inductor/async_compile.py", "wait");
        assert_eq!(of(&[compiles, main]), Some(Stage::Compilation));
        let loads = (
            "/l/transformers/modeling.py",
            "PreTrainedModel.from_pretrained",
        );
        assert_eq!(of(&[loads, main]), Some(Stage::Loading));
    }

    #[test]
    fn whoever_waits_says_nothing_while_another_does_not() {
        let waits = rank(&[REDUCE, ("/train/t.py", "evaluate")]);
        let loads = rank(&[("/train/data.py", "load_batch")]);
        assert_eq!(stage(&[waits.clone(), loads]), None);
        assert_eq!(stage(&[waits]), Some(Stage::Evaluation));
    }
}
