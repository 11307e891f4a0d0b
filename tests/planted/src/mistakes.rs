//! Reads `mistakes.txt`, and puts a mistake into the text of a rule.
//!
//! The text of a rule is found whatever its white space, so that a formatter may move it. It must be
//! there exactly once: if a rule is rewritten, its mistake is rewritten too.

use std::collections::BTreeMap;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) name: String,
    /// The mistake as a sentence for people.
    pub(crate) words: String,
    pub(crate) edits: Vec<Edit>,
}

/// What a mistake changes in one place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The file, by its path in core's `src`.
    pub(crate) file: String,
    /// The text as it is there.
    pub(crate) rule: String,
    /// The text that takes its place. `ON` in it says whether the mistake is switched on.
    pub(crate) broken: String,
}

/// All mistakes of the text.
pub(crate) fn parse(text: &str) -> Result<Vec<Mistake>, String> {
    let mut all: Vec<Mistake> = Vec::new();
    let mut file = None;
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: &str| format!("mistakes.txt:{}: {what}", number + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(indented) = line.strip_prefix("  ") else {
            let (name, words) = line
                .split_once(": ")
                .ok_or_else(|| wrong("a mistake begins with `Name: sentence`"))?;
            if all.iter().any(|mistake| mistake.name == name) {
                return Err(wrong("there is a mistake of this name already"));
            }
            all.push(Mistake {
                name: name.to_owned(),
                words: words.to_owned(),
                edits: Vec::new(),
            });
            file = None;
            continue;
        };
        let edits = match all.last_mut() {
            Some(mistake) => &mut mistake.edits,
            None => return Err(wrong("this belongs to no mistake")),
        };
        let (sign, code) = indented.split_at_checked(2).unwrap_or((indented, ""));
        match sign.trim_end() {
            "-" => {
                let file: &String = file.as_ref().ok_or_else(|| wrong("name the file first"))?;
                let goes_on = edits.last().filter(|edit| edit.broken.is_empty());
                if goes_on.is_none_or(|edit| &edit.file != file) {
                    edits.push(Edit {
                        file: file.clone(),
                        rule: String::new(),
                        broken: String::new(),
                    });
                }
                let edit = edits.last_mut().expect("there is one");
                edit.rule += code;
                edit.rule += "\n";
            }
            "+" => {
                let edit = edits
                    .last_mut()
                    .ok_or_else(|| wrong("the rule comes first, in lines with `-`"))?;
                edit.broken += code;
                edit.broken += "\n";
            }
            _ => file = Some(indented.trim().to_owned()),
        }
    }
    let idle = |mistake: &&Mistake| {
        let is_never_on = |edit: &Edit| !words(&edit.broken).any(|word| word == "ON");
        mistake.edits.is_empty() || mistake.edits.iter().any(is_never_on)
    };
    match all.iter().find(idle) {
        Some(mistake) => Err(format!(
            "mistakes.txt: {}: each of its edits needs ON in a line with `+`",
            mistake.name
        )),
        None => Ok(all),
    }
}

impl Mistake {
    /// Puts it into the sources, and says what of it does not fit.
    pub(crate) fn put_into(&self, sources: &mut BTreeMap<String, String>) -> Vec<String> {
        let mut wrong = Vec::new();
        for edit in &self.edits {
            let found = match sources.get(&edit.file) {
                Some(text) => places(text, &edit.rule),
                None => Vec::new(),
            };
            let [(begin, end)] = found[..] else {
                wrong.push(format!(
                    "mistakes.txt: {} fits {} times into core/src/{}, and must fit once: {}",
                    self.name,
                    found.len(),
                    edit.file,
                    edit.rule.trim().replace('\n', " ")
                ));
                continue;
            };
            let text = sources.get_mut(&edit.file).expect("found above");
            text.replace_range(begin..end, &self.switched(&edit.broken));
        }
        wrong
    }

    /// The broken rule, which asks whether this mistake is on.
    fn switched(&self, broken: &str) -> String {
        let mut text = String::new();
        let mut rest = broken;
        while let Some(word) = words(rest).find(|word| *word == "ON") {
            let at = word.as_ptr() as usize - rest.as_ptr() as usize;
            text += &rest[..at];
            text += &format!("crate::planted::on(crate::planted::Mistake::{})", self.name);
            rest = &rest[at + word.len()..];
        }
        text + rest
    }
}

/// The words of code: names and numbers.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Where `part` is in the text, whatever their white space.
fn places(text: &str, part: &str) -> Vec<(usize, usize)> {
    let visible = |text: &str| -> Vec<(usize, char)> {
        text.char_indices()
            .filter(|(_, c)| !c.is_whitespace())
            .collect()
    };
    let (text, part) = (visible(text), visible(part));
    if part.is_empty() {
        return Vec::new();
    }
    let same = |window: &&[(usize, char)]| window.iter().zip(&part).all(|(a, b)| a.1 == b.1);
    let found = text.windows(part.len()).filter(same);
    let ends = |window: &[(usize, char)]| {
        let (last, c) = window[window.len() - 1];
        (window[0].0, last + c.len_utf8())
    };
    found.map(ends).collect()
}
