//! Progress bars: `NAME:  12%|#   | 12/100 [00:03<00:22,  3.9it/s, loss=0.5]` as tqdm draws them, and
//! `NAME ━━━━ 12/100 0:00:03`, or `NAME: 12% ━╸──── 12/100 3.9it/s 3.1s`. Every state of a bar that is redrawn is a line of its own here.

use crate::{
    loss,
    table::Table,
    template::{decimal, find_text, whole_number},
};

/// One state of a bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bar<'a> {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) name: Name<'a>,
    /// It shows a loss beside its rate.
    pub(crate) has_loss: bool,
    /// The time that it has run so far, in seconds. `None`: it does not say.
    pub(crate) ran: Option<u64>,
    /// It makes fewer than [`SLOW`] iterations a second.
    pub(crate) slow: bool,
}

/// What a bar's name says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name<'a> {
    /// It has none.
    None,
    /// It says neither that the bar counts training nor that it counts something else.
    Unknown(&'a [u8]),
    /// It counts training.
    Counts(&'a [u8]),
    /// It counts the batches of this epoch.
    Epoch {
        name: &'a [u8],
        epoch: u64,
        from_one: bool,
        epochs: Option<u64>,
    },
}

/// A bar without a name that is quicker than this may be one of data preparation. Steps of training
/// take more than 20 ms, except in toys.
const SLOW: u64 = 50;

/// The longest name of a bar that is looked at.
const NAME_MAX: usize = 80;

/// A bar of tqdm.
pub(crate) fn tqdm<'a>(table: &Table, line: &'a [u8]) -> Option<Bar<'a>> {
    // In a terminal without a width tqdm leaves the cells out: `70% 3500/5000 [00:02<`.
    let (at, drawn) = match find_text(line, b"%|") {
        Some(at) => (at, true),
        None => (line.windows(3).position(is_bare)?, false),
    };
    let digits = line[..at]
        .iter()
        .rev()
        .take(3)
        .take_while(|b| b.is_ascii_digit())
        .count();
    if digits == 0 {
        return None;
    }
    let name = &line[..at - digits];
    let mut rest = &line[at + 1..];
    if drawn {
        rest = &rest[1..];
        rest = &rest[rest.iter().position(|b| *b == b'|')? + 1..];
    }
    let (done, total, rest) = fraction(rest.trim_ascii_start())?;
    let rest = rest.trim_ascii_start().strip_prefix(b"[")?;
    let rest = &rest[..rest.iter().position(|b| *b == b']')?];
    let (ran, after) = clock(rest)?;
    let after = after.strip_prefix(b"<").unwrap_or_default();
    let rate = after
        .iter()
        .position(|b| *b == b',')
        .map(|at| &after[at + 1..]);
    let rate = rate.unwrap_or_default();
    let (rate, postfix) = match rate.iter().position(|b| *b == b',') {
        Some(at) => rate.split_at(at),
        None => (rate, &rate[rate.len()..]),
    };
    let slow = slow(rate.trim_ascii())?;
    bar(table, name, (done, total), postfix, Some(ran), slow)
}

fn is_bare(window: &[u8]) -> bool {
    matches!(window, [b'%', b' ', digit] if digit.is_ascii_digit())
}

/// A bar drawn with ━, as rich and Ultralytics do it: only with a count, since a percentage is no step.
pub(crate) fn ruled<'a>(table: &Table, line: &'a [u8]) -> Option<Bar<'a>> {
    let at = line.windows(3).position(is_rule)?;
    let marks: [&[u8]; 5] = [
        "━".as_bytes(),
        "─".as_bytes(),
        "╸".as_bytes(),
        "╺".as_bytes(),
        b" ",
    ];
    let mut rest = &line[at..];
    while let Some(mark) = marks.iter().find(|mark| rest.starts_with(mark)) {
        rest = &rest[mark.len()..];
    }
    let (done, total, rest) = fraction(rest)?;
    let postfix = rest;
    let ran = clock(rest.trim_ascii_start()).map(|(ran, _)| ran);
    let mut bar = bar(table, &line[..at], (done, total), postfix, ran, true)?;
    if let Name::Epoch {
        name: ULTRALYTICS, ..
    } = bar.name
    {
        return Some(bar);
    }
    // Rich shows the time behind the count; a table that is drawn with the same lines does not.
    bar.ran?;
    if let Name::Epoch {
        from_one, epochs, ..
    } = &mut bar.name
    {
        // Lightning counts from 0 and shows the last epoch's number where others show how many.
        (*from_one, *epochs) = (false, None);
    }
    Some(bar)
}

/// The first glyph of a ruled bar: ━, or ─ and ╸ where it has just begun.
fn is_rule(window: &[u8]) -> bool {
    matches!(window, [0xE2, 0x94, 0x80 | 0x81] | [0xE2, 0x95, 0xB8])
}

fn bar<'a>(
    table: &Table,
    name: &'a [u8],
    (done, total): (u64, u64),
    postfix: &[u8],
    ran: Option<u64>,
    slow: bool,
) -> Option<Bar<'a>> {
    if done > total || total == 0 {
        return None;
    }
    let has_loss = loss::find(postfix).is_some() || loss::find(name).is_some();
    let name = named(table, name, has_loss)?;
    Some(Bar {
        done,
        total,
        name,
        has_loss,
        ran,
        slow,
    })
}

/// What the name says. `None`: the bar counts something else than training.
fn named<'a>(table: &Table, name: &'a [u8], has_loss: bool) -> Option<Name<'a>> {
    let name = name.trim_ascii();
    let name = name.strip_suffix(b":").unwrap_or(name).trim_ascii();
    if let Some(epoch) = ultralytics(name) {
        return Some(epoch);
    }
    let name = &name[name.len().saturating_sub(NAME_MAX)..];
    let mut words = name
        .split(|b| !b.is_ascii_alphanumeric())
        .filter(|word| word.iter().any(u8::is_ascii_alphabetic));
    if words.clone().any(|word| table.ignore.have(word)) {
        return None;
    }
    if words.clone().next().is_none() {
        return Some(Name::None);
    }
    if let Some(at) = find_text(name, b"epoch") {
        let after = &name[at + 5..];
        let gap = after
            .iter()
            .take(3)
            .take_while(|b| b" :=#[(_".contains(b))
            .count();
        // A bar with the name "Epochs" counts whole epochs.
        let (epoch, length) = whole_number(&after[gap..])?;
        let of = after[gap + length..].trim_ascii_start();
        let of = of.strip_prefix(b"/").map(<[u8]>::trim_ascii_start);
        return Some(Name::Epoch {
            name,
            epoch,
            from_one: of.is_some(),
            epochs: of.and_then(whole_number).map(|(epochs, _)| epochs),
        });
    }
    let counts = words.any(|word| table.counts.have(word));
    Some(if counts || has_loss {
        Name::Counts(name)
    } else {
        Name::Unknown(name)
    })
}

/// What stands for the name of a bar of Ultralytics.
const ULTRALYTICS: &[u8] = b"ultralytics";

/// A bar of Ultralytics and of YOLOv5, which has values for a name: the epoch and how many there are,
/// the memory of the GPU, the losses, the sizes (`3/100  2.31G  1.245  0.893  156  640`).
fn ultralytics<'a>(name: &[u8]) -> Option<Name<'a>> {
    let (epoch, epochs, rest) = fraction(name)?;
    let mut values = rest
        .split(u8::is_ascii_whitespace)
        .filter(|v| !v.is_empty());
    let memory = values.next()?.strip_suffix(b"G")?;
    let all = decimal(memory) == Some(memory.len())
        && values
            .next()
            .is_some_and(|loss| decimal(loss) == Some(loss.len()));
    all.then_some(Name::Epoch {
        name: ULTRALYTICS,
        epoch,
        from_one: true,
        epochs: Some(epochs),
    })
}

/// `12/100`, and the rest.
fn fraction(text: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (done, length) = whole_number(text)?;
    let rest = text[length..].strip_prefix(b"/")?;
    let (total, length) = whole_number(rest)?;
    Some((done, total, &rest[length..]))
}

/// `00:03`, `1:02:03` in seconds, and the rest.
fn clock(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut seconds, mut rest, mut parts) = (0u64, text, 0);
    loop {
        let (part, length) = whole_number(rest)?;
        seconds = seconds.saturating_mul(60).saturating_add(part);
        (rest, parts) = (&rest[length..], parts + 1);
        match rest.strip_prefix(b":") {
            Some(more) if parts < 4 => rest = more,
            _ => return (parts > 1).then_some((seconds, rest)),
        }
    }
}

/// Whether a rate is one of steps, and a slow one. `None`: it counts bytes, examples or files.
fn slow(rate: &[u8]) -> Option<bool> {
    let unit_at = rate
        .iter()
        .position(|b| !(b.is_ascii_digit() || b".?".contains(b)));
    let (number, unit) = rate.split_at(unit_at.unwrap_or(rate.len()));
    let unit = unit.trim_ascii();
    let per_second = unit.strip_suffix(b"/s");
    let one = per_second.or_else(|| unit.strip_prefix(b"s/"));
    let steps: [&[u8]; 9] = [
        b"it", b"step", b"steps", b"batch", b"batches", b"ba", b"iter", b"iters", b"update",
    ];
    if !unit.is_empty() && !one.is_some_and(|one| steps.contains(&one.trim_ascii())) {
        return None;
    }
    let whole = number.split(|b| *b == b'.').next().unwrap_or_default();
    let whole = whole_number(whole).map(|(whole, _)| whole);
    Some(match (per_second, whole) {
        (Some(_), Some(rate)) => rate < SLOW,
        (_, rate) => rate.is_some(),
    })
}
