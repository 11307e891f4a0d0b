//! Measures how long the pages of `muster web` take, from the connection to the last byte. The first
//! look at each page is told by itself: nothing is warm then.

use std::{
    net::SocketAddr,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::{
    coordinator::Coordinator,
    figures::{Paged, Spread},
    http,
};

/// The pages, with a short job, a job of all members, a search that finds 1,000 nodes, a late page of all, and a node.
pub(crate) const PAGES: [&str; 11] = [
    "/",
    "/?q=job-05",
    "/jobs/team-0/job-0000",
    "/jobs/default/large",
    "/queue",
    "/nodes",
    "/nodes?q=node-04",
    "/nodes?page=57",
    "/nodes/node-00042",
    "/goodput",
    "/events",
];

/// The limit for the program to say its address.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two pages: the coordinator is at rest again. A page that is seen looks again
/// every two seconds.
const PAUSE: Duration = Duration::from_millis(50);

/// Reads each page so many times, one after the other.
pub(crate) async fn pages(
    muster: &Path,
    coordinator: &Coordinator,
    times: usize,
) -> Result<Vec<Paged>> {
    let mut door = Door::open(muster, coordinator).await?;
    let cookie = door.enter().await?;
    let mut found = Vec::new();
    for path in PAGES {
        let (mut took, mut bytes, mut first_ms) = (Vec::new(), 0, 0.0);
        let (before, began) = (coordinator.taken()?, Instant::now());
        for look in 0..times {
            // An address of its own: a page that was made a moment ago for the same one would be shared.
            let sign = if path.contains('?') { '&' } else { '?' };
            let address = format!("{path}{sign}look={look}");
            let (time, page) = http::get(door.address, &address, Some(&cookie)).await?;
            ensure!(page.status == 200, "{path}: {}", page.head);
            if took.is_empty() {
                first_ms = time.as_secs_f64() * 1e3;
            }
            took.push(time.as_secs_f64());
            bytes = page.body.len();
            sleep(PAUSE).await;
        }
        let cpu = coordinator.taken()?.cpu_s - before.cpu_s;
        found.push(Paged {
            path,
            bytes,
            first_ms,
            ms: Spread::of(took),
            cores: cpu / began.elapsed().as_secs_f64(),
        });
    }
    door.program.kill().await?;
    Ok(found)
}

/// `muster web`, as it runs on a person's machine.
pub(crate) struct Door {
    pub(crate) program: Child,
    pub(crate) address: SocketAddr,
    link: String,
}

impl Door {
    pub(crate) async fn open(muster: &Path, coordinator: &Coordinator) -> Result<Self> {
        let mut program = Command::new(muster)
            .args(["web", "--server", &coordinator.url()?.to_string()])
            .env_remove("MUSTER_CONTEXT")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", muster.display()))?;
        let stdout = program.stdout.take().context("its output is a pipe")?;
        let mut lines = BufReader::new(stdout).lines();
        let link = timeout(PATIENCE, lines.next_line())
            .await
            .context("no link is printed")??
            .context("it ended without a link")?;
        let rest = link.strip_prefix("http://").context("a link is a URL")?;
        let (address, path) = rest.split_once('/').context("a link has a path")?;
        Ok(Self {
            program,
            address: address.parse()?,
            link: format!("/{path}"),
        })
    }

    /// Uses the link, and returns the cookie that it gives.
    pub(crate) async fn enter(&mut self) -> Result<String> {
        let (_, answer) = http::get(self.address, &self.link, None).await?;
        let is_cookie = |line: &str| {
            let (name, value) = line.split_once(':')?;
            let value = value.trim().split(';').next()?;
            name.eq_ignore_ascii_case("set-cookie")
                .then(|| value.to_owned())
        };
        let found = answer.head.lines().find_map(is_cookie);
        found.with_context(|| format!("the link gives no cookie: {}", answer.head))
    }
}
