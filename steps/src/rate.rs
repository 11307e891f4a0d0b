//! The speed on a line that shows a step, as it is printed there: `9.84it/s`, `tok/sec: 1,238,456`.

use crate::{table::Words, template::decimal};

/// The most bytes of a printed rate, with its unit. `tokens_per_sec_per_gpu` has 22.
pub(crate) const RATE_MAX: usize = 48;

/// How many bytes may stand between a unit and its number.
const GAP: usize = 4;

/// The rate of a line, number first: `9.84 it/s`. If a line has several, the one whose unit comes
/// first in the table.
pub(crate) fn find(units: &Words, line: &[u8]) -> Option<String> {
    let mut best: Option<(usize, &[u8], &[u8])> = None;
    let mut at = 0;
    while let Some(begin) = line[at..].iter().position(|b| is_unit(*b)) {
        let begin = at + begin;
        let length = line[begin..].iter().take_while(|b| is_unit(**b)).count();
        at = begin + length;
        let unit = &line[begin..at];
        // Only a word with `/`, `per` or `ps` can be such a unit. Most words end here.
        if length < 2 || !(unit.contains(&b'/') || has_per(unit)) {
            continue;
        }
        let Some(place) = units.place(unit) else {
            continue;
        };
        if best.is_some_and(|(known, ..)| known <= place) {
            continue;
        }
        let (first, second) = (before(&line[..begin]), after(&line[at..]));
        let number = match line.get(at) {
            Some(b':' | b'=') => second,
            // `loss 2.3 tok/s 1234`: either number may be it.
            _ if first.is_some() && second.is_some() && line[begin - 1] == b' ' => None,
            _ => first.or(second),
        };
        best = number.map(|number| (place, number, unit)).or(best);
    }
    let (_, number, unit) = best?;
    let text = [number, b" ", unit].concat();
    String::from_utf8(text)
        .ok()
        .filter(|text| text.len() <= RATE_MAX)
}

fn is_unit(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'/' || byte == b'_'
}

/// `tps`, `tokens_per_sec`, `CurrSamplesPerSec`.
fn has_per(unit: &[u8]) -> bool {
    let tail = &unit[unit.len().saturating_sub(2)..];
    tail.eq_ignore_ascii_case(b"ps")
        || unit
            .windows(3)
            .any(|window| window.eq_ignore_ascii_case(b"per"))
}

/// The number at the end of what stands before a unit.
fn before(text: &[u8]) -> Option<&[u8]> {
    let text = text.strip_suffix(b" ").unwrap_or(text);
    let length = text
        .iter()
        .rev()
        .take_while(|b| b.is_ascii_digit() || matches!(b, b'.' | b','))
        .count();
    let number = &text[text.len() - length..];
    // A list's comma is no part of the number behind it.
    let start = number.iter().position(u8::is_ascii_digit)?;
    // Digits that begin within a word, an exponent or a negative number are not the number.
    let begin = text.len() - length + start;
    let glued = |b: &u8| b.is_ascii_alphabetic() || b"+-_.".contains(b);
    if start == 0 && text[..begin].last().is_some_and(glued) {
        return None;
    }
    let number = &number[start..];
    (amount(number) == Some(number.len())).then_some(number)
}

/// The number behind a unit that is a key.
fn after(text: &[u8]) -> Option<&[u8]> {
    let gap = text
        .iter()
        .take(GAP)
        .take_while(|b| b" \t=:\"'(".contains(b))
        .count();
    let number = &text[gap..];
    let length = (gap > 0).then(|| amount(number)).flatten()?;
    Some(&number[..length])
}

/// The length of a number at the start, also of `1,238,456.5`. `nan` and what has a sign is none.
fn amount(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take_while(|b| b.is_ascii_digit()).count()
    };
    let mut start = 0;
    let mut end = digits(0);
    if end == 0 {
        return None;
    }
    while text.get(end) == Some(&b',') && digits(end + 1) == 3 {
        start = end + 1;
        end += 4;
    }
    Some(start + decimal(&text[start..])?)
}

#[cfg(test)]
mod tests {
    use super::find;
    use crate::table::Table;

    #[test]
    fn the_rate_is_told_as_printed() {
        let table = Table::standard();
        for (line, rate) in [
            (
                "12/100 [00:03<00:22,  9.84it/s, loss=0.41]",
                Some("9.84 it/s"),
            ),
            ("1/2 [00:09<00:09,  1.66s/it]", Some("1.66 s/it")),
            ("0/12 [00:00<?, ?it/s]", None),
            (
                "dt: 2123ms | tok/sec: 1,238,456 | mfu: 12.34",
                Some("1,238,456 tok/sec"),
            ),
            (
                "3025.33 ms | 43.5% bf16 MFU | 173328 tok/s",
                Some("173328 tok/s"),
            ),
            ("memory: 9GiB tps: 7,282 tflops: 0.52", Some("7,282 tps")),
            ("ppl=8.86, wps=72384.3, ups=1.21", Some("72384.3 wps")),
            (
                "tokens_per_sec_per_gpu: 6.859e+03 | consumed",
                Some("6.859e+03 tokens_per_sec_per_gpu"),
            ),
            (
                "RunningAvgSamplesPerSec=220.6, CurrSamplesPerSec=222.88",
                Some("222.88 CurrSamplesPerSec"),
            ),
            (
                "Time: 9.575s,   13.37/s  (9.575s,   13.37/s)",
                Some("13.37 /s"),
            ),
            (
                "\u{2501}\u{2501} 1s 3ms/step - accuracy: 0.7",
                Some("3 ms/step"),
            ),
            // Data a second says more than steps a second, wherever it stands.
            ("2.5it/s, 900 tokens/s", Some("900 tokens/s")),
            ("see https://x.org 12 and 3/5005", None),
            ("tps: nan", None),
            (
                "iter time (s): 18.305 samples/sec: 0.219",
                Some("0.219 samples/sec"),
            ),
            ("tok/s", None),
            ("iter 10 loss 2.3 tok/s 1234", None),
            ("lr 3e-4 tps 7282", Some("7282 tps")),
            ("at 6.859e+03 tok/s", None),
        ] {
            let found = find(&table.rates, line.as_bytes());
            assert_eq!(found.as_deref(), rate, "{line}");
        }
    }
}
