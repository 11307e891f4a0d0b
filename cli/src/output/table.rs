//! Tables as kubectl prints them: upper-case heads, three spaces between columns, no lines.

use unicode_width::UnicodeWidthStr;

const GAP: usize = 3;

/// Rows of one kind of object. Column widths only grow, so rows that a watch prints later stay
/// aligned as long as they fit.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    heads: Vec<&'static str>,
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(heads: Vec<&'static str>) -> Self {
        let widths = vec![0; heads.len()];
        Self { heads, widths }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    pub(crate) fn render(&mut self, rows: &[Vec<String>], with_heads: bool) -> String {
        let heads: Vec<String> = self.heads.iter().map(|head| (*head).to_owned()).collect();
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| plain(cell)).collect())
            .collect();
        let all = || with_heads.then_some(&heads).into_iter().chain(&rows);
        for row in all() {
            debug_assert_eq!(row.len(), self.widths.len(), "a cell for every head");
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        all().map(|row| self.line(row)).collect()
    }

    fn line(&self, row: &[String]) -> String {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&self.widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(
                ' ',
                width.saturating_sub(cell.width()) + GAP,
            ));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// Makes one harmless line from any text: a message from a training script must not move the cursor
/// or break the table.
pub(crate) fn plain(text: &str) -> String {
    if text.is_empty() {
        return "-".into();
    }
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn columns_line_up_also_with_wide_letters() {
        let mut table = Table::new(vec!["NAME", "STATE"]);
        let text = table.render(
            &[
                row(["digits", "Running"]),
                row(["漢字", "Pending"]),
                row(["", "a\n\u{1b}[2Jb"]),
            ],
            true,
        );
        assert_eq!(
            text,
            "NAME     STATE\ndigits   Running\n漢字     Pending\n-        a  [2Jb\n"
        );
    }

    #[test]
    fn rows_of_a_watch_keep_their_columns() {
        let mut table = Table::new(vec!["NAME", "STATE"]);
        table.render(&[row(["a-long-name", "Running"])], true);
        assert_eq!(
            table.render(&[row(["b", "Failed"])], false),
            "b             Failed\n"
        );
    }
}
