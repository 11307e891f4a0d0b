//! A page that says why there is no other.

use askama::Template;

#[derive(Template)]
#[template(path = "refused.html")]
struct Page<'a> {
    title: &'a str,
    why: &'a str,
    next: &'a str,
}

/// A page that says what went wrong, and what to do next.
pub fn refused(title: &str, why: &str, next: &str) -> String {
    drawn(Page { title, why, next }.render())
}

/// Writing to memory fails for no reason of ours; if it does, the reason is the page.
pub(crate) fn drawn(page: askama::Result<String>) -> String {
    page.unwrap_or_else(|error| format!("this page could not be drawn: {error}"))
}
