//! The word `step` and a number, for programs with a format of their own.
//!
//! Up to four separators may stand between them (`step 12/100`, `global_step=12`, `"step": 12`). On
//! a line without the word `epoch`, `iter` and `iteration` count too. A number in a file name does
//! not count, since a checkpoint is named after the step at which it was saved.

use crate::{
    about,
    table::Table,
    template::{find_text, whole_number},
};

/// The most separators between the word `step` and its number.
const GAP: usize = 4;
/// The most separators after `iteration`. Some print that number eight characters wide.
const GAP_OF_ITERATION: usize = 9;

/// What may be glued to `step`: `global_step`, `train_step`. Others are no count of steps:
/// `time_step`, `max_step`, `micro_step`.
const GLUED: [&[u8]; 8] = [
    b"global",
    b"train",
    b"training",
    b"trainer",
    b"optimizer",
    b"optim",
    b"current",
    b"update",
];

/// What a line shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) step: u64,
    pub(crate) total: Option<u64>,
    pub(crate) epoch: Option<u64>,
}

pub(crate) fn find(table: &Table, line: &[u8]) -> Option<Counted> {
    for (at, word) in line.windows(4).enumerate() {
        let rest = &line[at + 4..];
        let (rest, gap) = if word.eq_ignore_ascii_case(b"step") {
            if !is_step(&line[..at]) {
                continue;
            }
            (rest, GAP)
        } else if word.eq_ignore_ascii_case(b"iter") && is_count_of_its_own(line, at) {
            let ends = rest.len() >= 5 && rest[..5].eq_ignore_ascii_case(b"ation");
            (if ends { &rest[5..] } else { rest }, GAP_OF_ITERATION)
        } else {
            continue;
        };
        let gap = rest
            .iter()
            .take(gap)
            .take_while(|b| b"=: \t\"'#[(".contains(b))
            .count();
        let Some((step, length)) = whole_number(&rest[gap..]) else {
            continue;
        };
        let behind = &rest[gap + length..];
        let before = &line[..at];
        if is_file(line, at)
            || ignored(table, before)
            || is_task(table, behind)
            || about::only(table, before, behind)
        {
            continue;
        }
        return Some(Counted {
            step,
            total: total(behind).filter(|total| *total >= step),
            epoch: epoch(&line[..at]),
        });
    }
    None
}

/// Whether one of the last four words says that what follows is no step of training, or any word
/// that training begins there.
pub(crate) fn ignored(table: &Table, before: &[u8]) -> bool {
    let words = before
        .rsplit(|b| !b.is_ascii_alphanumeric())
        .filter(|word| word.iter().any(|b| !b.is_ascii_digit()));
    let mut near = words.clone().take(4);
    near.any(|word| table.ignore.have(word)) || { words }.any(|word| table.begins.have(word))
}

/// Whether `step` after this text is a word of its own, or part of a word that counts steps.
fn is_step(before: &[u8]) -> bool {
    let part = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'-';
    let start = before.iter().rposition(|b| !part(b)).map_or(0, |b| b + 1);
    let glued = &before[start..];
    let mut words = glued
        .split(|b| *b == b'_' || *b == b'-')
        .filter(|word| !word.is_empty());
    words.all(|word| {
        GLUED.iter().any(|known| word.eq_ignore_ascii_case(known))
            || word.iter().all(u8::is_ascii_digit)
    })
}

/// Whether `iter` at this place is a whole word on a line without the word `epoch`. Iterations
/// within an epoch begin anew with each epoch.
fn is_count_of_its_own(line: &[u8], at: usize) -> bool {
    let begins = at == 0 || !(line[at - 1].is_ascii_alphanumeric() || line[at - 1] == b'_');
    begins && find_text(line, b"epoch").is_none()
}

/// Whether the number is that of a task in a list: `Step 1: download the data`.
fn is_task(table: &Table, behind: &[u8]) -> bool {
    let near = &behind[..behind.len().min(32)];
    near.split(|b| !b.is_ascii_alphanumeric())
        .find(|word| word.iter().any(|b| !b.is_ascii_digit()) && !word.is_empty() && *word != b"of")
        .is_some_and(|word| table.tasks.have(word))
}

/// The total behind a step: `/100`, ` of 100`.
fn total(behind: &[u8]) -> Option<u64> {
    let text = behind.trim_ascii_start();
    let rest = text
        .strip_prefix(b"/")
        .or_else(|| text.strip_prefix(b"of "))?;
    Some(whole_number(rest.trim_ascii_start())?.0)
}

/// The epoch before a step: `epoch 3`, `Epoch [3/10]`.
fn epoch(before: &[u8]) -> Option<u64> {
    let after = &before[find_text(before, b"epoch")? + 5..];
    let gap = after
        .iter()
        .take(GAP)
        .take_while(|b| b"=: \t\"'#[(".contains(b))
        .count();
    Some(whole_number(&after[gap..])?.0)
}

/// Whether the word at this place is part of a file name: `epoch=0-step=100.ckpt`,
/// `global_step100/mp_rank_00.pt`.
fn is_file(line: &[u8], at: usize) -> bool {
    let space = |b: &u8| b.is_ascii_whitespace() || b"'\"".contains(b);
    let start = line[..at].iter().rposition(space).map_or(0, |b| b + 1);
    let end = line[at..]
        .iter()
        .position(space)
        .map_or(line.len(), |b| at + b);
    let named = find_text(&line[start..end], b"ckpt").is_some()
        || find_text(&line[start..end], b"checkpoint").is_some();
    let after = line[at..end]
        .windows(3)
        .any(|w| w[0].is_ascii_digit() && b"./\\".contains(&w[1]) && w[2].is_ascii_alphabetic());
    named || after
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Formats, Reader};

    #[test]
    fn the_word_step_and_a_number() {
        let cases: [(&str, Option<u64>); 41] = [
            ("step 12/100 loss 0.5", Some(12)),
            ("global_step=12", Some(12)),
            ("Step: 7", Some(7)),
            ("STEP = 8,", Some(8)),
            ("step9", Some(9)),
            ("[rank0] epoch 3 step 40.", Some(40)),
            ("{\"step\": 77, \"loss\": 1}", Some(77)),
            ("steps done, step 5", Some(5)),
            ("step[3]", Some(3)),
            ("train_step: 4", Some(4)),
            ("trainer/global_step=4", Some(4)),
            ("training step 4", Some(4)),
            ("time_step 4", None),
            ("max_step: 4", None),
            ("timestep 4", None),
            ("2026-11-21T11:35:28 INFO train.py:30 step 4 of 9", Some(4)),
            ("Step 1: Load the images", None),
            ("lr step 0.1", None),
            ("step 1e-3", None),
            ("steps 4", None),
            ("step_time=4", None),
            ("one step", None),
            ("ste", None),
            ("", None),
            ("step      9", None),
            ("step 99999999999999999999999", None),
            ("step 250: train loss 1.9, val loss 1.98", Some(250)),
            ("iteration 10/100 | consumed samples: 160", Some(10)),
            ("Iteration: 7", Some(7)),
            ("iter", None),
            ("iterations 7", None),
            ("arbiter 7", None),
            ("Epoch 3, iter 40", None),
            ("Epoch 3, step 40", Some(40)),
            (
                "Restored all states from /runs/a/epoch=0-step=100.ckpt",
                None,
            ),
            ("Restoring states from 'out/checkpoint-step=100'", None),
            (
                "loading out/global_step100/mp_rank_00_model_states.pt",
                None,
            ),
            ("wrote out/global_step100/mp_rank_00_model_states.pt", None),
            ("wrote step=100.ckpt", None),
            ("saved step=100.ckpt at step 100", None),
            ("epoch 1 step 12/100.", Some(12)),
        ];
        let formats = Formats::standard();
        for (line, step) in cases {
            let found = Reader::new().look(&formats, line.as_bytes(), Duration::ZERO);
            assert_eq!(found.map(|step| step.count), step, "{line}");
        }
    }
}
