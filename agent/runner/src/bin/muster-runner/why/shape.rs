//! The shapes of single lines: frames, names of exceptions, prefixes, colours. Nothing here remembers a line.

/// The longest reason, so that it can be one line of a table. With a mark of the cut it stays below
/// what a report carries.
pub(super) const REASON: usize = 700;

/// The most bytes of a line that are looked at. Messages that matter are shorter.
const LINE: usize = 4 << 10;

/// torch's hook writes `[rank3]: ` in front of every line.
pub(super) fn without_rank(line: &str) -> (bool, &str) {
    let text = line
        .strip_prefix("[rank")
        .and_then(|rest| rest.split_once("]:"))
        .filter(|(rank, _)| rank.bytes().all(|b| b.is_ascii_digit()));
    match text {
        // `[rank3]:[W1126 ...` is a log line of C++.
        Some((_, text)) if !text.starts_with('[') => (true, text.strip_prefix(' ').unwrap_or(text)),
        _ => (false, line),
    }
}

/// Lines before a traceback that ends nobody.
pub(super) fn announces(line: &str) -> bool {
    let begins = [
        "Exception in thread ",
        "Exception ignored ",
        "Exception in callback ",
        "Unhandled exception in thread",
        "Error in atexit.",
        "Error in sys.excepthook",
        "--- Logging error ---",
    ];
    begins.iter().any(|words| line.starts_with(words))
        || line
            .strip_prefix("Process ")
            .and_then(|rest| rest.strip_suffix(':'))
            .is_some_and(|name| !name.contains(' '))
        || line.ends_with("exception was never retrieved")
}

pub(super) fn chains(line: &str) -> bool {
    line == "During handling of the above exception, another exception occurred:"
        || line == "The above exception was the direct cause of the following exception:"
}

/// Lines of an exception's text that say where in C++ it was made.
pub(super) fn belongs_not(line: &str) -> bool {
    ["frame #", "Exception raised from ", "C++ CapturedTraceback"]
        .iter()
        .any(|words| line.starts_with(words))
        || line == "\"\"\""
}

pub(super) fn is_rule(line: &str) -> bool {
    line.len() > 3 && line.bytes().all(|b| b == b'=' || b == b'-')
}

/// `  File "train.py", line 3, in main`, also with loguru's mark.
pub(super) fn frame_of(line: &str) -> Option<String> {
    let line = line.trim_start_matches(['>', ' ', '\t']);
    let (file, rest) = line.strip_prefix("File \"")?.split_once("\", line ")?;
    match rest.split_once(", in ") {
        Some((number, function)) => Some(format!("{file}:{number} in {function}")),
        None => Some(format!("{file}:{}", number(rest)?)),
    }
}

/// Whether a frame is of the interpreter or of something that was installed.
pub(super) fn is_of_library(frame: &str) -> bool {
    [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python3",
        "<frozen ",
    ]
    .iter()
    .any(|part| frame.contains(part))
}

/// `  File "train.py", line 3`: a place in a script that Python cannot compile.
pub(super) fn uncompiled(line: &str) -> Option<(&str, &str)> {
    let (file, rest) = line.strip_prefix("  File \"")?.split_once("\", line ")?;
    Some((file, number(rest)?))
}

pub(super) fn number(text: &str) -> Option<&str> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then_some(text)
}

/// `│ /job/train.py:5 in main    │`
pub(super) fn boxed_frame(line: &str) -> Option<String> {
    let text = line.trim_matches(['│', ' ']);
    let (place, function) = text.split_once(" in ")?;
    let (file, line) = place.rsplit_once(':')?;
    number(line)?;
    (!file.contains(' ') && !function.contains(' ')).then(|| text.to_owned())
}

/// The type and the text of a line that names an exception: a dotted name, then a colon and a text,
/// or nothing.
pub(super) fn exception(line: &str) -> Option<(&str, &str)> {
    let (name, text) = match line.split_once(": ") {
        Some(parts) => parts,
        None => (line.strip_suffix(':').unwrap_or(line), ""),
    };
    let is_name = |part: &str| {
        part == "<locals>"
            || part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    name.split('.').all(is_name).then_some((name, text))
}

/// The text in one line of at most so many bytes.
pub(super) fn one_line(text: &str, most: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    cut(words.join(" "), most)
}

/// At most so many bytes, with a mark if something is missing.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

/// Adds a line to a text of bounded length.
pub(super) fn join(text: &mut String, line: &str) {
    if text.len() < REASON {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        *text = cut(format!("{text} {line}").trim_start().to_owned(), REASON);
    }
}

/// A line as text, without colours and without what a person does not see at its end.
pub(super) fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LINE)]);
    if !text.contains('\x1b') {
        return text.trim_end().to_owned();
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('\x1b') {
        clean.push_str(&rest[..at]);
        // ECMA-48: CSI, parameters, one final byte from `@` to `~`.
        rest = match rest[at + 1..].strip_prefix('[') {
            Some(csi) => csi
                .find(|c: char| ('@'..='~').contains(&c))
                .map_or("", |end| &csi[end + 1..]),
            None => &rest[at + 1..],
        };
    }
    clean.push_str(rest);
    clean.trim_end().to_owned()
}
