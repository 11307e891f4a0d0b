//! Many readers of `muster web` at once. Each has one page open, which looks again two seconds after each answer, as the script of
//! the pages does. The coordinator is measured for as long without them first.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    coordinator::Coordinator,
    figures::{Meanwhile, Read, ReadPage, Spread},
    http,
    pages::{Door, PAGES},
    taken::Taken,
};

/// `EVERY_MS` of page/assets/live.js.
const EVERY: Duration = Duration::from_secs(2);

pub(crate) async fn readers(
    muster: &Path,
    coordinator: &Coordinator,
    readers: usize,
    during: Duration,
) -> Result<Read> {
    let alone = coordinator.taken()?;
    sleep(during).await;
    let before = coordinator.taken()?;

    let mut door = Door::open(muster, coordinator).await?;
    let (cookie, address) = (door.enter().await?, door.address);
    let web = door.program.id().context("it runs")?;
    let web_before = Taken::of(web)?;
    let until = Instant::now() + during;
    let mut looking = JoinSet::new();
    for reader in 0..readers {
        let cookie = cookie.clone();
        // They have come one after the other.
        let first = EVERY * reader as u32 / readers as u32;
        looking.spawn(async move {
            let page = reader % PAGES.len();
            let mut took = Vec::new();
            sleep(first).await;
            let mut browser = http::Browser::connect(address, cookie).await?;
            while Instant::now() < until {
                let (time, answer) = browser.get(PAGES[page]).await?;
                ensure!(answer.status == 200, "{}: {}", PAGES[page], answer.head);
                took.push(time.as_secs_f64());
                sleep(EVERY).await;
            }
            anyhow::Ok((page, took))
        });
    }
    let mut by_page = vec![Vec::new(); PAGES.len()];
    while let Some(done) = looking.join_next().await {
        let (page, took) = done.context("a reader panicked")??;
        by_page[page].extend(took);
    }
    let (after, web_after) = (coordinator.taken()?, Taken::of(web)?);
    door.program.kill().await?;
    let pages = PAGES.iter().zip(&by_page).map(|(path, took)| ReadPage {
        path,
        ms: Spread::of(took.iter().copied()),
    });
    Ok(Read {
        readers,
        pages: pages.collect(),
        ms: Spread::of(by_page.into_iter().flatten()),
        quiet: Meanwhile::between(&alone, &before),
        watched: Meanwhile::between(&before, &after),
        web: Meanwhile::between(&web_before, &web_after),
    })
}
