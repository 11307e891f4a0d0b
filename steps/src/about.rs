//! Lines that only speak of a step: something failed there, will happen there, or is not there. They
//! have a word of the table's `about`, unless that word is the name of a value (`error: 0.3 step 12`).

use crate::{
    table::Table,
    template::{decimal, whole_number},
};

/// How many words behind the number are looked at.
const BEHIND: usize = 4;

/// Words before a step that make it part of a sentence. A log line of values has none of them there.
const PLACES: [&[u8]; 9] = [
    b"at", b"in", b"on", b"after", b"before", b"by", b"past", b"since", b"during",
];

/// Whether a line only speaks of the step between `before` and `behind`.
pub(crate) fn only(table: &Table, before: &[u8], behind: &[u8]) -> bool {
    said_before(table, before) || said_behind(table, behind)
}

fn said_before(table: &Table, before: &[u8]) -> bool {
    let last = before
        .rsplit(|b| !b.is_ascii_alphanumeric())
        .find(|word| !word.is_empty());
    let told = last.is_some_and(|last| PLACES.iter().any(|word| last.eq_ignore_ascii_case(word)));
    let mut rest = before;
    while let Some(begin) = rest.iter().position(u8::is_ascii_alphanumeric) {
        rest = &rest[begin..];
        let length = word(rest);
        let (word, behind) = rest.split_at(length);
        if table.about.have(word) && !is_name(behind, told) {
            return true;
        }
        rest = behind;
    }
    false
}

/// The words that follow the number in its sentence.
fn said_behind(table: &Table, behind: &[u8]) -> bool {
    let mut rest = behind;
    for _ in 0..BEHIND {
        let blanks = rest.iter().take_while(|b| **b == b' ').count();
        rest = &rest[blanks..];
        let length = word(rest);
        if blanks == 0 || length == 0 || rest[0].is_ascii_digit() {
            return false;
        }
        let (word, after) = rest.split_at(length);
        if table.about.have(word) {
            return !is_name(after, false);
        }
        rest = after;
    }
    false
}

/// The length of the word at the start.
fn word(text: &[u8]) -> usize {
    let part = |b: &&u8| b.is_ascii_alphanumeric();
    text.iter().take_while(part).count()
}

/// Whether the word before this text is the name of a value: a number follows behind a sign or, with
/// at most a word between them, without one. A whole number without a sign may also be part of a
/// sentence that is `told` (`error 5 at step 12`).
fn is_name(behind: &[u8], told: bool) -> bool {
    let bare = |text: &mut &[u8]| {
        let skipped = text.iter().take_while(|b| b" \t'\")]}".contains(b)).count();
        *text = &text[skipped..];
    };
    let mut rest = behind;
    bare(&mut rest);
    if let [b'=' | b':', value @ ..] = rest {
        let signs = value
            .iter()
            .take_while(|b| b" \t'\"=([".contains(b))
            .count();
        if decimal(&value[signs..]).is_some() {
            return true;
        }
    }
    for _ in 0..2 {
        if let Some(length) = decimal(rest) {
            let is_whole = whole_number(rest).is_some_and(|(_, whole)| whole == length);
            return !(is_whole && told);
        }
        let length = rest.iter().take_while(|b| !b.is_ascii_whitespace()).count();
        rest = &rest[length..];
        bare(&mut rest);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_value_says_nothing() {
        let table = Table::standard();
        for (before, behind, is_only) in [
            ("CUDA out of memory at ", "", true),
            ("NCCL error 5 at ", "", true),
            ("ERROR: ", "", true),
            ("Will stop at ", ".", true),
            ("", " not found", true),
            ("", " of 10 failed", false),
            ("", " has not been found", true),
            ("", ": not saved", false),
            ("", "", false),
            ("error=0.5 ", "", false),
            ("'error': '0.5', ", "", false),
            ("error: nan ", "", false),
            ("failed 3 ", "", false),
            ("failed 3 at ", "", true),
            ("loss 0.3 at ", "", false),
            ("", " error 0.5", false),
            ("", " error at rank 3", true),
        ] {
            let told = only(&table, before.as_bytes(), behind.as_bytes());
            assert_eq!(told, is_only, "{before}step 12{behind}");
        }
    }
}
