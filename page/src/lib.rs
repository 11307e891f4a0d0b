//! Jobs, nodes and events as HTML pages.
//!
//! What the API says goes in, text comes out. Nothing here asks anybody, opens a file or reads a clock, so the same functions make
//! the pages of `muster web` and the file of `muster report`. Every page can be read without JavaScript. Text from jobs and nodes is
//! escaped by the templates, and no page loads anything from elsewhere.

use muster_proto::v1;

pub mod account;
mod events;
mod fleet;
mod goodput;
mod incidents;
mod job;
mod jobs;
mod logs;
mod node;
mod queue;
mod refused;
mod spent;
pub mod start;
mod state;
mod timeline;
pub mod tree;
pub mod waiting;
pub mod words;

pub use events::events;
pub use fleet::{FleetStory, fleet};
pub use goodput::goodput;
pub use job::{job, report};
pub use jobs::jobs;
pub use logs::{Line, logs};
pub use node::node;
pub use queue::queue;
pub use refused::refused;

/// The style of all pages.
pub const STYLE: &str = include_str!("../assets/style.css");
/// Loads a page again while somebody looks at it, and swaps in what has changed.
pub const LIVE: &str = include_str!("../assets/live.js");

/// What all pages say at their edges.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The coordinator that was asked.
    pub server: &'a str,
    /// When it was asked, in microseconds since 1970.
    pub now_us: u64,
    /// The path with its query, under which this page is found.
    pub path: &'a str,
}

impl Frame<'_> {
    /// Whether this page, or one below it, is at that path.
    pub(crate) fn at(&self, path: &str) -> bool {
        let own = self.path.split('?').next().unwrap_or_default();
        match path {
            "/" => own == "/" || own.starts_with("/jobs/"),
            path => own.starts_with(path),
        }
    }

    pub(crate) fn as_of(&self) -> String {
        words::utc_seconds(self.now_us)
    }

    /// The address of what the page shows as JSON, where there is one.
    pub(crate) fn json(&self) -> Option<String> {
        let own = self.path.split('?').next().unwrap_or_default();
        match own {
            "/" => Some("/jobs.json".to_owned()),
            "/nodes" | "/events" | "/queue" => Some(format!("{own}.json")),
            own if own.starts_with("/nodes/") => Some(format!("{own}.json")),
            own if own.starts_with("/jobs/") && own.matches('/').count() == 3 => {
                Some(format!("{own}.json"))
            }
            _ => None,
        }
    }
}

/// What a person chose in the address.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only what has this text in it.
    pub text: String,
    /// Counted from 0.
    pub page: usize,
    /// Events: warnings alone.
    pub warnings: bool,
}

/// All that is known of a job.
#[derive(Clone, Debug, Default)]
pub struct JobStory {
    pub explained: v1::ExplainResponse,
    /// The job's file, without secrets.
    pub spec: String,
}

/// Rows of a list on one page.
pub const ROWS: usize = 100;

/// The part of a list that a page shows, and how to reach the rest.
pub(crate) struct Paged<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) all: usize,
    pub(crate) first: usize,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

impl<T> Paged<T> {
    /// The part of all rows that the choice shows.
    pub(crate) fn of(rows: Vec<T>, choice: &Choice) -> Self {
        let (all, first) = (rows.len(), choice.first(rows.len()));
        let rows = rows.into_iter().skip(first).take(ROWS);
        Self::part(rows.collect(), all, choice)
    }

    /// That part, of so many rows.
    pub(crate) fn part(rows: Vec<T>, all: usize, choice: &Choice) -> Self {
        let first = choice.first(all);
        let page = first / ROWS;
        let at = |page: usize| choice.query(page);
        Self {
            before: page.checked_sub(1).map(at),
            after: (first + ROWS < all).then(|| at(page + 1)),
            rows,
            all,
            first: first + usize::from(all > 0),
        }
    }

    pub(crate) fn last(&self) -> usize {
        (self.first + self.rows.len()).saturating_sub(1)
    }
}

impl Choice {
    /// The first row of the chosen page, counted from 0, if there are so many rows in all. After the last page: that of the last.
    pub fn first(&self, all: usize) -> usize {
        self.page.min(all.saturating_sub(1) / ROWS) * ROWS
    }

    /// The query of the same choice on another page.
    fn query(&self, page: usize) -> String {
        let mut parts = Vec::new();
        if !self.text.is_empty() {
            parts.push(format!("q={}", words::in_query(&self.text)));
        }
        if self.warnings {
            parts.push("warnings=1".to_owned());
        }
        if page > 0 {
            parts.push(format!("page={page}"));
        }
        format!("?{}", parts.join("&"))
    }

    pub(crate) fn takes(&self, texts: &[&str]) -> bool {
        let wanted = self.text.to_lowercase();
        wanted.is_empty()
            || texts
                .iter()
                .any(|text| text.to_lowercase().contains(&wanted))
    }
}
