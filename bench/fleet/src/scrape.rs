//! What a scrape of `/metrics` costs, as the scraper sees it: from the connection to the last byte.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use muster_proto::v1::{JobRef, JobSpec, SubmitRequest};
use muster_rpc::{Address, dial, dial::Options as DialOptions};
use tokio::time::sleep;

use crate::{
    coordinator::Coordinator,
    figures::{Scraped, Spread},
    http,
};

/// Small jobs need a second or two to start. Anything slower is a failure worth reading about.
const PATIENCE: Duration = Duration::from_secs(300);

/// The pause between two scrapes. Prometheus scrapes every 15 s or less often; this is enough for the engine to be
/// at rest again.
const PAUSE: Duration = Duration::from_millis(200);

/// Submits so many jobs of one node each, waits until all train, and scrapes.
pub(crate) async fn scrapes(
    coordinator: &Coordinator,
    user: DialOptions,
    jobs: usize,
    scrapes: usize,
) -> Result<Scraped> {
    submit(&coordinator.url()?, user, jobs).await?;
    let metrics = coordinator.metrics()?;
    let until = Instant::now() + PATIENCE;
    loop {
        let page = scrape(metrics).await?.1;
        let training = training(&page);
        if training >= jobs {
            break;
        }
        ensure!(
            Instant::now() < until,
            "only {training} of {jobs} jobs train"
        );
        sleep(Duration::from_secs(1)).await;
    }
    let (mut times, mut last) = (Vec::new(), String::new());
    let before = coordinator.taken()?;
    for _ in 0..scrapes {
        let (took, page) = scrape(metrics).await?;
        times.push(took.as_secs_f64());
        last = page;
        sleep(PAUSE).await;
    }
    let after = coordinator.taken()?;
    Ok(Scraped {
        jobs: training(&last),
        bytes: last.len(),
        series: last.lines().filter(|line| !line.starts_with('#')).count(),
        ms: Spread::of(times),
        cores: (after.cpu_s - before.cpu_s) / (after.at - before.at).as_secs_f64(),
        rss_mib: after.rss_kib as f64 / 1_024.0,
    })
}

/// Jobs that train, as the page has them.
fn training(page: &str) -> usize {
    let own = page
        .lines()
        .filter(|line| line.starts_with("muster_job_phase{"));
    own.filter(|line| line.contains("phase=\"Running\""))
        .count()
}

async fn submit(coordinator: &Address, user: DialOptions, jobs: usize) -> Result<()> {
    let mut client = dial(coordinator, user).await?.jobs();
    for number in 0..jobs {
        let spec = JobSpec {
            replicas: Some(1),
            gpus_per_node: Some(0),
            args: vec!["train.py".into()],
            ..JobSpec::default()
        };
        let request = SubmitRequest {
            r#ref: Some(JobRef {
                // A namespace has a share of what may be submitted at once.
                namespace: format!("team-{}", number / 100),
                name: format!("job-{number:04}"),
            }),
            spec: Some(spec),
            ..SubmitRequest::default()
        };
        client.submit(request).await.context("submit a small job")?;
    }
    Ok(())
}

/// One scrape: how long it took, and the page.
async fn scrape(address: SocketAddr) -> Result<(Duration, String)> {
    let (took, answer) = http::get(address, "/metrics", None).await?;
    ensure!(
        answer.status == 200,
        "the scrape was answered with {}",
        answer.status
    );
    Ok((took, answer.body))
}
