//! `-w`: stays and prints the rows that change. When the coordinator comes back after an absence, rows
//! go on, and what stands there already is not printed again.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    time::{Duration, Instant},
};

use muster_rpc::credentials::now_us;
use tonic::Status;

use super::{document, name_line};
use crate::{
    args::Format,
    commands::follow::Away,
    connect::Client,
    context::Context,
    fail::Failure,
    output::{self, listing::Listed, table::Table},
};

/// Prints objects one by one as they change, and the heads only once.
pub(super) struct Printer {
    table: Table,
    heads_due: bool,
    wide: bool,
    namespaced: bool,
}

impl Printer {
    pub(super) fn new(cx: &Context, namespaced: bool) -> Printer {
        Printer {
            table: Table::new(Vec::new()),
            heads_due: !cx.globals.no_headers,
            wide: cx.format() == Format::Wide,
            namespaced,
        }
    }

    pub(super) fn print<T: Listed>(&mut self, cx: &Context, item: &T) -> Result<(), Failure> {
        self.print_all(cx, std::slice::from_ref(item))
    }

    fn print_all<T: Listed>(&mut self, cx: &Context, items: &[T]) -> Result<(), Failure> {
        match cx.format() {
            // Prints one object after the other, as `kubectl get -w -o json` does.
            Format::Json => items
                .iter()
                .try_for_each(|item| cx.print(&output::json(&document(cx, item.clone())))),
            Format::Yaml => items.iter().try_for_each(|item| {
                cx.print(&format!(
                    "---\n{}",
                    output::yaml(&document(cx, item.clone()))
                ))
            }),
            Format::Name => cx.print(&items.iter().map(name_line).collect::<String>()),
            Format::Table | Format::Wide => {
                if self.table.is_empty() {
                    self.table = Table::new(T::heads(self.wide, self.namespaced));
                }
                let now = now_us();
                let rows: Vec<_> = items
                    .iter()
                    .map(|item| item.row(now, self.wide, self.namespaced))
                    .collect();
                let text = self
                    .table
                    .render(&rows, std::mem::take(&mut self.heads_due));
                cx.print(&text)
            }
        }
    }
}

/// How often a watch prints a row in which only the step has changed: often enough to see that the
/// job lives.
const RESTLESS: Duration = Duration::from_secs(5);

/// The row of one object that a watch printed last.
struct Shown {
    /// As `job/digits`.
    name: String,
    row: Vec<String>,
    calm: Vec<String>,
    at: Instant,
}

/// What one message of a watch means.
pub(super) enum Change<T> {
    Is(T),
    /// The object with this key was deleted.
    Gone(String),
    /// It is about nothing that is shown.
    Other,
}

impl<T: Listed> Change<T> {
    pub(super) fn of(item: Option<T>, deleted: bool) -> Self {
        match item {
            None => Self::Other,
            Some(item) if deleted => Self::Gone(item.key()),
            Some(item) => Self::Is(item),
        }
    }
}

/// Where the changes of one kind of object come from.
pub(super) trait Source {
    type Item: Listed;
    type Message;
    /// Begins to watch. What is there already comes first.
    fn watch(&self) -> impl Future<Output = Result<tonic::Streaming<Self::Message>, Status>>;
    fn read(
        &self,
        message: Self::Message,
    ) -> impl Future<Output = Result<Change<Self::Item>, Status>>;
    /// The keys of all objects that are there.
    fn keys(&self) -> impl Future<Output = Result<BTreeSet<String>, Failure>>;
}

/// The rows that were printed, by the key of their object.
struct Rows {
    printer: Printer,
    shown: BTreeMap<String, Shown>,
    namespaced: bool,
}

impl Rows {
    fn is<T: Listed>(&mut self, cx: &Context, item: &T) -> Result<(), Failure> {
        // Compared at a fixed time, because a new age alone is no change.
        let row_of = |item: &T| item.row(0, cx.format() == Format::Wide, self.namespaced);
        let (row, calm) = (row_of(item), row_of(&item.calm()));
        let is_due = self.shown.get(&item.key()).is_none_or(|last| {
            last.calm != calm || (last.row != row && last.at.elapsed() >= RESTLESS)
        });
        if !is_due {
            return Ok(());
        }
        let shown = Shown {
            name: format!("{}/{}", item.kind(), item.name()),
            row,
            calm,
            at: Instant::now(),
        };
        self.shown.insert(item.key(), shown);
        self.printer.print(cx, item)
    }

    fn gone(&mut self, cx: &Context, key: &str) {
        if let Some(shown) = self.shown.remove(key) {
            cx.say(format!("{} deleted", shown.name));
        }
    }

    /// Says which objects were deleted while nobody heard of it.
    fn only(&mut self, cx: &Context, there: &BTreeSet<String>) {
        let shown = self.shown.keys();
        let gone: Vec<String> = shown.filter(|key| !there.contains(*key)).cloned().collect();
        for key in gone {
            self.gone(cx, &key);
        }
    }
}

/// Follows a watch without end. Prints a row when something in it has changed that a person would
/// notice.
pub(super) async fn print<S: Source>(
    cx: &Context,
    client: &Client,
    namespaced: bool,
    source: &S,
) -> Result<(), Failure> {
    let mut rows = Rows {
        printer: Printer::new(cx, namespaced),
        shown: BTreeMap::new(),
        namespaced,
    };
    let mut away = Away::default();
    loop {
        let ended = match source.watch().await {
            Err(status) => status,
            Ok(mut stream) => {
                // The list is of a moment after the watch began, so all that is deleted later is heard.
                // Without an answer the watch ends soon, too.
                if !rows.shown.is_empty()
                    && let Ok(there) = source.keys().await
                {
                    away.is_back(cx);
                    rows.only(cx, &there);
                }
                loop {
                    let message = match stream.message().await {
                        Ok(Some(message)) => message,
                        Ok(None) => break Status::unavailable("the coordinator ended the watch"),
                        Err(status) => break status,
                    };
                    away.is_back(cx);
                    match source.read(message).await {
                        Ok(Change::Is(item)) => rows.is(cx, &item)?,
                        Ok(Change::Gone(key)) => rows.gone(cx, &key),
                        Ok(Change::Other) => {}
                        Err(status) => break status,
                    }
                }
            }
        };
        away.wait(cx, client, ended).await?;
    }
}
