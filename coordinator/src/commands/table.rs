//! Lists on stdout: a table, or JSON.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

#[derive(Debug, Args)]
pub(super) struct Output {
    /// Format of the output
    #[arg(
        long = "output",
        short = 'o',
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Table,
    Json,
}

impl Output {
    pub(super) fn is_json(&self) -> bool {
        matches!(self.format, Format::Json)
    }
}

/// Prints rows; `line` gives the cells of one. `none` is told to the person if there is no row.
pub(super) fn print<T: Serialize, const N: usize>(
    output: &Output,
    heads: [&str; N],
    rows: &[T],
    line: impl Fn(&T) -> [String; N],
    none: &str,
) -> anyhow::Result<()> {
    let text = match output.format {
        Format::Json => serde_json::to_string_pretty(rows)? + "\n",
        Format::Table if rows.is_empty() => {
            eprintln!("{none}");
            return Ok(());
        }
        Format::Table => {
            let head = heads.map(str::to_owned);
            let lines: Vec<[String; N]> = [head].into_iter().chain(rows.iter().map(line)).collect();
            render(&lines)
        }
    };
    print_text(&text)
}

pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has seen enough, as `head` has.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Columns three spaces apart, as `muster` prints them.
fn render<const N: usize>(lines: &[[String; N]]) -> String {
    let shown = |cell: &str| match cell {
        "" => "-".to_owned(),
        cell => cell.to_owned(),
    };
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(shown(cell).len() + 3);
        }
    }
    let mut text = String::new();
    for line in lines {
        let cells: String = (line.iter().zip(widths))
            .map(|(cell, width)| format!("{:width$}", shown(cell)))
            .collect();
        text += cells.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let line = |cells: [&str; 2]| cells.map(str::to_owned);
        let text = render(&[
            line(["NAME", "ROLE"]),
            line(["a-long-name", ""]),
            line(["b", "viewer"]),
        ]);
        assert_eq!(
            text,
            "NAME          ROLE\na-long-name   -\nb             viewer\n"
        );
    }
}
