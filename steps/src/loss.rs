//! The loss on a line that shows a step, as it is printed there.

use crate::template::{decimal, find_text};

/// The most bytes of a printed loss. `-1.2345678901e-05` has 17.
pub(crate) const LOSS_MAX: usize = 24;

/// How many times the word is looked for on one line.
const PLACES: usize = 8;

/// The first training loss of a line: `loss: 0.5`, `'loss': '3.9'`, `train_loss=0.12`, `lm loss: 1E+1`,
/// `loss/train/total: 7.1`.
pub(crate) fn find(line: &[u8]) -> Option<&str> {
    let mut from = 0;
    for _ in 0..PLACES {
        let at = from + find_text(&line[from..], b"loss")?;
        from = at + 4;
        let rest = &line[from..];
        let rest = [&b" train"[..], b"/train/total", b"/train"]
            .iter()
            .find_map(|more| rest.strip_prefix(*more))
            .unwrap_or(rest);
        let gap = rest
            .iter()
            .take(6)
            .take_while(|b| b" \t=:\"'([|".contains(b))
            .count();
        let value = &rest[gap..];
        if gap == 0 || of_validation(&line[..at]) {
            continue;
        }
        if let Some(length) = decimal(value).filter(|length| *length <= LOSS_MAX) {
            return std::str::from_utf8(&value[..length]).ok();
        }
    }
    None
}

/// Whether the word before says that this is no loss of training.
fn of_validation(before: &[u8]) -> bool {
    let tail = &before[before.len().saturating_sub(12)..];
    let word = |b: &u8| b.is_ascii_alphanumeric();
    let end = tail.iter().rposition(word).map_or(0, |last| last + 1);
    let start = tail[..end]
        .iter()
        .rposition(|b| !word(b))
        .map_or(0, |b| b + 1);
    let last = &tail[start..end];
    [
        &b"val"[..],
        b"valid",
        b"validation",
        b"eval",
        b"test",
        b"dev",
    ]
    .iter()
    .any(|known| last.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn the_first_loss_of_training_is_told_as_printed() {
        for (line, loss) in [
            ("step 3 loss 0.50", Some("0.50")),
            ("step 250: train loss 1.9, val loss 1.98", Some("1.9")),
            ("val_loss=2.0, train_loss=0.12]", Some("0.12")),
            ("{'loss': '3.903', 'grad_norm': '0.6'}", Some("3.903")),
            (
                "| lm loss: 6.159759E+00 | loss scale: 131072.0 |",
                Some("6.159759E+00"),
            ),
            ("loss_cls: 0.2 loss: 1.5 (1.6)", Some("1.5")),
            ("Loss nan (nan)", Some("nan")),
            ("eval_loss: 3", None),
            ("losses 3", None),
            ("1.37ba/s, loss/train/total=7.1292]", Some("7.1292")),
            ("loss/eval/total: 7.1", None),
            ("loss", None),
        ] {
            assert_eq!(find(line.as_bytes()), loss, "{line}");
        }
    }
}
