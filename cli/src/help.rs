//! The layout of help texts: the summary, the usage, examples, then the flags with one line each.
//!
//! clap's own long form uses several lines for every flag as soon as one text is long, but a
//! terminal shows one screen.

use clap::Command;

/// Columns of running text. clap lays out the flags for the width of the terminal.
const WIDTH: usize = 100;

/// Lays out the help of a command and of all commands below it.
pub(crate) fn lay_out(command: Command) -> Command {
    let text = command
        .get_long_about()
        .or(command.get_about())
        .map(ToString::to_string)
        .unwrap_or_default();
    let rest = match command.has_subcommands() {
        true => "{all-args}{after-help}",
        // Examples come before the flags, as in kubectl, because most readers look for one.
        false => "{after-help}\n\n{all-args}",
    };
    let gap = if command.has_subcommands() {
        "\n\n"
    } else {
        ""
    };
    let template = format!("{}\n\n{{usage-heading}} {{usage}}{gap}{rest}", wrap(&text));
    let names: Vec<String> = command
        .get_subcommands()
        .map(|below| below.get_name().to_owned())
        .collect();
    let laid_out = command.help_template(template).long_about(None);
    names.iter().fold(laid_out, |command, name| {
        command.mut_subcommand(name, lay_out)
    })
}

/// Breaks paragraphs into lines between words.
fn wrap(text: &str) -> String {
    let paragraph = |text: &str| {
        let (mut lines, mut line) = (Vec::new(), String::new());
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
        lines.join("\n")
    };
    text.split("\n\n")
        .map(paragraph)
        .collect::<Vec<_>>()
        .join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_between_words() {
        let text = format!("{} end\n\nnext", "word ".repeat(25).trim_end());
        let wrapped = wrap(&text);
        assert!(wrapped.lines().all(|line| line.len() <= WIDTH));
        assert!(wrapped.ends_with(" end\n\nnext"), "{wrapped}");
    }
}
