//! The last lines that a job's ranks printed.

use askama::Template;

use crate::Frame;

/// A line of a rank's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub rank: u32,
    pub node: String,
    pub generation: u64,
    pub text: String,
}

#[derive(Template)]
#[template(path = "logs.html")]
struct Page<'a> {
    frame: Frame<'a>,
    namespace: &'a str,
    name: &'a str,
    rank: Option<u32>,
    lines: &'a [Line],
    ranks: Vec<u32>,
}

impl Page<'_> {
    fn is_of(&self, rank: &u32) -> bool {
        self.rank == Some(*rank)
    }
}

/// The page of these lines. `rank`: they are of this rank alone.
pub fn logs(
    frame: Frame<'_>,
    namespace: &str,
    name: &str,
    rank: Option<u32>,
    ranks: u32,
    lines: &[Line],
) -> String {
    let page = Page {
        frame,
        namespace,
        name,
        rank,
        lines,
        ranks: (0..ranks.min(64)).collect(),
    };
    crate::refused::drawn(page.render())
}
