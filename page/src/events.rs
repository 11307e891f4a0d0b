//! What happened, the newest first.

use askama::Template;
use muster_proto::v1::Event;

use crate::{Choice, Frame, Paged, words};

#[derive(Template)]
#[template(path = "events.html")]
struct Page<'a> {
    frame: Frame<'a>,
    choice: &'a Choice,
    events: Paged<Row>,
}

pub(crate) struct Row {
    pub(crate) at: String,
    pub(crate) age: String,
    pub(crate) class: &'static str,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) namespace: String,
    pub(crate) job: String,
    pub(crate) node: String,
}

/// The page of all events that the choice takes.
pub fn events(frame: Frame<'_>, events: &[Event], choice: &Choice) -> String {
    let wanted = |event: &&Event| {
        let texts = [
            &*event.reason,
            &event.message,
            &event.job,
            &event.node,
            &event.namespace,
        ];
        let class = Row::of_severity(event.severity());
        choice.takes(&texts) && (!choice.warnings || class == "warn")
    };
    let rows = events
        .iter()
        .rev()
        .filter(wanted)
        .map(|event| row(event, frame.now_us));
    let page = Page {
        frame,
        choice,
        events: Paged::of(rows.collect(), choice),
    };
    crate::refused::drawn(page.render())
}

pub(crate) fn row(event: &Event, now_us: u64) -> Row {
    Row {
        at: words::utc_seconds(event.at_unix_us),
        age: words::age(event.at_unix_us, now_us),
        class: Row::of_severity(event.severity()),
        reason: event.reason.clone(),
        message: event.message.clone(),
        namespace: event.namespace.clone(),
        job: event.job.clone(),
        node: event.node.clone(),
    }
}
