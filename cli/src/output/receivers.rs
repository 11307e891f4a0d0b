//! Those who are told of what happens: their columns, and one as `-o json` prints it.

use muster_proto::v1::{Open, Receiver};
use serde::Serialize;

use super::{listing::Listed, words};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    name: String,
    form: String,
    address: String,
    kinds: Vec<String>,
    waiting: u32,
    oldest: Option<String>,
    dropped: u64,
    delivered: u64,
    failed: u64,
    last_delivered: Option<String>,
    last_error: Option<String>,
    last_error_at: Option<String>,
    open_to_jobs: Vec<String>,
    dropped_of_jobs: u64,
    last_error_of_jobs: Option<String>,
}

fn moment(us: u64) -> Option<String> {
    (us > 0).then(|| words::utc(us))
}

fn said(error: String) -> Option<String> {
    (!error.is_empty()).then_some(error)
}

impl From<Receiver> for Document {
    fn from(receiver: Receiver) -> Self {
        Document {
            oldest: moment(receiver.oldest_unix_us),
            last_delivered: moment(receiver.last_delivered_unix_us),
            last_error_at: moment(receiver.last_error_unix_us),
            last_error: said(receiver.last_error),
            name: receiver.name,
            form: receiver.form,
            address: receiver.address,
            kinds: receiver.kinds,
            waiting: receiver.waiting,
            dropped: receiver.dropped,
            delivered: receiver.delivered,
            failed: receiver.failed,
            open_to_jobs: receiver.open_to_jobs,
            dropped_of_jobs: receiver.dropped_of_jobs,
            last_error_of_jobs: said(receiver.last_error_of_jobs),
        }
    }
}

/// What a job may name of it. Its own name stands in the row already.
fn open(receiver: &Receiver) -> String {
    let word = |name: &String| match *name == receiver.name {
        true => "by name".to_owned(),
        false => name.clone(),
    };
    let words: Vec<String> = receiver.open_to_jobs.iter().map(word).collect();
    words.join(", ")
}

impl Listed for Receiver {
    type Document = Document;

    fn kind(&self) -> &'static str {
        "receiver"
    }

    fn heads(wide: bool, _: bool) -> Vec<&'static str> {
        let mut heads = vec![
            "NAME",
            "FORM",
            "STATE",
            "WAITING",
            "OLDEST",
            "DELIVERED",
            "FAILED",
            "OPEN TO JOBS",
        ];
        if wide {
            heads.extend(["DROPPED", "ADDRESS", "KINDS", "LAST ERROR"]);
        }
        heads
    }

    fn row(&self, now_us: u64, wide: bool, _: bool) -> Vec<String> {
        let state = match (self.last_error.is_empty(), self.delivered) {
            (false, _) => "Failing",
            (true, 0) => "Untried",
            (true, _) => "Ok",
        };
        let oldest = match self.oldest_unix_us {
            0 => String::new(),
            at => words::age(at, now_us),
        };
        let mut row = vec![
            self.name.clone(),
            self.form.clone(),
            state.to_owned(),
            self.waiting.to_string(),
            oldest,
            self.delivered.to_string(),
            self.failed.to_string(),
            open(self),
        ];
        if wide {
            row.push(self.dropped.to_string());
            row.push(self.address.clone());
            row.push(self.kinds.join(","));
            row.push(match self.last_error_of_jobs.as_str() {
                error if self.last_error.is_empty() && !error.is_empty() => {
                    format!("for jobs: {error}")
                }
                _ => self.last_error.clone(),
            });
        }
        row
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn key(&self) -> String {
        self.name()
    }
}

/// What a job may name.
#[derive(Debug, Serialize)]
pub(crate) struct OpenDocument {
    name: String,
    form: String,
}

impl From<Open> for OpenDocument {
    fn from(Open { name, form }: Open) -> Self {
        Self { name, form }
    }
}

impl Listed for Open {
    type Document = OpenDocument;

    fn kind(&self) -> &'static str {
        "receiver"
    }

    fn heads(_: bool, _: bool) -> Vec<&'static str> {
        vec!["OPEN TO JOBS", "FORM"]
    }

    fn row(&self, _: u64, _: bool, _: bool) -> Vec<String> {
        vec![self.name.clone(), self.form.clone()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn key(&self) -> String {
        self.name()
    }
}
