//! A rule as one line of text, as `describe` shows it and `muster run --rule` takes it:
//! `exit codes 1-127 in role worker: restart, at most 3 in 1h`.

use super::RuleDocument;

impl RuleDocument {
    /// Reads a line. The meaning of its words together is checked later, as in a document.
    pub fn read(text: &str) -> Result<Self, String> {
        let (when, then) = text
            .split_once(':')
            .ok_or_else(|| "write WHAT: THEN, as in \"exit codes 1-127: fail\"".to_owned())?;
        let (when, role) = match when.split_once(" in role ") {
            Some((when, role)) => (when, Some(role.trim().to_owned())),
            None => (when, None),
        };
        let mut rule = RuleDocument {
            role,
            ..RuleDocument::default()
        };
        let (word, rest) = first_word(when);
        match word {
            "exit" => {
                let codes = rest.strip_prefix("codes").unwrap_or(rest).trim();
                rule.codes = (!codes.is_empty()).then(|| codes.to_owned());
            }
            "signal" => rule.signals = list(rest),
            "success" => {
                let of = rest.strip_prefix("of ").unwrap_or(rest).trim();
                rule.of = (!of.is_empty()).then(|| of.to_owned());
            }
            "any" if rest == "signal" => {}
            _ if rest.is_empty() => {}
            _ => return Err(format!("{rest:?} is not understood behind {word:?}")),
        }
        rule.when = match word {
            "any" => "signal",
            word => word,
        }
        .to_owned();
        let (then, limit) = first_word(then);
        rule.then = then.trim_end_matches(',').to_owned();
        if limit.is_empty() {
            return Ok(rule);
        }
        let refuse =
            || format!("{limit:?} is not understood; write \"at most 3\" or \"at most 3 in 1h\"");
        let words: Vec<&str> = limit.split_whitespace().collect();
        let (count, within) = match words[..] {
            ["at", "most", count] => (count, None),
            ["at", "most", count, "in", within] => (count, Some(within.to_owned())),
            _ => return Err(refuse()),
        };
        rule.limit = Some(count.parse().map_err(|_| refuse())?);
        rule.within = within;
        Ok(rule)
    }
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

fn list(text: &str) -> Vec<String> {
    let words = text.split(',').map(str::trim);
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}
