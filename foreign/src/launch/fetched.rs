//! Scripts that are not on the nodes: addresses in the place of a script, which something would have to fetch
//! first.

use super::{is_python, module_of, stem};
use crate::{verdict::Verdicts, words::Word};

/// Refuses a command whose program or script is an address. A program that is here may fetch what it is
/// given.
pub(crate) fn refuse_fetched(words: &[Word], log: &mut Verdicts) {
    let fetched = words
        .first()
        .and_then(|first| match is_python(stem(&first.text)) {
            true => script_of(words),
            false => Some(first),
        });
    if let Some(word) = fetched {
        is_on_nodes(word, log);
    }
}

/// Refuses a script that the image's own launcher would have fetched first, as that of the TorchElastic
/// images does with `s3://`. No interpreter opens an address.
pub(super) fn is_on_nodes(script: &Word, log: &mut Verdicts) {
    let scheme = script.text.split_once("://").map(|(scheme, _)| scheme);
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    if scheme.is_some_and(is_scheme) {
        log.refuse(
            &script.field(),
            "is a script to be fetched first, and Muster fetches nothing: put it on the nodes and give its path",
        );
    }
}

/// The script or the module that an interpreter is given. `None`: it is given code.
fn script_of(words: &[Word]) -> Option<&Word> {
    if let Some(at) = module_of(words) {
        return words.get(at + 1);
    }
    let mut at = 1;
    while let Some(word) = words.get(at) {
        match word.text.as_str() {
            "-W" | "-X" | "--check-hash-based-pycs" => at += 2,
            "-c" | "-" => return None,
            option if option.starts_with('-') => at += 1,
            _ => return Some(word),
        }
    }
    None
}
