//! Makes the output of workers harmless for a terminal.
//!
//! A line of a log may hold any bytes, also those that clear the screen, set the terminal's title,
//! or make the terminal answer as if its user had typed. Colours are kept, as `less -R` keeps them.
//! Sequences that only move the cursor are left out, and every other control character is shown.

/// Takes one line without its end, or a part of a line.
pub(super) fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut coloured = false;
    while let Some(c) = rest.chars().next() {
        match c {
            '\u{1b}' => match sequence(rest) {
                Some((sequence, true)) => {
                    coloured = !matches!(sequence, "\u{1b}[m" | "\u{1b}[0m");
                    out.push_str(sequence);
                    rest = &rest[sequence.len()..];
                    continue;
                }
                Some((sequence, false)) => {
                    rest = &rest[sequence.len()..];
                    continue;
                }
                None => out.push_str("^["),
            },
            '\t' => out.push(c),
            // Backspace, line tabulation, form feed and carriage return.
            '\u{8}' | '\u{b}' | '\u{c}' | '\r' => {}
            '\0'..='\u{1f}' | '\u{7f}' => out.extend(['^', char::from(c as u8 ^ 0x40)]),
            '\u{80}'..='\u{9f}' => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    if coloured {
        // End the colours, because the next line may be another rank's.
        out.push_str("\u{1b}[0m");
    }
    out
}

/// The control sequence (ECMA-48, `ESC [`) at the start of a text, and whether it only sets colours
/// and other graphic attributes.
fn sequence(text: &str) -> Option<(&str, bool)> {
    let body = text.strip_prefix("\u{1b}[")?.as_bytes();
    let parameters = body.iter().take_while(|b| matches!(b, 0x30..=0x3f)).count();
    let between = body[parameters..]
        .iter()
        .take_while(|b| matches!(b, 0x20..=0x2f))
        .count();
    let last = *body.get(parameters + between)?;
    let plain = body[..parameters]
        .iter()
        .all(|b| matches!(b, b'0'..=b'9' | b';' | b':'));
    let is_colour = last == b'm' && between == 0 && plain;
    matches!(last, 0x40..=0x7e).then(|| (&text[..parameters + between + 3], is_colour))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_stay_and_nothing_else_reaches_the_terminal() {
        let cases = [
            ("plain \t caf\u{e9} 漢字", "plain \t caf\u{e9} 漢字"),
            (
                "\u{1b}[1;31mred\u{1b}[0m done",
                "\u{1b}[1;31mred\u{1b}[0m done",
            ),
            (
                "\u{1b}[38:5:9mred, and no end",
                "\u{1b}[38:5:9mred, and no end\u{1b}[0m",
            ),
            (
                "clear \u{1b}[2J\u{1b}[Hscreen, up \u{1b}[A",
                "clear screen, up ",
            ),
            ("hide \u{1b}[?25l cursor", "hide  cursor"),
            ("keys \u{1b}[>4;2m", "keys "),
            ("answer \u{1b}[c \u{1b}[6n", "answer  "),
            ("title \u{1b}]0;gone\u{7}", "title ^[]0;gone^G"),
            ("device \u{1b}P$q\u{1b}\\", "device ^[P$q^[\\"),
            ("C1 \u{9b}2J", "C1 \u{fffd}2J"),
            ("spoof\u{8}\u{8}\u{8}\u{8}\u{8}[rank 1]", "spoof[rank 1]"),
            ("cut \u{1b}[3", "cut ^[[3"),
            ("cut \u{1b}", "cut ^["),
            ("nul \0 del \u{7f}", "nul ^@ del ^?"),
        ];
        for (text, shown) in cases {
            assert_eq!(harmless(text), shown, "{text:?}");
        }
    }

    #[test]
    fn whatever_it_is_no_control_character_is_left_but_of_colours() {
        let alphabet = [
            "\u{1b}", "[", "2", ";", "J", "m", "]", "\u{7}", "\r", "\n", "\u{9b}", "x", " ", "?",
            "\u{e9}",
        ];
        // Tries every text of four such characters.
        for n in 0..alphabet.len().pow(4) {
            let text: String = (0..4)
                .map(|at| alphabet[n / alphabet.len().pow(at) % alphabet.len()])
                .collect();
            let shown = harmless(&text);
            let mut rest = shown.as_str();
            while let Some(at) = rest.find(char::is_control) {
                let (found, is_colour) = sequence(&rest[at..])
                    .unwrap_or_else(|| panic!("{text:?} is shown as {shown:?}"));
                assert!(is_colour, "{text:?} is shown as {shown:?}");
                rest = &rest[at + found.len()..];
            }
        }
    }
}
