//! Where the time of all jobs has gone: by cause, and by job.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use askama::Template;
use muster_proto::v1::{Job, TimeAccount};

use crate::{Frame, spent, state, words};

/// Jobs that are listed.
const LISTED: usize = 50;

#[derive(Template)]
#[template(path = "goodput.html")]
struct Page<'a> {
    frame: Frame<'a>,
    all: Vec<spent::Spent>,
    causes: Vec<Cause>,
    jobs: Vec<Row>,
}

struct Cause {
    name: String,
    state: String,
    jobs: usize,
    time: String,
    gpu_time: String,
}

struct Row {
    namespace: String,
    name: String,
    goodput: String,
    lost: String,
    gpu_lost: String,
    spent: Vec<spent::Spent>,
}

/// The page of all jobs' time.
pub fn goodput(frame: Frame<'_>, jobs: &[Job]) -> String {
    let accounts = jobs
        .iter()
        .filter_map(|job| Some((job, job.status.as_ref()?.time.as_ref()?)));
    let accounts: Vec<(&Job, &TimeAccount)> = accounts.collect();
    let sum = TimeAccount {
        spent: accounts
            .iter()
            .flat_map(|(_, account)| account.spent.clone())
            .collect(),
        ..TimeAccount::default()
    };
    let mut causes: BTreeMap<(&str, &str), (u64, u64, BTreeSet<&str>)> = BTreeMap::new();
    for (job, account) in &accounts {
        for one in account
            .spent
            .iter()
            .filter(|one| !one.cause.is_empty() || !one.reason.is_empty())
        {
            let name = if one.cause.is_empty() {
                &one.reason
            } else {
                &one.cause
            };
            let (us, gpu_us, jobs) = causes.entry((name, &one.state)).or_default();
            *us += one.us;
            *gpu_us += one.gpu_us;
            jobs.insert(&job.uid);
        }
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, (us, gpu_us, _))| Reverse((*gpu_us, *us)));
    let cause =
        |((name, state), (us, gpu_us, jobs)): ((&str, &str), (u64, u64, BTreeSet<&str>))| Cause {
            name: name.to_owned(),
            state: state.to_owned(),
            jobs: jobs.len(),
            time: words::span(us),
            gpu_time: gpu_time(gpu_us),
        };
    let mut rows: Vec<_> = accounts
        .iter()
        .map(|(job, account)| (lost(account), *job, *account))
        .collect();
    rows.sort_by_key(|((us, gpu_us), ..)| Reverse((*gpu_us, *us)));
    let page = Page {
        frame,
        all: spent::rows(&sum),
        causes: causes.into_iter().map(cause).collect(),
        jobs: rows.into_iter().take(LISTED).map(row).collect(),
    };
    crate::refused::drawn(page.render())
}

/// Empty where no GPU was held.
fn gpu_time(us: u64) -> String {
    match us {
        0 => String::new(),
        us => words::span(us),
    }
}

/// Time, and GPU time, in which a job that had begun did not train.
fn lost(account: &TimeAccount) -> (u64, u64) {
    let lost = account
        .spent
        .iter()
        .filter(|one| !matches!(&*one.state, "training" | "queued" | "stopping"));
    lost.fold((0, 0), |(us, gpu_us), one| {
        (us + one.us, gpu_us + one.gpu_us)
    })
}

fn row(((us, gpu_us), job, account): ((u64, u64), &Job, &TimeAccount)) -> Row {
    let (namespace, name) = state::name(job);
    Row {
        namespace,
        name,
        goodput: account.goodput.map_or_else(String::new, words::percent),
        lost: words::span(us),
        gpu_lost: gpu_time(gpu_us),
        spent: spent::rows(account),
    }
}
